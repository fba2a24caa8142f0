"""The command line: every command and option, with unusual values."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main

from heal import VLM
from heal.cli import app as application
from heal.cli import main
from tests.fuzz import benchmarks, odd, strings
from tests.fuzz.oracle import Draw, Nonsense, check
from tests.fuzz.pictures import _encoded
from tests.fuzz.stored import finished_run, lasting, tiny

HEAVY = ("report", "calibrate", "compare", "speed", "study", "app")
"""Long commands, which are stopped where a model would be loaded."""
WRITTEN = ("trace", "out", "to")
REFUSALS = (2, 3)
PROMPTS = ("what is this ?", "Is there a dog?", "describe the image")
ONE = f"{strings.SCENES}=1"
FORCED = {
    "max_new_tokens": ("1", "2"),
    "limit": ("1", "2"),
    "count": ("1", "2"),
    "batch_size": ("1", "2", "16"),
    "num_beams": ("1", "2"),
    "samples": ("1", "2"),
    "resamples": ("10", "20"),
}
"""Valid values of options for which large values take long."""

LONG = ("max_new_tokens", "limit")
"""Options for which large valid numbers take long."""


class Accepted(BaseException):
    """The arguments of a long command were accepted."""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """All commands by their names."""
    found: dict[tuple[str, ...], Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", None)
        if inner is None:
            found[words] = command
            return
        for name, below in inner.items():
            walk(below, (*words, name))

    walk(typer.main.get_command(application.app), ())
    return found


@cache
def files() -> dict[str, Path]:
    """Valid inputs: an image, data, answers."""
    place = lasting() / "good"
    place.mkdir(exist_ok=True)
    (place / "a.png").write_bytes(_encoded("PNG", "RGB", (64, 48)) or b"")
    for name, (parts, _) in benchmarks.SCORED.items():
        benchmarks.write(parts, place / name)
    for name, parts in benchmarks.TASKS.items():
        benchmarks.write(parts, place / "data" / name)
    return {
        "image": place / "a.png",
        "data": place / "data" / "pope",
        "captions": place / "chair" / "captions.jsonl",
        "objects": place / "chair" / "objects.json",
        "questions": place / "pope" / "q.json",
        "answers": place / "pope" / "a.jsonl",
        "mme": place / "mme",
        "folder": place / "data",
        "run": finished_run(),
    }


def value(draw: Draw, words: tuple[str, ...], parameter: Any, wrong: float) -> str:
    """A value of an option or argument: arbitrary with probability `wrong`, otherwise valid."""
    name = parameter.name or ""
    if name in WRITTEN:
        suffix = ".safetensors" if name == "trace" else ""
        return odd.path_to_write(draw, suffix) if draw.often(0.5) else str(draw.place / f"new{suffix}")
    good = _good(draw, words, name, parameter)
    if good is not None and not draw.often(wrong):
        return good
    if name in LONG:
        return draw.choice([n for n in odd.NUMBERS if not _takes_long(n)])
    if name in (
        "image",
        "data",
        "captions",
        "objects",
        "questions",
        "answers",
        "synonyms",
        "pictures",
        "folder",
        "model",
    ):
        return odd.path_to_read(draw, files().get(name))
    return odd.argument(draw)


def _takes_long(number: str) -> bool:
    """Whether a number of tokens or samples is valid and large. Python reads 1_000 as 1000."""
    try:
        return int(number) > 5
    except ValueError:
        return False


def _good(draw: Draw, words: tuple[str, ...], name: str, parameter: Any) -> str | None:
    if name in FORCED:
        return draw.choice(FORCED[name])
    if name in ("method", "methods"):
        return draw.choice(("heal", "plain,heal", "plain,vcd", "heal:alpha=auto", "beam", strings.method_text(draw)))
    if name in ("task", "tasks"):
        return draw.choice(
            (
                f"mini-pope:{ONE}",
                f"mini-chair:{ONE}",
                f"mini-mme:{ONE},subtasks=count",
                "pope",
                strings.task_text(draw),
            )
        )
    if name == "answers" and "mme" in words:
        return str(files()["mme"])
    if name == "folder" and "run" in words:
        return str(Path(shutil.copytree(files()["run"], draw.place / "run", dirs_exist_ok=True)))
    plain = {
        "model": "random",
        "dtype": draw.choice(("auto", "float32", "bfloat16", "float64", "int8")),
        "prompt": draw.choice(PROMPTS),
        "device": draw.choice(("cpu", "cuda", "meta", "cpu:9")),
        "generate": strings.generate_text(draw),
        "alpha": "0.6",
        "what": draw.choice(("models", "methods", "tasks")),
        "against": draw.choice(("plain", "heal:alpha=0.6")),
        "judge": "m",
        "parts": "premise",
        "preset": "llava-1.5-7b",
        "seed": "0",
        "subject": "embedded",
        "names": draw.choice(("heads-by-token", "interval", "all", "list", "transfer")),
        "split": draw.choice(("validation", "test")),
        "distribution": draw.choice(("natural", "counter", "both")),
        "records": str(files()["run"]),
    }
    if name in plain:
        return plain[name]
    if name in files():
        return str(files()[name])
    choices = getattr(getattr(parameter, "type", None), "choices", None)
    if choices:
        return draw.choice([str(getattr(c, "value", c)) for c in choices])
    return draw.choice(("1", "2")) if isinstance(getattr(parameter, "default", None), (int, float)) else None


def arguments(draw: Draw) -> list[str]:
    words = draw.choice(list(commands()))
    found = list(words)
    wrong = draw.choice((0.0, 0.08, 0.08, 0.3))  # few at a time, so that errors occur at all depths
    for parameter in commands()[words].params:
        option = next((o for o in getattr(parameter, "opts", ()) if o.startswith("--")), None)
        if option is None:
            repeated = draw.choice((1, 1, 2, 0)) if parameter.nargs == -1 else int(draw.often(0.93))
            found += [value(draw, words, parameter, wrong) for _ in range(repeated)]
        elif parameter.name != "help" and (
            draw.often(0.93) if parameter.required else draw.often(0.22) or _needed(parameter.name)
        ):
            flag = getattr(parameter, "is_flag", False)
            given = value(draw, words, parameter, wrong)
            found += [option] if flag else [f"{option}={given}"] if draw.often(0.3) else [option, given]
    if draw.often(0.12):
        found.insert(
            draw.randint(0, len(found)),
            draw.choice((odd.argument(draw), "--json", "--no-such", "-h", "--", draw.choice(found))),
        )
    return [a for a in found if not any(c in a for c in odd.NOT_IN_ARGUMENTS)]


def _needed(name: str) -> bool:
    """Options that keep a command short."""
    return name in ("model", "max_new_tokens", "limit", "count")


def command_lines(draw: Draw) -> None:
    given = arguments(draw)
    draw.show("heal " + " ".join(map(repr, given)))
    judge_ended(given, call(draw, given))


def comparisons(draw: Draw) -> None:
    """Complete runs of `heal compare` with one or two samples."""
    methods = draw.choice(("plain,heal", "plain", "heal,vcd", "plain,beam:beams=2"))
    tasks = draw.choice(("pope", "chair", "mme", "pope,chair", "chair,mme,pope", ",", "chair,chair"))
    given = ["compare", "--out", str(draw.place / "run"), "--model", "random", f"--{strings.SCENES}", "1", "--limit"]
    given += [draw.choice(("1", "2")), "--methods", methods, "--tasks", tasks, *["--json"] * draw.often(0.5)]
    draw.show("heal " + " ".join(map(repr, given)))
    judge_ended(given, call(draw, given, whole=True))


def evaluations(draw: Draw) -> None:
    """Complete runs of `heal eval` with one sample and two tokens, with unusual decoding options."""
    task = draw.choice((f"mini-chair:{ONE}", f"mini-pope:{ONE},splits=random", f"mini-mme:{ONE},subtasks=count"))
    method = draw.choice(
        ("plain", "plain,heal", "heal", "plain,beam:beams=2", "dola", "vcd", "plain,pai", "vhr", "memvr")
    )
    given = [
        "eval",
        task,
        "--out",
        str(draw.place / "run"),
        "--model",
        "random",
        "--limit",
        "1",
        "--max-new-tokens",
        "2",
    ]
    given += ["--method", method, *["--json"] * draw.often(0.5), *["--prefix-cache"] * draw.often(0.3)]
    for _ in range(draw.choice((0, 1, 1, 2))):
        given += ["--generate", strings.generate_text(draw)]
    draw.show("heal " + " ".join(map(repr, given)))
    judge_ended(given, call(draw, given))


def call(draw: Draw, given: list[str], whole: bool = False) -> Ended:
    """Run the command in this process and capture its output; `whole`: long commands are not stopped early."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=e, write_through=True)
        for e in ("strict", "backslashreplace")
    )
    code = 0
    with (
        _short(given, whole),
        _inside(draw.place),
        warnings.catch_warnings(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        shown = warnings.showwarning
        try:
            with mock.patch.object(sys, "argv", ["heal", *given]):
                main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Accepted:
            pass
        finally:
            warnings.showwarning = shown
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return Ended(code, *texts)


@contextmanager
def _inside(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _short(given: list[str], whole: bool) -> Iterator[None]:
    """Use copies of one tiny model, and stop long commands when they would load one."""

    def accept(*_: object, **__: object) -> None:
        raise Accepted

    made_before = tiny()

    def copied(*_: object, **__: object) -> VLM:
        return copy.deepcopy(made_before)

    long = not whole and any(word in HEAVY for word in given[:3])
    made = accept if long else copied
    with (
        mock.patch.object(VLM, "random", made),
        mock.patch.object(VLM, "embedded", made),
        mock.patch("heal.speed.measure", accept),
        mock.patch("heal.cli.demo.demo", accept),
        mock.patch("heal.app.serve", accept) if find_spec("gradio") else nullcontext(),
        mock.patch.dict(os.environ, {"OPENAI_BASE_URL": ""}),
    ):
        yield


def judge_ended(given: list[str], ended: Ended) -> None:
    """Check the exit code, the error line and the output of a command."""
    both = ended.out + ended.err
    check("Traceback" not in both, "a traceback was printed")
    check(ended.code in (0, 2, 3, 4), f"exit code {ended.code}")
    acting = sorted({c for c in both if c in odd.CONTROL})
    check(not acting, f"output with raw control characters {acting!r}")
    if ended.code in REFUSALS and "check" not in given[:2]:
        errors = re.findall(r"^(?:heal: error|Error|error): .*\S", ended.err, flags=re.M)
        check(len(errors) == 1, f"{len(errors)} error lines")
        check(len(errors[0]) < 2000 + sum(map(len, given)), "an error line much longer than the input")
        check(not ended.out.strip(), "a refusal with results")
    if ended.code == 0:
        check("error:" not in ended.err.lower(), "an error with exit code 0")
        _check_results(given, ended.out)


def _check_results(given: list[str], out: str) -> None:
    if "--json" in given and out.strip() and not any(a in given for a in ("-h", "--help")):
        try:
            found = json.loads(out, parse_constant=_no_constant)
        except ValueError as error:
            raise Nonsense(f"--json does not print JSON: {error}") from error
        check(isinstance(found, (dict, list)), "--json does not print an object")
    if not any("nan" in a.lower() for a in given):
        check(not re.search(r"(?<![\w/.-])-?nan(?![\w/.-])", out, flags=re.I), "NaN is printed as a figure")


def _no_constant(name: str) -> None:
    raise ValueError(f"it contains {name}")
