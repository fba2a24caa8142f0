"""lmms-eval: the model `heal`, with a method and all its options in model_args.

lmms-eval --model heal --model_args pretrained=llava-hf/llava-1.5-7b-hf,method=heal,alpha=0.5 --tasks pope
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, TokenCounts  # type: ignore[import-not-found]
from lmms_eval.api.model import lmms  # type: ignore[import-not-found]
from loguru import logger  # type: ignore[import-not-found]

from heal.errors import ConfigError, UnsupportedError
from heal.generate import Answer
from heal.methods import Method, parse
from heal.vlm import VLM

MAX_NEW_TOKENS = 1024  # as the harness's own models have it
IGNORED = "\n\n"  # what the harness asks for when a task asks for nothing; its own models do not stop there either
TAKEN = ("max_new_tokens", "temperature", "top_p", "top_k", "num_beams", "do_sample", "repetition_penalty")


def manifest() -> Any:
    """What the entry point gives."""
    from lmms_eval.models.registry_v2 import ModelManifest  # type: ignore[import-not-found]

    return ModelManifest("heal", chat_class_path=f"{__name__}.Heal")


class Heal(lmms):
    """Any model that heal supports, plain or with a method. Further arguments are options of the method."""

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
        from accelerate import Accelerator  # type: ignore[import-untyped]

        self.method = method_from(method, options)
        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        place = str(self.accelerator.device) if self._world_size > 1 or device is None else device
        self.vlm = load(str(pretrained), dtype, place)
        self.batch_size = int(batch_size)
        self.fired: list[bool] = []
        """Whether the method did something, answer by answer."""

    @property
    def device(self) -> Any:
        return self.vlm.device

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Requests with the same options together, in batches; results in the order of the requests."""
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
        raise UnsupportedError("heal writes answers, it does not rate given ones: choose a task that generates")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise UnsupportedError("heal answers in one round: choose a task that generates once")


def method_from(name: str, options: Mapping[str, Any]) -> Method | None:
    """The harness has made numbers of some words; the method's own parser reads words."""
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
    """Pictures apart from the messages that have places for them."""
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
    """Options of generate(): sampling only at a temperature above 0, else greedy."""
    found = {key: asked[key] for key in TAKEN if asked.get(key) is not None}
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
