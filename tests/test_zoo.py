"""Properties of the tiny models that other tests rely on."""

from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor

from tests import zoo
from tests.zoo import Row

NEW = 4
ROWS = [
    Row(),
    Row(text_before=6, text_after=9, salt=1),
    Row(images=2, salt=2),
    Row(images=0, salt=3),
    Row(text_before=0, text_after=2, salt=4),
]
VIDEO_ROWS = [Row(images=0, video_frames=4, salt=5), Row(images=1, video_frames=3, salt=6)]

every_model = pytest.mark.parametrize("name", zoo.NAMES)


@cache
def plain(name: str) -> hf.PreTrainedModel:
    return zoo.build(name)


def rows_for(name: str) -> list[Row]:
    return ROWS + VIDEO_ROWS if name in zoo.WITH_VIDEO else ROWS


def generate(model: hf.PreTrainedModel, rows: list[Row], **options: object) -> tuple[Tensor, Tensor]:
    """The new tokens (rows, NEW) and their raw logits (rows, NEW, vocabulary), of beams if it searches."""
    settings = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(**zoo.inputs(model, rows), **settings, **options)
    return out.sequences[:, -NEW:], torch.stack(out.logits, 1)


def next_logits(model: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits[:, -1]


@every_model
def test_build_depends_on_the_seed_only(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    again, other = zoo.build(name).state_dict(), zoo.build(name, seed=1).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    for key, weight in plain(name).state_dict().items():
        assert torch.equal(weight, again[key])
        assert not torch.equal(weight, other[key])


@every_model
def test_pixels_change_the_logits(name: str) -> None:
    model = plain(name)
    batch = zoo.inputs(model, rows_for(name))
    for key, token in {"pixel_values": zoo.IMAGE, "pixel_values_videos": zoo.VIDEO}.items():
        seen = (batch["input_ids"] == token).any(-1)
        assert seen.any() == (key in batch)
        if key in batch:
            changed = batch | {key: -batch[key]}
            change = (next_logits(model, batch) - next_logits(model, changed)).abs().amax(-1)
            assert (change[seen] > 0.1).all()
            assert (change[~seen] < 1e-4).all()


@every_model
def test_row_alone_equals_row_in_padded_batch(name: str) -> None:
    model = plain(name)
    tokens, logits = generate(model, rows_for(name))
    for i, row in enumerate(rows_for(name)):
        row_tokens, row_logits = generate(model, [row])
        torch.testing.assert_close(row_logits[0], logits[i], atol=1e-4, rtol=0)
        assert torch.equal(row_tokens[0], tokens[i])
    assert len(tokens[:, 0].unique()) > len(tokens) // 2
    assert not zoo.visual_mask(model, tokens).any()


@every_model
def test_padding_has_an_effect_without_a_mask(name: str) -> None:
    model = plain(name)
    batch = zoo.inputs(model, ROWS[:2])
    unmasked = batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}
    assert (next_logits(model, batch) - next_logits(model, unmasked)).abs().amax(-1)[0] > 0.1


@every_model
def test_other_decoding_strategies(name: str) -> None:
    model = plain(name)
    rows = rows_for(name)
    _, logits = generate(model, rows)
    if name != "paligemma2":  # transformers' PaliGemma has no mask for a static cache with windows
        torch.testing.assert_close(generate(model, rows, cache_implementation="static")[1], logits, atol=1e-4, rtol=0)
    beams, _ = generate(model, rows, num_beams=2)
    for i, row in enumerate(rows):
        assert torch.equal(generate(model, [row], num_beams=2)[0][0], beams[i])
    torch.manual_seed(0)
    assert generate(model, rows, do_sample=True)[0].shape == (len(rows), NEW)


@every_model
def test_batch_of_text_only(name: str) -> None:
    model = plain(name)
    rows = [Row(images=0), Row(text_before=7, images=0, salt=1)]
    batch = zoo.inputs(model, rows)
    assert not any(key.startswith("pixel") for key in batch)
    assert not zoo.visual_mask(model, batch["input_ids"]).any()
    assert torch.equal(generate(model, rows)[0][0], generate(model, rows[:1])[0][0])


@every_model
def test_rows_match_their_description(name: str) -> None:
    model = plain(name)
    one, two = (zoo.inputs(model, [Row(images=n)])["input_ids"] for n in (1, 2))
    visual = zoo.visual_mask(model, two)
    per_image = int(zoo.visual_mask(model, one).sum())
    assert 4 <= per_image <= 16
    runs = [(False, 3), (True, per_image), (False, zoo.BETWEEN), (True, per_image), (False, 5)]
    assert visual[0].tolist() == [is_visual for is_visual, count in runs for _ in range(count)]
    assert two[0, 0] == zoo.BOS


@pytest.mark.parametrize("name", sorted(set(zoo.NAMES) - set(zoo.WITH_VIDEO)))
def test_video_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="takes no video"):
        zoo.inputs(plain(name), VIDEO_ROWS)


def test_gemma3_window_can_be_small() -> None:
    small = zoo.build("gemma3", sliding_window=8)
    _, logits = generate(small, ROWS)
    assert (logits - generate(plain("gemma3"), ROWS)[1]).abs().amax() > 0.1
    for i, row in enumerate(ROWS):
        torch.testing.assert_close(generate(small, [row])[1][0], logits[i], atol=1e-4, rtol=0)
