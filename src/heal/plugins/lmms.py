"""Plugin for lmms-eval: the model `heal`, with the method and its options in model_args.

lmms-eval --model heal --model_args pretrained=llava-hf/llava-1.5-7b-hf,method=heal,alpha=0.5 --tasks pope
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heal.errors import ConfigError, UnsupportedError
from heal.extras import optional
from heal.generate import Answer
from heal.methods import Method, parse
from heal.vlm import VLM

with optional():
    from lmms_eval.api.instance import GenerationResult, TokenCounts
    from lmms_eval.api.model import lmms
    from loguru import logger

MAX_NEW_TOKENS = 1024  # as in lmms-eval's own models
IGNORED = "\n\n"  # the default of lmms-eval if a task sets no stop string; its own models ignore it too
GENERATE_OPTIONS = ("max_new_tokens", "temperature", "top_p", "top_k", "num_beams", "do_sample", "repetition_penalty")


def manifest() -> Any:
    """The entry point of the plugin."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("heal", chat_class_path=f"{__name__}.Heal")


class Heal(lmms):
    """Any supported model, plain or with a method. Further arguments are options of the method."""

    is_simple = False

    def __init__(
        self,
        pretrained: str = "embedded",
        method: str = "heal",
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        from accelerate import Accelerator

        self.method = method_from(method, options)
        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        place = str(self.accelerator.device) if self._world_size > 1 or device is None else device
        self.vlm = load(str(pretrained), dtype, place)
        self.batch_size = int(batch_size)
        self.fired: list[bool] = []
        """Whether the method changed something, per answer."""

    @property
    def device(self) -> Any:
        return self.vlm.device

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests in batches of equal options and return results in the order of the requests."""
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[2], sort_keys=True, default=str), []).append(index)
        found: dict[int, Any] = {}
        for group in groups.values():
            for start in range(0, len(group), self.batch_size):
                batch = group[start : start + self.batch_size]
                found |= dict(zip(batch, self._answers([requests[i] for i in batch]), strict=True))
        if self.method is not None:
            logger.info(f"{self.method.name} fired in {sum(self.fired)} of {len(self.fired)} answers")
        return [found[index] for index in range(len(requests))]

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        asked = requests[0].args[2]
        rows = [conversation(self._messages(request)) for request in requests]
        answers: list[Answer] = self.vlm.generate(
            [pictures or None for pictures, _ in rows],
            [messages for _, messages in rows],
            method=self.method,
            **decoding(asked),
        )
        self.fired += [bool(answer.fired) for answer in answers]
        return [
            GenerationResult(cut(answer.text, asked.get("until")), TokenCounts(output_tokens=len(answer.token_ids)))
            for answer in answers
        ]

    def _messages(self, request: Any) -> list[dict[str, Any]]:
        _, doc_to_messages, _, doc_id, task, split = request.args
        return doc_to_messages(self.task_dict[task][split][doc_id])

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise UnsupportedError("heal generates answers and has no log-likelihoods: choose a task that generates")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise UnsupportedError("heal has no multi-round generation: choose a task that generates once")


def method_from(name: str, options: Mapping[str, Any]) -> Method | None:
    """Create the method. lmms-eval converts some values to numbers, but the parser reads strings."""
    if name == "plain":
        if options:
            raise ConfigError(f"the plain model has no option {', '.join(options)}: give a method")
        return None
    if not options:
        return parse(name)
    words = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    return parse(f"{name}:" + ",".join(f"{key}={value}" for key, value in words.items()))


def load(name: str, dtype: str, device: str) -> VLM:
    if name == "embedded":
        return VLM.embedded(device=device)
    if name == "random":
        vlm = VLM.random()
        vlm.model.to(device)
        return vlm
    return VLM.load(name, dtype=dtype, device=device)


def conversation(messages: Sequence[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Separate the images from the messages, which keep placeholders for them."""
    pictures: list[Any] = []
    found = []
    for message in messages:
        content = []
        for part in message["content"]:
            if part["type"] not in ("text", "image"):
                raise UnsupportedError(f"heal takes text and images, not {part['type']}")
            if part["type"] == "image":
                pictures.append(part["url"])
            content.append({"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"})
        found.append({"role": message["role"], "content": content})
    return pictures, found


def decoding(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options of generate(): sampling if the temperature is above 0, otherwise greedy decoding."""
    found = {key: asked[key] for key in GENERATE_OPTIONS if asked.get(key) is not None}
    found.setdefault("max_new_tokens", MAX_NEW_TOKENS)
    found["do_sample"] = bool(found.get("do_sample", True) and found.get("temperature", 0) > 0)
    if not found["do_sample"]:
        for key in ("temperature", "top_p", "top_k"):
            found.pop(key, None)
    return found


def cut(text: str, until: str | Sequence[str] | None) -> str:
    for end in [until] if isinstance(until, str) else until or ():
        if end and end != IGNORED:
            text = text.split(end)[0]
    return text
