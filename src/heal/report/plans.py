"""What HEAL does to the embedded model: which runs, in which order, and what each of them may decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heal.bench.score.summary import Summary
from heal.bench.tasks.base import Task
from heal.bench.tasks.miniature import TOPICS, MiniChair, MiniMme, MiniPope
from heal.methods import HEAL, Beam, Method
from heal.studies.comparison import STRENGTHS, published

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
DELTAS = (0.0, 0.5)
ONE_SIDED = (0.5, 0.7)
LIMITS = (1.5, 2.0, 3.0, None)
DRAWS = (1, 4)
NEVER = 1_000_000
HEADLINE = HEAL(alpha=0.5, drift="language")
"""The form that `choice` has chosen for the model that comes with this package."""
TASKS = ("mini-pope", "mini-chair", "mini-mme")


@dataclass(frozen=True)
class Plan:
    """One run: methods on the three miniature benchmarks over scenes of one kind."""

    name: str
    split: str
    distribution: str
    images: int
    """Pictures a task; MME shares them among its subtasks."""
    methods: Mapping[str, Method | None]
    tasks: tuple[str, ...] = TASKS

    def made_tasks(self) -> dict[str, Task]:
        kinds = {"mini-pope": MiniPope, "mini-chair": MiniChair, "mini-mme": MiniMme}
        shared = {"mini-mme": max(1, self.images // len(TOPICS))}
        return {
            name: kinds[name](count=shared.get(name, self.images), distribution=self.distribution, split=self.split)
            for name in self.tasks
        }


def safety(images: int) -> Plan:
    """On the validation split: how far factors may go, and how many draws scores need."""
    methods: dict[str, Method | None] = {"plain": None}
    methods |= {f"limit {limit or 'none'}": HEAL(alpha=0.6, factor_limit=limit) for limit in LIMITS}
    methods |= {f"draws {n}": HEAL(alpha=0.6, draws=n) for n in DRAWS if n > 1}
    methods |= {"neutral sinks": HEAL(alpha=0.6, sinks="neutral")}
    return Plan("safety", "validation", "natural", images, methods, ("mini-chair",))


def choice(images: int) -> Plan:
    """On the validation split: which equilibrium."""
    return Plan("choice", "validation", "natural", images, equilibria(), ("mini-pope", "mini-chair"))


def equilibria() -> dict[str, Method | None]:
    """The plain model, beam search, and every form of the equilibrium."""
    methods: dict[str, Method | None] = {"plain": None, "beam 5": Beam(5)}
    methods |= {f"heal α={alpha}": HEAL(alpha=alpha) for alpha in ALPHAS}
    methods |= {"heal auto": HEAL(alpha="auto")}
    methods |= {f"heal profile δ={delta:g}": HEAL(alpha="profile", delta=delta) for delta in DELTAS}
    methods |= {f"heal α={alpha} one-sided": HEAL(alpha=alpha, drift="language") for alpha in ONE_SIDED}
    return methods | {"heal profile δ=0 one-sided": HEAL(alpha="profile", drift="language")}


def result(distribution: str, images: int) -> Plan:
    """On the test split: everything that was on the list before any of it was seen."""
    return Plan(f"test-{distribution}", "test", distribution, images, equilibria(), ("mini-pope", "mini-chair"))


def questions(distribution: str, images: int) -> Plan:
    """The same on MME, in a run of its own."""
    return Plan(f"mme-{distribution}", "test", distribution, images, equilibria(), ("mini-mme",))


def tuning(images: int) -> Plan:
    """On the validation split: four settings of every method, the same budget for all."""
    methods: dict[str, Method | None] = {"plain": None}
    methods |= {f"{name} {i}": m for name, settings in STRENGTHS.items() for i, m in enumerate(settings, 1)}
    return Plan("tuning", "validation", "natural", images, methods, ("mini-pope", "mini-chair"))


def tuned(summary: Summary) -> dict[str, Method]:
    """Of every method the setting that was best on the validation split."""
    found = {}
    for name, settings in STRENGTHS.items():
        best = chosen(summary, [f"{name} {i}" for i in range(1, len(settings) + 1)])
        found[name] = settings[int(best.rpartition(" ")[2]) - 1]
    return found


def rivals(distribution: str, images: int, settings: Mapping[str, Method] | None) -> Plan:
    """On the test split: every method with its published defaults, or with the settings that were chosen."""
    if settings is None:
        return Plan(f"published-{distribution}", "test", distribution, images, published())
    methods: dict[str, Method | None] = {"plain": None, **settings}
    return Plan(f"tuned-{distribution}", "test", distribution, images, methods)


def controls(distribution: str, images: int, chosen: HEAL) -> Plan:
    """Whether it matters which heads are calibrated, and that their types are kept up to date."""
    methods: dict[str, Method | None] = {"plain": None, "synergy heads": chosen}
    methods |= {
        "as many random heads": replace(chosen, heads="random"),
        "language heads": replace(chosen, heads="language"),
        "visual heads": replace(chosen, heads="visual"),
        "all heads": replace(chosen, heads="all"),
        "types found once": replace(chosen, interval=NEVER),
    }
    return Plan(f"controls-{distribution}", "test", distribution, images, methods, ("mini-pope", "mini-chair"))


def merit(summary: Summary, method: str) -> float:
    """What chooses: POPE F1 plus the F1 of named objects, which neither silence nor babble can win."""
    return (
        summary.row("mini-pope", method).figures["f1"].value + summary.row("mini-chair", method).figures["f1"].value
    )


def chosen(summary: Summary, methods: Sequence[str]) -> str:
    """The best by merit: of a validation run only."""
    return max(methods, key=lambda name: merit(summary, name))


def chosen_form(validated: Summary) -> str:
    """The form of HEAL that `choice` makes the headline."""
    return chosen(validated, [name for name in equilibria() if name.startswith("heal")])
