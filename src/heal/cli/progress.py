"""Progress on standard error: a bar in a terminal, plain lines in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from heal.cli.output import note
from heal.escape import one_line

PAUSE = 10.0
"""Maximum seconds between two lines."""
PARTS = 10

Report = Callable[[str, int, int], None]
"""Called with a description, the number of finished items and the total."""


@dataclass
class PlainProgress:
    """Writes a line for every tenth of the work and at least every ten seconds.

    Another total, or fewer finished items than before, is other work, whose rate is measured on its own.
    """

    unit: str
    write: Callable[[str], None] = note
    clock: Callable[[], float] = time.monotonic
    _start: float | None = field(default=None, init=False)
    _before: int = field(default=0, init=False)
    """Items finished before the start, which do not count towards the rate."""
    _last: tuple[float, int] = field(default=(0.0, 0), init=False)
    _seen: tuple[int, int] = field(default=(0, 0), init=False)
    """Finished items and total of the last report."""

    def report(self, what: str, done: int, total: int) -> None:
        now = self.clock()
        part = PARTS * done // total if total else 0
        other, self._seen = other_work(self._seen, done, total), (done, total)
        if self._start is None or other:
            self._start, self._before, self._last = now, done, (now, part)
            if done < total:
                return
        elif part == self._last[1] and now - self._last[0] < PAUSE:
            return
        self._last = (now, part)
        self.write(self._line(one_line(what), done, total, now - self._start))

    def _line(self, what: str, done: int, total: int, seconds: float) -> str:
        share = f"{done}/{total} {self.unit} ({100 * done // max(1, total)} %)"
        made = done - self._before
        if not made or seconds <= 0:
            return f"{what}: {share}"
        left = f", about {seconds / made * (total - done):.0f} s left" if done < total else f" in {seconds:.0f} s"
        return f"{what}: {share}, {made / seconds:.1f} {self.unit}/s{left}"


def other_work(before: tuple[int, int], done: int, total: int) -> bool:
    """Whether these are not the same items as in the report before: finished items and total."""
    return total != before[1] or done < before[0]


@contextmanager
def progress(unit: str, shown: bool = True) -> Iterator[Report]:
    """Yield a function that reports progress."""
    if not shown:
        yield lambda what, done, total: None
    elif not sys.stderr.isatty():
        yield PlainProgress(unit).report
    else:
        with _bar(unit) as report:
            yield report


@contextmanager
def _bar(unit: str) -> Iterator[Report]:
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text(f"{task.speed or 0:.1f} {unit}/s")

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        Rate(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as display:
        line, seen = display.add_task("", total=None), (0, 0)

        def report(what: str, done: int, total: int) -> None:
            nonlocal seen
            if other_work(seen, done, total):
                display.reset(line)
            seen = done, total
            display.update(line, description=one_line(what, 60), completed=done, total=total)

        yield report
