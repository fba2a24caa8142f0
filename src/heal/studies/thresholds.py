"""The paper's tables of thresholds: σ of both redundancy rules, λ, and whether synergy must be positive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.methods import HEAL
from heal.studies.agreement import Types
from heal.studies.replacement import never_redundant
from heal.studies.retyping import types_with
from heal.studies.robustness import Topic
from heal.studies.robustness import report as robustness_report
from heal.studies.setup import Setup
from heal.studies.study import Found, Part, Report, Study
from heal.studies.traces import TracedAnswer
from heal.studies.variants import Variant, varied
from heal.studies.variants import parts as variant_parts

SIGMAS = (1.0, 2.0, 3.0, math.inf)
LAMBDAS = (1.4826, 2.9652, 4.4478, math.inf)
POSITIVE = "I_syn > 0 for synergy"


def variants(setup: Setup) -> list[Variant]:
    """The user's thresholds, which are the reference, then each value of the paper that differs from them."""
    heal = setup.heal
    found = [Variant(reference(heal), heal, ("sigma_info", "3") if _papers(heal) else ())]
    for option, sign, place, values in (
        ("sigma_causal", "σ_causal", "sigma_causal", SIGMAS),
        ("sigma_info", "σ_total", "sigma_info", SIGMAS),
        ("mad", "λ", "mad", LAMBDAS),
    ):
        for value in values:
            if value != getattr(heal, option):
                method = varied(heal, **{option: value})
                found.append(Variant(f"{sign} {shown(value)}", method, (place, f"{value:g}"), _typing(method)))
    return [*found, Variant(POSITIVE, heal, types=lambda answer: positive_synergy(answer, heal), answers=False)]


def reference(heal: HEAL) -> str:
    """The label of the user's thresholds."""
    return "default" if _papers(heal) else "as given"


def shown(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _papers(heal: HEAL) -> bool:
    """Whether all thresholds are the paper's defaults."""
    default = HEAL()
    return all(getattr(heal, name) == getattr(default, name) for name in ("sigma_causal", "sigma_info", "mad"))


def _typing(method: HEAL) -> Callable[[TracedAnswer], Types]:
    return lambda answer: types_with(answer, method)


def positive_synergy(answer: TracedAnswer, method: HEAL) -> Types:
    """Another reading: a synergy head must also have I_syn > 0. A head that has not is visual or language, by the
    larger of both."""
    types = types_with(answer, method).copy()
    synergy = types == int(HeadType.SYNERGY)
    negative = synergy & (answer.total - answer.visual - answer.language <= 0)
    larger = np.where(answer.visual > answer.language, int(HeadType.VISUAL), int(HeadType.LANGUAGE))
    types[negative] = larger[negative].astype(types.dtype)
    return types


def parts(setup: Setup) -> Sequence[Part]:
    return variant_parts(setup, variants(setup))


def report(found: Found) -> Report:
    heal = found.setup.heal
    own = f"σ_causal {shown(heal.sigma_causal)}, σ_total {shown(heal.sigma_info)}, λ {shown(heal.mad)}"
    notes = [f"{reference(heal)}: {own}.", *NOTES, *never_redundant(found)]
    return robustness_report(found, variants(found.setup), Topic("thresholds", reference(heal)), notes)


NOTES = (
    "Head types with other thresholds follow from the stored scores; nothing is generated again for them. POPE is "
    "answered with every threshold.",
    f"`{POSITIVE}` is another reading of the paper's text, where mixed heads without positive synergy are visual or "
    "language, by the larger of both. The method does not offer it, so it answers no questions.",
    "The paper prints no agreement for thresholds: they define the types, so agreement must fall.",
)

STUDY = Study(
    "thresholds",
    "σ of both redundancy rules, λ, and positive synergy: head types, drift, POPE F1",
    "tables of σ_total, σ_causal and λ",
    parts,
    report,
    benchmarks=("chair", "pope"),
)
