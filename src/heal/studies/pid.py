"""Appendix C: the information of heads beside partial information decompositions of a histogram."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from heal.analysis.pid import Joint, PidAtoms, broja, ccs, decompose, i_min
from heal.bench.score.bootstrap import Interval, percentile_interval, resampling_weights
from heal.extras import optional
from heal.studies.parts import Measured
from heal.studies.pid_measurement import DIRECTIONS, pid_measurement
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Outcome, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.verdicts import judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 4
FEWEST_TOKENS = 1_000
"""A histogram of 64 cells from fewer tokens overestimates information too much."""
RESAMPLES = 200
WEAK = 0.3
"""Correlations below are called weak."""
MEASURES: Mapping[str, Callable[[Joint], float]] = {"I_min": i_min, "BROJA": broja, "CCS": ccs}
ATOMS = ("unique visual", "unique language", "redundancy", "synergy")

DIGITS = 6
"""Smaller differences between heads are rounding errors."""

Histogram = Float[np.ndarray, "unit head direction cell"]
ByHead = Float[np.ndarray, " head"]


def parts(setup: Setup) -> list[Part]:
    return [pid_measurement(setup, distribution) for distribution in setup.distributions]


# ── histograms ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Joints:
    """The joint histogram of (V, L, Y) of every head and direction, by image; and the scores of the heads."""

    histogram: Histogram
    scores: Float[np.ndarray, "unit head three"]
    """Sums of I_vis, I_lang, I_total over the tokens of each image."""
    tokens: Int[np.ndarray, " unit"]

    @property
    def heads(self) -> int:
        return self.histogram.shape[1]


def joints(records: Sequence[Measured]) -> Joints | None:
    """Bins of equal frequency over all tokens, for each head, direction and variable. None without tokens."""
    some = [record for record in records if record.arrays]
    if not some:
        return None
    values = np.concatenate([record.arrays["values"] for record in some])
    tokens, layers, heads, directions, _ = values.shape
    codes = _codes(values.reshape(tokens, -1)).reshape(tokens, layers * heads, directions, 3)
    cells = (codes * np.array([BINS * BINS, BINS, 1])).sum(-1)
    counts = np.array([len(record.arrays["values"]) for record in some])
    scores = [record.arrays["scores"].reshape(len(record.arrays["scores"]), -1, 3).sum(0) for record in some]
    return Joints(_histogram(cells, counts), np.stack(scores).astype(float), counts)


def _codes(columns: Float[np.ndarray, "token column"]) -> Int[np.ndarray, "token column"]:
    """The quantile bin of each value within its column."""
    edges = np.quantile(columns, np.arange(1, BINS) / BINS, axis=0)
    return sum((columns > edge).astype(np.int64) for edge in edges)


def _histogram(cells: Int[np.ndarray, "token head direction"], counts: Int[np.ndarray, " unit"]) -> Histogram:
    found = np.zeros((len(counts), *cells.shape[1:], BINS**3), np.float32)
    heads, directions = np.indices(cells.shape[1:])
    start = 0
    for unit, count in enumerate(counts):
        for own in cells[start : start + count]:
            found[unit, heads, directions, own] += 1
        start += count
    return found


def as_joint(cells: Float[np.ndarray, " cell"]) -> Joint:
    """A histogram as P[v, l, y]."""
    return (cells / cells.sum()).reshape(BINS, BINS, BINS).astype(float)


# ── figures of heads ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """By head: what HEAL measures, and what the histogram says, both as means."""

    i_vis: ByHead
    i_lang: ByHead
    i_syn: ByHead
    of_visual: ByHead
    """I(V; Y) in bits."""
    of_language: ByHead
    """I(L; Y) in bits."""
    interaction: ByHead
    """I(V, L; Y) − I(V; Y) − I(L; Y) = S − R for every measure of redundancy, in bits."""


PAIRS = (
    ("I_syn and S − R", "i_syn", "interaction"),
    ("I_vis and I(V; Y)", "i_vis", "of_visual"),
    ("I_lang and I(L; Y)", "i_lang", "of_language"),
)


def head_figures(joint: Joints, weights: Float[np.ndarray, " unit"]) -> HeadFigures:
    """The figures of all heads, with each image counted as often as its weight."""
    cells = np.tensordot(weights.astype(np.float32), joint.histogram, 1).astype(float)
    table = cells.reshape(*cells.shape[:2], BINS, BINS, BINS)
    table /= table.sum((2, 3, 4), keepdims=True)
    visual, language = _information(table.sum(3)), _information(table.sum(2))
    whole = _information(table.reshape(*table.shape[:2], BINS * BINS, BINS))
    scores = np.tensordot(weights, joint.scores, 1) / float(weights @ joint.tokens)
    return HeadFigures(
        scores[:, 0],
        scores[:, 1],
        scores[:, 2] - scores[:, 0] - scores[:, 1],
        visual.mean(1),
        language.mean(1),
        (whole - visual - language).mean(1),
    )


def _information(table: Float[np.ndarray, "head direction x y"]) -> Float[np.ndarray, "head direction"]:
    """I(X; Y) in bits of many tables at once."""
    independent = table.sum(-1, keepdims=True) * table.sum(-2, keepdims=True)
    quotient = np.divide(table, independent, out=np.ones_like(table), where=table > 0)
    return (table * np.log2(quotient)).sum((-2, -1))


def rank_correlation(first: ByHead, second: ByHead) -> float:
    with optional():
        from scipy.stats import rankdata

    if len(first) < 3:
        return float("nan")
    ranks = np.stack([rankdata(values.round(DIGITS)) for values in (first, second)])
    if not (ranks.std(1) > 0).all():
        return float("nan")
    return float(np.corrcoef(ranks)[0, 1])


def correlations(joint: Joints, seed: int) -> dict[str, Interval]:
    """Spearman's correlation over heads for each of PAIRS, with intervals from resampling images."""

    def figures(weights: Float[np.ndarray, " unit"]) -> list[float]:
        found = head_figures(joint, weights)
        return [rank_correlation(getattr(found, one), getattr(found, other)) for _, one, other in PAIRS]

    units = len(joint.tokens)
    here = figures(np.ones(units))
    every = np.array([figures(w) for block in resampling_weights(units, seed, RESAMPLES) for w in block])
    return {name: Interval(here[at], *percentile_interval(every[:, at])) for at, (name, _, _) in enumerate(PAIRS)}


