"""What the paper's three main tables share: columns beside the printed ones, its α, and names of models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row as Scored
from heal.errors import DataError, HealError
from heal.methods import HEAL, Method
from heal.methods.heal import preset
from heal.studies.setup import Setup
from heal.studies.study import Value

PLAIN = "plain"
PLACEHOLDERS = ("embedded", "random")
"""Models that the paper does not know."""
AT_PAPERS_ALPHA = ("pope", "chair")
"""The benchmarks of the α presets. On its other benchmarks the paper uses more."""
MORE = 0.1


@dataclass(frozen=True)
class Column:
    """A figure of a benchmark, beside the paper's."""

    heading: str
    benchmark: str
    """Official name."""
    figure: str
    """Its name in the summary."""
    paper: str
    """Its name in paper.json."""
    digits: int = 1
    scale: float | int = 1
    """Factor of the paper's figure, if its unit is another one."""

    def printed(self, figures: Mapping[str, Any]) -> float | None:
        """The paper's figure in our unit; None if it prints none."""
        value = figures.get(self.paper)
        return None if value is None else round(self.scale * float(value), 6)

    def value(self, row: Scored, paper: float | str | None = None, expected: str = "") -> Value:
        found = row.figures.get(self.figure, NOTHING)
        return Value.of(found, paper=paper, expected=expected, digits=self.digits)

    def difference(self, row: Scored, paper: float | None = None, expected: str = "") -> Value:
        """The paired difference to the plain model."""
        found = (row.differences or {}).get(self.figure, NOTHING)
        return Value.of(found, paper=paper, expected=expected, digits=self.digits)

    def only_printed(self, paper: float | str | None, expected: str = "") -> Value | None:
        """The paper's figure alone, for what is not measured."""
        return None if paper is None else Value(math.nan, paper=paper, expected=expected, digits=self.digits)


NOTHING = Interval(math.nan, math.nan, math.nan)


def change(before: float | None, after: float | None) -> float | None:
    """After − before, if the paper prints both."""
    return None if before is None or after is None else round(after - before, 6)


def direction(difference: float | None) -> str:
    """The direction that a printed difference implies."""
    return "" if not difference else "↑" if difference > 0 else "↓"


# ── the forms of HEAL ─────────────────────────────────────────────────────────────────────────────────────


def for_benchmark(methods: Mapping[str, Method | None], benchmark: str, setup: Setup) -> dict[str, Method | None]:
    """The methods with the paper's α for this benchmark, where HEAL has the preset of the model's family."""
    if benchmark in AT_PAPERS_ALPHA or setup.methods or setup.model in PLACEHOLDERS:
        return dict(methods)
    more = round(preset(family(setup.model)) + MORE, 6)
    return {
        name: replace(method, alpha=more) if isinstance(method, HEAL) and method.alpha is None else method
        for name, method in methods.items()
    }


ALPHA_NOTE = (
    f"α: the preset of the model's family on POPE and CHAIR, {MORE} more on other benchmarks, as in the paper. "
    "A form of HEAL that was given with --method, and the embedded model, have one α everywhere."
)


def family(model: str) -> str:
    """The `model_type` of a checkpoint folder. Of a name on the hub, only whether it is a Qwen model."""
    try:
        return str(strict_json.read(Path(model).expanduser() / "config.json", DataError)["model_type"])
    except (HealError, OSError, ValueError, KeyError, TypeError):
        return "qwen2_5_vl" if "qwen" in model.lower() else ""


# ── names of models ───────────────────────────────────────────────────────────────────────────────────────

NAMES = {
    "LLaVA-1.5-7B": r"llava-(v?1\.5)-7b",
    "LLaVA-NeXT-7B": r"llava-(next|v?1\.6)\b.*7b",
    "Qwen2.5-VL-7B": r"qwen2\.5-vl-7b",
    "Qwen2-VL-7B": r"qwen2-vl-7b",
    "InternVL-7B": r"internvl-(chat-)?.*7b",
    "Qwen3-VL-8B": r"qwen3-vl-8b",
    "InternVL3.5-8B": r"internvl3\.5-8b",
}
"""The paper's models by the names of their checkpoints."""


def papers_name(model: str) -> str:
    """What the paper calls this checkpoint; empty if it does not use it."""
    own = re.sub(r"(?<=\d)_(?=\d)", ".", Path(model).name.lower()).replace("_", "-")
    return next((name for name, pattern in NAMES.items() if re.search(pattern, own)), "")
