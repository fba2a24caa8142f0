"""Layout: the same parts are found in every architecture, and models without them are refused."""

from dataclasses import FrozenInstanceError
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import transformers as hf
from torch import nn

from heal.architectures import ARCHITECTURES
from heal.engine.layout import Layout
from heal.errors import ModelError
from tests import zoo

QWEN = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"}
BRACKETS = QWEN | {"gemma3"}
every_model = pytest.mark.parametrize("name", zoo.NAMES)


@cache
def layout_of(name: str) -> Layout:
    return Layout.of(zoo.build(name))


@every_model
def test_parts(name: str) -> None:
    layout = layout_of(name)
    assert layout.decoder is layout.model.get_decoder()
    assert layout.layers == tuple(layout.decoder.layers)
    assert len(layout.layers) == 3
    assert layout.heads == 8
    parts: list[tuple[Any, Any]] = list(zip(layout.layers, layout.attention, strict=True))
    for layer, module in parts:
        assert module is layer.self_attn
        assert module.o_proj.in_features == layout.heads * module.head_dim


@every_model
def test_visual_ids(name: str) -> None:
    expected = {zoo.IMAGE, zoo.VIDEO} if name in QWEN else {zoo.IMAGE}
    assert layout_of(name).visual_ids == expected


@every_model
def test_special_ids(name: str) -> None:
    brackets = {zoo.VISION_START, zoo.VISION_END} if name in BRACKETS else set()
    found = layout_of(name).special_ids
    assert found >= {zoo.PAD, zoo.BOS} | brackets
    assert not found & layout_of(name).visual_ids
    assert not found & set(range(zoo.FIRST_TEXT, zoo.IMAGE))


@every_model
def test_family_is_a_known_architecture(name: str) -> None:
    layout = layout_of(name)
    assert layout.family == layout.model.config.model_type
    assert name.startswith(layout.family)
    assert layout.family in {a.family for a in ARCHITECTURES}


def test_every_known_architecture_is_built_here() -> None:
    assert {layout_of(name).family for name in zoo.NAMES} == {a.family for a in ARCHITECTURES}


@every_model
def test_kinds_are_those_of_the_masks(name: str) -> None:
    kinds = layout_of(name).kinds
    windows = ("sliding_attention", "full_attention", "sliding_attention")
    assert kinds == (windows if name in ("gemma3", "paligemma2") else ("full_attention",) * 3)


def test_special_ids_of_a_tokenizer_are_added() -> None:
    model = zoo.build("llava")
    model.generation_config.eos_token_id = [7, 8]
    assert Layout.of(model, frozenset({99})).special_ids == Layout.of(model).special_ids | {99}
    assert Layout.of(model).special_ids >= {7, 8}


def test_layout_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        layout_of("llava").heads = 4  # type: ignore[misc]


@every_model
def test_attention_of_the_vision_tower_is_not_taken(name: str) -> None:
    layout = layout_of(name)
    inside = {id(module) for module in layout.decoder.modules()}
    assert all(id(module) in inside for module in layout.attention)
    assert len({id(module.config) for module in layout.attention}) == 1


class Strange(nn.Module):
    """A model that generates text from images and has another structure."""

    def __init__(self, layer: type[nn.Module] | None) -> None:
        super().__init__()
        text = hf.LlamaConfig(num_attention_heads=2)
        self.config = SimpleNamespace(image_token_id=3, model_type="strange", get_text_config=lambda: text)
        self.decoder = nn.Module()
        if layer is not None:
            self.decoder.layers = nn.ModuleList([layer(), layer()])

    def get_decoder(self) -> nn.Module:
        return self.decoder


class WithoutAttention(nn.Module):
    pass


class WithoutProjection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Linear(2, 2)


class Hybrid(nn.Module):
    """The second of two layers has no attention, as in hybrid recurrent models."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Hybrid.made += 1
        if Hybrid.made % 2:
            self.self_attn = nn.Module()
            self.self_attn.o_proj = nn.Linear(2, 2)


@pytest.mark.parametrize("layer", [None, WithoutAttention, WithoutProjection, Hybrid])
def test_strange_layers_are_refused(layer: type[nn.Module] | None) -> None:
    with pytest.raises(ModelError, match=r"Strange has layers without .* `heal list models`"):
        Layout.of(Strange(layer))


@pytest.mark.parametrize("model", [nn.Linear(2, 2), object(), None])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(ModelError, match=r"is not a transformers model that generates text$"):
        Layout.of(model)
