"""Sentences about the studies of HEAL's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heal.bench.score.bootstrap import LEVEL, Interval
from heal.extras import optional
from heal.studies.agreement import VISUAL
from heal.studies.robustness import Result, Results, Topic, drift_value, known, percent
from heal.studies.statistics import FEWEST
from heal.studies.study import Outcome, Verdict

with optional():
    from scipy.stats import norm

TOLERANCE = 5.0
"""Percentage points by which heads may agree less often than in the paper, on another model."""


def verdicts(every: Results, topic: Topic) -> list[Verdict]:
    """About agreement, drift and POPE F1 over all settings, for each distribution."""
    return [
        verdict
        for distribution, own in every.items()
        for verdict in (
            agreement_verdict(distribution, own, topic),
            drift_verdict(distribution, own, topic),
            f1_verdict(distribution, own, topic),
        )
    ]


def agreement_verdict(distribution: str, own: Sequence[Result], topic: Topic) -> Verdict:
    """Confirmed if no setting agrees clearly less often than in the paper. Settings without a printed figure are
    shown, and do not count."""
    claim = f"{topic.claim} whatever the {topic.what} ({distribution})"
    if nothing_redundant(own, topic):
        why = "no head is causally redundant under any setting, so agreement is complete by construction"
        return Verdict(claim, Outcome.MEASURED, f"{claim}: no verdict, because {why}")
    found = {
        result.label: (topic.of(result.agreements[topic.against]), result.paper("agreement"))
        for result in own
        if topic.against in result.agreements and known(topic.of(result.agreements[topic.against]))
    }
    if not found:
        return Verdict(claim, Outcome.TOO_FEW, f"{claim}: no descriptions to compare, so there is no verdict")
    if not any(paper is not None for _, paper in found.values()):
        claim = f"{topic.claim} with other {topic.what} ({distribution})"
    printed = [(same, paper) for same, paper in found.values() if paper is not None]
    outcome = Outcome.MEASURED
    if printed:
        below = any(same.high < paper - TOLERANCE for same, paper in printed)
        outcome = Outcome.NOT_CONFIRMED if below else Outcome.CONFIRMED
    shown = ", ".join(
        f"{label} {percent(same)} %{'' if paper is None else f' (paper {paper:.1f})'}"
        for label, (same, paper) in found.items()
    )
    return Verdict(claim, outcome, f"{claim} {outcome}: agreement with {topic.against}: {shown}")


def nothing_redundant(own: Sequence[Result], topic: Topic) -> bool:
    """Whether redundancy is compared and no setting finds a redundant head: κ is then undefined everywhere."""
    kappas = [agreed.redundant_kappa for result in own for agreed in result.agreements.values() if agreed.answers]
    return topic.figure == "redundant" and bool(kappas) and all(math.isnan(kappa.value) for kappa in kappas)


def drift_verdict(distribution: str, own: Sequence[Result], topic: Topic) -> Verdict:
    """Confirmed if the visual share is lower at hallucinated names with every setting."""
    claim = f"drift of I_vis / I_total whatever the {topic.what} ({distribution})"
    values = {result.label: drift_value(result, VISUAL) for result in own}
    judged = {label: value for label, value in values.items() if value.has_interval}
    if not judged:
        fewest = max((value.n or 0 for value in values.values()), default=0)
        why = f"too few names ({fewest}; an interval needs {FEWEST}), so there is no verdict: measure more images"
        return Verdict(claim, Outcome.TOO_FEW, f"{claim}: {why}")
    outcome = Outcome.CONFIRMED if all(value.low > 0 for value in judged.values()) else Outcome.NOT_CONFIRMED
    if any(value.high < 0 for value in judged.values()):
        outcome = Outcome.CONTRADICTED
    shown = ", ".join(
        f"{label} {value}{f', paper {value.paper:.2f}' if isinstance(value.paper, float) else ''}"
        for label, value in judged.items()
    )
    return Verdict(claim, outcome, f"{claim} {outcome}: correct − hallucinated {shown}")


def f1_verdict(distribution: str, own: Sequence[Result], topic: Topic) -> Verdict:
    """Consistent if no setting differs clearly from the reference, with a correction for their number."""
    claim = f"equal POPE F1 whatever the {topic.what} ({distribution})"
    found = {r.label: r.f1_difference for r in own if r.f1_difference is not None and known(r.f1_difference)}
    if not found:
        return Verdict(claim, Outcome.TOO_FEW, f"{claim}: too few answers to compare, so there is no verdict")
    differ = any(widened(difference, len(found)).excludes_zero for difference in found.values())
    outcome = Outcome.NOT_CONFIRMED if differ else Outcome.CONSISTENT
    shown = ", ".join(f"{label} {_signed(difference)}" for label, difference in found.items())
    return Verdict(claim, outcome, f"{claim} {outcome}: difference to {own[0].label}: {shown}")


def widened(interval: Interval, tests: int, level: float = LEVEL) -> Interval:
    """The interval of one of several tests, so that all of them together hold with this level (Bonferroni), if the
    figure is normally distributed."""
    wider = float(norm.ppf(1 - (1 - level) / 2 / tests) / norm.ppf(1 - (1 - level) / 2))
    value = interval.value
    return Interval(value, value - wider * (value - interval.low), value + wider * (interval.high - value))


def _signed(found: Interval) -> str:
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
