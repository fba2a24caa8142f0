"""What every method costs: time per token, first token, memory, launches and host waits, alone and in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Sample
from heal.methods import HEAL, Guard, Method
from heal.studies.comparison import published
from heal.studies.interval import chosen
from heal.studies.launch_counts import TOKENS, Launched, counted, counts_of
from heal.studies.parts import Part
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Outcome, Report, Row, Study, Table, Value, Verdict
from heal.studies.timing import Times, rows_of, timed, times_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, PRINTED, GUARD = "plain", "heal, one draw", "guard"
LARGER = 8
"""Rows of the larger batch."""
BATCHES = 6
"""Larger batches that are timed."""
STEPS = 20
"""Timed decoding steps: two intervals of refreshed head types."""
MIB = 2**20
SINGLE = "it takes one prompt at a time, so that a token costs the same in a batch"

RATE, MS, RATIO = "tokens/s", "ms per token", "time ratio"
FIRST_MS, FIRST_RATIO = "first token ms", "first token ratio"
MEMORY = "peak MiB"
PER_TOKEN, PER_LAYER = "launches per token", "launches per step and layer"
WAITS, MORE_WAITS = "host waits per step", "waits beyond plain"


def methods_of(setup: Setup) -> dict[str, Method | None]:
    """The plain model and the user's methods, or all that there are."""
    if setup.methods:
        return {PLAIN: None} | {name: method for name, method in setup.methods.items() if method is not None}
    return published() | {"heal": chosen(setup), PRINTED: HEAL(preset="paper"), GUARD: Guard()}


def in_batches(setup: Setup, size: int) -> dict[str, Method | None]:
    """The methods that are measured with batches of this size. Those that take one prompt at a time answer the rows
    of a batch one by one, which takes as long as without a batch."""
    methods = methods_of(setup)
    return {name: m for name, m in methods.items() if size == 1 or m is None or not m.one_sample}


def sizes(setup: Setup) -> list[int]:
    """The batch sizes. The larger one has at most as many rows as there are images."""
    return sorted({1, min(LARGER, len(setup.captions(setup.distributions[0])))})


def parts(setup: Setup) -> list[Part]:
    images, found = setup.captions(setup.distributions[0]), list[Part]()
    for size in sizes(setup):
        methods = in_batches(setup, size)
        options: dict[str, Any] = {"methods": {n: None if m is None else m.options() for n, m in methods.items()}}
        some = images if size == 1 else images[: BATCHES * size]
        found.append(_timed(size, some, methods, options))
        found.append(counted(_launches(size), rows_of(images, size)[0], methods, options))
    return found


def _timed(
    size: int, samples: Sequence[Sample], methods: Mapping[str, Method | None], options: Mapping[str, Any]
) -> Part:
    named = {**options, "count": len(methods)}
    return timed(_times(size), samples, lambda vlm: (methods, {}), named, STEPS, size)


def _times(size: int) -> str:
    return f"times, batch {size}"


def _launches(size: int) -> str:
    return f"launches, batch {size}"


@dataclass(frozen=True)
class Costs:
    """Everything about one batch size, by method."""

    size: int
    times: Mapping[str, Times]
    launches: Mapping[str, Launched]
    batches: int
    """Number of timed batches."""
    skipped: Mapping[str, str]

    @classmethod
    def of(cls, found: Found, size: int) -> Costs:
        records, seed = found.records(_times(size)), found.setup.seed
        times, skipped = times_of(records, PLAIN, seed)
        launches, uncounted = counts_of(found.records(_launches(size)))
        single = dict.fromkeys(set(methods_of(found.setup)) - set(in_batches(found.setup, size)), SINGLE)
        return cls(size, times, launches, len(list(records)), {**uncounted, **skipped, **single})

    def cells(self, name: str) -> dict[str, Cell]:
        """The row of a method."""
        found: dict[str, Cell] = {}
        if name in self.times:
            own = self.times[name]
            found |= {
                RATE: Value.of(rate(own.ms), digits=1),
                MS: Value.of(own.ms),
                RATIO: None if name == PLAIN else Value.of(own.ratio),
                FIRST_MS: Value.of(own.first_ms, digits=1),
                FIRST_RATIO: None if name == PLAIN else Value.of(own.first_ratio),
                MEMORY: Value(own.memory / MIB, digits=0),
            }
        if name in self.launches:
            counts = self.launches[name]
            found |= {
                PER_TOKEN: Value(counts.per_token, digits=1),
                PER_LAYER: Value(counts.launches, digits=1),
                WAITS: Value(counts.waits),
            }
            if name != PLAIN and PLAIN in self.launches:
                found[MORE_WAITS] = Value(counts.waits - self.launches[PLAIN].waits)
        return found


