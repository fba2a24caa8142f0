"""Appendix B: how well the three theorems of calibration describe a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Number, ratio
from heal.studies.parts import Measured
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST
from heal.studies.study import Cell, Found, Outcome, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.theory_measurement import ALPHAS, EVERY, RUN, theory_measurement
from heal.studies.verdicts import judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIDDLE = ALPHAS.index(0.5)
LIMITS = ("unbounded", "bounded")
ALL = "all"
Counts = dict[str, float]


def parts(setup: Setup) -> list[Part]:
    return [theory_measurement(setup, distribution) for distribution in setup.distributions]


# ── counts of one image ───────────────────────────────────────────────────────────────────────────────────


def image_counts(record: Measured) -> Counts:
    """Sums over the measured steps of an image, by layer and over all layers."""
    found: Counts = {}
    by_layer = layer_values(record.arrays)
    layers = record.arrays["heads"].shape[1]
    for place in (*range(layers), ALL):
        at = slice(None) if place == ALL else place
        for name, values in by_layer.items():
            own = values[:, at]
            found[f"{place} {name}"] = float(np.nansum(own))
            found[f"{place} {name} n"] = float((~np.isnan(own)).sum())
    return found | mix_counts(record.arrays)


def layer_values(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is averaged over layers and steps, [step, layer]; NaN where no head of the layer is calibrated."""
    idle = arrays["heads"] == 0

    def known(values: np.ndarray) -> np.ndarray:
        return np.where(idle, np.nan, values.astype(float))

    low, high = (arrays["running alignment"][..., RUN.index(alpha)] for alpha in (RUN[0], RUN[-1]))
    rise = np.where(np.isnan(low) | np.isnan(high), np.nan, high - low)
    margin = arrays["margin"][..., MIDDLE]
    found = {"margin": known(100.0 * (margin >= 0)), "slope": known(arrays["slope"][..., MIDDLE])}
    found |= {"plain": known(arrays["plain alignment"])}
    found |= {f"predicted {alpha}": known(arrays["alignment"][..., at]) for at, alpha in enumerate(ALPHAS)}
    found |= {f"measured {alpha}": known(arrays["running alignment"][..., at]) for at, alpha in enumerate(RUN)}
    found |= {"rise": known(rise), "rises": known(np.where(np.isnan(rise), np.nan, 100.0 * (rise > 0)))}
    agrees = 100.0 * ((margin >= 0) == (rise > 0))
    return found | {"agrees": known(np.where(np.isnan(rise), np.nan, agrees))}


def mix_counts(arrays: Mapping[str, np.ndarray]) -> Counts:
    """Sums over calibrated heads, by α."""
    found: Counts = {"heads": float(arrays["heads"].sum()), "rising": float(arrays["rising"].sum())}
    for at, alpha in enumerate(ALPHAS):
        found[f"cosine {alpha}"] = float(arrays["cosine"][..., at].sum())
        for limit in LIMITS:
            for name in ("known", "reached", "error", "error before", "norm mix"):
                own = arrays.get(f"{name}, {limit}")
                found[f"{name} {limit} {alpha}"] = 0.0 if own is None else float(own[..., at].sum())
    return found


# ── figures of all images ─────────────────────────────────────────────────────────────────────────────────


def figures(totals: Mapping[str, Number]) -> dict[str, Number]:
    """Means over layers, steps and heads, the slope of the mix that is reached, and the gain of the alignment."""
    found: dict[str, Number] = {
        name: ratio(totals[name], totals[f"{name} n"]) for name in totals if f"{name} n" in totals
    }
    found["rising"] = ratio(totals["rising"], totals["heads"], 100)
    for alpha in ALPHAS:
        found[f"cosine {alpha}"] = ratio(totals[f"cosine {alpha}"], totals["heads"])
        for limit in LIMITS:
            heads = totals[f"known {limit} {alpha}"]
            for name in ("reached", "error", "error before", "norm mix"):
                found[f"{name} {limit} {alpha}"] = ratio(totals[f"{name} {limit} {alpha}"], heads)
            found[f"lost {limit} {alpha}"] = 100 - ratio(heads, totals["heads"], 100)
    for limit in LIMITS:
        ends = [found[f"reached {limit} {alpha}"] for alpha in (ALPHAS[0], ALPHAS[-1])]
        found[f"response {limit}"] = (ends[1] - ends[0]) / (ALPHAS[-1] - ALPHAS[0])
        middle = ALPHAS[MIDDLE]
        found[f"nearer {limit}"] = found[f"error {limit} {middle}"] - found[f"error before {limit} {middle}"]
        found[f"inexact {limit}"] = found[f"error {limit} {middle}"]
    found["majority"] = found[f"{ALL} margin"] - 50
    return found


