"""Sentences about the paper's main comparison: our methods against the plain model, and against their rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heal.bench.score.bootstrap import Interval
from heal.studies.answered import Answered
from heal.studies.paper import printed
from heal.studies.paper_table import PLAIN
from heal.studies.robustness_verdicts import widened
from heal.studies.statistics import FEWEST
from heal.studies.study import Outcome, Verdict
from heal.studies.verdicts import compared


@dataclass(frozen=True)
class Claim:
    """A figure and the direction in which it should change."""

    text: str
    benchmark: str
    figure: str
    expected: str
    paper: str


CLAIMS = (
    Claim("lower CHAIR_i", "chair", "chair_i", "↓", "chair_i"),
    Claim("lower CHAIR_s", "chair", "chair_s", "↓", "chair_s"),
    Claim("higher POPE F1", "pope", "f1", "↑", "pope_f1"),
    Claim("higher MME total", "mme", "total", "↑", "mme_total"),
)
AGAINST_RIVALS = ("lower CHAIR_i", "higher POPE F1")


@dataclass(frozen=True)
class Standing:
    """Methods that answered the same images: ours, and the rivals to compare them with."""

    answered: Mapping[str, Answered]
    ours: Sequence[str]
    rivals: Sequence[str]
    papers: Mapping[str, Mapping[str, Any]]
    """The paper's rows by method."""
    captions_only: Sequence[str] = ()
    """Those of ours that leave short answers alone."""

    def claims(self, name: str) -> list[Claim]:
        there = [claim for claim in CLAIMS if claim.benchmark in self.answered]
        return [claim for claim in there if claim.benchmark == "chair" or name not in self.captions_only]

    def images(self, benchmark: str) -> int:
        return self.answered[benchmark].images

    def interval(self, found: Interval, benchmark: str) -> Interval:
        """None for too few images: resampling a few images says nothing about others."""
        return found if self.images(benchmark) >= FEWEST else Interval(found.value, math.nan, math.nan)


def verdicts(distribution: str, found: Sequence[Standing]) -> list[Verdict]:
    """Each of our methods against the plain model, on the images of the first standing it is in, and against every
    rival."""
    said: list[Verdict] = []
    first: dict[str, Standing] = {}
    for standing in found:
        first |= {name: standing for name in standing.ours if name not in first}
    for name, main in first.items():
        claims = main.claims(name)
        said += [against_plain(distribution, main, name, claim) for claim in claims]
        said += at_equal_recall(distribution, main, name)
        if any(standing.rivals for standing in found):
            said += [against_rivals(distribution, found, name, c) for c in claims if c.text in AGAINST_RIVALS]
    return said


def against_plain(distribution: str, standing: Standing, name: str, claim: Claim) -> Verdict:
    answered = standing.answered[claim.benchmark]
    difference = (answered.row(name).differences or {})[claim.figure]
    text, paper = f"{name}: {claim.text} than plain ({distribution})", _printed(standing, name, claim)
    return compared(text, difference, answered, (PLAIN, name), expected=claim.expected, paper=paper)


def at_equal_recall(distribution: str, standing: Standing, name: str) -> list[Verdict]:
    answered = standing.answered.get("chair")
    gain = None if answered is None else answered.row(name).equal_recall
    if answered is None or gain is None:
        return []
    text = f"{name}: lower CHAIR_i at equal recall than plain ({distribution})"
    return [compared(text, gain.mean, answered, (PLAIN, name), expected="↓")]


def _printed(standing: Standing, name: str, claim: Claim) -> float | None:
    own = standing.papers.get(name, {}).get(claim.paper)
    return None if own is None else own - printed("table1", "methods", "beam", claim.paper)


def against_rivals(distribution: str, found: Sequence[Standing], name: str, claim: Claim) -> Verdict:
    """Confirmed if it is better than every rival, with intervals that hold for all comparisons together."""
    raw = {
        rival: standing.interval(
            standing.answered[claim.benchmark].differences(rival, name)[claim.figure], claim.benchmark
        )
        for standing in found
        if name in standing.ours
        for rival in standing.rivals
    }
    known = {rival: d for rival, d in raw.items() if not math.isnan(d.low)}
    text = f"{name}: {claim.text} than every rival ({distribution})"
    if not known:
        return Verdict(text, Outcome.TOO_FEW, f"{text}: too few images, so there is no verdict: measure more images")
    wide = {rival: widened(d, len(known)) for rival, d in known.items()}
    better = [rival for rival, d in wide.items() if d.excludes_zero and _good(d, claim)]
    worse = [rival for rival, d in wide.items() if d.excludes_zero and not _good(d, claim)]
    outcome = Outcome.CONFIRMED if len(better) == len(raw) else Outcome.NOT_CONFIRMED
    outcome = Outcome.CONTRADICTED if worse else outcome
    few = [rival for rival in raw if rival not in known]
    rest = len(known) - len(better) - len(worse)
    shown = [f"better than {len(better)} of {len(raw)}{_list(better)}", f"worse than {len(worse)}{_list(worse)}"]
    shown += [f"no clear difference to {rest}", *([f"too few images for {len(few)}{_list(few)}"] if few else [])]
    shown[-1] += f"; intervals hold for all {len(known)} comparisons together"
    return Verdict(text, outcome, f"{text} {outcome}: {', '.join(shown)}{_paper(found, name, list(raw), claim)}")


def _good(difference: Interval, claim: Claim) -> bool:
    return (difference.value > 0) == (claim.expected == "↑")


def _list(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _paper(found: Sequence[Standing], name: str, rivals: Sequence[str], claim: Claim) -> str:
    """Of how many of these rivals the paper prints a worse figure."""
    papers = found[0].papers
    own = papers.get(name, {}).get(claim.paper)
    others = [o for rival in rivals if rival != PLAIN and (o := papers.get(rival, {}).get(claim.paper)) is not None]
    if own is None or not others:
        return ""
    beaten = sum((own > other) == (claim.expected == "↑") for other in others)
    return f"; paper: better than {beaten} of {len(others)} of them"
