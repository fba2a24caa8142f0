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

CSS = """
:root { --heal-risk: light-dark(#ffb38a, #8f3d0e); --heal-share: light-dark(#8fd8bf, #0d6049);
  --heal-wrong: light-dark(#b33a00, #ff9a66); }
body { color-scheme: light; }
body.dark { color-scheme: dark; }
.gradio-container { max-width: 1320px !important; margin: 0 auto !important; }
#head h1 { font-size: 1.5rem; margin: 0; }
#head p, .heal-facts, .heal-legend { opacity: .8; font-size: .9rem; margin: .15rem 0; }
#status p { margin: 0; padding: .5rem .75rem; border-radius: 6px; background: var(--background-fill-secondary); }
#status .heal-error { color: var(--heal-wrong); border: 1px solid currentColor; font-weight: 600; }
.heal-answer { margin: 0 0 1.1rem; }
.heal-answer h3 { font-size: 1rem; margin: 0 0 .2rem; }
.heal-text { font-size: 1.12rem; line-height: 1.75; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.heal-text span { border-radius: 3px; padding: 1px 0; }
.heal-risk span { background: color-mix(in srgb, var(--heal-risk) calc(var(--v) * 1%), transparent); }
.heal-share span { background: color-mix(in srgb, var(--heal-share) calc(var(--v) * 1%), transparent); }
.heal-text .heal-wrong { text-decoration: underline wavy var(--heal-wrong) 2px; text-underline-offset: 4px; }
.heal-legend i { display: inline-block; width: 90px; height: .8em; border-radius: 3px; margin: 0 .4em; vertical-align: -1px; }
.heal-legend i.risk { background: linear-gradient(to right, transparent, var(--heal-risk)); }
.heal-legend i.share { background: linear-gradient(to right, transparent, var(--heal-share)); }
#examples img { image-rendering: pixelated; }
#view iframe { display: block; }
#links a { margin-right: 1.2rem; text-decoration: underline; }
"""


def status(progress: Progress) -> str:
    """One line about what is going on. Errors are announced at once by screen readers."""
    if not progress.message:
        return ""
    kind = 'class="heal-error" role="alert"' if progress.failed else 'role="status"'
    return f"<p {kind}>{html.escape(progress.message)}</p>"


def live(progress: Progress, find: Find) -> str:
    """All answers so far, shaded."""
    parts = [panel(one, progress.objects, find) for one in progress.panels]
    kind = _kind(_shown(progress.panels[0])) if progress.panels else ""
    return "".join([*parts, _legend(kind, progress.objects is not None)]) if parts else ""


def panel(one: Panel, objects: Collection[str] | None, find: Find) -> str:
    """One answer with its shading, and facts if it is complete."""
    shown = _shown(one)
    kind = _kind(shown)
    values = getattr(shown, kind) if kind else ()
    facts = "" if one.answer is None else f'<p class="heal-facts">{html.escape(facts_of(one.answer))}</p>'
    busy = "true" if one.answer is None else "false"
    return (
        f'<section class="heal-answer" aria-busy="{busy}"><h3>{html.escape(one.name)}</h3>'
        f'<p class="heal-text heal-{kind or "none"}">{words(shown.tokens, values, kind, objects, find)}</p>{facts}'
        "</section>"
    )


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
        known = [values[i] for i in own if i < len(values) and not math.isnan(values[i])]
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
        parts.append(f"changed {fired.steps} steps" if fired else f"unchanged because {fired.reason}")
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


def _shown(one: Panel) -> SoFar:
    """The tokens of a panel with their values."""
    answer = one.answer
    if answer is None or answer.trace is None:
        return one.so_far
    risk = () if answer.risk is None else answer.risk
    return SoFar(_visible(answer), risk, () if risk else tuple(answer.trace.mean_alpha().tolist()))


def _visible(answer: Answer) -> tuple[str, ...]:
    """The tokens of a complete answer without special ones at its end."""
    assert answer.trace is not None
    tokens = list(answer.trace.tokens)
    while tokens and "".join(tokens).strip() != answer.text and "".join(tokens[:-1]).strip().startswith(answer.text):
        tokens.pop()
    return tuple(tokens)


def _kind(shown: SoFar) -> str:
    return "risk" if shown.risk else "share" if shown.share else ""


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
        parts.append("<span class='heal-text'><span class='heal-wrong'>wavy</span></span>: the picture does not show it")
    return f'<p class="heal-legend">{" · ".join(parts)}</p>' if parts else ""
