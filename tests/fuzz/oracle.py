"""The oracle of the fuzzer: an input is accepted, refused with a clear message, or a failure.

A kind of input is a function that draws an input from a `Draw`, tries it, and checks the result. It may raise
`HealError` (a clean refusal) or `Nonsense` (an invalid input was accepted).
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
"""Address space in bytes that one input may use."""
BLOCKED = 6
"""How many times the processor time of its limit an input may take by the clock: it may wait for nothing, and other
programs may use the processor."""
SHOWN = 600


class Nonsense(AssertionError):
    """An input was accepted with a wrong result."""


class TooLong(BaseException):
    """The time limit was exceeded. Not an Exception, so that the code under test does not catch it."""


class Draw(random.Random):
    """The source of one input: random numbers that depend only on the case, an empty folder, and a description."""

    def __init__(self, case: Case, place: Path) -> None:
        super().__init__(str(case))
        self.place = place
        self.shown = ""

    def show(self, value: Any) -> None:
        """Describe the input for the report."""
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
    """Relative weight in a long run."""
    few: int
    """Number of inputs in the test suite."""
    seconds: float = 10.0
    """Time limit in seconds of the processor."""


@dataclass(frozen=True)
class Case:
    """One input, determined by its kind and number."""

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
    """The error in one line."""
    where: str = ""
    """The innermost frame in the package, as file:function."""
    shown: str = ""
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def group(self) -> tuple[str, str]:
        """Failures with the same group are probably the same defect."""
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
    except BaseException as error:  # any exception is a failure
        return _failed(draw, case, error, f"{type(error).__name__}: {_first_line(error)}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def unclear(message: str) -> str:
    """Why an error message is unclear, or an empty string."""
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
    """The innermost frame of the package, otherwise of the fuzzer."""
    frames = [(f.filename.replace("\\", "/"), f.name) for f in traceback.extract_tb(error.__traceback__)]
    own = [(name.rpartition("/src/heal/")[2], function) for name, function in frames if "/src/heal/" in name]
    if own:
        return ":".join(own[-1])
    return next((f"{name.rpartition('/')[2]}:{fn}" for name, fn in reversed(frames) if "/tests/fuzz/" in name), "?")


@contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """Limit time and memory of one input."""
    longest = seconds * BLOCKED
    with (
        _timer(signal.SIGPROF, signal.ITIMER_PROF, seconds, f"more than {seconds:g} s"),
        _timer(signal.SIGALRM, signal.ITIMER_REAL, longest, f"more than {longest:g} s by the clock"),
        _memory(),
    ):
        yield


@contextmanager
def _timer(sent: int, timer: int, seconds: float, problem: str) -> Iterator[None]:
    def stop(_: int, frame: FrameType | None) -> None:
        raise TooLong(problem)

    before = signal.signal(sent, stop)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(sent, before)


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
    """Whether a value is a finite number of 0 or more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def check(condition: object, problem: str) -> None:
    """Check an invariant of an accepted input."""
    if not condition:
        raise Nonsense(problem)
