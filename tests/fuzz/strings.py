"""Names with options in command-line syntax, and the same values in Python."""

from __future__ import annotations

import json
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from heal.bench.run.names import method_name, methods_from, task_name, tasks_from
from heal.bench.run.plan import Settings
from heal.bench.tasks import catalogue
from heal.engine.decoding import parse_options
from heal.json_values import json_values
from heal.methods import available, create, parse
from tests.fuzz import odd
from tests.fuzz.oracle import Draw, check

SCENES = "count"
"""The option for the number of scenes of a miniature task."""
GENERATE = (
    "num_beams", "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "length_penalty",
    "early_stopping", "no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "max_length", "eos_token_id",
    "pad_token_id", "use_cache", "num_return_sequences", "penalty_alpha", "prompt_lookup_num_tokens",
    "cache_implementation", "bad_words_ids", "generation_config", "streamer", "suppress_tokens", "min_length",
    "epsilon_cutoff", "typical_p", "renormalize_logits", "num_beam_groups", "guidance_scale",
    "forced_eos_token_id", "stop_strings", "max_time", "input_ids", "images", "heal", "",
)  # fmt: skip


def _choices(hint: Any) -> list[str]:
    """Strings that are valid for a type."""
    found = [str(word) for word in typing.get_args(hint) if isinstance(word, str)]
    for member in typing.get_args(hint):
        found += _choices(member)
    return found


def option(draw: Draw, kind: type) -> str:
    """option=value of a method or task, almost valid."""
    hints = {f.name: typing.get_type_hints(kind)[f.name] for f in fields(kind)}
    key = draw.choice([*hints, *hints, odd.text(draw)[:50]])
    words = [
        *_choices(hints.get(key)),
        odd.number(draw),
        odd.number(draw),
        odd.text(draw),
        "0+1",
        "0-2",
        "2-0",
        "1-",
        "0+0",
    ]
    words += [
        "true",
        "false",
        "none",
        "auto",
        "profile",
        "all",
        "random+popular",
        "0-99999999999",
        "3+99999999999999999999",
    ]
    return f"{key}{draw.choice(('=', '=', '=', '=', '', '==', ' = '))}{draw.choice(words)}"


def named(draw: Draw, kinds: dict[str, type]) -> str:
    """A name with options. Long sequences of digits or letters are rare."""
    name = draw.choice(list(kinds)) if draw.often(0.93) else odd.argument(draw)
    options = ",".join(
        option(draw, kinds.get(name, next(iter(kinds.values())))) for _ in range(draw.choice((0, 1, 1, 1, 2, 3)))
    )
    return f"{name}{draw.choice((':', ':', ':', ':', '', '::', ' : '))}{options}" if options else name


def method_text(draw: Draw) -> str:
    found = [named(draw, dict(available())) for _ in range(draw.choice((1, 1, 1, 2)))]
    return draw.choice(("+", "+", ",", "+ ", "++")).join(found)


def task_text(draw: Draw) -> str:
    return named(draw, dict(catalogue.available_tasks()))


def generate_text(draw: Draw) -> str:
    key = draw.choice(GENERATE) if draw.often(0.9) else odd.argument(draw)
    words = (
        "true",
        "false",
        "True",
        "null",
        "[1]",
        "[[1]]",
        "{}",
        "[]",
        '"x"',
        "[",
        "static",
        "1e999",
        "-1",
        "0",
        "1",
        "2",
    )
    value = draw.choice(words) if draw.often(0.7) else odd.argument(draw)
    return f"{key}{draw.choice(('=', '=', '=', '', '=='))}{value}"


# ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────


def methods(draw: Draw) -> None:
    """The name of an accepted method parses to the same method."""
    text = method_text(draw)
    draw.show(text)
    method = parse(text)
    name = method_name(method)
    check(parse(name) == method, f"the name {name!r} is parsed as a different method")
    options = json.loads(json.dumps(json_values(method.options()), allow_nan=False))
    check(isinstance(options, dict), "options are not a JSON object")
    check("nan" not in name.lower().replace("profile=", ""), f"NaN was accepted: {name[:80]}")
    check(len(name) < 100_000, "a name of more than 100,000 characters")


def several_methods(draw: Draw) -> None:
    text = ",".join(draw.choice(("plain", method_text(draw))) for _ in range(draw.randint(0, 3)))
    draw.show(text)
    found = methods_from([text])
    again = methods_from([",".join(found)])
    check(again == found, "names are parsed as different methods")


def tasks(draw: Draw) -> None:
    text, data = task_text(draw), draw.choice((None, draw.place))
    draw.show(text)
    found = tasks_from([text], data)
    again = tasks_from(list(found), data)
    check(again == found, f"the name {next(iter(found))[:80]!r} is parsed as a different task")
    for task in found.values():
        json.dumps(json_values(dict(catalogue.options_of(task))), allow_nan=False)
        check(task.max_new_tokens > 0, "a task without tokens")


def constructors(draw: Draw) -> None:
    """Methods, tasks and settings created in Python with values of the wrong type."""
    kinds: dict[str, type] = {**available(), **catalogue.available_tasks()}
    name = draw.choice([*kinds, "settings", "settings"])
    if name == "settings":
        wrong = {draw.choice([f.name for f in fields(Settings)]): odd.value(draw) for _ in range(draw.randint(1, 2))}
        draw.show(f"Settings(**{wrong!r})")
        Settings(**wrong)
        return
    known = [f.name for f in fields(kinds[name]) if f.name != "data"]
    wrong = {draw.choice(known): odd.value(draw) for _ in range(draw.randint(1, 2))}
    draw.show(f"create({name!r}, **{wrong!r})")
    if name in available():
        made = create(name, **wrong)
        exact = not any(isinstance(v, int) and abs(v) > 2**53 for v in wrong.values())
        check(parse(method_name(made)) == made or not exact, f"{method_name(made)!r} is parsed as a different method")
    else:
        made_task = catalogue.create(name, draw.place, **wrong)
        check(task_name(made_task), "a task without a name")


def generating(draw: Draw) -> None:
    """--generate KEY=VALUE, checked without a model."""
    texts = [generate_text(draw) for _ in range(draw.randint(1, 2))]
    draw.show(texts)
    found = parse_options(texts)
    settings = Settings(generate=found)
    check("" not in settings.generate, "an option without a name")
    json.dumps(json_values(dict(settings.generate)), allow_nan=False)


def data_folders(draw: Draw) -> None:
    """Tasks with an invalid data folder."""
    name = draw.choice([n for n in catalogue.available_tasks() if catalogue.needs_data(n)])
    folder = odd.path_to_read(draw)
    draw.show(f"create({name!r}, {folder!r}).samples()")
    catalogue.create(name, Path(folder)).samples()
    check(False, f"{name} found samples in a folder without any")
