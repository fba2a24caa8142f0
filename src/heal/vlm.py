"""A multimodal model with its processor: load it and generate answers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from PIL import Image

from heal import prompts as chat
from heal.checkpoints import check_tokens, load_config, load_model, load_processor
from heal.devices import cuda_indices, existing_device, torch_dtype
from heal.engine.decoding import check_seed
from heal.engine.locks import lock_of
from heal.engine.source import Source
from heal.errors import CheckpointError, ConfigError, ImageError, InputWarning, PromptError, first_line
from heal.generate import MAX_NEW_TOKENS, Answer, Traced, generate
from heal.hub import located
from heal.images import ImageInput, open_image
from heal.methods.base import Method
from heal.prompts import Messages
from heal.request import Request
from heal.streams import Stream

if TYPE_CHECKING:
    from heal.detect.model import Detector

__all__ = ["EMBEDDED", "VLM", "ImageInput", "Messages", "existing_device", "open_image", "torch_dtype"]

Risk: TypeAlias = "bool | str | os.PathLike[str] | Detector | None"
"""Whether risks are wanted: True for the detector of the checkpoint, a path, or a detector."""

EMBEDDED = Path(__file__).parent / "data" / "model"
"""Checkpoint folder of the embedded model."""


class VLM:
    """A model and its processor. `generate` takes one item or a list of them."""

    def __init__(self, model: Any, processor: Any, name: str = "") -> None:
        self.model = model
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.name = name or type(model).__name__
        self.max_pixels: int | None = None
        """Limit of pixels per image. None: the environment variable HEAL_MAX_PIXELS or `heal.images.MAX_PIXELS`."""
        self.knows = ""
        """The only kind of images that the model was trained on, such as "scenes" of the miniature world."""
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
        """Load a folder or a model of the hub. safetensors only. Code from a checkpoint needs `trust_remote_code`.

        `device_map="auto"` distributes a large model over several GPUs; `device` selects one device. A checkpoint
        whose tensors do not match its configuration is rejected, because transformers would use random weights;
        `allow_incomplete` loads it with a warning. A model that is complete in the local cache of the hub is loaded
        from there, without checking for updates.
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
        """The small LLaVA of this package, trained on the miniature world. Nothing is downloaded."""
        vlm = cls.load(EMBEDDED, dtype=dtype, device=device)
        vlm.name = "embedded"
        return vlm

    @classmethod
    def random(cls, seed: int = 0) -> VLM:
        """A tiny LLaVA with random weights, for tests."""
        from heal.random_llava import random_llava, random_processor

        return cls(random_llava(seed), random_processor(), "random")

    @property
    def device(self) -> torch.device:
        return self.model.device

    def option(self, name: str, given: Mapping[str, Any]) -> Any:
        """An option of generate(): the given value, or that of the given or the model's generation config."""
        configs = (given.get("generation_config"), self.model.generation_config)
        found = [given.get(name), *(getattr(config, name, None) for config in configs if config is not None)]
        return next((value for value in found if value is not None), None)

    def generate(
        self,
        images: Any,
        prompts: str | Messages | Sequence[str] | Sequence[Messages],
        *,
        method: Method | str | None = None,
        trace: Traced = False,
        risk: Risk = False,
        stream: bool = False,
        seed: int | None = None,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        """An Answer, a list of answers for a list of prompts, or a Stream (see `stream`).

        One prompt (text or chat messages) takes one image, a list of images, or None. A list of prompts takes a list
        of these. `seed` makes sampling reproducible without changing the global generator. num_return_sequences = n
        gives n consecutive answers per prompt. A method can be given as on the command line: `"heal:interval=5"`.
        Calls from several threads run one at a time; `timeout` is the maximum number of seconds to wait.

        `risk` gives each answer the probability that its object words are hallucinated (`Answer.risk`,
        `Answer.doubtful`): True uses the detector of the checkpoint; others are given as a path or a
        `heal.detect.Detector`.

        A method with `one_sample` generates the prompts of a list one by one, without padding. All prompts are
        checked first. Each starts from the same `seed`, so that it gets the same answers as alone.
        """
        method, detector = _as_method(method), self._detector(risk)
        if seed is not None:
            check_seed(seed)
        single = isinstance(prompts, str) or chat.is_chat(prompts)
        if stream:
            if not single:
                raise ConfigError("a stream takes one prompt: give a single prompt, or stream=False")
            if seed is not None:
                raise ConfigError("a stream shares the global generator with its reader: use seed with stream=False")
            prompt = cast("str | Messages", prompts)
            asked: dict[str, Any] = {"method": method, "trace": trace, "risk": detector, "timeout": timeout}
            return self.stream(images, prompt, **asked, **generate_kwargs)
        rows = [(images, prompts)] if single else chat.paired(images, prompts)
        with lock_of(self.model).turn(timeout):
            answers: list[Answer] = []
            for request in self._requests(rows, getattr(method, "one_sample", False), generate_kwargs):
                with torch.random.fork_rng(devices=cuda_indices(self.device), enabled=seed is not None):
                    if seed is not None:
                        torch.manual_seed(seed)
                    answers += generate(self, request, method, trace, detector, **generate_kwargs)
        return answers[0] if single and len(answers) == 1 else answers

    def stream(
        self,
        images: Any,
        prompt: str | Messages,
        *,
        method: Method | str | None = None,
        trace: Traced = False,
        risk: Risk = False,
        live: bool = False,
        timeout: float | None = None,
        **generate_kwargs: Any,
    ) -> Stream:
        """Stream the answer to one prompt while it is generated. The complete answer has the risks.

        With `live`, `Stream.so_far` has the tokens so far with their risks or visual shares.
        """
        detector = self._detector(risk)
        with lock_of(self.model).turn(timeout):
            request = self.request([images], [prompt])
            self._check_length(request.arguments, generate_kwargs)
        return Stream(self, request, _as_method(method), trace, timeout, risk=detector, live=live, **generate_kwargs)

    def inputs(self, images: Sequence[Any], prompts: Sequence[Any]) -> dict[str, Any]:
        """The model inputs for a batch, padded on the left."""
        return self.request(images, prompts).arguments

    def request(self, images: Sequence[Any], prompts: Sequence[Any], first: int = 0) -> Request:
        """A batch for the model. `first` is the index of its first prompt in error messages."""
        texts, messages, pictures = [], [], []
        for index, (given, prompt) in enumerate(zip(images, prompts, strict=True), first):
            own = _own(given, index)
            pictures.append(tuple(open_image(picture, self.max_pixels) for picture in own))
            messages.append(self._messages(prompt, len(own), f"prompt {index}"))
            texts.append(chat.render(self.processor, messages[-1], f"prompt {index}"))
        flat = [p for row in pictures for p in row]
        self._check_world(flat)
        source = Source(self.processor, tuple(texts), tuple(pictures), tuple(map(chat.question, messages)))
        try:
            batch = source.inputs(source.images)
        except Exception as error:  # each processor has its own checks
            kind = ImageError if flat else PromptError
            raise kind(f"the processor rejects the images or the prompts: {first_line(error)}") from error
        arguments = {name: self._placed(value) for name, value in batch.items()}
        visual = self._visual(arguments["input_ids"])
        if visual is not None and (blind := [i for i, row in enumerate(pictures) if row and not visual[i].any()]):
            raise CheckpointError(
                f"the image of prompt {first + blind[0]} has no tokens in the model input: the chat template or the "
                "processor of the checkpoint drops it"
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

    def _detector(self, risk: Risk) -> Detector | None:
        """The detector that was asked for."""
        if risk is None or risk is False:
            return None
        from heal.detect.model import as_detector  # detection builds on this module

        return as_detector(risk, self.model)

    def _placed(self, value: Any) -> Any:
        """Move a tensor to the model's device, and floating-point tensors to its type."""
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, self.model.dtype if torch.is_floating_point(value) else None)

    def _messages(self, prompt: Any, images: int, where: str) -> list[dict[str, Any]]:
        messages = chat.as_chat(prompt, images, where)
        chat.check(messages, images, getattr(self.processor, "image_token", None), where)
        return messages

    def _visual(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Positions of images and videos, or None if the model does not define their tokens."""
        config = self.model.config
        known = [getattr(config, name, None) for name in ("image_token_id", "video_token_id")]
        tokens = [token for token in known if isinstance(token, int)]
        return torch.isin(ids, torch.tensor(tokens, device=ids.device)) if tokens else None

    def _check_length(self, inputs: Mapping[str, Any], options: Mapping[str, Any], first: int = 0) -> None:
        """Check that prompt and answer fit into the positions that the model was trained with."""
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
                "model was trained with: text beyond them is unreliable. Lower max_new_tokens",
            )

    def _check_world(self, pictures: Sequence[Image.Image]) -> None:
        if self.knows != "scenes" or "world" in self._warned:
            return
        from heal.world.likeness import unlike_scenes

        if any(map(unlike_scenes, pictures)):
            self._warn(
                "world",
                "an image does not look like a scene of the miniature world. The embedded model was trained on such "
                "scenes only, so its answer is meaningless: load a real checkpoint for photos",
            )

    def _warn(self, kind: str, text: str) -> None:
        """Warn once per model and kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, InputWarning, stacklevel=4)


def _own(given: Any, index: int) -> list[Any]:
    """The images of one prompt."""
    if given is None or chat.is_image(given):
        return [] if given is None else [given]
    if not isinstance(given, Sequence):
        raise ImageError(
            f"the image of prompt {index} must be a path, a PIL image or an array, not {type(given).__name__}"
        )
    return list(given)


def _as_method(given: Any) -> Method | None:
    """The given method, or the method that a string describes."""
    if isinstance(given, str):
        from heal.methods.parsing import parse

        return parse(given)
    if given is None or isinstance(given, Method):
        return given
    shown = (
        f"the class {given.__name__}: write {given.__name__}()" if isinstance(given, type) else type(given).__name__
    )
    raise ConfigError(f'a method must be a Method, a string like "heal:interval=5" or None, not {shown}')
