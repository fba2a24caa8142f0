"""For maintainers: the runs behind docs/results.md, their order, and which of them may decide on settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heal.bench.score.summary import Summary
from heal.bench.tasks.base import Task
from heal.bench.tasks.miniature import TOPICS, MiniChair, MiniMme, MiniPope
from heal.methods import HEAL, Beam, Method
from heal.methods.heal import Drift
from heal.studies.comparison import STRENGTHS, published

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
DELTAS = (0.0, 0.5)
ONE_SIDED = (0.5, 0.7)
LIMITS = (1.5, 2.0, 3.0, None)
DRAWS = (1, 4)
SIDES: Mapping[str, Drift] = {"": "both", ", one-sided": "language"}
NEVER = 1_000_000
TASKS = ("mini-pope", "mini-chair", "mini-mme")


@dataclass(frozen=True)
class Plan:
    """One run: methods on miniature benchmarks with one distribution of scenes."""

    name: str
    split: str
    distribution: str
    images: int
    """Images per task; MME divides them among its subtasks."""
    methods: Mapping[str, Method | None]
    tasks: tuple[str, ...] = TASKS

    def create_tasks(self) -> dict[str, Task]:
        kinds = {"mini-pope": MiniPope, "mini-chair": MiniChair, "mini-mme": MiniMme}
        shared = {"mini-mme": max(1, self.images // len(TOPICS))}
        return {
            name: kinds[name](count=shared.get(name, self.images), distribution=self.distribution, split=self.split)
            for name in self.tasks
        }


def safety(images: int) -> Plan:
    """Validation split: how the factor limit, the number of draws and sinks affect results."""
    methods: dict[str, Method | None] = {"plain": None}
    methods |= {f"limit {limit or 'none'}": HEAL(alpha=0.6, factor_limit=limit) for limit in LIMITS}
    methods |= {f"draws {n}": HEAL(alpha=0.6, preset="gaussian", draws=n) for n in DRAWS}
    methods |= {"neutral sinks": HEAL(alpha=0.6, sinks="neutral")}
    return Plan("safety", "validation", "natural", images, methods, ("mini-chair",))


def choice(images: int) -> Plan:
    """Validation split: choose the equilibrium."""
    return Plan("choice", "validation", "natural", images, equilibria(), ("mini-pope", "mini-chair"))


def noise(split: str, distribution: str, images: int) -> Plan:
    """Either split: noise drawn once, 4 or 16 times, and its expectation."""
    name = f"noise-{split}-{distribution}"
    return Plan(name, split, distribution, images, noises(), ("mini-pope", "mini-chair"))


def noises() -> dict[str, Method | None]:
    """HEAL with both kinds of calibration, and scores from one draw, from more draws, and expected ones."""
    methods: dict[str, Method | None] = {"plain": None}
    for side, drift in SIDES.items():
        for draws in (1, 4, 16):
            name = f"{draws} draw{'s' * (draws > 1)}{side}"
            methods[name] = HEAL(alpha=0.5, drift=drift, preset="gaussian", draws=draws)
        methods[f"expected{side}"] = HEAL(alpha=0.5, drift=drift, preset="expected")
    return methods


def equilibria() -> dict[str, Method | None]:
    """The plain model, beam search, and every form of HEAL's equilibrium."""
    methods: dict[str, Method | None] = {"plain": None, "beam 5": Beam(5)}
    methods |= {f"heal α={alpha}": HEAL(alpha=alpha) for alpha in ALPHAS}
    methods |= {"heal auto": HEAL(alpha="auto")}
    methods |= {f"heal profile δ={delta:g}": HEAL(alpha="profile", delta=delta) for delta in DELTAS}
    methods |= {f"heal α={alpha} one-sided": HEAL(alpha=alpha, drift="language") for alpha in ONE_SIDED}
    return methods | {"heal profile δ=0 one-sided": HEAL(alpha="profile", drift="language")}


def result(distribution: str, images: int) -> Plan:
    """Test split: all forms that were listed before any result was seen."""
    return Plan(f"test-{distribution}", "test", distribution, images, equilibria(), ("mini-pope", "mini-chair"))


def questions(distribution: str, images: int) -> Plan:
    """Test split: the same methods on MME, as a separate run."""
    return Plan(f"mme-{distribution}", "test", distribution, images, equilibria(), ("mini-mme",))


def tuning(images: int) -> Plan:
    """Validation split: four settings per method, the same budget for all."""
    methods: dict[str, Method | None] = {"plain": None}
    methods |= {f"{name} {i}": m for name, settings in STRENGTHS.items() for i, m in enumerate(settings, 1)}
    return Plan("tuning", "validation", "natural", images, methods, ("mini-pope", "mini-chair"))


def tuned(summary: Summary) -> dict[str, Method]:
    """The best setting of each method on the validation split."""
    found = {}
    for name, settings in STRENGTHS.items():
        best = chosen(summary, [f"{name} {i}" for i in range(1, len(settings) + 1)])
        found[name] = settings[int(best.rpartition(" ")[2]) - 1]
    return found


def baselines(distribution: str, images: int, settings: Mapping[str, Method] | None) -> Plan:
    """Test split: every method with its published defaults, or with the tuned settings."""
    if settings is None:
        return Plan(f"published-{distribution}", "test", distribution, images, published())
    methods: dict[str, Method | None] = {"plain": None, **settings}
    return Plan(f"tuned-{distribution}", "test", distribution, images, methods)


def controls(distribution: str, images: int, chosen: HEAL) -> Plan:
    """Test split: the effect of which heads are calibrated, and of refreshing head types."""
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
    """Selection criterion: POPE F1 plus object F1, which neither very short nor very long answers can win."""
    return (
        summary.row("mini-pope", method).figures["f1"].value + summary.row("mini-chair", method).figures["f1"].value
    )


def chosen(summary: Summary, methods: Sequence[str]) -> str:
    """The best method by merit. Use it on validation runs only."""
    return max(methods, key=lambda name: merit(summary, name))


def chosen_form(validated: Summary) -> str:
    """The form of HEAL with the best merit on the validation split."""
    return chosen(validated, [name for name in equilibria() if name.startswith("heal")])
