"""Counts of changes. A generation without changes gives the reason."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import HealWarning
from heal.methods import HEAL, Fired, Method
from tests import zoo
from tests.engine.saying import METHOD, NEW, ROWS, healed, say
from tests.known import known
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
    assert "nothing was generated" not in known(handle.fired.reason)


@pytest.mark.parametrize(
    ("method", "row", "reason"),
    [
        (METHOD, Row(images=0), "the prompt has no visual tokens"),
        (HEAL(factor_limit=1.0), Row(), "every calibrated head was at the equilibrium"),
    ],
)
def test_the_reason_for_no_change_is_given_once_per_attachment(model, method: HEAL, row: Row, reason: str) -> None:
    batch = zoo.inputs(model, [row])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            with method.attach(model) as handle:
                say(model, batch)
                say(model, batch)
            assert known(handle.fired.reason).startswith(reason)
    messages = [str(w.message) for w in heard if issubclass(w.category, HealWarning)]
    assert len(messages) == 2
    assert all(m.startswith(f"nothing was changed: {reason}") for m in messages)


def test_no_warning_when_something_was_calibrated(model, batch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealWarning)
        healed(model, batch)


# ── counters come from compared values ────────────────────────────────────────────────────────────────────


class Claims(Runtime):
    """Declares a large change at every step. Subclasses decide what is really changed."""

    neutral: ClassVar[Mapping[str, float]] = {"size": 0.0}

    def after_pass(self, generation: Generation) -> None:
        generation.tally.add(torch.ones(generation.rows, 1))


class Undone(Claims):
    """A new tensor with the same values."""

    def head_outputs(self, generation: Generation, layer: int, outputs: Tensor) -> Tensor:
        return outputs.clone()


class Shifted(Claims):
    """Adds a constant to all logits, which leaves the distribution unchanged."""

    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return logits + 3.0


class Normalised(Claims):
    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return logits.log_softmax(-1)


class OneHead(Runtime):
    """Changes head 3 of layer 1."""

    def head_outputs(self, generation: Generation, layer: int, outputs: Tensor) -> Tensor:
        if layer != 1:
            return outputs
        changed = outputs.clone()
        changed[:, :, 3] *= 1.5
        return changed


class Sharper(Runtime):
    """Changes the temperature: other probabilities, but the same ranking if one beam continues."""

    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return 1.01 * logits


@dataclass(frozen=True)
class Own(Method):
    """A method with a given runtime."""

    own: type[Runtime] = Runtime

    def runtime(self, layout: Layout, trace: bool) -> Runtime:
        return self.own()


@pytest.mark.parametrize("own", [Claims, Undone, Shifted, Normalised], ids=lambda own: own.__name__)
@pytest.mark.parametrize("beams", [1, 3])
def test_what_changes_nothing_counts_as_nothing(model, batch, own: type[Runtime], beams: int) -> None:
    plain = model.generate(**batch, max_new_tokens=NEW, num_beams=beams)
    with pytest.warns(HealWarning, match="nothing was changed"), Own(own).attach(model) as handle:
        assert torch.equal(model.generate(**batch, max_new_tokens=NEW, num_beams=beams), plain)
    assert handle.fired == Fired(reason="the method returned what the plain model computes")
    assert not handle.row([0] * NEW)


def test_one_changed_head_counts_as_one(model, batch) -> None:
    with Own(OneHead).attach(model) as handle:
        say(model, batch)
    assert handle.fired == Fired(NEW, NEW * len(ROWS))
    assert handle.row([1] * NEW) == Fired(NEW, NEW)


def test_under_beams_only_another_ranking_counts(model, batch) -> None:
    with Own(Sharper).attach(model) as greedy:
        say(model, batch)
    assert greedy.fired.changes == NEW * len(ROWS)
    with pytest.warns(HealWarning, match="nothing was changed"), Own(Sharper).attach(model) as first:
        model.generate(**batch, max_new_tokens=1, num_beams=2)  # all beams start from one: temperature ranks nothing
    assert first.fired.changes == 0


def test_beam_scores_are_those_of_transformers(model, batch, monkeypatch) -> None:
    """The ranking of the engine equals the ranking that beam search of transformers uses."""
    ours, theirs = list[Tensor](), list[Tensor]()
    choose = model._get_top_k_continuations

    class Keeps(Runtime):
        def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
            assert generation.beams is not None
            generation.beams.reranked(logits, logits)
            ours.append((generation.beams.scores[:, None] + logits.log_softmax(-1)).view(len(ROWS), -1))
            return logits

    def chosen(accumulated_log_probs: Tensor, **rest: Any) -> Any:
        theirs.append(accumulated_log_probs)
        return choose(accumulated_log_probs=accumulated_log_probs, **rest)

    monkeypatch.setattr(model, "_get_top_k_continuations", chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)
        with Own(Keeps).attach(model):
            model.generate(**batch, max_new_tokens=NEW, num_beams=3)
    assert len(ours) == len(theirs) == NEW
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_heal_counts_by_comparing(model, batch) -> None:
    """The factors of heads and the changed outputs agree, head by head."""
    with HEAL(alpha=0.3, interval=2).attach(model, trace=True) as handle:
        say(model, batch)
    records = [record.values for record in known(handle.attachment.latest).state.records]
    factors = sum(int(((r["beta"].nan_to_num(1) != 1) | (r["gamma"].nan_to_num(1) != 1)).sum()) for r in records)
    assert handle.fired.changes == factors > 0
