"""Counts of changes are summed step by step, and do not depend on what a method declares."""

import pytest
import torch

from heal.engine.comparison import Changes, totals
from heal.engine.tally import Fired, Tallies, Tally


def changes(*counts: int) -> Changes:
    """The given number of changes in each row."""
    found = Changes(len(counts), torch.device("cpu"))
    found.counts.append(torch.tensor(counts))
    return found


def by_hand(changed, beta, gamma):
    moved = (beta != 1) | (gamma != 1)
    sizes = [(beta - 1).abs().sum((1, 2)), (gamma - 1).abs().sum((1, 2))]
    return torch.stack([changed.float(), moved.sum((1, 2)).float(), *sizes])


def test_steps_are_counted_one_by_one_however_many_are_pending():
    generator = torch.Generator().manual_seed(0)
    tally, expected = Tally(beta=1.0, gamma=1.0), []
    for step in range(2 * Tally.PENDING + 3):
        rows = 3 if step < 40 else 2  # rows may leave
        beta, gamma = (torch.rand(rows, 4, 8, generator=generator).round(decimals=1) + 0.5 for _ in range(2))
        changed = torch.randint(0, 30, (rows,), generator=generator)
        tally.add(beta, gamma)
        tally.count(changes(*changed.tolist()))
        expected.append(by_hand(changed, beta, gamma))
        if step in (0, 5):  # looking in between changes nothing
            assert len(tally.steps) == step + 1
    assert len(tally.steps) == len(expected)
    for found, right in zip(tally.steps, expected, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("uneven", [False, True])
def test_outputs_of_many_passes_are_compared_at_once(uneven: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    passes, expected = [], []
    for step in range(5):
        found, right = Changes(2, torch.device("cpu")), torch.zeros(2, dtype=torch.long)
        for layer in range(3 if uneven and step % 2 else 2):
            before = torch.randn(2, 4, 8, generator=generator)
            changed = torch.rand(2, 4, generator=generator) < 0.5
            found.heads(before, torch.where(changed[..., None], before + 1, before), exact=True)
            found.block(before[:, layer], before[:, layer] + changed[:, :1])
            found.rows(changed[:, 0])
            right += changed.sum(1) + 2 * changed[:, 0]
        passes.append(found)
        expected.append(right)
    assert torch.equal(totals(passes), torch.stack(expected))


def test_the_newest_position_of_a_prompt_is_compared_at_once() -> None:
    found = Changes(2, torch.device("cpu"))
    whole = torch.randn(2, 50, 4, 8)
    found.heads(whole[:, -1], whole[:, -1] + 1)
    assert found.nbytes == 0  # so that the prompt can be freed
    assert totals([found]).tolist() == [[4, 4]]


def test_nothing_added_is_nothing():
    assert Tally(beta=1.0).steps == []


def test_what_a_method_declares_is_no_change():
    tally = Tally(beta=1.0)
    for _ in range(3):
        tally.add(torch.full((2, 4, 8), 1.5))
        tally.count(changes(0, 0))
    tally.reason = "why"
    assert tally.row([0, 0, 0]) == Fired(reason="why")


def test_a_change_that_was_not_declared_counts():
    tally = Tally(beta=1.0)
    tally.count(changes(3, 0))
    tally.add(torch.full((2, 4, 8), 1.5))
    tally.count(changes(2, 1))
    assert tally.row([0, 0]) == Fired(2, 5, {"beta": 0.5})
    assert tally.row([1, 1]).steps == 1


def test_a_search_is_compared_with_the_likeliest_tokens():
    tally = Tally(beams=1.0)
    tally.best = [torch.tensor([5, 6]), torch.tensor([7, 8])]
    tally.add(torch.full((2, 1), 3.0))
    tally.count(changes(0, 0))
    assert tally.row([0, 1], [5, 9]) == Fired(1, 1, {"beams": 2.0})
    assert not tally.row([0, 1], [5, 8])
    assert tally.row([1, 1], [5, 9]).changes == 2


@pytest.mark.parametrize("declared", [True, False])
def test_sizes_are_means_over_what_moved(declared: bool):
    steps = [torch.tensor([2.0, 4.0 if declared else 0.0, 2.0])]
    assert Fired.of(("beta",), steps).sizes == ({"beta": 0.5} if declared else {})


def test_sums_outlive_the_tallies_that_are_kept(monkeypatch):
    monkeypatch.setattr(Tallies, "KEPT", 3)
    generator, every, few = torch.Generator().manual_seed(0), [], Tallies()
    for _ in range(10):
        tally = Tally(beta=1.0)
        for _ in range(4):
            tally.add(torch.rand(2, 4, generator=generator) + 0.5)
            tally.count(changes(*torch.randint(0, 3, (2,), generator=generator).tolist()))
        every.append(tally)
        few.append(tally)
    expected = Fired.of(("beta",), [step.sum(1) for tally in every for step in tally.steps])
    assert len(few.latest) == 3
    assert few.fired().sizes["beta"] == pytest.approx(expected.sizes["beta"])
    assert (few.fired().steps, few.fired().changes) == (expected.steps, expected.changes)
    assert Tallies().fired() == Fired(reason="nothing was generated")
