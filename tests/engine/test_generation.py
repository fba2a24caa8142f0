"""The position groups of a generation, from the prompt to the last token, with windows and beams."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heal.analysis.split import LANGUAGE, NEUTRAL, VISUAL, Regions
from heal.engine.generation import Generation
from heal.engine.position_groups import first_positions, groups_of
from heal.engine.state import State

CPU = torch.device("cpu")
FULL, SLIDING = "full_attention", "sliding_attention"
NAMES = {"V": VISUAL, "L": LANGUAGE, "N": NEUTRAL}
LETTERS = {owner: letter for letter, owner in NAMES.items()}


def owners(*rows: str) -> Tensor:
    return torch.tensor([[NAMES[c] for c in row] for row in rows])


def prompted(*rows: str, groups: int = 2) -> Generation:
    generation: Generation[State] = Generation(groups)
    generation.read_prompt(owners(*rows))
    return generation


def seen(*rows: str) -> Tensor:
    """A mask [rows, 1, query, key]. Only the last query counts: x is attended."""
    last = torch.tensor([[c == "x" for c in row] for row in rows])
    return torch.stack([torch.zeros_like(last), last], dim=1)[:, None]


def pattern(regions: Regions) -> list[str]:
    """One letter per position, as in `owners`; a dot is in no group."""
    rows = []
    for row in regions.masks:
        assert int(row.sum(0).max()) <= 1
        rows.append("".join(LETTERS[int(c.to(torch.uint8).argmax())] if c.any() else "." for c in row.T))
    return rows


def letters(generation: Generation, mask: Tensor | None = None, positions: int = 0, kind: str = FULL) -> list[str]:
    return pattern(generation.regions(kind, mask, positions or generation.length, CPU))


class Rows(State):
    """A state that records the rows it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[list[int]] = []

    def select(self, rows: list[int]) -> None:
        self.told.append(rows)


# ── the course of a generation ────────────────────────────────────────────────────────────────────────


def test_phases_and_steps() -> None:
    generation: Generation[State] = Generation(2)
    assert (generation.length, generation.rows, generation.visual) == (0, 0, False)
    generation.read_prompt(owners("LVVL", "LLVL"))
    assert (generation.length, generation.rows, generation.visual) == (4, 2, True)
    assert (generation.phase, generation.step) == ("prompt", 0)
    generation.repeat_last()
    assert (generation.phase, generation.step, generation.length) == ("repeat", 0, 4)
    for step in (1, 2):
        generation.read_token([LANGUAGE, LANGUAGE])
        assert (generation.phase, generation.step, generation.length) == ("decode", step, 4 + step)


def test_second_prompt_starts_over_behind_the_first() -> None:
    generation = prompted("LV")
    generation.read_token([LANGUAGE])
    assert letters(generation) == ["LVL"]
    generation.read_prompt(owners("LVL"))
    assert (generation.phase, generation.step, generation.length) == ("prompt", 0, 6)
    assert letters(generation) == ["LVLLVL"]


def test_image_may_come_in_a_later_turn() -> None:
    generation = prompted("LL")
    assert not generation.visual
    generation.read_prompt(owners("VL"))
    assert generation.visual


@pytest.mark.parametrize("groups", [2, 3])
def test_last_groups(groups: int) -> None:
    generation = prompted("LV", "VL", groups=groups)
    assert generation.last_groups.tolist() == [[True, False, False][:groups], [False, True, False][:groups]]
    generation.read_token([LANGUAGE, groups - 1])
    assert generation.last_groups.int().argmax(1).tolist() == [LANGUAGE, groups - 1]


# ── regions ───────────────────────────────────────────────────────────────────────────────────────────


def test_prompt() -> None:
    regions = prompted("LVVL", "LVVL").regions(FULL, None, 4, CPU)
    assert pattern(regions) == ["LVVL", "LVVL"]
    assert regions.counts == ((2, 2), (2, 2))
    assert regions.spans == ((0, 1, LANGUAGE), (1, 3, VISUAL), (3, 4, LANGUAGE))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
def test_padding_belongs_to_nobody(dtype: torch.dtype) -> None:
    mask = seen("..xx", "xxxx")
    if dtype != torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)
    regions = prompted("LLVL", "LVVL").regions(FULL, mask, 4, CPU)
    assert pattern(regions) == ["..VL", "LVVL"]
    assert regions.counts == ((1, 1), (2, 2))
    assert regions.spans is None


def test_mask_of_a_static_cache_is_longer() -> None:
    assert letters(prompted("LVL"), seen(".xx....")) == [".VL"]


def test_layers_of_a_kind_share_their_regions() -> None:
    generation = prompted("LVL")
    first = generation.regions(FULL, None, 3, CPU)
    assert generation.regions(FULL, None, 3, CPU) is first
    assert generation.regions(SLIDING, None, 3, CPU) is not first
    generation.repeat_last()
    assert generation.regions(FULL, None, 3, CPU) is first
    generation.read_token([LANGUAGE])
    assert generation.regions(FULL, None, 4, CPU) is not first


