from pathlib import Path
from typing import Any

import pytest

from heal.bench.run.environment import weights_fingerprint
from heal.bench.score.summary import Summary
from heal.methods import HEAL
from heal.report import plans
from heal.report.stored_results import load_stored
from heal.studies.comparison import EMBEDDED_HEAL, STRENGTHS
from heal.vlm import VLM
from tests.known import known
from tests.studies.test_comparison import row


def validated(best: dict[str, int]) -> Summary:
    """A run in which the given setting of each method is best by the sum of both figures, but not by either alone."""
    rows = [row("mini-pope", "plain"), row("mini-chair", "plain", f1=70.0)]
    for name, settings in STRENGTHS.items():
        for i in range(1, len(settings) + 1):
            good = i == best[name]
            rows.append(row("mini-pope", f"{name} {i}", value=80.0 if good else 82.0))
            rows.append(row("mini-chair", f"{name} {i}", "chair_s", False, 30.0, f1=75.0 if good else 70.0))
    return Summary(Path("x"), tuple(rows))


def test_settings_are_chosen_by_the_sum_of_both_figures():
    best = {name: 1 + i % 4 for i, name in enumerate(STRENGTHS)}
    found = plans.tuned(validated(best))
    assert found == {name: STRENGTHS[name][best[name] - 1] for name in STRENGTHS}


def test_nothing_is_chosen_on_the_test_split():
    made = [plans.safety(3), plans.choice(3), plans.tuning(3)]
    assert {plan.split for plan in made} == {"validation"}
    reported = [
        *(plan(d, 3) for d in ("natural", "counter") for plan in (plans.result, plans.questions)),
        plans.controls("natural", 3, HEAL(alpha=0.6)),
        plans.baselines("natural", 3, None),
        plans.baselines("natural", 3, {"heal": HEAL(alpha=0.6)}),
    ]
    assert {plan.split for plan in reported} == {"test"}
    both = [plans.noise(split, d, 3) for split in ("validation", "test") for d in ("natural", "counter")]
    assert [plan.split for plan in both] == ["validation"] * 2 + ["test"] * 2
    names = [plan.name for plan in made + reported + both]
    assert len(set(names)) == len(names)
    assert all(next(iter(plan.methods)) == "plain" for plan in made + reported)
    tasks: list[tuple[str, Any]] = [(plan.split, task) for plan in reported for task in plan.create_tasks().values()]
    assert all(task.split == split for split, task in tasks)


def test_tuning_has_the_same_budget_for_all():
    methods = list(plans.tuning(3).methods)
    assert len(methods) == 1 + 4 * len(STRENGTHS)


def test_embedded_heal_is_the_chosen_form():
    there = load_stored(Path(__file__).parents[2] / "docs" / "results" / "choice.json")
    assert known(there).weights == weights_fingerprint(VLM.embedded().model)
    assert plans.equilibria()[plans.chosen_form(known(there).summary)] == EMBEDDED_HEAL


def test_controls_differ_from_the_chosen_form_in_one_option():
    chosen = HEAL(alpha=0.6)
    for name, method in plans.controls("counter", 3, chosen).methods.items():
        if name not in ("plain", "synergy heads"):
            changed = {k for k, v in known(method).options().items() if v != known(chosen).options()[k]}
            assert changed in ({"heads"}, {"interval"})


@pytest.mark.parametrize("distribution", ["natural", "counter"])
def test_equilibria_of_the_report(distribution):
    methods = plans.result(distribution, 3).methods
    assert [f"heal α={a}" in methods for a in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)] == [True] * 6
    assert {"beam 5", "heal auto", "heal profile δ=0"} <= set(methods)
