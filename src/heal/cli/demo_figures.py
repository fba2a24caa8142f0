"""The figures of the demo: objects that answers name, and intervals of the differences to the plain model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADINGS = (
    "",
    "hallucinated objects",
    "difference to plain (95 %)",
    "true objects named",
    "difference to plain (95 %)",
)


@dataclass(frozen=True)
class Named:
    """The objects that one answer names, by whether the scene shows them."""

    wrong: frozenset[str]
    right: frozenset[str]
    present: int
    """Number of objects in the scene."""

    @classmethod
    def of(cls, text: str, objects: frozenset[str]) -> Named:
        from heal.world.mentions import mentions

        names = {mention.category for mention in mentions(text)}
        return cls(frozenset(names - objects), frozenset(names & objects), len(objects))


def corrected(plain: Named, other: Named) -> bool:
    """Whether an answer has none of the hallucinations of the plain one, no others, and all its true objects."""
    return bool(plain.wrong) and not other.wrong and other.right >= plain.right


@dataclass(frozen=True)
class Figures:
    """What the demo shows of many scenes."""

    rows: Sequence[Sequence[str]]
    corrected: str
    """How many answers are corrected completely, in one sentence."""


def figures(named: Mapping[str, Sequence[Named]]) -> Figures:
    """The rows of the table, and how many answers are corrected completely. The plain model comes first."""
    (first, plain), *others = named.items()
    times = [f"{name} {sum(map(corrected, plain, found))}" for name, found in others]
    return Figures(
        [_row(first, plain, None), *(_row(name, found, plain) for name, found in others)],
        f"Not typical: of {sum(bool(one.wrong) for one in plain)} plain answers that hallucinate, "
        f"this many are corrected like this one: {', '.join(times)}.",
    )


def _row(name: str, found: Sequence[Named], plain: Sequence[Named] | None) -> list[str]:
    wrong, right = _total(found, "wrong"), _total(found, "right")
    present = sum(one.present for one in found)
    differences = ["", ""] if plain is None else [_difference(plain, found, kind) for kind in ("wrong", "right")]
    return [name, f"{wrong} of {wrong + right}", differences[0], f"{right} of {present}", differences[1]]


def _total(found: Sequence[Named], kind: str) -> int:
    return sum(len(getattr(one, kind)) for one in found)


def _difference(plain: Sequence[Named], found: Sequence[Named], kind: str) -> str:
    """The difference of the totals with its interval, paired by scene."""
    from heal.bench.score.bootstrap import differences

    def counts(own: Sequence[Named]) -> dict[str, dict[str, float]]:
        return {str(scene): {kind: float(len(getattr(one, kind)))} for scene, one in enumerate(own)}

    def totals(own: Mapping[str, Any]) -> dict[str, Any]:
        return dict(own)

    interval = differences(totals, counts(plain), counts(found))[kind]
    shown = f"{interval.value:+.0f} ({interval.low:+.0f} to {interval.high:+.0f})"
    return shown.replace("-", "−").replace("+0", "0").replace("−0", "0")
