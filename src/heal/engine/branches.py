"""Branches: additional passes over the same answer, with other inputs and a KV cache of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heal.engine.caches import cut_back, is_recording
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.masks import valid_positions
from heal.engine.state import State
from heal.engine.transformers_api import DynamicCache, repeated_encodings
from heal.errors import UnsupportedError

VISUAL_ARGUMENTS = ("image", "video", "pixel", "mm_encoder", "second_per_grid")
"""Prefixes of the names of a model's visual arguments."""


@dataclass(frozen=True)
class Encoding:
    """A call of the encoder that computed visual features from pixels."""

    modality: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    tokens: int
    """The number of visual tokens it produced."""

    @property
    def pixels(self) -> str:
        """The name of the call's main argument."""
        return next(name for name in self.arguments if name.startswith("pixel_values"))


@dataclass(frozen=True)
class Prompt:
    """The prompt of a branch: the arguments of the model's own pass, and the recorded calls of its encoder."""

    layout: Layout
    arguments: dict[str, Any]
    encodings: tuple[Encoding, ...]

    @property
    def ids(self) -> Tensor:
        ids = self.arguments.get("input_ids")
        if ids is None:
            raise UnsupportedError("a method with a second branch needs input_ids: leave inputs_embeds out")
        return ids

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    @property
    def mask(self) -> Tensor:
        """1 at tokens and 0 at padding, [rows, positions], from any kind of attention mask."""
        return valid_positions(self.arguments.get("attention_mask"), self.ids).long()

    def with_pixels(self, change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
        """The same prompt with other pixels. `change` gets the name of the argument and its tensor."""

        def encoded(encoding: Encoding) -> Any:
            pixels = change(encoding.pixels, encoding.arguments[encoding.pixels])
            return encoding.function(**encoding.arguments | {encoding.pixels: pixels})

        return self._with_outputs(encoded)

    def with_features(self, change: Callable[[Encoding, Tensor], Tensor]) -> dict[str, Any]:
        """The same prompt with other visual features. `change` gets one tensor per image, or one for all images."""

        def encoded(encoding: Encoding) -> Any:
            output = encoding.function(**encoding.arguments)
            found = output.pooler_output
            output.pooler_output = (
                change(encoding, found)
                if isinstance(found, Tensor)
                else type(found)(change(encoding, features) for features in found)
            )
            return output

        return self._with_outputs(encoded)

    def _with_outputs(self, encoded: Callable[[Encoding], Any]) -> dict[str, Any]:
        if not self.encodings:
            raise UnsupportedError(
                f"{type(self.layout.model).__name__} did not encode its images through get_image_features, "
                "so they cannot be replaced"
            )
        outputs = {encoding.modality: encoded(encoding) for encoding in self.encodings}
        copies = self._copies()
        if copies > 1:
            outputs = repeated_encodings(self.layout.model, self.ids[::copies], outputs, copies)
        kept = {k: v for k, v in self.arguments.items() if not k.startswith("pixel")}
        return kept | {"attention_mask": self.mask, "mm_encoder_outputs": outputs}

    def unchanged(self) -> dict[str, Any]:
        """The same prompt, for a branch whose attention differs."""
        return self.arguments | {"attention_mask": self.mask}

    def without_images(self) -> dict[str, Any]:
        """The same prompt without its visual tokens, padded on the left, with the positions of a text-only prompt."""
        visual = torch.isin(self.ids, torch.tensor(sorted(self.layout.visual_ids), device=self.ids.device))
        kept = self.mask.bool() & ~visual
        if not bool(kept.any(1).all()):
            raise UnsupportedError(
                "the prompt has no text besides its images, but the method needs a text-only prompt: add text to it"
            )
        width = int(kept.sum(1).max())
        # a stable sort moves the remaining tokens to the right, in order
        order = kept.long().argsort(dim=1, stable=True)[:, -width:]
        mask = kept.gather(1, order).long()
        arguments: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if name.startswith(VISUAL_ARGUMENTS):
                continue
            if isinstance(value, Tensor) and value.shape[:2] == self.ids.shape:
                value = value.gather(1, order)
            arguments[name] = value
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        own = self.arguments.get("position_ids")
        if own is not None and own.dim() == 3:
            positions = positions.expand(own.shape[0], -1, -1)
        if "mm_token_type_ids" in arguments:
            arguments["mm_token_type_ids"] = torch.zeros_like(mask)
        return arguments | {"attention_mask": mask, "position_ids": positions}

    def _copies(self) -> int:
        """The number of rows per sample. Beams and return sequences repeat the prompt, but not its images."""
        tokens = int(torch.isin(self.ids, torch.tensor(sorted(self.layout.visual_ids), device=self.ids.device)).sum())
        own = sum(e.tokens for e in self.encodings)
        return tokens // own if own and tokens % own == 0 else 1


def _count(encoded: Any) -> int:
    """The visual tokens in the output of an encoder."""
    features = encoded.pooler_output
    if isinstance(features, Tensor):
        return features.shape[:-1].numel()
    return sum(f.shape[:-1].numel() for f in features)


class Main:
    """The model's latest own pass, with which the branches are aligned."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        positions = arguments.get("position_ids")
        self.position: Tensor | None = None if positions is None else positions[..., -1:]
        """The position of the newest token, [..., rows, 1]."""

    def select(self, rows: list[int]) -> None:
        if self.position is not None and self.position.shape[-2] > 1:
            self.position = self.position.index_select(-2, torch.tensor(rows, device=self.position.device))

    def crop(self, tokens: int) -> None:
        if self.position is not None:
            self.position = self.position - tokens


@dataclass(frozen=True)
class Branch:
    """An additional pass that reads the same answer after another prompt."""

    name: str
    inputs: Callable[[Prompt], dict[str, Any]] | None = None
    """Makes the model's arguments for the branch's prompt. None: the branch waits for `Generation.restart`."""
    first: bool = False
    """Whether the branch runs before the model's own pass instead of after it."""
    once: bool = False
    """Whether the branch reads only the prompt and not the answer."""


class BranchState:
    """A running branch: its KV cache, its mask, and the offset of its positions from those of the model."""

    def __init__(self, name: str, config: Any, group_count: int) -> None:
        self.name = name
        self.generation: Generation[State] = Generation(group_count, name)
        self.cache = DynamicCache(config=config)
        self.idle = True
        """Whether the branch has no prompt yet."""
        self.step = -1
        """The last step of the model's generation that the branch has read."""
        self.logits: Tensor | None = None
        """The next-token logits at that step. None after a crop or a change of rows."""
        self.shift: Tensor | None = None
        self._config, self._group_count = config, group_count
        self._arguments: dict[str, Any] = {}

    def begin(self, arguments: dict[str, Any], record: bool) -> None:
        """Start with these model arguments. `record`: sliding windows store the positions that leave them."""
        self.generation = Generation(self._group_count, self.name)
        self.generation.state = State()
        self.cache = DynamicCache(config=self._config)
        if record:
            self.cache.activate_past_recording()
        self.mask: Tensor = arguments["attention_mask"]
        self.idle, self.step, self.logits = False, -1, None
        self._arguments = arguments

    @property
    def waiting(self) -> bool:
        """Whether the prompt has not been read yet."""
        return bool(self._arguments)

    def prompt(self, main: Main, answered: int) -> dict[str, Any]:
        """The arguments for the prompt. The model has read `answered` tokens of the answer."""
        arguments, self._arguments = self._arguments, {}
        own, other = arguments.get("position_ids"), main.position
        self.shift = None if own is None or other is None else own[..., -1:] + answered - other
        return arguments | {"past_key_values": self.cache, "use_cache": True}

    def tokens(self, main: Main, ids: Tensor) -> dict[str, Any]:
        """The arguments for tokens [rows, tokens]. The last one is the token that the model has just read."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(ids.shape)], dim=1)
        arguments = dict(main.arguments) | {
            "input_ids": ids,
            "attention_mask": self.mask,
            "past_key_values": self.cache,
        }
        if arguments.get("mm_token_type_ids") is not None:
            arguments["mm_token_type_ids"] = torch.zeros_like(self.mask)
        if main.position is not None and self.shift is not None:
            steps = torch.arange(1 - ids.shape[1], 1, device=main.position.device)
            arguments["position_ids"] = main.position + self.shift + steps
        return arguments

    def select(self, rows: list[int]) -> None:
        if self.idle:
            return
        self.generation.select(rows)
        index = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask.index_select(0, index)
        if self.shift is not None:
            self.shift = self.shift.index_select(-2, index)
        if self.logits is not None:
            self.logits = self.logits.index_select(0, index.to(self.logits.device))

    def crop(self, tokens: int) -> None:
        if self.idle:
            return
        cut_back(self.cache, tokens, record=is_recording(self.cache))
        self.generation.crop(tokens)
        self.mask = self.mask[:, :-tokens]
        self.step -= tokens
        self.logits = None


class EncoderWatch:
    """Wraps the model's get_…_features methods and records how images were encoded."""

    def __init__(self, model: Any, watching: Callable[[], bool]) -> None:
        """`watching` returns whether a call belongs to the method. Other threads may encode images too."""
        self.base = model.base_model
        self.watching = watching
        self.calls: dict[str, Encoding] = {}
        self._inside = False

    def install(self, replace: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        for modality in ("image", "video"):
            name = f"get_{modality}_features"
            if hasattr(self.base, name):
                replace(self.base, name, self._watched(modality, getattr(self.base, name)))

    def _watched(self, modality: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def encode(*args: Any, **kwargs: Any) -> Any:
            if not self.watching():
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            arguments = {k: v for k, v in given.items() if k != "kwargs"} | dict(given.get("kwargs", {}))
            outermost, encoded = not self._inside, self._within(original, *args, **kwargs)
            pixels = any(name.startswith("pixel_values") and value is not None for name, value in arguments.items())
            if outermost and pixels:
                again = partial(self._within, original)
                self.calls[modality] = Encoding(modality, again, arguments, _count(encoded))
            return encoded

        # generate() inspects the signature
        encode.__signature__ = signature  # type: ignore[attr-defined]
        return encode

    def _within(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Count a nested call as one: some models encode videos as images."""
        before, self._inside = self._inside, True
        try:
            return original(*args, **kwargs)
        finally:
            self._inside = before

    def taken(self) -> tuple[Encoding, ...]:
        """Return and clear the recorded calls."""
        calls, self.calls = tuple(self.calls.values()), {}
        return calls