def rate(ms: Interval) -> Interval:
    """Tokens per second from milliseconds per token."""
    return Interval(1e3 / ms.value, 1e3 / ms.high, 1e3 / ms.low)


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def report(found: Found) -> Report:
    every = [Costs.of(found, size) for size in sizes(found.setup)]
    names = [name for name in methods_of(found.setup) if any(name in c.times or name in c.launches for c in every)]
    rows = [
        Row({"batch": str(costs.size), "method": name}, costs.cells(name))
        for costs in every
        for name in names
        if name in costs.times or name in costs.launches
    ]
    return Report(
        (Table("cost", rows, "What every method costs"),),
        [_verdict(name, every) for name in names if name != PLAIN],
        {"cost": lambda: _figure(names, every)},
        _notes(found, every),
    )


def _verdict(name: str, every: Sequence[Costs]) -> Verdict:
    """One sentence about a method. The paper prints no costs."""
    claim = f"cost of {name}"
    timed_in = [costs for costs in every if name in costs.times]
    known = [costs for costs in timed_in if Value.of(costs.times[name].ratio).has_interval]
    if not known:
        timed_batches = max((costs.batches for costs in timed_in), default=0)
        text = f"{claim}: too few images for an interval ({timed_batches}): measure more images"
        return Verdict(claim, Outcome.TOO_FEW, text)
    ratios = " and ".join(f"{Value.of(c.times[name].ratio)} at batch {c.size}" for c in known)
    firsts = " and ".join(f"{Value.of(c.times[name].first_ratio)}" for c in known)
    text = f"{claim}: time per token {ratios} relative to plain, first token {firsts}"
    return Verdict(claim, Outcome.MEASURED, text + _counts_of(name, every))


def _counts_of(name: str, every: Sequence[Costs]) -> str:
    costs = next((c for c in every if name in c.launches and PLAIN in c.launches), None)
    if costs is None:
        return ""
    own, plain = costs.launches[name], costs.launches[PLAIN]
    return (
        f"; {own.launches:.1f} launches per step and layer (plain {plain.launches:.1f}) and {own.waits:.1f} host "
        f"waits per step (plain {plain.waits:.1f})"
    )


def _notes(found: Found, every: Sequence[Costs]) -> tuple[str, ...]:
    idle = sorted({name for c in every for name, own in c.times.items() if name != PLAIN and not own.changes})
    left_out = {f"{name} (batch {c.size}): {reason}" for c in every for name, reason in c.skipped.items()}
    on_cpu = "of the process, which keeps what it has freed, so that methods hardly differ"
    memory = "of the device" if found.model.get("device") == "cuda" else on_cpu
    batches = " and ".join(f"{c.batches} batches of {c.size}" for c in every)
    return (
        f"heal: α {_shown(chosen(found.setup))}. {PRINTED}: preset=paper, one Gaussian draw and unbounded factors."
        if not found.setup.methods
        else "Methods as the user gave them.",
        f"Times: greedy decoding of {STEPS + 1} tokens, all methods in turn on the same images; medians over "
        f"{batches}; ratios are paired. The time per token of a batch is divided by its rows.",
        f"Launches and waits: counted over {TOKENS} tokens, refreshes included, as by `heal speed --count`. On a CPU "
        "they are the operations that a GPU would launch; a compiled function counts as one.",
        f"Peak memory: {memory}, weights included.",
        "The paper prints no costs.",
        *(f"{name} changed nothing on these images, so its cost is that of looking only." for name in idle),
        *(f"Left out: {text}" for text in sorted(left_out)),
    )


def _shown(form: HEAL) -> str:
    alpha = "of the family" if form.alpha is None else f"{form.alpha}"
    return f"{alpha}, drift {form.drift}, refreshed every {form.interval} steps"


def _figure(names: Sequence[str], every: Sequence[Costs]) -> Figure:
    from heal.plots.forest import Column, forest

    nothing = Interval(*[float("nan")] * 3)
    rows = [name for name in names if name != PLAIN]

    def column(title: str, axis: str, figure: str) -> Column:
        series = {
            f"batch {c.size}": [getattr(c.times[name], figure) if name in c.times else nothing for name in rows]
            for c in every
        }
        return Column(title, axis, series, 1.0, logarithmic=True)

    return forest(
        rows,
        [column("time per token", "× plain", "ratio"), column("time to the first token", "× plain", "first_ratio")],
    )


STUDY = Study(
    "cost",
    "time per token, first token, memory, launches and host waits of every method, alone and in a batch",
    "no table or figure",
    parts,
    report,
)
