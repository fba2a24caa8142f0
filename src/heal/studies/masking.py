"""The paper's tables of maskings: what replaces the keys and values of a modality."""

from __future__ import annotations

from collections.abc import Sequence

from heal.studies.robustness import Topic
from heal.studies.robustness import report as robustness_report
from heal.studies.setup import Setup
from heal.studies.study import Found, Part, Report, Study
from heal.studies.variants import Variant, varied
from heal.studies.variants import parts as variant_parts

MASKINGS = ("expected", "gaussian", "zero", "uniform", "swap")
PAPERS = "gaussian"
"""The paper's default."""
AGAIN = "gaussian, another seed"


def variants(setup: Setup) -> list[Variant]:
    """The user's masking, which is the reference, then the others."""
    heal = setup.heal
    found = [Variant(heal.noise, heal, ("masking", heal.noise))]
    found += [Variant(m, varied(heal, masking=m), ("masking", m)) for m in MASKINGS if m != heal.noise]
    return [*found, Variant(AGAIN, varied(heal, masking=PAPERS, seed=heal.seed + 1), answers=False)]


def parts(setup: Setup) -> Sequence[Part]:
    return variant_parts(setup, variants(setup))


def report(found: Found) -> Report:
    return robustness_report(found, variants(found.setup), Topic("masking", PAPERS), NOTES)


NOTES = (
    f"`{AGAIN}` differs from gaussian in its draws alone. A masking that agreed with one draw better than another "
    "draw does would be surprising.",
    "expected is the mean over all gaussian draws, the default of this implementation. The paper does not have it.",
    "swap masks with the tokens of the previous sample of the batch. POPE's questions are then asked in an order in "
    "which neighbours are about different images.",
)

STUDY = Study(
    "masking",
    "expected, gaussian, zero, uniform and swap masking: same head types, drift, POPE F1",
    "tables of maskings",
    parts,
    report,
    benchmarks=("chair", "pope"),
)
