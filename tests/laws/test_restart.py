"""A branch that restarts with other images in the middle of an answer equals a model that saw them from the start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from heal import VLM, Method
from heal.engine.branches import Branch
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.search import Search
from heal.engine.state import State
from heal.errors import ConfigError, UnsupportedError
from tests import zoo
from tests.laws.conftest import WINDOW, inputs_of, model_of
from tests.methods import slow
from tests.zoo import Row

NEW = 5
AT = 2
"""The step at which the branch restarts."""
OWN = (Row(), Row(text_before=6, text_after=9, salt=1))
OTHER = (Row(images=2, salt=4), Row(text_before=6, text_after=9, images=3, salt=5))
"""Other images, more of them, so that the prompt is longer."""
EVERY = (*zoo.NAMES, WINDOW)
HOT = {"do_sample": True, "temperature": 50.0, "suppress_tokens": [*range(zoo.IMAGE, zoo.VOCAB)]}


class Restarting(Runtime[State]):
    """Adds a small part of the branch's logits, and records the branch's logits."""

    branches = (Branch("other"),)

    def __init__(self, inputs: Callable[[Generation], Mapping[str, Any]], at: int = AT) -> None:
        self.inputs, self.at = inputs, at
        self.found: dict[int, Tensor] = {}

    def before_pass(self, generation: Generation) -> None:
        if generation.step == self.at and not generation.branch:
            generation.restart("other", self.inputs(generation))

    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        assert ("other" in branches) == (generation.step >= self.at)
        if "other" in branches:
            self.found[generation.step] = branches["other"].clone()
        return logits + 0.1 * branches.get("other", torch.zeros_like(logits))


@dataclass(frozen=True)
class WithRuntime(Method):
    own: Any = None

    def __post_init__(self) -> None:
        """The runtime is not an option of a method, so its type is not checked."""

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return self.own


def generate(name: str, runtime: Runtime[Any], **options: Any) -> Any:
    model = model_of(name)
    with WithRuntime(runtime).attach(model):
        return model.generate(
            **inputs_of(name, OWN), max_new_tokens=NEW, **options, return_dict_in_generate=True, use_cache=True
        )


def assert_expected(name: str, row: Row, tokens: list[int], found: Mapping[int, Tensor]) -> None:
    expected = slow.plain(model_of(name), inputs_of(name, (row,)), tokens)
    for step, logits in found.items():
        np.testing.assert_allclose(
            logits.double().numpy(), expected[step], atol=1e-4 * np.abs(expected).max(), rtol=0
        )


@pytest.mark.parametrize("at", [0, AT])
@pytest.mark.parametrize("name", EVERY)
def test_a_restarted_branch_equals_a_model_that_saw_its_images_from_the_start(name: str, at: int) -> None:
    runtime = Restarting(lambda _: inputs_of(name, OTHER), at)
    out = generate(name, runtime)
    assert list(runtime.found) == list(range(at, NEW))
    tokens = out.sequences[:, -NEW:].tolist()
    for row, other in enumerate(OTHER):
        assert_expected(name, other, tokens[row], {step: logits[row] for step, logits in runtime.found.items()})


def test_a_grid_of_another_size() -> None:
    """Qwen-VL: one image with twice the rows of patches, so later positions differ."""
    name, (rows, columns) = "qwen2_5_vl", zoo._GRID
    batch = inputs_of(name, (OWN[0],))
    ids, image = batch["input_ids"], batch["input_ids"] == zoo.IMAGE
    first, count = int(image[0].int().argmax()), int(image.sum())
    larger = torch.cat([ids[:, :first], ids[:, first : first + count].repeat(1, 2), ids[:, first + count :]], 1)
    other = {
        "input_ids": larger,
        "attention_mask": torch.ones_like(larger),
        "mm_token_type_ids": (larger == zoo.IMAGE).long(),
        "pixel_values": batch["pixel_values"].repeat(2, 1),
        "image_grid_thw": torch.tensor([[1, 2 * rows, columns]]),
    }
    runtime, model = Restarting(lambda _: other), model_of(name)
    with WithRuntime(runtime).attach(model):
        tokens = model.generate(**batch, max_new_tokens=NEW)[0, -NEW:].tolist()
    expected = slow.plain(model, other, tokens)
    for step in range(AT, NEW):
        np.testing.assert_allclose(runtime.found[step][0].double().numpy(), expected[step], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "llava_next"])
def test_a_restarted_branch_follows_the_beams(name: str) -> None:
    runtime = Restarting(lambda g: inputs_of(name, tuple(OTHER[row // 3] for row in range(g.rows))))
    for seed in range(10):
        torch.manual_seed(seed)
        runtime.found.clear()
        out = generate(name, runtime, num_beams=3, **HOT)
        places = out.beam_indices[:, :NEW]
        if (places[:, AT + 1 :] != places[:, AT:-1]).any():
            break
    else:
        pytest.fail("the beams stay where they are")
    for index, own in enumerate(out.beam_indices.tolist()):
        found = {step: runtime.found[step][own[step]] for step in range(AT, NEW)}
        assert_expected(name, OTHER[index], out.sequences[index, -NEW:].tolist(), found)


class Searching(Restarting):
    """Greedy search that reads two tokens, takes them back, and restarts the branch in between."""

    def search(self, search: Search) -> None:
        logits = search.start()
        while not bool(search.stopped().all()):
            if len(search.answer[0]) == AT:
                for token in (5, 6):
                    search.read(torch.full((search.rows,), token))
                search.take_back(2)
                search.generation.restart("other", self.inputs(search.generation))
                self.found[AT] = search.generation.branch_logits("other").clone()
            tokens = logits.argmax(-1)
            search.commit(tokens, logits)
            logits = search.read(tokens)

    def before_pass(self, generation: Generation) -> None:
        pass

    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        if AT < generation.step < NEW and "other" in branches:
            self.found[generation.step] = branches["other"].clone()
        return logits


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3", WINDOW])
def test_a_search_restarts_a_branch_after_a_crop(name: str) -> None:
    runtime = Searching(lambda _: inputs_of(name, OTHER))
    out = generate(name, runtime)
    assert sorted(runtime.found) == list(range(AT, NEW))
    for row, other in enumerate(OTHER):
        found = {step: logits[row] for step, logits in runtime.found.items()}
        assert_expected(name, other, out.sequences[row, -NEW:].tolist(), found)


@pytest.mark.parametrize("copies", [1, 2])
def test_crops_of_the_original_image(copies: int) -> None:
    """With the processor: the method gets the image, crops it, and the rest of the prompt is unchanged."""
    vlm = VLM.random()
    images = [Image.effect_noise((40, 40), 90).convert("RGB"), Image.effect_noise((64, 48), 50).convert("RGB")]

    def inputs(generation: Generation) -> Mapping[str, Any]:
        assert generation.samples == [0] * copies + [1] * copies
        crops = [[generation.source.images[s][0].crop((0, 0, 20, 20))] for s in generation.samples]
        return generation.source.inputs(crops, generation.samples)

    runtime = Restarting(inputs)
    options: dict[str, Any] = {
        "num_return_sequences": copies,
        "do_sample": copies > 1,
        "seed": 3 if copies > 1 else None,
    }
    prompts = ["What?", "Why, then?"]
    answers = vlm.generate(images, prompts, method=WithRuntime(runtime), max_new_tokens=NEW, **options)
    for row, answer in enumerate(answers):
        sample = row // copies
        given = vlm.inputs([images[sample].crop((0, 0, 20, 20))], [prompts[sample]])
        expected = slow.plain(vlm.model, given, list(answer.token_ids))
        for step in range(AT, len(answer.token_ids)):
            found = runtime.found[step][row].double().numpy()
            np.testing.assert_allclose(found, expected[step], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.restart("another", inputs_of("llava", OTHER)), "no branch 'another'"),
        (lambda g: g.restart("other", inputs_of("llava", OTHER[:1])), "needs 2 rows, but got 1"),
        (lambda g: g.branch_logits("other"), "has no prompt yet"),
    ],
)
def test_wrong_use_is_refused(change: Callable[[Generation], Any], message: str) -> None:
    class Wrong(Restarting):
        def before_pass(self, generation: Generation) -> None:
            change(generation)

    with pytest.raises(ConfigError, match=message):
        generate("llava", Wrong(lambda _: {}))


def test_a_method_without_branches_is_told_so() -> None:
    class Wrong(Runtime[State]):
        def before_pass(self, generation: Generation) -> None:
            generation.restart("other", {})

    with pytest.raises(UnsupportedError, match="has no branches"):
        generate("llava", Wrong())