@dataclass(frozen=True, eq=False)
class Distribution:
    """Everything that is reported on one distribution."""

    intervals: Mapping[str, Interval]
    layers: int
    moments: int
    """Pairs of a layer and a step with calibrated heads."""
    heads: int
    """Calibrated heads over all steps."""
    error_1: float
    error_2: float
    bounded: bool
    """Whether the method bounds its factors."""

    def value(self, name: str, digits: int, expected: str = "") -> Value:
        interval = self.intervals.get(name, Interval(*[float("nan")] * 3))
        if self.moments < FEWEST:
            interval = Interval(interval.value, float("nan"), float("nan"))
        return Value.of(interval, digits=digits, expected=expected, n=self.moments)


def summarised(records: list[Measured], seed: int) -> Distribution:
    some = [record for record in records if record.arrays]
    counts = {str(record.facts["unit"]): image_counts(record) for record in some}

    def largest(name: str) -> float:
        return max((float(record.arrays[name].max()) for record in some), default=float("nan"))

    return Distribution(
        intervals=bootstrap.intervals(figures, counts, seed),
        layers=some[0].arrays["heads"].shape[1] if some else 0,
        moments=int(sum((record.arrays["heads"] > 0).sum() for record in some)),
        heads=int(sum(own["heads"] for own in counts.values())),
        error_1=largest("error of theorem 1"),
        error_2=largest("error of theorem 2"),
        bounded=any("known, bounded" in record.arrays for record in some),
    )


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def report(found: Found) -> Report:
    seed = found.setup.seed
    every = {d: summarised(list(found.records(f"theory {d}")), seed) for d in found.setup.distributions}
    return Report(
        (
            Table("layers", [r for d, own in every.items() for r in _layer_rows(d, own)], LAYERS),
            Table("mix", [r for d, own in every.items() for r in _mix_rows(d, own)], MIX),
            Table("heads", [r for d, own in every.items() for r in _head_rows(d, own)], HEADS),
        ),
        [verdict for d, own in every.items() for verdict in _verdicts(d, own)],
        {"theory": lambda: _figure(every)},
        NOTES,
    )


LAYERS = "Theorem 3: the margin M, and the alignment of the stream with the image, by layer"
MIX = "Theorem 1: the mix that is measured again after calibration"
HEADS = "Theorem 2: the cosine of a calibrated head's output with its visual part"
NOTES = (
    f"Measured at every {EVERY}th step of the plain model's descriptions, at the heads that HEAL would calibrate.",
    "Alignment: the cosine of G·r with the visual direction u_v, where r is the stream after the attention, G the "
    "gain of the next norm, and u_v what the calibrated heads of the layer read from the image. Predicted: if only "
    "this layer is calibrated. In the model: all layers are calibrated at all steps without a bound, with the tokens "
    "of the plain answer, so that earlier layers and steps have changed too.",
    "M ≥ 0 means that a larger α turns the layer toward the image; given for α = 0.5. Agrees: the sign of M is that "
    "of the change in the model from the smallest to the largest α.",
    "Reached: I_vis and I_lang are measured again with scaled values and the same noise. The theorem holds exactly "
    "for a measure of the two parts alone, such as their norms; HEAL measures counterfactual similarities.",
)


