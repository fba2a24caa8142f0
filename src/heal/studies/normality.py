"""Section (5): whether the contributions of a layer's heads are normal, as the 3σ rule supposes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from heal.bench.score.bootstrap import Interval
from heal.extras import optional
from heal.methods.heal import HEAL
from heal.studies.paper import printed
from heal.studies.retyping import types_with
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST, mean_interval
from heal.studies.study import Found, Outcome, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.traces import TracedAnswer, answers, plain_traces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.05
MOST_TESTS = 10_000
"""Tests per distribution and quantity. If there are more tokens, evenly spaced ones are taken."""
TRIALS = 400
"""Simulated samples for the power of the test."""
MOST_AGREEMENT = 3_000
"""Tokens per distribution whose types are found with and without the transform."""
CONTRIBUTION, INFORMATION = "contribution, heads of a layer", "I_total, all heads"


@dataclass(frozen=True, eq=False)
class Sample:
    """The values of the heads that one σ rule judges together."""

    unit: str
    layer: int
    """−1: all layers."""
    values: Float[np.ndarray, " head"]


@dataclass(frozen=True)
class Tested:
    """All tests of one quantity on one distribution."""

    tests: int
    heads: int
    """Values per test."""
    normal: Interval
    """Share with p > 0.05, the interval over images."""
    holm: float
    """Share that is not rejected with Holm's correction."""
    bh: float
    """Share that is not rejected with a false discovery rate of 5 % (Benjamini and Hochberg)."""
    power: float
    """Share of as many values from an exponential distribution that the test rejects."""


@dataclass(frozen=True, eq=False)
class Quantiles:
    """The mean of standardised order statistics, with the range of the middle 90 %, beside those of a normal."""

    normal: Float[np.ndarray, " head"]
    mean: Float[np.ndarray, " head"]
    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]


def parts(setup: Setup) -> list[Part]:
    return [plain_traces(setup, distribution) for distribution in setup.distributions]


# ── samples ───────────────────────────────────────────────────────────────────────────────────────────────


def samples(some: Iterable[TracedAnswer]) -> dict[str, list[Sample]]:
    """Contributions by token and layer, and information by token. Heads that were not measured are left out."""
    found: dict[str, list[Sample]] = {CONTRIBUTION: [], INFORMATION: []}
    for answer in some:
        for step in range(answer.steps):
            for layer, values in enumerate(answer.contribution[step]):
                found[CONTRIBUTION].append(Sample(answer.unit, layer, values[~np.isnan(values)].astype(float)))
            total = answer.total[step].ravel()
            found[INFORMATION].append(Sample(answer.unit, -1, total[~np.isnan(total)].astype(float)))
    return {name: [one for one in own if _testable(one.values)] for name, own in found.items()}


def _testable(values: np.ndarray) -> bool:
    """The test needs four values that are not all equal."""
    return len(values) >= 4 and float(values.std()) > 0


