"""Read what `heal view` shows: traces, answers as JSON, and run folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.errors import ConfigError, DataError, shortened
from heal.images import open_image
from heal.trace import Trace
from heal.trace_parts import TracedImage
from heal.view.answer import Shown, answer_data, picture, risky_word

TRACE, ANSWER = ".safetensors", ".json"


def is_run(path: Path) -> bool:
    """Whether the path is a folder, which must be a run."""
    if not path.exists():
        raise DataError(f"{shortened(str(path), 200)} is missing: give a trace, an answer as JSON, or a run folder")
    return path.is_dir()


def answers_from(paths: Sequence[Path], objects: Collection[str] | None = None, title: str = "") -> dict[str, Any]:
    """The answer view of traces and answers to one prompt."""
    found: dict[str, Shown] = {}
    facts: dict[str, Any] = {}
    for path in paths:
        if path.suffix == TRACE:
            own = {"": Shown.of(Trace.load(path))}
        elif path.suffix == ANSWER:
            own, facts = _answers(path)
        else:
            raise DataError(f"{path} is neither a trace ({TRACE}), an answer ({ANSWER}) nor a run folder")
        for name, one in own.items():
            found[_unused(name or one.method or path.stem, path.stem, found)] = one
    ordered = dict(sorted(found.items(), key=lambda item: item[1].method != "plain" and item[0] != "plain"))
    data = answer_data(ordered, objects=objects, title=title)
    return _with_facts(data, facts)


def _answers(path: Path) -> tuple[dict[str, Shown], dict[str, Any]]:
    """The answers in the output of `heal run --json`, and its prompt and image."""
    content = strict_json.read(path)
    if not isinstance(content, dict) or not isinstance(content.get("answer"), dict):
        raise DataError(f"{path} is not the output of `heal run --json`: it has no `answer`")
    found = {}
    for name in ("plain", "answer"):
        if content.get(name) is not None:
            method = "plain" if name == "plain" else content.get("method")
            found[str(method)] = _answer(path, name, content, str(method))
    return found, {"prompt": content.get("prompt"), "image": content.get("image"), "folder": path.parent}


def _answer(path: Path, name: str, content: Mapping[str, Any], method: str) -> Shown:
    one = content[name]
    if not isinstance(one, dict) or not isinstance(one.get("text"), str):
        raise DataError(f"{path}: `{name}` has no text")
    if isinstance(one.get("trace"), str):
        traced = Shown.of(Trace.load(_located(one["trace"], path.parent)))
        if traced.text != one["text"]:
            raise DataError(f"{path}: the trace {one['trace']} belongs to another answer: it has another text")
        return replace(traced, **_risks(path, name, one, len(traced.tokens)))
    tokens, logprobs = one.get("tokens") or (), one.get("logprobs") or ()
    if not isinstance(tokens, (list, tuple)) or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{path}: `tokens` of `{name}` must be a list of strings")
    _check_numbers(path, name, "logprobs", logprobs if tokens else (), len(tokens))
    options = content.get("options") if name == "answer" else None
    return Shown(
        text=one["text"],
        tokens=tokens,
        logprobs=_floats(logprobs) if tokens else (),
        fired=one.get("fired") if isinstance(one.get("fired"), dict) else None,
        method=method,
        model=str(content.get("model") or ""),
        options=options if isinstance(options, dict) else {},
        **_risks(path, name, one, len(tokens)),
    )


def _risks(path: Path, name: str, one: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The fields of an answer that say how risky it is. Empty if that is not known."""
    risk, words, threshold = one.get("risk") or (), one.get("objects"), one.get("threshold")
    _check_numbers(path, name, "risk", risk, tokens)
    if not risk:
        return {}
    if not isinstance(words, list) or isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        return {"risk": _floats(risk)}
    try:
        found = [risky_word(word, float(threshold)) for word in words]
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"{path}: `objects` of `{name}` are no object words with risks and reasons") from error
    if not all(0 <= word["start"] < word["stop"] <= tokens for word in found):
        raise DataError(f"{path}: `objects` of `{name}` name tokens that the answer does not have")
    return {"risk": _floats(risk), "words": found}


def _check_numbers(path: Path, name: str, key: str, values: Any, tokens: int) -> None:
    if not isinstance(values, (list, tuple)) or (values and len(values) != tokens):
        raise DataError(f"{path}: `{key}` of `{name}` must have one number for each of {tokens} tokens")
    if not all(value is None or type(value) in (int, float) for value in values):
        raise DataError(f"{path}: `{key}` of `{name}` must be numbers")


def _floats(values: Sequence[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _with_facts(data: dict[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the prompt and the picture of an answer without a trace."""
    prompt = facts.get("prompt")
    if isinstance(prompt, str) and not data["prompt"]:
        data |= {"prompt": prompt, "title": data["title"] if data["title"] != "Answer" else prompt}
    if isinstance(facts.get("image"), str) and not data["images"]:
        place = _located(facts["image"], facts["folder"])
        if place.is_file():  # the picture may have been moved since
            data["images"] = [picture(TracedImage.of(open_image(place)))]
    return data


def _located(name: str, folder: Path) -> Path:
    """A path as it was given, or beside the file that names it."""
    return Path(name) if Path(name).exists() else folder / Path(name).name


def _unused(name: str, stem: str, taken: Collection[str]) -> str:
    candidates = (name, f"{name} ({stem})", *(f"{name} {number}" for number in range(2, len(taken) + 3)))
    return next(one for one in candidates if one not in taken)


def check_one_kind(runs: Sequence[Path], paths: Sequence[Path]) -> None:
    if runs and len(paths) > 1:
        raise ConfigError(f"{runs[0]} is a run folder: give it alone, or only traces and answers")
