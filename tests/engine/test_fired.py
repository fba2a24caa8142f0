"""Proof of effect: what was changed is counted, and silence is said."""

import warnings

import pytest
import torch

from heal.errors import HealWarning
from heal.methods import HEAL, Fired
from tests import zoo
from tests.engine.saying import METHOD, ROWS, healed, say
from tests.zoo import Row


def test_fired_adds_up() -> None:
    steps = [torch.tensor([2.0, 2, 0.5, 1.0]), torch.tensor([0.0, 0, 0.0, 0.0]), torch.tensor([3.0, 3, 2.0, 0.25])]
    names = ("beta", "gamma")
    assert Fired.of(names, steps, "never shown") == Fired(2, 5, {"beta": 0.5, "gamma": 0.25})
    assert Fired.of(names, steps[1:2], "why") == Fired(reason="why")
    assert Fired.of(names, [], "why") == Fired(reason="why")
    assert Fired(changes=1)
    assert not Fired(steps=1, reason="why")


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        (METHOD, ROWS),
        (HEAL(alpha=0.9, factor_limit=None), ROWS),
        (HEAL(layers=(1,)), ROWS),
        (HEAL(factor_limit=1.0), ROWS),
        (HEAL(calibrate=False), ROWS),
        (METHOD, [Row(images=0)]),
    ],
    ids=["default", "strong", "one layer", "limit 1", "measure", "no image"],
)
@pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")
def test_fired_says_whether_anything_changed(model, method: HEAL, rows: list[Row]) -> None:
    batch = zoo.inputs(model, rows)
    with method.attach(model) as handle:
        said = say(model, batch, max_new_tokens=1)
    change = (said.logits - say(model, batch, max_new_tokens=1).logits).abs().max()
    assert (handle.fired.changes > 0) == bool(change > 1e-3)
    assert bool(handle.fired) == (handle.fired.steps == 1)
    assert (handle.fired.reason is None) == (handle.fired.changes > 0)
    assert change > 1e-3 or change < 1e-4


def test_fired_over_generations_is_their_sum(model, batch) -> None:
    with METHOD.attach(model) as one:
        say(model, batch)
    with METHOD.attach(model) as two:
        say(model, batch)
        say(model, batch)
    assert one.fired.changes > 0
    assert (two.fired.steps, two.fired.changes) == (2 * one.fired.steps, 2 * one.fired.changes)
    assert two.fired.sizes["beta"] == pytest.approx(one.fired.sizes["beta"])
    assert two.fired.sizes["gamma"] == pytest.approx(one.fired.sizes["gamma"])


def test_measuring_is_no_failure(model, batch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealWarning)
        with HEAL(calibrate=False).attach(model) as handle:
            say(model, batch)
    assert not handle.fired
    assert "nothing was generated" not in handle.fired.reason


@pytest.mark.parametrize(
    ("method", "row", "reason"),
    [
        (METHOD, Row(images=0), "the prompt has no visual tokens"),
        (HEAL(factor_limit=1.0), Row(), "every synergy head was at the equilibrium"),
    ],
)
def test_silence_is_said_once_an_attachment(model, method: HEAL, row: Row, reason: str) -> None:
    batch = zoo.inputs(model, [row])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            with method.attach(model) as handle:
                say(model, batch)
                say(model, batch)
            assert handle.fired.reason.startswith(reason)
    messages = [str(w.message) for w in heard if issubclass(w.category, HealWarning)]
    assert len(messages) == 2
    assert all(m.startswith(f"nothing was changed: {reason}") for m in messages)


def test_no_warning_when_something_was_calibrated(model, batch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealWarning)
        healed(model, batch)