def _layer_rows(distribution: str, own: Distribution) -> list[Row]:
    rows = []
    for place in (*map(str, range(own.layers)), ALL):
        values: dict[str, Cell] = {
            "M ≥ 0 %": own.value(f"{place} margin", 1, "↑" if place == ALL else ""),
            "slope at 0.5": own.value(f"{place} slope", 3),
            "plain": own.value(f"{place} plain", 3),
        }
        values |= {f"predicted at {a}": own.value(f"{place} predicted {a}", 3) for a in ALPHAS}
        values |= {f"in the model at {a}": own.value(f"{place} measured {a}", 3) for a in RUN}
        values |= {"rises %": own.value(f"{place} rises", 1), "agrees %": own.value(f"{place} agrees", 1)}
        rows.append(Row({"distribution": distribution, "layer": place}, values))
    return rows


def _mix_rows(distribution: str, own: Distribution) -> list[Row]:
    rows = []
    for limit in LIMITS if own.bounded else LIMITS[:1]:
        for alpha in ALPHAS:
            values: dict[str, Cell] = {
                "reached": own.value(f"reached {limit} {alpha}", 3),
                "|reached − α|": own.value(f"error {limit} {alpha}", 3),
                "before": own.value(f"error before {limit} {alpha}", 3),
                "mix of norms": own.value(f"norm mix {limit} {alpha}", 3),
                "no longer mixed %": own.value(f"lost {limit} {alpha}", 1),
            }
            rows.append(Row({"distribution": distribution, "factors": limit, "α asked": f"{alpha:g}"}, values))
    return rows


def _head_rows(distribution: str, own: Distribution) -> list[Row]:
    values: dict[str, Cell] = {f"cosine at {alpha}": own.value(f"cosine {alpha}", 3) for alpha in ALPHAS}
    values |= {"rising %": own.value("rising", 2), "heads": own.heads}
    values |= {"largest error of the formula": f"{own.error_2:.1e}", "of theorem 1 with norms": f"{own.error_1:.1e}"}
    return [Row({"distribution": distribution}, values)]


def _verdicts(distribution: str, own: Distribution) -> list[Verdict]:
    margin, rise = own.value(f"{ALL} margin", 1), own.value(f"{ALL} rise", 3, "↑")
    most = own.value("majority", 1, "↑")
    nearer, error = own.value("nearer unbounded", 3, "↓"), own.value("inexact unbounded", 3, "=")
    before = own.value(f"error before unbounded {ALPHAS[MIDDLE]}", 3)
    return [
        _of_heads(distribution, own),
        _stated(distribution, most, "M ≥ 0 in most cases", f"in {margin} % of layers and steps"),
        _stated(
            distribution, rise, f"the alignment in the model rises from α = {RUN[0]:g} to {RUN[-1]:g}", str(rise)
        ),
        _stated(
            distribution, nearer, "calibration brings the mix nearer to α = 0.5", f"|mix − 0.5| {before} → {error}"
        ),
        _stated(distribution, error, "the mix that is asked for is reached", f"|reached − 0.5| = {error}"),
    ]


def _stated(distribution: str, value: Value, claim: str, text: str) -> Verdict:
    """The outcome of a difference, with a text that says what it is made of."""
    found = judged(f"{claim} ({distribution})", value, "layers and steps")
    if found.outcome is Outcome.TOO_FEW:
        return found
    return Verdict(found.claim, found.outcome, f"{found.claim} {found.outcome}: {text}")


ALMOST_ALL = 99.9
"""In percent. Where the two parts are collinear, rounding decides."""


def _of_heads(distribution: str, own: Distribution) -> Verdict:
    claim = f"Theorem 2, every calibrated head turns to its visual part as α grows ({distribution})"
    share = own.value("rising", 2)
    if not share.has_interval:
        return judged(claim, share, "layers and steps")
    outcome = Outcome.CONFIRMED if share.value >= ALMOST_ALL else Outcome.CONTRADICTED
    return Verdict(claim, outcome, f"{claim} {outcome}: {share} % of heads")


def _figure(found: dict[str, Distribution]) -> Figure:
    from heal.plots.theory import theory_figure

    return theory_figure(found)


STUDY = Study(
    "theory",
    "the theorems of calibration: alignment by layer, share of layers with margin M ≥ 0, α reached against α asked",
    "Appendix B",
    parts,
    report,
)
