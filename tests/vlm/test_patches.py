"""Where heads look in the image, compared with the attention weights of transformers' own eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heal import VLM, Answer, Trace
from heal.errors import ConfigError
from heal.methods import HEAL, OPERA, VCD, Guard, Method
from tests.vlm.asking import NEW, PATCHES, PICTURES, PROMPTS, ask

pytestmark = pytest.mark.slow


def eager_weights(vlm: VLM, answer: Answer, prompt: int = 0) -> np.ndarray:
    """The weights on the image from one pass of transformers over the whole answer, [step, layer, head, patch]."""
    model = vlm.model
    inputs = vlm.inputs([PICTURES[prompt]], [PROMPTS[prompt]])
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer.token_ids])], 1)
    before = model.config.text_config._attn_implementation
    model.set_attn_implementation({"text_config": "eager"})
    try:
        with torch.no_grad():
            given = inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            out = model(**given, output_attentions=True)
    finally:
        model.set_attn_implementation({"text_config": before})
    first = inputs["input_ids"].shape[1] - 1
    image = ids[0] == model.config.image_token_id
    each = [own[0, :, first : first + len(answer.token_ids)][:, :, image] for own in out.attentions]
    return torch.stack(each).permute(2, 0, 1, 3).numpy()


def check(vlm: VLM, answer: Answer, prompt: int = 0) -> None:
    assert answer.trace is not None
    patches, expected = answer.trace.patches, eager_weights(vlm, answer, prompt)
    assert patches is not None
    assert patches.levels.shape == expected.shape == (NEW, 6, 8, PATCHES)
    error = np.abs(patches.weights - expected)
    assert (error <= 0.51 * patches.unit[..., None] + 1e-6).all()
    assert (patches.levels.max(-1) == 255).all()
    assert patches.grid == (4, 4)


@pytest.mark.parametrize(
    "method",
    [
        None,
        HEAL(calibrate=False, path="fast"),
        HEAL(calibrate=False, path="reference", interval=2),
        Guard(action="mark", risk="random", threshold=1.0),
        VCD(alpha=0.0),
    ],
    ids=["plain", "fast", "reference", "guard", "branch"],
)
@pytest.mark.filterwarnings("ignore:nothing was changed")
def test_they_equal_the_weights_of_eager_attention(method: Method | None) -> None:
    vlm = VLM.random()
    check(vlm, ask(vlm, method=method, trace="patches", do_sample=False))


def test_every_row_of_a_padded_batch_has_its_own() -> None:
    vlm = VLM.random()
    options: dict[str, Any] = {"trace": "patches", "max_new_tokens": NEW, "do_sample": False}
    for row, answer in enumerate(vlm.generate(PICTURES, PROMPTS, **options)):
        check(vlm, answer, row)


def test_recording_changes_nothing() -> None:
    vlm = VLM.random()
    method = HEAL(interval=2, alpha=0.3)
    one, other = (ask(vlm, method=method, trace=kind, do_sample=False) for kind in (True, "patches"))
    assert one.token_ids == other.token_ids
    assert one.logprobs == other.logprobs
    assert one.trace.patches is None
    assert np.array_equal(one.trace.total, other.trace.total)


def test_they_are_saved_and_loaded(tmp_path: Path) -> None:
    trace = ask(VLM.random(), trace="patches", do_sample=False).trace
    trace.save(tmp_path / "t")
    assert Trace.load(tmp_path / "t") == trace
    assert Trace.load(tmp_path / "t").patches is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 2}, "leave num_beams out"),
        ({"num_return_sequences": 2, "do_sample": True}, "leave num_return_sequences out"),
        ({"method": OPERA(beams=1)}, "cannot follow a method that searches"),
    ],
)
def test_what_cannot_be_recorded_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(VLM.random(), **({"trace": "patches"} | options))


@pytest.mark.usefixtures("without_type_checker")
def test_other_kinds_of_traces_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be True, False or 'patches'"):
        ask(VLM.random(), trace="patch")


def test_a_prompt_without_an_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="exactly one image"):
        VLM.random().generate(None, "how many", trace="patches", max_new_tokens=2)
