"""The methods of Table 1: those of the toolkit, those that only the paper has, and who answers which images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heal.methods import HEAL, Combined, Guard, Method
from heal.studies.answered import CHAIR_I, CHAIR_S, LENGTH, RECALL
from heal.studies.comparison import EMBEDDED_HEAL, published
from heal.studies.paper import printed
from heal.studies.paper_table import PLAIN, Column, change, for_benchmark
from heal.studies.parts import Evaluation
from heal.studies.setup import WORLD_SAMPLES, Setup

BENCHMARKS = ("pope", "chair", "mme")
F1, MME = "POPE F1", "MME total"
COLUMNS = (
    Column(F1, "pope", "f1", "pope_f1"),
    Column("POPE accuracy", "pope", "accuracy", "pope_accuracy"),
    Column(CHAIR_S, "chair", "chair_s", "chair_s"),
    Column(CHAIR_I, "chair", "chair_i", "chair_i"),
    Column(RECALL, "chair", "recall", "recall"),
    Column(LENGTH, "chair", "len", "len"),
    *(
        Column(f"MME {topic}", "mme", f"{topic}/score", f"mme_{topic}")
        for topic in ("existence", "count", "position", "color")
    ),
    Column(MME, "mme", "total", "mme_total"),
)
BASELINE = "beam"
"""The row of the paper's table that equals the plain model of its Table 2. It has no greedy row."""
ONE_SIDED, GUARD = "heal one-sided", "guard"
NAMES = {
    "dopra": "DOPRA", "halc": "HALC", "eah": "EAH", "vista": "VISTA", "tame": "TAME", "causalmm": "CausalMM",
    "agla": "AGLA", "farsight": "FarSight", "only": "ONLY", "locore": "LocoRE",
}  # fmt: skip
"""Methods of the paper's table that this toolkit may not have."""
ABSENT = "not in this toolkit"
FEWER = 20
"""In the miniature world, methods that answer prompts one by one get one image in so many: OPERA alone would take
longer than all other methods together."""
ONE_BY_ONE = ", one by one"


@dataclass(frozen=True)
class Group:
    """Methods that answer the same images."""

    name: str
    """Ends the names of its parts."""
    setup: Setup
    methods: Mapping[str, Method | None]

    def part(self, benchmark: str) -> str:
        return benchmark + self.name

    def evaluations(self) -> Iterator[Evaluation]:
        for benchmark in self.setup.present(*BENCHMARKS):
            methods = for_benchmark(self.methods, benchmark, self.setup)
            tasks = self.setup.tasks(benchmark)
            yield Evaluation(self.part(benchmark), tasks, methods, self.setup.settings, leave_out=True)


def methods(setup: Setup) -> dict[str, Method | None]:
    """What the user gave, or every method of the toolkit with its published defaults; the plain model first."""
    if setup.methods:
        return {PLAIN: None, **{name: method for name, method in setup.methods.items() if method is not None}}
    one_sided = EMBEDDED_HEAL if setup.model == "embedded" else HEAL(drift="language")
    found = published()
    ours = {"heal": found.pop("heal"), ONE_SIDED: one_sided, GUARD: Guard()}
    places = {name: place for place, name in enumerate([PLAIN, *printed("table1", "methods")])}
    return dict(sorted(found.items(), key=lambda item: places.get(item[0], len(places)))) | ours


def is_ours(method: Method | None) -> bool:
    """HEAL and the guard, alone or combined. All others are rivals."""
    parts = method.parts if isinstance(method, Combined) else (method,)
    return any(isinstance(part, (HEAL, Guard)) for part in parts)


def groups(setup: Setup) -> list[Group]:
    """All methods together, except those that are too slow for all images of the miniature world."""
    every = methods(setup)
    slow = {name for name, method in every.items() if method is not None and method.one_sample}
    if setup.data is not None or not slow:
        return [Group("", setup, every)]
    fewer = replace(setup, samples=max(1, (setup.samples or WORLD_SAMPLES) // FEWER))
    beside = {name: method for name, method in every.items() if name in slow or method is None or is_ours(method)}
    return [
        Group("", setup, {name: method for name, method in every.items() if name not in slow}),
        Group(ONE_BY_ONE, fewer, beside),
    ]


def ours_of(setup: Setup, names: Sequence[str]) -> list[str]:
    every = methods(setup)
    return [name for name in names if is_ours(every[name])]


def printed_of(setup: Setup) -> dict[str, Mapping[str, Any]]:
    """The paper's row of each method, where it has this one. The paper's HEAL is two-sided."""
    table = printed("table1", "methods")
    found = {}
    for name, method in methods(setup).items():
        same = method is not None and not isinstance(method, Combined) and method.name in table
        if same and not (isinstance(method, HEAL) and method.drift != "both"):
            found[name] = table[method.name]  # type: ignore[union-attr]
    return found


def rows_in_order(setup: Setup) -> list[tuple[str, str]]:
    """The paper's row and the name of each method: plain, the rivals in the paper's order, other rivals, ours."""
    every = methods(setup)
    rivals = [name for name, method in every.items() if method is not None and not is_ours(method)]
    found = [(PLAIN, name) for name, method in every.items() if method is None]
    for key in printed("table1", "methods"):
        if key != "heal":
            names = [name for name in rivals if papers_row(name, setup) == key]
            found += [(key, name) for name in names or [NAMES.get(key, key)]]
    found += [("", name) for name in rivals if not papers_row(name, setup)]
    ours = [("heal" if papers_row(name, setup) else "", name) for name in ours_of(setup, list(every))]
    return found + (ours if "heal" in dict(ours) else [("heal", "heal"), *ours])


def papers_row(name: str, setup: Setup) -> str:
    """The paper's row that a method belongs to; empty if it has none."""
    method = methods(setup)[name]
    return method.name if method is not None and name in printed_of(setup) else ""


def present_columns(setup: Setup) -> list[Column]:
    there = setup.present(*BENCHMARKS)
    return [column for column in COLUMNS if column.benchmark in there]


def papers_figure(column: Column, paper: Mapping[str, Any] | None) -> float | str | None:
    """The paper's figure; of its HEAL with the standard deviation over runs."""
    value = None if paper is None else column.printed(paper)
    if value is None or paper is not printed("table1", "methods", "heal"):
        return value
    spread = printed("table1", "heal_std", column.paper)
    return f"{value:.{column.digits}f} ± {spread:.{column.digits}f}"


def papers_change(column: Column, paper: Mapping[str, Any] | None) -> float | None:
    """The paper's difference to its baseline."""
    base = printed("table1", "methods", BASELINE)
    return None if paper is None or paper is base else change(column.printed(base), column.printed(paper))