def atoms(joint: Joints, measure: Callable[[Joint], float]) -> Float[np.ndarray, "head atom"]:
    """The four atoms of every head in bits, as means over directions."""
    whole = joint.histogram.sum(0)
    return np.array([np.mean([_atoms(cells, measure) for cells in own], axis=0) for own in whole])


def _atoms(cells: np.ndarray, measure: Callable[[Joint], float]) -> list[float]:
    found: PidAtoms = decompose(as_joint(cells), measure)
    return [float(x) for x in (found.unique_visual, found.unique_language, found.redundancy, found.synergy)]


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Distribution:
    """Everything that is reported on one distribution."""

    tokens: int
    heads: HeadFigures | None
    correlations: Mapping[str, Interval]
    atoms: Mapping[str, Float[np.ndarray, "head atom"]]


def summarised(records: Sequence[Measured], seed: int) -> Distribution:
    joint = joints(records)
    if joint is None:
        return Distribution(0, None, {}, {})
    enough = joint.tokens.sum() >= FEWEST_TOKENS  # an almost empty histogram has no meaning, and takes long
    return Distribution(
        int(joint.tokens.sum()),
        head_figures(joint, np.ones(len(joint.tokens))),
        correlations(joint, seed),
        {name: atoms(joint, measure) for name, measure in MEASURES.items() if enough},
    )


