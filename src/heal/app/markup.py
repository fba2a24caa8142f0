"""The HTML of the app's own parts: status, growing answers, links. All text is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Sequence
from itertools import groupby
from urllib.parse import quote

from heal.app.answering import Panel, Progress
from heal.app.sessions import Answered
from heal.generate import Answer
from heal.live import SoFar
from heal.view.marks import Find

ROUTE = "heal"
"""The first part of the addresses of downloads."""
PAGE = "answer.html"
SUFFIX = ".safetensors"


def status(progress: Progress) -> str:
    """One line about what is going on. Errors are announced at once by screen readers."""
    if not progress.message:
        return ""
    kind = 'class="heal-error" role="alert"' if progress.failed else 'role="status"'
    return f"<p {kind}>{html.escape(progress.message)}</p>"


def live(progress: Progress, find: Find) -> str:
    """All answers so far, shaded."""
    parts = [panel(one, progress.objects, find) for one in progress.panels]
    kind = _kind(progress.panels[-1].so_far) if progress.panels else ""
    return "".join([*parts, _legend(kind, progress.objects is not None)]) if parts else ""


def panel(one: Panel, objects: Collection[str] | None, find: Find) -> str:
    """One answer with its shading, and facts if it is complete."""
    shown, kind = one.so_far, _kind(one.so_far)
    facts = "" if one.answer is None else f'<p class="heal-facts">{html.escape(facts_of(one.answer))}</p>'
    text = words(shown.tokens, values_of(shown), kind, objects, find)
    busy = "true" if one.answer is None else "false"
    return (
        f'<section class="heal-answer" aria-busy="{busy}"><h3>{html.escape(one.name)}</h3>'
        f'<p class="heal-text heal-{kind or "none"}">{text}</p>{facts}'
        "</section>"
    )


def values_of(shown: SoFar) -> Sequence[float]:
    """What shades each token: the risk of its object word, or the visual share. NaN where there is none."""
    if shown.judged is None:
        return shown.share
    risk = [math.nan] * len(shown.tokens)
    for word in shown.judged.objects:
        risk[slice(*word.tokens)] = [word.risk] * (word.tokens[1] - word.tokens[0])
    return risk


def words(
    tokens: Sequence[str], values: Sequence[float], kind: str, objects: Collection[str] | None, find: Find
) -> str:
    """The text, each word with its highest risk or its mean visual share as background."""
    text = "".join(tokens)
    wrong = [] if objects is None else [m for m in find(text) if m.category not in objects]
    parts, at = [], 0
    for own in _groups(tokens):
        word = "".join(tokens[index] for index in own)
        start, stop = at + len(word) - len(word.lstrip()), at + len(word)
        known = [values[i] for i in own if tokens[i].strip() and i < len(values) and not math.isnan(values[i])]
        value = 0.0 if not known else max(known) if kind == "risk" else sum(known) / len(known)
        marked = any(m.start < stop and m.stop > start for m in wrong)
        space = word[: len(word) - len(word.lstrip())] if at else ""
        note = ' class="heal-wrong" title="the picture does not show it"' if marked else ""
        shade = f' style="--v:{round(100 * min(1.0, max(0.0, value)))}"' if known else ""
        parts.append(f"{html.escape(space)}<span{note}{shade}>{html.escape(word.lstrip())}</span>")
        at = stop
    return "".join(parts)


def facts_of(answer: Answer) -> str:
    """Length, time, and what the method changed or left out."""
    count = len(answer.token_ids)
    parts = [f"{count} token{'' if count == 1 else 's'} in {answer.seconds:.1f} s"]
    if answer.finish == "length":
        parts.append("cut at the maximum length")
    if answer.fired is not None:
        fired = answer.fired
        steps = max(count, answer.sentences[-1].stop if answer.sentences else 0)
        parts.append(f"changed in {fired.steps} of {steps} steps" if fired else f"unchanged because {fired.reason}")
    parts += [f"left out: “{one.text.strip()}”" for one in answer.sentences if not one.kept]
    return " · ".join(parts)


def links(answered: Answered) -> str:
    """Downloads. The files are made when they are asked for."""
    base = f"{ROUTE}/{quote(answered.key)}/"
    names = [PAGE, *(f"{name}{SUFFIX}" for name, one in answered.answers.items() if one.trace is not None)]
    titles = ["Download the page (HTML)", *(f"Download the trace of {n.removesuffix(SUFFIX)}" for n in names[1:])]
    return " ".join(
        f'<a href="{base}{quote(name)}" download="{html.escape(name)}">{html.escape(title)}</a>'
        for name, title in zip(names, titles, strict=True)
    )


def _kind(shown: SoFar) -> str:
    return "risk" if shown.judged is not None else "share" if shown.share else ""


def _groups(tokens: Sequence[str]) -> list[list[int]]:
    """The tokens of each word, with the space before it."""
    number, numbers = 0, []
    for token in tokens:
        number += token[:1].isspace()
        numbers.append(number)
    return [[i for i, _ in own] for _, own in groupby(enumerate(numbers), key=lambda pair: pair[1])]


def _legend(kind: str, marked: bool) -> str:
    """What the shading means."""
    meanings = {
        "risk": "<i class='risk'></i>risk that an object word is hallucinated, from 0 to 1",
        "share": "<i class='share'></i>visual share of the synergy heads, from 0 to 1",
    }
    parts = [meanings[kind]] if kind else []
    if marked:
        parts.append("<span class='heal-wrong'>wavy</span>: the picture does not show it")
    return f'<p class="heal-legend">{" · ".join(parts)}</p>' if parts else ""
