"""Log-probabilities of given answers under the plain model: teacher forcing, several answers in one pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heal.bench.tasks.base import Sample
from heal.engine.locks import lock_of
from heal.request import Request
from heal.studies.parts import Measured, Measurement
from heal.vlm import VLM


@dataclass(frozen=True)
class Written:
    """An answer as it is stored."""

    text: str
    ended: bool
    """Whether the model ended it. Otherwise it was cut at max_new_tokens."""


def scored(
    name: str, samples: Sequence[Sample], answers: Mapping[str, Mapping[str, Written]], rows: int, tokens: int
) -> Measurement:
    """Score the answers of several methods, by method and sample, `rows` at a time.

    A record has, for each method, the sum of negative log-probabilities and the number of tokens.
    """

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        asked = {(s.id, own[s.id]): s for s in samples for own in answers.values() if s.id in own}
        found = dict(zip(asked, _all(vlm, list(asked.items()), rows), strict=True))
        return [
            Measured(s.id, {name: found[s.id, own[s.id]] for name, own in answers.items() if s.id in own})
            for s in samples
        ]

    return Measurement(
        name,
        "perplexity",
        samples,
        measure,
        {"answers": _digest(answers)},
        batch_size=rows,
        tokens=tokens,
        passes=0.1 * len(answers),  # one pass over an answer, instead of one per token
    )


def _digest(answers: Mapping[str, Mapping[str, Written]]) -> str:
    every = [[name, id, w.text, w.ended] for name, own in answers.items() for id, w in own.items()]
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()[:16]


def _all(vlm: VLM, asked: Sequence[tuple[tuple[str, Written], Sample]], rows: int) -> list[list[float]]:
    found: list[list[float]] = []
    for at in range(0, len(asked), rows):
        some = asked[at : at + rows]
        with lock_of(vlm.model).turn(None):
            request = vlm.request([s.image() for _, s in some], [s.prompt for _, s in some])
        ids = answer_ids(vlm.tokenizer, request.source.texts, [written for (_, written), _ in some])
        found += [[-sum(own), float(len(own))] for own in answer_logprobs(vlm, request, ids)]
    return found


def answer_ids(tokenizer: Any, prompts: Sequence[str], answers: Sequence[Written]) -> list[list[int]]:
    """The tokens of answers that were stored as texts: those that follow the rendered prompt, and the end token.

    A space is between prompt and answer unless the prompt ends with white space.
    """
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        before = tokenizer(prompt)["input_ids"]
        both = tokenizer(prompt + ("" if prompt[-1:].isspace() else " ") + answer.text)["input_ids"]
        same = next((i for i, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(before))
        found.append([*both[same:], *[tokenizer.eos_token_id] * answer.ended])
    return found


@torch.inference_mode()
def answer_logprobs(vlm: VLM, request: Request, answers: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token of each answer, given the image, the prompt and the tokens before."""
    longest = max(map(len, answers), default=0)
    if longest == 0:
        return [[] for _ in answers]
    ids = torch.full((len(answers), longest), vlm.tokenizer.pad_token_id, device=vlm.device)
    given = torch.zeros_like(ids)
    for row, own in enumerate(answers):
        ids[row, : len(own)] = torch.tensor(own, device=vlm.device)
        given[row, : len(own)] = 1
    arguments = _continued(request.arguments, ids, given)
    with lock_of(vlm.model).turn(None):
        logits = vlm.model(**arguments, use_cache=False, logits_to_keep=longest + 1).logits
    values = _logprobs(logits[:, -longest - 1 : -1], ids).tolist()
    return [own[: len(answer)] for own, answer in zip(values, answers, strict=True)]


def _continued(
    arguments: Mapping[str, Any], ids: Int[Tensor, "rows new"], given: Int[Tensor, "rows new"]
) -> dict[str, Any]:
    """The inputs of a prompt with an answer after it. Further inputs by position describe text there."""
    shape = arguments["input_ids"].shape
    more = {"input_ids": ids, "attention_mask": given}
    return {
        name: torch.cat([value, more.get(name, torch.zeros_like(ids)).to(value.dtype)], dim=1)
        if isinstance(value, Tensor) and value.shape == shape
        else value
        for name, value in arguments.items()
    }


def _logprobs(logits: Float[Tensor, "rows new vocabulary"], ids: Int[Tensor, "rows new"]) -> Tensor:
    """[rows, new], one row at a time: the vocabulary may be large."""
    return torch.stack(
        [
            own.float().gather(-1, token[:, None]).squeeze(-1) - own.float().logsumexp(-1)
            for own, token in zip(logits, ids, strict=True)
        ]
    )
