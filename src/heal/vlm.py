"""A multimodal model with its processor: load it, ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError

from heal.engine.locks import lock_of
from heal.errors import CheckpointError, ConfigError, ImageError, ModelError, PromptError
from heal.generate import Answer, Stream, generate
from heal.methods.base import Method

Picture = str | Path | Image.Image | np.ndarray
Messages = Sequence[Mapping[str, Any]]

EMBEDDED = Path(__file__).parent / "data" / "model"
"""Folder of the embedded model: an ordinary checkpoint."""


class VLM:
    """A model and its processor. `generate` takes one item or a list of them."""

    def __init__(self, model: Any, processor: Any, name: str = "") -> None:
        self.model = model
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.name = name or type(model).__name__
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
    ) -> VLM:
        """A folder or a hub name. safetensors only; code from a checkpoint runs only if you say so.

        `device_map="auto"` spreads a large model over several GPUs; `device` puts a small one in one place.
        """
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if device is not None and device_map is not None:
            raise ConfigError("give either device or device_map, not both")
        name, kind = str(name_or_path), torch_dtype(dtype)
        _check_folder(name)
        place = None if device is None else existing_device(device)
        shared: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        try:
            processor = AutoProcessor.from_pretrained(name, **shared)
        except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"no processor could be loaded from {name}: {_first_line(error)}. A checkpoint needs its "
                "processor_config.json, tokenizer.json and chat_template.jinja beside the weights"
            ) from error
        if not hasattr(processor, "image_processor"):
            raise CheckpointError(f"{name} has a tokenizer but no image processor: it is not a multimodal checkpoint")
        try:
            model = AutoModelForImageTextToText.from_pretrained(
                name, dtype=kind, device_map=device_map, use_safetensors=True, **shared
            )
        except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"{name} could not be loaded: {_first_line(error)}") from error
        if place is not None:
            model = model.to(place)
        return cls(model.eval(), processor, name)

    @classmethod
    def embedded(cls, dtype: str | torch.dtype = "float32", device: str | torch.device | None = None) -> VLM:
        """The small LLaVA that comes with this package, trained on the miniature world; nothing is downloaded."""
        vlm = cls.load(EMBEDDED, dtype=dtype, device=device)
        vlm.name = "embedded"
        return vlm

    @classmethod
    def random(cls, seed: int = 0) -> VLM:
        """A tiny LLaVA with random weights, made on the spot. It knows nothing; it is for trying things out."""
        from heal.tiny import random_llava, random_processor

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
        method: Method | None = None,
        trace: bool = False,
        stream: bool = False,
        seed: int | None = None,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        """An Answer, a list of them for a list of prompts, or a Stream (see `stream`).

        One prompt (text or chat messages) goes with one image, a list of images, or None; a list of prompts with a
        list of such. `seed` fixes sampling without touching the global generator. With num_return_sequences = n
        there are n answers for each prompt, one after the other. Calls from several threads take turns; `timeout`
        is the most seconds to wait for the model.
        """
        single = isinstance(prompts, str) or _is_chat(prompts)
        if stream:
            if not single:
                raise ConfigError("a stream is for one prompt: give a single prompt, or stream=False")
            if seed is not None:
                raise ConfigError("a stream shares the global generator with its reader: use seed with stream=False")
            prompt = cast("str | Messages", prompts)
            return self.stream(images, prompt, method=method, trace=trace, timeout=timeout, **generate_kwargs)
        rows = [(images, prompts)] if single else _paired(images, prompts)
        with lock_of(self.model).call(timeout):
            inputs = self.inputs([pictures for pictures, _ in rows], [prompt for _, prompt in rows])
            with torch.random.fork_rng(devices=_devices(self.device), enabled=seed is not None):
                if seed is not None:
                    torch.manual_seed(seed)
                answers: list[Answer] = generate(self, inputs, method, trace, **generate_kwargs)
        return answers[0] if single and len(answers) == 1 else answers

    def stream(
        self,
        images: Any,
        prompt: str | Messages,
        *,
        method: Method | None = None,
        trace: bool = False,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Stream:
        """The answer to one prompt, piece by piece, while it is made."""
        with lock_of(self.model).call(timeout):
            inputs = self.inputs([images], [prompt])
        return Stream(self, inputs, method, trace, timeout, **generate_kwargs)

    def inputs(self, images: Sequence[Any], prompts: Sequence[Any]) -> dict[str, Any]:
        """What the model takes, for a batch padded on the left."""
        texts, pictures = [], []
        for index, (given, prompt) in enumerate(zip(images, prompts, strict=True)):
            own = [] if given is None else [given] if _is_picture(given) else list(given)
            pictures.append([open_image(picture) for picture in own])
            texts.append(self._text(prompt, len(own), index))
        flat = [p for row in pictures for p in row]
        arguments: dict[str, Any] = {"text": texts, "padding": True, "return_tensors": "pt"}
        if flat:
            arguments["images"] = pictures if all(pictures) else flat
        self.tokenizer.padding_side = "left"
        try:
            batch = self.processor(**arguments)
        except (ValueError, IndexError) as error:
            raise ImageError(f"images and prompts do not fit together: {_first_line(error)}") from error
        batch = batch.to(self.device)
        return {k: v.to(self.model.dtype) if torch.is_floating_point(v) else v for k, v in batch.items()}

    def _text(self, prompt: Any, images: int, index: int) -> str:
        where = f"prompt {index}"
        messages = _as_chat(prompt, images, where)
        placeholders = sum(
            part.get("type") == "image"
            for m in messages
            if not isinstance(m["content"], str)
            for part in m["content"]
        )
        token = getattr(self.processor, "image_token", None)
        if token and any(token in words for words in _words(messages)):
            raise PromptError(f"{where} writes {token} itself: give the image beside the text instead")
        if placeholders != images:
            raise ImageError(f"{where} has places for {placeholders} images, but {images} were given")
        if getattr(self.processor, "chat_template", None) is None:
            return self._without_template(messages)
        return self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def _without_template(self, messages: list[dict[str, Any]]) -> str:
        """Base models have no chat format: images first, then the text."""
        parts = [p for m in messages for p in ([m["content"]] if isinstance(m["content"], str) else m["content"])]
        token = getattr(self.processor, "image_token", "<image>")
        return token * sum(isinstance(p, dict) and p["type"] == "image" for p in parts) + "\n".join(
            p if isinstance(p, str) else p["text"] for p in parts if isinstance(p, str) or p["type"] == "text"
        )


def open_image(picture: Picture) -> Image.Image:
    """An RGB picture from a path, a PIL image or an array [height, width, 3]."""
    if isinstance(picture, Image.Image):
        return picture.convert("RGB")
    if isinstance(picture, np.ndarray):
        if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] not in (1, 3, 4)):
            raise ImageError(f"an array picture must be [height, width] or [height, width, 3], not {picture.shape}")
        if picture.dtype != np.uint8:
            raise ImageError(f"an array picture must be uint8 from 0 to 255, not {picture.dtype}")
        if 0 in picture.shape:
            raise ImageError(f"an array picture must have pixels, not the shape {picture.shape}")
        grey = picture.ndim == 3 and picture.shape[2] == 1
        return Image.fromarray(picture[..., 0] if grey else picture).convert("RGB")
    if not isinstance(picture, (str, Path)):
        raise ImageError(f"a picture is a path, a PIL image or an array, not {type(picture).__name__}")
    path = Path(picture)
    if not path.is_file():
        raise ImageError(f"there is no image at {path}")
    try:
        with Image.open(path) as file:
            return file.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"{path} cannot be read as an image: {_first_line(error)}") from error


def _is_picture(given: Any) -> bool:
    return isinstance(given, (str, Path, Image.Image, np.ndarray))


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _paired(images: Any, prompts: Sequence[Any]) -> list[tuple[Any, Any]]:
    if len(prompts) == 0:
        raise PromptError("there is no prompt")
    given = [None] * len(prompts) if images is None else images
    if _is_picture(given) or not isinstance(given, Sequence) or len(given) != len(prompts):
        count = 1 if _is_picture(given) else len(given) if isinstance(given, Sequence) else 0
        raise ImageError(
            f"{len(prompts)} prompts need a list of as many images (an image, a list of images or None for each), "
            f"but {count} were given"
        )
    return list(zip(given, prompts, strict=True))


def _as_chat(prompt: Any, images: int, where: str) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError(f"{where} is empty")
        content = [{"type": "image"}] * images + [{"type": "text", "text": prompt}]
        return [{"role": "user", "content": content}]
    if not _is_chat(prompt) or not all(_is_message(m) for m in prompt):
        raise PromptError(
            f"{where} must be text, or chat messages with a role and a content: a text, or a list of "
            '{"type": "image"} and {"type": "text", "text": …}'
        )
    if not any(m["content"] for m in prompt):
        raise PromptError(f"{where} is empty")
    return [dict(m) for m in prompt]


def _words(messages: list[dict[str, Any]]) -> list[str]:
    """Every piece of text."""
    contents = [m["content"] for m in messages]
    parts = [p for c in contents if not isinstance(c, str) for p in c]
    return [c for c in contents if isinstance(c, str)] + [p["text"] for p in parts if p["type"] == "text"]


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, str):
        return True
    return isinstance(content, (list, tuple)) and all(
        isinstance(part, Mapping)
        and (part.get("type") == "image" or (part.get("type") == "text" and isinstance(part.get("text"), str)))
        for part in content
    )


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
        raise ConfigError(f"there is no device {str(device)!r} here: {_first_line(error)}") from error
    return place


def _check_folder(name: str) -> None:
    path = Path(name)
    if not path.exists():
        if path.is_absolute() or name.startswith((".", "~")):
            raise CheckpointError(f"there is no checkpoint at {name}")
        return  # a hub name
    if not path.is_dir() or not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is not a checkpoint: it needs to be a folder with a config.json")
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f"{path} has no *.safetensors weights: convert older formats with transformers' save_pretrained"
        )


def _devices(device: torch.device) -> list[int]:
    return [device.index or 0] if device.type == "cuda" else []


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
