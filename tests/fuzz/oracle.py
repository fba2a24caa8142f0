"""The judge of the fuzzer: an odd input is accepted, refused in a clear line, or it is a failure.

A kind of input is a function that draws one input from a `Draw`, tries it, and checks what came out. It may end in
`HealError` (a clean refusal); `Nonsense` says that something was accepted that should not have been.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from heal.errors import HealError

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

Verdict = Literal["ok", "refused", "failed"]
MEMORY = 3 * 2**30
"""Bytes that one input may add to the address space: a header that asks for more is refused or is a failure."""
SHOWN = 600


class Nonsense(AssertionError):
    """An input was accepted, and what came out of it is wrong."""


class TooLong(BaseException):
    """The time limit of an input. No Exception, so that no handler in the code under test swallows it."""


class Draw(random.Random):
    """The source of one input: random numbers from the case alone, an empty folder, and a note of what was drawn."""

    def __init__(self, case: Case, place: Path) -> None:
        super().__init__(str(case))
        self.place = place
        self.shown = ""

    def show(self, value: Any) -> None:
        """What the input is, for the report."""
        text = value if isinstance(value, str) else repr(value)
        self.shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"

    def often(self, share: float) -> bool:
        return self.random() < share


@dataclass(frozen=True)
class Kind:
    """A kind of input."""

    name: str
    attempt: Callable[[Draw], None]
    weight: float
    """Its share of a long run, relative to the others."""
    few: int
    """How many of it the test suite tries."""
    seconds: float = 10.0
    """What takes longer hangs."""


@dataclass(frozen=True)
class Case:
    """One input, made again from its kind and number."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @classmethod
    def of(cls, text: str) -> Case:
        kind, _, number = text.partition(":")
        return cls(kind, int(number))


@dataclass(frozen=True)
class Outcome:
    case: Case
    verdict: Verdict
    what: str = ""
    """The error or the nonsense, in a line."""
    where: str = ""
    """The innermost place in the package, as file:function."""
    shown: str = ""
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def group(self) -> tuple[str, str]:
        """Failures alike in this are probably one defect."""
        return self.where, re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|-?[\d.]+|\[.*\]", "…", self.what)[:90]


def judge(kind: Kind, case: Case, base: Path | None = None) -> Outcome:
    """Try one input."""
    begun = time.perf_counter()
    outcome = _judged(kind, case, base)
    return replace(outcome, seconds=time.perf_counter() - begun)


def _judged(kind: Kind, case: Case, base: Path | None) -> Outcome:
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=base))
    draw = Draw(case, place)
    try:
        with _limits(kind.seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.attempt(draw)
        return Outcome(case, "ok", shown=draw.shown)
    except HealError as error:
        if problem := unclear(str(error)):
            return _failed(draw, case, error, problem)
        return Outcome(case, "refused", str(error), shown=draw.shown)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever it is: that is what is looked for
        return _failed(draw, case, error, f"{type(error).__name__}: {_first_line(error)}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def unclear(message: str) -> str:
    """Why a refusal is no clear message, or nothing."""
    if not message.strip():
        return "a refusal without a message"
    return ""


def _failed(draw: Draw, case: Case, error: BaseException, what: str) -> Outcome:
    detail = "".join(traceback.format_exception(error, limit=-12))
    where = case.kind if isinstance(error, Nonsense) else _where(error)
    return Outcome(case, "failed", what, where, draw.shown, detail[-4000:])


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""


def _where(error: BaseException) -> str:
    """Innermost frame of the package, else of this fuzzer."""
    frames = [(f.filename.replace("\\", "/"), f.name) for f in traceback.extract_tb(error.__traceback__)]
    own = [(name.rpartition("/src/heal/")[2], function) for name, function in frames if "/src/heal/" in name]
    if own:
        return ":".join(own[-1])
    return next((f"{name.rpartition('/')[2]}:{fn}" for name, fn in reversed(frames) if "/tests/fuzz/" in name), "?")


@contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """Time and memory for one input."""

    def stop(_: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _memory() -> Iterator[None]:
    used = _address_space()
    if resource is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return None


def is_amount(value: object) -> bool:
    """A finite number from 0 on, of a type that is meant to be one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def check(condition: object, problem: str) -> None:
    """An invariant of what was accepted."""
    if not condition:
        raise Nonsense(problem)