def test_growing_cache_extends_what_is_known() -> None:
    generation = prompted("LLVL", "LVVL", groups=3)
    letters(generation, seen("..xx", "xxxx"))
    for new, expected in (
        ([LANGUAGE, LANGUAGE], ["..VLL", "LVVLL"]),
        ([NEUTRAL, LANGUAGE], ["..VLLN", "LVVLLL"]),
    ):
        generation.read_token(new)
        grown = generation.regions(FULL, None, generation.length, CPU)
        assert pattern(grown) == expected
        recomputed = Regions.of(grown.masks)
        assert grown.counts == recomputed.counts
        assert grown.spans == recomputed.spans


def test_growing_spans_stay_slices() -> None:
    generation = prompted("LVL")
    letters(generation)
    generation.read_token([LANGUAGE])
    assert generation.regions(FULL, None, 4, CPU).spans == ((0, 1, LANGUAGE), (1, 2, VISUAL), (2, 4, LANGUAGE))


def test_window_slides() -> None:
    generation = prompted("VVLLL")
    assert letters(generation, kind=SLIDING) == ["VVLLL"]
    generation.repeat_last()
    assert letters(generation, positions=4, kind=SLIDING) == ["VLLL"]
    for expected in ("LLLL", "LLLL"):
        generation.read_token([LANGUAGE])
        assert letters(generation, positions=4, kind=SLIDING) == [expected]
        assert letters(generation) == ["VVLLL" + "L" * generation.step]


def test_padding_slides_out_of_the_window() -> None:
    generation = prompted("LLVL", "VVLL")
    assert letters(generation, seen("..xx", "xxxx"), kind=SLIDING) == ["..VL", "VVLL"]
    generation.read_token([LANGUAGE, LANGUAGE])
    assert letters(generation, seen(".xxx", "xxxx"), positions=4, kind=SLIDING) == [".VLL", "VLLL"]


def test_window_that_is_not_full_yet_grows() -> None:
    generation = prompted("LVL")
    letters(generation, kind=SLIDING)
    generation.read_token([LANGUAGE])
    assert letters(generation, kind=SLIDING) == ["LVLL"]
    generation.read_token([LANGUAGE])
    assert letters(generation, positions=4, kind=SLIDING) == ["VLLL"]


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows", [[1, 0], [1], [0, 0, 1, 1], [1, 1]])
def test_rows_move_together(rows: list[int]) -> None:
    prompts = ("LVL", "LLV")
    generation = prompted(*prompts)
    generation.state = state = Rows()
    mask = seen("xxx", ".xx")
    before = letters(generation, mask)
    generation.select(rows)
    assert state.told == [rows]
    assert generation.rows == len(rows)
    assert letters(generation, mask[rows]) == [before[r] for r in rows]
    generation.read_token([LANGUAGE] * len(rows))
    assert letters(generation) == [before[r] + "L" for r in rows]
    assert letters(generation, kind=SLIDING, positions=2) == [prompts[r][-1] + "L" for r in rows]


def test_rows_of_an_empty_generation() -> None:
    generation: Generation[State] = Generation(2)
    generation.select([0, 0])
    assert generation.rows == 0


# ── owners of a prompt ────────────────────────────────────────────────────────────────────────────────


def bits(*rows: str) -> Tensor:
    return torch.tensor([[c != "." for c in row] for row in rows])


def told(found: Tensor) -> list[str]:
    return ["".join(LETTERS[int(o)] for o in row) for row in found]


def test_sinks_are_language_unless_given() -> None:
    visual, special = bits("..vv.", "...v."), bits("s....", "s...s")
    assert told(groups_of(visual)) == ["LLVVL", "LLLVL"]
    assert told(groups_of(visual, special)) == ["NLVVL", "NLLVN"]


def test_first_position_is_a_sink_even_if_it_is_an_ordinary_word() -> None:
    visual = bits("..v.")
    assert told(groups_of(visual, bits("...."), first_positions(visual, None))) == ["NLVL"]


def masks(present: Tensor) -> list[Any]:
    """The same padding in the different forms of transformers."""
    square = present[:, None, None].expand(-1, 1, present.shape[1], -1)
    additive = torch.where(square, 0.0, torch.finfo(torch.float32).min)
    return [present.long(), square, additive, {"sliding_attention": ~square, "full_attention": square}]


@pytest.mark.parametrize("kind", range(4))
def test_first_position_is_behind_the_padding(kind: int) -> None:
    visual, present = bits("...v.", "..vv."), bits("..xxx", "xxxxx")
    assert told(groups_of(visual, None, first_positions(visual, masks(present)[kind]))) == ["LLNVL", "NLVVL"]


def test_visual_position_is_never_a_sink() -> None:
    visual = bits("vv..")
    assert told(groups_of(visual, bits("s..."), first_positions(visual, None))) == ["VVLL"]
    assert told(groups_of(bits("..vv."), bits(".sss."))) == ["LNVVL"]