def report(found: Found) -> Report:
    seed = found.setup.seed
    every = {d: summarised(list(found.records(f"pid {d}")), seed) for d in found.setup.distributions}
    return Report(
        (
            Table("correlations", [row for d, own in every.items() for row in _rows(d, own)], CORRELATIONS),
            Table("atoms", [row for d, own in every.items() for row in _atom_rows(d, own)], "Atoms in bits per head"),
        ),
        [verdict for d, own in every.items() for verdict in _verdicts(d, own)],
        {"pid": lambda: _figure(every)},
        NOTES,
    )


CORRELATIONS = "Spearman's correlation over heads of what HEAL measures with the information in the histogram"
NOTES = (
    "The joint distribution of a head: V is what the visual positions alone would give (the softmax mean of their "
    "values), L the same for the language positions, Y the output of the head; one sample per generated token of the "
    f"plain model's descriptions. Each is projected on {DIRECTIONS} fixed random directions and binned into {BINS} "
    "bins of equal frequency; figures are means over directions.",
    "S − R = I(V, L; Y) − I(V; Y) − I(L; Y) is the same for every measure of redundancy; unique information, "
    "redundancy and synergy alone are not.",
    "The decomposition is over the tokens of the data, HEAL's scores are about one token and its noise; bits and "
    "similarities have no common scale, so ranks of heads are compared.",
    f"Fewer than {FEWEST_TOKENS:,} tokens give no verdict: a histogram of {BINS**3} cells overestimates information.",
)


def _rows(distribution: str, own: Distribution) -> list[Row]:
    heads = own.heads.i_vis.size if own.heads else 0
    rows = []
    for name, interval in own.correlations.items():
        values: dict[str, Cell] = {"correlation": _value(own, interval), "heads": heads, "tokens": own.tokens}
        rows.append(Row({"distribution": distribution, "pair": name}, values))
    return rows


def _value(own: Distribution, interval: Interval) -> Value:
    if own.tokens < FEWEST_TOKENS:
        return Value(interval.value, expected="↑", n=own.tokens)
    return Value.of(interval, expected="↑", n=own.tokens)


def _atom_rows(distribution: str, own: Distribution) -> list[Row]:
    """The mean of each atom over heads, and its correlation with the score that the paper relates to it."""
    rows = []
    for name, found in own.atoms.items():
        assert own.heads is not None
        values: dict[str, Cell] = {atom: Value(float(found[:, at].mean()), digits=3) for at, atom in enumerate(ATOMS)}
        related = {
            "I_vis ~ unique visual": rank_correlation(own.heads.i_vis, found[:, 0]),
            "I_lang ~ unique language": rank_correlation(own.heads.i_lang, found[:, 1]),
            "I_syn ~ synergy": rank_correlation(own.heads.i_syn, found[:, 3]),
        }
        values |= {label: Value(correlation) for label, correlation in related.items()}
        rows.append(Row({"distribution": distribution, "redundancy": name}, values))
    return rows


def _verdicts(distribution: str, own: Distribution) -> list[Verdict]:
    claim = f"I_syn rises with S − R ({distribution})"
    if own.tokens < FEWEST_TOKENS:
        text = f"{claim}: too few tokens ({own.tokens}; a histogram needs {FEWEST_TOKENS}): measure more images"
        return [Verdict(claim, Outcome.TOO_FEW, text)]
    found = []
    for name, interval in own.correlations.items():
        first, second = name.split(" and ")
        claim = f"{first} rises with {second} ({distribution}, Spearman's correlation over heads)"
        verdict = judged(claim, _value(own, interval), "tokens")
        weak = ", a weak relation" if abs(interval.value) < WEAK else ""
        found.append(replace(verdict, text=f"{verdict.text}{weak}"))
    return found


def _figure(found: Mapping[str, Distribution]) -> Figure:
    from heal.plots.pid import pid_figure

    return pid_figure(found)


STUDY = Study(
    "pid",
    "I_vis, I_lang and I_syn beside the atoms of I_min, BROJA and CCS: does I_syn follow S − R",
    "Appendix C",
    parts,
    report,
)
