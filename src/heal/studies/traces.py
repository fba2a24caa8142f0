"""Descriptions of images by the plain model, with the scores of all heads and labels of all tokens.

Most studies use this part. It is measured once for all of them. Head types are refreshed at every step, so the types
at a token come from the scores of the step that generated it; `TracedAnswer.in_effect` gives those that a method with
a longer interval would use. `heal.studies.retyping` finds the types anew from the scores, with other thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from heal.analysis.taxonomy import HeadType
from heal.bench.tasks.base import Sample
from heal.generate import Answer
from heal.methods import HEAL
from heal.studies.objects import Find, ObjectName, object_names
from heal.studies.parts import Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.token_kinds import TokenKind, token_kinds
from heal.token_spans import decoded, token_spans
from heal.vlm import VLM

SCORES = ("visual", "language", "total", "contribution")


def plain_traces(setup: Setup, distribution: str, method: HEAL | None = None, name: str | None = None) -> Measurement:
    """The traces of the plain model's descriptions, called `traces DISTRIBUTION` unless another name is given.

    `method` is what measures, without calibration and with types for every token. Default: HEAL as the user gave it.
    """
    measuring, tokens = replace(method or setup.heal, calibrate=False, interval=1), setup.caption_tokens
    find = setup.find

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        answers = vlm.generate(
            [sample.image() for sample in samples],
            [sample.prompt for sample in samples],
            method=measuring,
            trace=True,
            max_new_tokens=tokens,
            do_sample=False,
            num_beams=1,
        )
        return [record(vlm, s, answer, find, distribution) for s, answer in zip(samples, answers, strict=True)]

    return Measurement(
        name or f"traces {distribution}",
        "traces",
        setup.captions(distribution),
        measure,
        {"method": measuring.options(), "max_new_tokens": tokens, "distribution": distribution},
        setup.batch_size,
        tokens,
    )


def record(vlm: VLM, sample: Sample, answer: Answer, find: Find, distribution: str) -> Measured:
    """One traced answer, with its object words and the kinds of its tokens."""
    trace, ids = answer.trace, list(answer.token_ids)
    assert trace is not None
    text, spans = decoded(vlm.tokenizer, ids), token_spans(vlm.tokenizer, ids)
    found, objects = find(text), frozenset(sample.truth["objects"])
    special = [at for at, token in enumerate(ids) if token in set(vlm.tokenizer.all_special_ids)]
    facts = {
        "unit": sample.unit,
        "distribution": distribution,
        "text": text,
        "token_ids": ids,
        "spans": [list(span) for span in spans],
        "logprobs": list(answer.logprobs),
        "finish": answer.finish,
        "kinds": [int(kind) for kind in token_kinds(text, spans, found, special)],
        "names": [asdict(name) for name in object_names(found, spans, objects)],
        "objects": sorted(objects),
    }
    arrays = {name: getattr(trace, name) for name in SCORES}
    return Measured(sample.id, facts, arrays | {"types": own_types(trace.types)})


def own_types(in_effect: UInt8[np.ndarray, "step layer head"]) -> UInt8[np.ndarray, "step layer head"]:
    """The types found at each step, from those in effect with an interval of 1: a refresh acts from the next step on.

    Nothing is in effect after the last step, so its types are unknown.
    """
    unknown = np.full_like(in_effect[:1], int(HeadType.UNKNOWN))
    return np.concatenate([in_effect[1:], unknown])


@dataclass(frozen=True, eq=False)
class TracedAnswer:
    """A description by the plain model, as `plain_traces` stores it."""

    id: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, record: Measured) -> TracedAnswer:
        return cls(record.id, record.facts, record.arrays)

    @property
    def unit(self) -> str:
        """The image, which is what is resampled."""
        return self.facts["unit"]

    @property
    def text(self) -> str:
        return self.facts["text"]

    @property
    def steps(self) -> int:
        return len(self.facts["token_ids"])

    @cached_property
    def tokens(self) -> list[str]:
        """The text that each token writes. Parts of one character share it."""
        return [self.text[start:stop] for start, stop in self.facts["spans"]]

    @cached_property
    def names(self) -> list[ObjectName]:
        return [ObjectName(**name) for name in self.facts["names"]]

    @cached_property
    def kinds(self) -> np.ndarray:
        """Values of `TokenKind`, [step]."""
        return np.array(self.facts["kinds"], np.int64)

    @property
    def visual(self) -> Float32[np.ndarray, "step layer head"]:
        return self.arrays["visual"]

    @property
    def language(self) -> Float32[np.ndarray, "step layer head"]:
        return self.arrays["language"]

    @property
    def total(self) -> Float32[np.ndarray, "step layer head"]:
        return self.arrays["total"]

    @property
    def contribution(self) -> Float32[np.ndarray, "step layer head"]:
        """Causal contribution."""
        return self.arrays["contribution"]

    @property
    def types(self) -> UInt8[np.ndarray, "step layer head"]:
        """Values of `HeadType` found from the scores of each step. Unknown at the last step."""
        return self.arrays["types"]

    def in_effect(self, interval: int) -> UInt8[np.ndarray, "step layer head"]:
        """The types that a method would use if it refreshed them every `interval` steps from the first token on."""
        before = np.maximum(np.arange(self.steps) - 1, 0)
        return self.types[before // interval * interval]

    @cached_property
    def mixed(self) -> Bool[np.ndarray, "step layer head"]:
        """Synergy heads with visual and language information at this step."""
        return (self.types == int(HeadType.SYNERGY)) & (self.visual > 0) & (self.language > 0)

    @cached_property
    def alpha_vis(self) -> Float32[np.ndarray, "step layer head"]:
        """The visual share of mixed heads of any type; NaN if one of the scores is not positive."""
        both = (self.visual > 0) & (self.language > 0)
        share = np.full_like(self.visual, np.nan)
        return np.divide(self.visual, self.visual + self.language, out=share, where=both)

    def of_kind(self, *kinds: TokenKind) -> np.ndarray:
        """The steps of tokens of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, [int(kind) for kind in kinds]))


def answers(records: Records) -> Iterator[TracedAnswer]:
    """All answers of a part, read one batch at a time."""
    return (TracedAnswer.of(record) for record in records)
