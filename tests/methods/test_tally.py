import torch

from heal.methods.base import Tally


def by_hand(beta, gamma):
    moved = (beta != 1) | (gamma != 1)
    return torch.stack([moved.sum((1, 2)).float(), (beta - 1).abs().sum((1, 2)), (gamma - 1).abs().sum((1, 2))])


def test_steps_are_counted_one_by_one_however_many_are_pending():
    generator = torch.Generator().manual_seed(0)
    tally, expected = Tally(beta=1.0, gamma=1.0), []
    for step in range(2 * Tally.PENDING + 3):
        rows = 3 if step < 40 else 2  # rows may leave
        beta, gamma = (torch.rand(rows, 4, 8, generator=generator).round(decimals=1) + 0.5 for _ in range(2))
        tally.add(beta, gamma)
        expected.append(by_hand(beta, gamma))
        if step in (0, 5):  # looking in between changes nothing
            assert len(tally.steps) == step + 1
    assert len(tally.steps) == len(expected)
    for found, right in zip(tally.steps, expected, strict=True):
        torch.testing.assert_close(found, right)


def test_nothing_added_is_nothing():
    assert Tally(beta=1.0).steps == []
