"""The paper's two models in the columns beside our figures: `87.9 / 88.8`."""

from __future__ import annotations

from heal.studies.paper import printed

NAMES = {"llava-1.5-7b": "LLaVA-1.5-7B", "qwen2.5-vl-7b": "Qwen2.5-VL-7B"}
MODELS = tuple(NAMES)
NOTE = "The paper's figures are those of LLaVA-1.5-7B / Qwen2.5-VL-7B."


def both(table: str, figure: str, setting: str) -> str:
    """What the paper prints for both models: `both("interval", "pope_f1", "10")`."""
    return " / ".join(f"{printed(table, model, figure, setting):.1f}" for model in MODELS)


def difference(table: str, figure: str, first: str, second: str) -> str:
    """Second − first for both models."""
    pairs = ((printed(table, m, figure, first), printed(table, m, figure, second)) for m in MODELS)
    return " / ".join(f"{after - before:+.1f}" for before, after in pairs)


def against_plain(figure: str, alpha: str) -> str:
    """HEAL at α minus the plain model of the paper's second table, for both models."""
    pairs = ((printed("table2", NAMES[m], figure, "plain"), printed("alpha", m, figure, alpha)) for m in MODELS)
    return " / ".join(f"{after - before:+.1f}" for before, after in pairs)
