"""The paper's table of replacements: what replaces the output of a head to test whether the head matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heal.studies.agreement import Typed, agreement, typed
from heal.studies.retyping import types_with
from heal.studies.robustness import Topic, percent
from heal.studies.robustness import report as robustness_report
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Part, Report, Row, Study, Table, Value
from heal.studies.traces import answers
from heal.studies.variants import Variant, traces_name, varied
from heal.studies.variants import parts as variant_parts

REPLACEMENTS = ("expected", "none", "gaussian", "zero", "uniform", "cauchy", "swap")
PAPERS = "gaussian"
AGAIN = "gaussian, another seed"
SIGMAS = (3.0, 2.0, 1.0)


def variants(setup: Setup) -> list[Variant]:
    """The user's replacement, which is the reference, then the others."""
    heal = setup.heal
    own = heal.replaced_by
    found = [Variant(own, heal, ("replacement", own))]
    found += [Variant(r, varied(heal, replacement=r), ("replacement", r)) for r in REPLACEMENTS if r != own]
    again = varied(heal, replacement=PAPERS, seed=heal.seed + 1)
    return [*found, Variant(AGAIN, again, answers=False)]


def parts(setup: Setup) -> Sequence[Part]:
    return variant_parts(setup, variants(setup))


def report(found: Found) -> Report:
    every, topic = variants(found.setup), Topic("replacement", PAPERS, "redundant")
    never = never_redundant(found)
    notes = [*NOTES, *never, *["The table of thresholds has 2σ and 1σ, where heads can be redundant."] * len(never)]
    made = robustness_report(found, every, topic, notes)
    return replace(made, tables=(*made.tables, sigma_table(found, every)))


def never_redundant(found: Found, sigma: float = 3.0) -> list[str]:
    """Said of models in which the σ rule cannot find a head, whatever is measured."""
    heads = int(found.model.get("heads", 0))
    if heads == 0 or heads > sigma**2 + 1:
        return []
    return [
        f"This model has {heads} heads per layer. With at most {sigma**2 + 1:.0f} values none can be {sigma:g} "
        f"standard deviations below their mean, so no head is ever causally redundant at {sigma:g}σ: agreement is "
        "complete by construction, and says nothing about the paper's claim."
    ]


# ── lower thresholds, from the stored contributions ───────────────────────────────────────────────────────


def sigma_table(found: Found, every: Sequence[Variant]) -> Table:
    """Agreement on redundancy at 3σ, 2σ and 1σ, with the paper's default."""
    rows = []
    for distribution in found.setup.distributions:
        for sigma in SIGMAS:
            known = {v.label: _at(found, distribution, v, sigma) for v in every}
            rows += [
                Row(
                    {"distribution": distribution, "threshold": f"{sigma:g}σ", "replacement": label},
                    _sigma_cells(own, known[PAPERS] if label != PAPERS else None, found.setup.seed),
                )
                for label, own in known.items()
                if label != "none"
            ]
    return Table("thresholds", rows, f"Causally redundant or not, compared with {PAPERS}, by threshold")


def _at(found: Found, distribution: str, variant: Variant, sigma: float) -> dict[str, Typed]:
    method = replace(variant.method, sigma_causal=sigma)
    records = found.records(traces_name(distribution, variant.label))
    return {answer.id: typed(answer, types_with(answer, method)) for answer in answers(records)}


def _sigma_cells(own: dict[str, Typed], other: dict[str, Typed] | None, seed: int) -> dict[str, Cell]:
    from heal.analysis.taxonomy import HeadType
    from heal.studies.agreement import share

    cells: dict[str, Cell] = {
        "redundant heads, %": percent(share(own.values(), HeadType.CAUSAL_REDUNDANT, seed)),
        "same redundancy, %": None,
        "κ": None,
    }
    if other is not None:
        agreed = agreement(other, own, seed)
        cells |= {
            "same redundancy, %": percent(agreed.redundant, n=agreed.answers),
            "κ": Value.of(agreed.redundant_kappa),
        }
    return cells


NOTES = (
    "expected is the mean over all gaussian draws, the default of this implementation. none skips the test: no head "
    f"is causally redundant. `{AGAIN}` differs from gaussian in its draws alone.",
)

STUDY = Study(
    "replacement",
    "what replaces a head's output: the same redundant heads, drift, POPE F1",
    "table of replacements",
    parts,
    report,
    benchmarks=("chair", "pope"),
)