def spaced(every: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly spaced."""
    if len(every) <= most:
        return list(every)
    return [every[at] for at in np.linspace(0, len(every) - 1, most).round().astype(int)]


# ── tests ─────────────────────────────────────────────────────────────────────────────────────────────────


def p_value(values: Float[np.ndarray, " head"]) -> float:
    """Lilliefors' test of normality with unknown mean and variance.

    Small p-values are those of the approximation by Dallal and Wilkinson: the table of statsmodels ends at 0.001,
    below what a correction for many tests needs.
    """
    with optional():
        from statsmodels.stats.diagnostic import lilliefors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(lilliefors(values, dist="norm", pvalmethod="approx")[1])


def tested(every: Sequence[Sample], seed: int) -> Tested | None:
    """The tests of all samples. None if there are none."""
    with optional():
        from statsmodels.stats.multitest import multipletests

    some = spaced(every, MOST_TESTS)
    if not some:
        return None
    p = np.array([p_value(one.values) for one in some])
    normal = mean_interval((p > LEVEL).astype(float).tolist(), [one.unit for one in some], seed)
    kept = {name: float(1 - multipletests(p, LEVEL, method=name)[0].mean()) for name in ("holm", "fdr_bh")}
    heads = int(np.median([len(one.values) for one in some]))
    return Tested(len(some), heads, normal, kept["holm"], kept["fdr_bh"], power(heads, seed))


def power(heads: int, seed: int) -> float:
    """How often the test rejects a sample of this size from an exponential distribution."""
    rng = np.random.default_rng(seed)
    return float(np.mean([p_value(rng.exponential(size=heads)) <= LEVEL for _ in range(TRIALS)]))


def quantiles(every: Sequence[Sample]) -> Quantiles | None:
    """Order statistics of the standardised samples of the most frequent size."""
    with optional():
        from scipy.stats import norm

    if not every:
        return None
    sizes, counts = np.unique([len(one.values) for one in every], return_counts=True)
    size = int(sizes[counts.argmax()])
    own = np.stack([np.sort((v - v.mean()) / v.std(ddof=1)) for one in every if len(v := one.values) == size])
    expected = norm.ppf((np.arange(1, size + 1) - 0.375) / (size + 0.25))  # Blom's positions
    low, high = np.percentile(own, [5, 95], axis=0)
    return Quantiles(expected, own.mean(0), low, high)


# ── agreement ─────────────────────────────────────────────────────────────────────────────────────────────


def agreement(some: Iterable[TracedAnswer], method: HEAL, seed: int) -> tuple[Interval, int]:
    """Share of heads with the same type if both σ rules judge Yeo–Johnson transformed values."""
    before, after = replace(method, yeo_johnson=False), replace(method, yeo_johnson=True)
    shares: list[float] = []
    units: list[str] = []
    for answer in some:
        if len(shares) >= MOST_AGREEMENT:
            break
        same = types_with(answer, before) == types_with(answer, after)
        shares += same.mean((1, 2)).tolist()
        units += [answer.unit] * answer.steps
    return mean_interval(shares, units, seed), len(shares)


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Distribution:
    """Everything that is reported on one distribution."""

    tested: Mapping[str, Tested | None]
    quantiles: Mapping[str, Quantiles | None]
    agreement: Interval
    tokens: int


def report(found: Found) -> Report:
    every = {d: _distribution(found, d) for d in found.setup.distributions}
    tests = [_row(d, name, one) for d, own in every.items() for name, one in own.tested.items() if one is not None]
    agreements = [_agreement_row(d, own) for d, own in every.items()]
    drawn = {f"{name} ({d})": q for d, own in every.items() for name, q in own.quantiles.items() if q is not None}
    return Report(
        (
            Table("tests", tests, "Lilliefors test of normality"),
            Table("yeo-johnson", agreements, "Head types with and without the Yeo–Johnson transform"),
        ),
        [verdict for d, own in every.items() for verdict in _verdicts(d, own)],
        {"quantiles": lambda: _figure(drawn)},
        NOTES,
    )


def _distribution(found: Found, name: str) -> Distribution:
    records = found.records(f"traces {name}")
    every = samples(answers(records))
    shares, tokens = agreement(answers(records), found.setup.heal, found.setup.seed)
    return Distribution(
        {quantity: tested(own, found.setup.seed) for quantity, own in every.items()},
        {quantity: quantiles(spaced(own, MOST_TESTS)) for quantity, own in every.items()},
        shares,
        tokens,
    )


NOTES = (
    "One test per token and layer (contribution) or per token (I_total): do the heads that a σ rule judges together "
    "come from a normal distribution? Many small tests tell little: the power is how often the test rejects "
    "as many values from an exponential distribution.",
    f"At most {MOST_TESTS:,} evenly spaced tests per row. p-values are Dallal and Wilkinson's approximation.",
    "Not rejected after correction: by Holm (no wrong rejection with 95 % probability), and with a false discovery "
    "rate of 5 % (BH).",
    "The contributions are expectations over the noise unless the method draws it.",
)


def _row(distribution: str, quantity: str, one: Tested) -> Row:
    values = {
        "p > 0.05": Value.of(_percent(one.normal), paper="almost all", digits=1),
        "not rejected (Holm)": Value(100 * one.holm, digits=1),
        "not rejected (BH)": Value(100 * one.bh, digits=1),
        "power %": Value(100 * one.power, digits=1),
    }
    return Row({"distribution": distribution, "values": quantity}, {**values, "heads": one.heads, "tests": one.tests})


def _percent(interval: Interval) -> Interval:
    return Interval(100 * interval.value, 100 * interval.low, 100 * interval.high)


def _agreement_row(distribution: str, one: Distribution) -> Row:
    paper = printed("robustness", "yeo_johnson", "agreement")
    value = Value.of(_percent(one.agreement), paper=paper, expected="=", n=one.tokens)
    return Row({"distribution": distribution}, {"agreement %": value, "tokens": one.tokens})


ALMOST_ALL = 95.0
"""What the verdict takes "almost all cases" to mean: as many as if every sample were normal."""


def _verdicts(distribution: str, one: Distribution) -> list[Verdict]:
    found = []
    for quantity, own in one.tested.items():
        claim = f"p > 0.05 in almost all cases ({quantity}, {distribution})"
        if own is None or own.tests < FEWEST:
            tests = 0 if own is None else own.tests
            found.append(Verdict(claim, Outcome.TOO_FEW, f"{claim}: too few tests ({tests}): measure more images"))
            continue
        share = Value.of(_percent(own.normal), digits=1)
        outcome = _almost_all(share)
        text = f"{claim} {outcome}: {share} %; the test would notice an exponential distribution in "
        found.append(Verdict(claim, outcome, f"{text}{100 * own.power:.0f} % of cases of {own.heads} heads"))
    return [*found, _agreement_verdict(distribution, one)]


def _almost_all(share: Value) -> Outcome:
    if math.isnan(share.low):
        return Outcome.TOO_FEW
    if share.low >= ALMOST_ALL:
        return Outcome.CONFIRMED
    return Outcome.CONTRADICTED if share.high < ALMOST_ALL else Outcome.NOT_CONFIRMED


def _agreement_verdict(distribution: str, one: Distribution) -> Verdict:
    paper = printed("robustness", "yeo_johnson", "agreement")
    claim = f"agreement with and without Yeo–Johnson ({distribution})"
    value = Value.of(_percent(one.agreement))
    if one.tokens < FEWEST:
        return Verdict(claim, Outcome.TOO_FEW, f"{claim}: too few tokens ({one.tokens}): measure more images")
    return Verdict(claim, Outcome.MEASURED, f"{claim}: {value} %, paper {paper}")


def _figure(found: dict[str, Quantiles]) -> Figure:
    from heal.plots.normality import quantile_plots

    return quantile_plots(found)


STUDY = Study(
    "normality",
    "whether the scores that the σ rules judge are normal: Lilliefors test, Q-Q plot, and types after Yeo–Johnson",
    "section on robustness (5)",
    parts,
    report,
)
