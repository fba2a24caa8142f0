"""Groups and masks that grow by one position per token."""

import pytest
import torch

from heal.analysis.split import LANGUAGE, NEUTRAL, VISUAL, Regions
from heal.engine import growing
from heal.engine.growing import column_of, extended, growing_groups, growing_masks
from heal.launch_counter import LaunchCounter


def regions_of(groups: list[list[int]], names: int = 3) -> Regions:
    table = torch.tensor(groups)
    return Regions.of(torch.stack([table == name for name in range(names)], dim=1))


@pytest.mark.parametrize(
    "new",
    [
        [[LANGUAGE, LANGUAGE]] * 3,
        [[LANGUAGE, LANGUAGE], [NEUTRAL, LANGUAGE], [LANGUAGE, LANGUAGE], [NEUTRAL, NEUTRAL]],
        [[VISUAL, -1], [LANGUAGE, LANGUAGE]],
    ],
    ids=["usual", "neutral", "others"],
)
def test_extended_is_what_the_prompt_would_give(new: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "SPARE", 2)  # reached within the test
    rows = [[LANGUAGE, VISUAL, VISUAL], [LANGUAGE, VISUAL, VISUAL]]
    known = regions_of(rows)
    masks, groups = growing_masks(known), growing_groups(torch.tensor(rows))
    earlier: list[tuple[torch.Tensor, torch.Tensor]] = []
    for column in new:
        simple = known.extended(column)
        known = extended(known, masks, column)
        rows = [[*row, group] for row, group in zip(rows, column, strict=True)]
        values = groups.add(column_of(column, groups.values))
        assert torch.equal(values, torch.tensor(rows))
        assert torch.equal(known.masks, simple.masks)
        assert torch.equal(known.masks, regions_of(rows).masks)
        assert (known.counts, known.spans) == (simple.counts, simple.spans)
        earlier.append((values, values.clone()))
    assert all(torch.equal(now, then) for now, then in earlier)  # nothing was overwritten


def test_usual_tokens_launch_nothing() -> None:
    known = regions_of([[LANGUAGE, VISUAL]])
    masks, groups = growing_masks(known), growing_groups(torch.tensor([[LANGUAGE, VISUAL]]))
    with LaunchCounter() as counter:
        for _ in range(growing.SPARE):
            known = extended(known, masks, [LANGUAGE])
            groups.add(column_of([LANGUAGE], groups.values))
    assert counter.current.launches == 2  # room for all of them
    assert not counter.current.syncs
    assert known.length == 2 + growing.SPARE
