"""A multimodal model with its processor: load it and generate answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image

from heal import prompts as chat
from heal.checkpoints import check_tokens, load_config, load_model, load_processor
from heal.engine.decoding import check_seed
from heal.engine.locks import lock_of
from heal.engine.source import Source
from heal.errors import CheckpointError, ConfigError, ImageError, InputWarning, PromptError, first_line
from heal.generate import MAX_NEW_TOKENS, Answer, generate
from heal.hub import located
from heal.images import Picture, open_image
from heal.methods.base import Method
from heal.prompts import Messages
from heal.request import Request
from heal.streams import Stream

__all__ = ["EMBEDDED", "VLM", "Messages", "Picture", "existing_device", "open_image", "torch_dtype"]

EMBEDDED = Path(__file__).parent / "data" / "model"
"""Folder of the embedded model: an ordinary checkpoint."""


class VLM:
    """A model and its processor. `generate` takes one item or a list of them."""

    def __init__(self, model: Any, processor: Any, name: str = "") -> None:
        self.model = model
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.name = name or type(model).__name__
        self.max_pixels: int | None = None
        """The largest picture that is decoded; None: HEAL_MAX_PIXELS (environment), or `heal.images.MAX_PIXELS`."""
        self.knows = ""
        """What kind of pictures it knows, if it knows one only: "scenes" of the miniature world."""
        self._warned: set[str] = set()
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        device_map: str | dict[str, Any] | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        allow_incomplete: bool = False,
    ) -> VLM:
        """A folder or a hub name. safetensors only; code from a checkpoint runs only if you say so.

        `device_map="auto"` spreads a large model over several GPUs; `device` puts a small one in one place. A
        checkpoint whose tensors are not exactly those of its configuration is refused, because transformers fills
        the gaps with random weights; `allow_incomplete` loads it with a warning. A model that is whole in the hub's
        local cache is loaded from there, without asking for a newer one.
        """
        if device is not None and device_map is not None:
            raise ConfigError("give either device or device_map, not both")
        kind = torch_dtype(dtype)
        place = None if device is None else existing_device(device)
        name, local = located(name_or_path, revision)
        shared: dict[str, Any] = {
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "local_files_only": local,
        }
        config = load_config(name, **shared)
        processor = load_processor(name, **shared)
        chat.check_template(processor, name)
        model = load_model(name, config, allow_incomplete, dtype=kind, device_map=device_map, **shared)
        check_tokens(name, model, processor)
        if place is not None:
            model = model.to(place)
        vlm = cls(model.eval(), processor, name)
        if Path(name).resolve() == EMBEDDED.resolve():
            vlm.knows = "scenes"
        return vlm

    @classmethod
    def embedded(cls, dtype: str | torch.dtype = "float32", device: str | torch.device | None = None) -> VLM:
        """The small LLaVA that comes with this package, trained on the miniature world; nothing is downloaded."""
        vlm = cls.load(EMBEDDED, dtype=dtype, device=device)
        vlm.name = "embedded"
        return vlm

    @classmethod
    def random(cls, seed: int = 0) -> VLM:
        """A tiny LLaVA with random weights, made on the spot. It knows nothing; it is for trying things out."""
        from heal.random_llava import random_llava, random_processor

        return cls(random_llava(seed), random_processor(), "random")

    @property
    def device(self) -> torch.device:
        return self.model.device

    def option(self, name: str, given: Mapping[str, Any]) -> Any:
        """An option of generate(): as given, or as the given or the model's own configuration has it."""
        configs = (given.get("generation_config"), self.model.generation_config)
        found = [given.get(name), *(getattr(config, name, None) for config in configs if config is not None)]
        return next((value for value in found if value is not None), None)

    def generate(
        self,
        images: Any,
        prompts: str | Messages | Sequence[str] | Sequence[Messages],
        *,
        method: Method | str | None = None,
        trace: bool = False,
        stream: bool = False,
        seed: int | None = None,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        """An Answer, a list of them for a list of prompts, or a Stream (see `stream`).

        One prompt (text or chat messages) goes with one image, a list of images, or None; a list of prompts with a
        list of such. `seed` fixes sampling without touching the global generator. With num_return_sequences = n
        there are n answers for each prompt, one after the other. A method may be written as on the command line:
        `"heal:interval=5"`. Calls from several threads take turns; `timeout`: the most seconds to wait for one.

        A method with `one_sample` generates the prompts of a list one after the other, each without padding. All
        prompts are checked first. Each starts from the same `seed`, so it gets the answers that it gets alone.
        """
        method = _as_method(method)
        if seed is not None:
            check_seed(seed)
        single = isinstance(prompts, str) or chat.is_chat(prompts)
        if stream:
            if not single:
                raise ConfigError("a stream is for one prompt: give a single prompt, or stream=False")
            if seed is not None:
                raise ConfigError("a stream shares the global generator with its reader: use seed with stream=False")
            prompt = cast("str | Messages", prompts)
            return self.stream(images, prompt, method=method, trace=trace, timeout=timeout, **generate_kwargs)
        rows = [(images, prompts)] if single else chat.paired(images, prompts)
        with lock_of(self.model).turn(timeout):
            answers: list[Answer] = []
            for request in self._requests(rows, getattr(method, "one_sample", False), generate_kwargs):
                with torch.random.fork_rng(devices=_devices(self.device), enabled=seed is not None):
                    if seed is not None:
                        torch.manual_seed(seed)
                    answers += generate(self, request, method, trace, **generate_kwargs)
        return answers[0] if single and len(answers) == 1 else answers

    def stream(
        self,
        images: Any,
        prompt: str | Messages,
        *,
        method: Method | str | None = None,
        trace: bool = False,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Stream:
        """The answer to one prompt, piece by piece, while it is generated."""
        with lock_of(self.model).turn(timeout):
            request = self.request([images], [prompt])
            self._check_length(request.arguments, generate_kwargs)
        return Stream(self, request, _as_method(method), trace, timeout, **generate_kwargs)

    def inputs(self, images: Sequence[Any], prompts: Sequence[Any]) -> dict[str, Any]:
        """The arguments of the model for a batch, padded on the left."""
        return self.request(images, prompts).arguments

    def request(self, images: Sequence[Any], prompts: Sequence[Any], first: int = 0) -> Request:
        """A batch for the model. `first`: the index of its first prompt, for messages about it."""
        texts, messages, pictures = [], [], []
        for index, (given, prompt) in enumerate(zip(images, prompts, strict=True), first):
            own = _own(given, index)
            pictures.append(tuple(open_image(picture, self.max_pixels) for picture in own))
            messages.append(self._messages(prompt, len(own), f"prompt {index}"))
            texts.append(chat.render(self.processor, messages[-1], f"prompt {index}"))
        flat = [p for row in pictures for p in row]
        self._check_world(flat)
        source = Source(self.processor, tuple(texts), tuple(pictures))
        try:
            batch = source.inputs(source.images)
        except Exception as error:  # each processor has checks of its own
            kind = ImageError if flat else PromptError
            raise kind(f"the processor cannot take the images with the prompts: {first_line(error)}") from error
        arguments = {name: self._placed(value) for name, value in batch.items()}
        visual = self._visual(arguments["input_ids"])
        if visual is not None and (blind := [i for i, row in enumerate(pictures) if row and not visual[i].any()]):
            raise CheckpointError(
                f"the image of prompt {first + blind[0]} has no place in what the model reads: the chat template or "
                "the processor of the checkpoint leaves it out"
            )
        return Request(arguments, source, tuple(map(chat.without_images, messages)), first)

    def _requests(self, rows: list[tuple[Any, Any]], one_by_one: bool, options: Mapping[str, Any]) -> list[Request]:
        """All prompts in one batch, or each in its own."""
        size = 1 if one_by_one else len(rows)
        found = []
        for first in range(0, len(rows), size):
            images, prompts = zip(*rows[first : first + size], strict=True)
            request = self.request(images, prompts, first)
            self._check_length(request.arguments, options, first)
            found.append(request)
        return found

    def _placed(self, value: Any) -> Any:
        """A tensor on the model's device, in its type if it is a floating-point one."""
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, self.model.dtype if torch.is_floating_point(value) else None)

    def _messages(self, prompt: Any, images: int, where: str) -> list[dict[str, Any]]:
        messages = chat.as_chat(prompt, images, where)
        chat.check(messages, images, getattr(self.processor, "image_token", None), where)
        return messages

    def _visual(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Which positions are those of images or videos; None if the model does not say."""
        config = self.model.config
        known = [getattr(config, name, None) for name in ("image_token_id", "video_token_id")]
        tokens = [token for token in known if isinstance(token, int)]
        return torch.isin(ids, torch.tensor(tokens, device=ids.device)) if tokens else None

    def _check_length(self, inputs: Mapping[str, Any], options: Mapping[str, Any], first: int = 0) -> None:
        """That prompt and answer fit into the positions that the model was trained with."""
        text = self.model.config.get_text_config()
        limit = getattr(text, "max_position_embeddings", None)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if not isinstance(limit, int) or limit < 1:
            return
        visual = self._visual(ids)
        words = mask if visual is None else mask * ~visual
        lengths = words.sum(1)
        if int(lengths.max()) > limit:
            raise PromptError(
                f"prompt {first + int(lengths.argmax())} has {int(lengths.max())} tokens of text, but the model has "
                f"{limit} positions: shorten it"
            )
        if "mrope_section" not in (
            getattr(text, "rope_parameters", None) or {}
        ):  # there an image takes few positions
            lengths = mask.sum(1)
        longest, asked = int(lengths.max()), self.option("max_new_tokens", options)
        new = max(options["max_length"] - ids.shape[1], 0) if asked is None and options.get("max_length") else asked
        new = MAX_NEW_TOKENS if new is None else new
        if longest + new > limit:
            self._warn(
                "length",
                f"a prompt of {longest} tokens with up to {new} new ones may exceed the {limit} positions that the "
                "model was trained with: what it says beyond them is not to be trusted. Lower max_new_tokens",
            )

    def _check_world(self, pictures: Sequence[Image.Image]) -> None:
        if self.knows != "scenes" or "world" in self._warned:
            return
        from heal.world.likeness import unlike_scenes

        if any(map(unlike_scenes, pictures)):
            self._warn(
                "world",
                "a picture does not look like a scene of the miniature world. The embedded model knows nothing else, "
                "so its answer means nothing: load a real checkpoint for photos",
            )

    def _warn(self, kind: str, text: str) -> None:
        """Once per model."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, InputWarning, stacklevel=4)


def _own(given: Any, index: int) -> list[Any]:
    """The images of one prompt."""
    if given is None or chat.is_picture(given):
        return [] if given is None else [given]
    if not isinstance(given, Sequence):
        raise ImageError(
            f"the image of prompt {index} is a path, a PIL image or an array, not {type(given).__name__}"
        )
    return list(given)


def _as_method(given: Any) -> Method | None:
    """As given, or read from text."""
    if isinstance(given, str):
        from heal.methods.parsing import parse

        return parse(given)
    if given is None or isinstance(given, Method):
        return given
    shown = (
        f"the class {given.__name__}: write {given.__name__}()" if isinstance(given, type) else type(given).__name__
    )
    raise ConfigError(f'a method is a Method, a text like "heal:interval=5" or None, not {shown}')


def torch_dtype(dtype: str | torch.dtype, auto: Any = "auto") -> Any:
    """A floating-point type by its name; `auto` is whatever the checkpoint has."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return auto if dtype == "auto" else dtype
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    found = getattr(torch, names.get(dtype, dtype), None) if dtype else None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"dtype cannot be {dtype!r}: choose auto, float32, bfloat16 or float16")
    return found


def existing_device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"there is no device {str(device)!r} here: {first_line(error)}") from error
    return place


def _devices(device: torch.device) -> list[int]:
    return [device.index or 0] if device.type == "cuda" else []
