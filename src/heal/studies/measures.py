"""The paper's comparison of measures: how similar two outputs of a head are."""

from __future__ import annotations

from collections.abc import Sequence

from heal.analysis.information import MEASURES
from heal.studies.robustness import Topic
from heal.studies.robustness import report as robustness_report
from heal.studies.setup import Setup
from heal.studies.study import Found, Part, Report, Study
from heal.studies.variants import Variant, varied
from heal.studies.variants import parts as variant_parts

PAPERS = "cosine"


def variants(setup: Setup) -> list[Variant]:
    """The user's measure, which is the reference, then the others."""
    heal = setup.heal
    found = [Variant(heal.measure, heal, ("measures", heal.measure))]
    return found + [Variant(m, varied(heal, measure=m), ("measures", m)) for m in MEASURES if m != heal.measure]


def parts(setup: Setup) -> Sequence[Part]:
    return variant_parts(setup, variants(setup))


def report(found: Found) -> Report:
    return robustness_report(found, variants(found.setup), Topic("measure", PAPERS), NOTES)


NOTES = (
    "cosine: (1 + cos) / 2. l2: a sigmoid of the normalised distance, 1 for equal outputs. cosine+l2: their mean. "
    "The paper prints agreement only.",
)

STUDY = Study(
    "measures",
    "cosine, L2 and both as the similarity of outputs: same head types, drift, POPE F1",
    "comparison of measures",
    parts,
    report,
    benchmarks=("chair", "pope"),
)
