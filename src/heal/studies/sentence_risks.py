"""The sentences of descriptions with the risks of their object words, and what the guard would leave of them.

Dropping a sentence changes nothing after it, so that one description shows the answer at every threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.score.equal_recall import EqualRecall, cut_counts, equal_recall
from heal.bench.tasks.base import Sample, Task
from heal.engine.answers import Sentence
from heal.errors import ConfigError, first_line
from heal.generate import Answer
from heal.methods.guard import Guard
from heal.methods.guard_sentences import decided, sentence_spans, words_in
from heal.studies.parts import ERROR, Measured, Measurement
from heal.studies.setup import Setup
from heal.token_spans import decoded, token_spans
from heal.vlm import VLM
from heal.world.mentions import Mention

DETECTOR, LOGPROB, RANDOM = "detector", "logprob", "random"
"""Values of the guard's option `risk`."""
THRESHOLDS = tuple(round(0.02 * step, 2) for step in range(1, 50))
"""Thresholds to choose from."""


def sentence_risks(name: str, task: Task, setup: Setup) -> Measurement:
    """The plain model's descriptions of all images of a task by sentence, each with its risks."""
    find, marking = setup.find, Guard(action="mark", threshold=1.0)

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        try:
            answers = vlm.generate(
                [sample.image() for sample in samples],
                [sample.prompt for sample in samples],
                method=marking,
                max_new_tokens=setup.caption_tokens,
                do_sample=False,
                num_beams=1,
            )
        except ConfigError as error:  # no detector fits the model
            return [Measured(sample.id, {ERROR: first_line(error)}) for sample in samples]
        return [
            Measured(sample.id, {"unit": sample.unit, "sentences": risks_of(vlm, answer, find)})
            for sample, answer in zip(samples, answers, strict=True)
        ]

    options = {"method": marking.options(), "max_new_tokens": setup.caption_tokens}
    return Measurement(name, "sentences", task.samples(), measure, options, setup.batch_size, setup.caption_tokens)


def risks_of(vlm: VLM, answer: Answer, find: Callable[[str], list[Mention]]) -> list[dict[str, Any]]:
    """The text of each sentence, and its risk by the detector and by log-probability; none without objects."""
    ids = list(answer.token_ids)
    text, tokens = decoded(vlm.tokenizer, ids), token_spans(vlm.tokenizer, ids)
    words = words_in(text, sentence_spans(text, finished=True), tokens, find)
    surprise: dict[int, float] = {}
    for word in words:
        own = float(1 - np.exp(answer.logprobs[word.start]))
        surprise[word.sentence] = max(surprise.get(word.sentence, 0.0), own)
    return [
        {"text": sentence.text, DETECTOR: sentence.risk, LOGPROB: surprise.get(number)}
        for number, sentence in enumerate(answer.sentences)
    ]


@dataclass(frozen=True)
class Described:
    """The descriptions of one task by sentence, and what is left of them at any threshold."""

    task: Task
    sentences: Mapping[str, Sequence[Mapping[str, Any]]]
    """By sample."""
    seed: int = 0

    @classmethod
    def of(cls, task: Task, records: Iterable[Measured], seed: int = 0) -> Described:
        return cls(task, {record.id: record.facts["sentences"] for record in records}, seed)

    @property
    def samples(self) -> list[Sample]:
        return [sample for sample in self.task.samples() if sample.id in self.sentences]

    def risks(self, kind: str) -> dict[str, list[float | None]]:
        """The risk of each sentence. Random ones are drawn here, for sentences with objects."""
        if kind != RANDOM:
            return {id: [sentence[kind] for sentence in own] for id, own in self.sentences.items()}
        rng = np.random.default_rng(self.seed)
        return {
            id: [None if sentence[LOGPROB] is None else float(rng.random()) for sentence in own]
            for id, own in self.sentences.items()
        }

    def kept(self, kind: str, threshold: float) -> dict[str, str]:
        """The descriptions without their risky sentences, as the guard leaves them."""
        found = {}
        for id, risks in self.risks(kind).items():
            own = self.sentences[id]
            every = [Sentence(at, at + 1, own[at]["text"], risk) for at, risk in enumerate(risks)]
            done = decided(every, threshold, drop=True, finished=True)
            found[id] = " ".join(sentence.text for sentence in done.sentences if sentence.kept)
        return found

    def share_dropped(self, kind: str, threshold: float) -> float:
        """The share of sentences with objects that are above the threshold."""
        known = [risk for own in self.risks(kind).values() for risk in own if risk is not None]
        return float(np.mean([risk > threshold for risk in known])) if known else float("nan")

    def plain(self) -> dict[str, str]:
        return {id: " ".join(sentence["text"] for sentence in own) for id, own in self.sentences.items()}

    def totals(self, texts: Mapping[str, str]) -> dict[str, float]:
        """The counts of all these descriptions."""
        samples = self.samples
        return self.task.counts(samples, [self.task.parse(s, texts[s.id]) for s in samples])

    def figures(self, texts: Mapping[str, str]) -> dict[str, float]:
        return {name: float(value) for name, value in self.task.score(self.totals(texts)).items()}

    def intervals(self, texts: Mapping[str, str]) -> dict[str, Interval]:
        counts = {s.id: self.task.counts([s], [self.task.parse(s, texts[s.id])]) for s in self.samples}
        return bootstrap.intervals(self.task.score, counts, self.seed)

    def gain(self, texts: Mapping[str, str]) -> EqualRecall | None:
        """CHAIR_i at equal recall, compared with the whole descriptions."""
        before, after = (cut_counts(self.task, self.samples, own) for own in (self.plain(), texts))
        return equal_recall(before, after, self.seed)


def chosen_threshold(every: Sequence[Described], kind: str, loss: float) -> float:
    """The threshold with the lowest CHAIR_i of those that lose at most `loss` points of recall.

    All descriptions count together. 1 (nothing is dropped) if every threshold loses more.
    """

    def pooled(texts: Callable[[Described], Mapping[str, str]]) -> dict[str, float]:
        rows = [own.totals(texts(own)) for own in every]
        summed = {name: sum(row[name] for row in rows) for name in rows[0]}
        return {name: float(value) for name, value in every[0].task.score(summed).items()}

    best, lowest = 1.0, pooled(lambda own: own.plain())
    least_recall = lowest["recall"] - loss
    for threshold in reversed(THRESHOLDS):
        found = pooled(lambda own, at=threshold: own.kept(kind, at))  # type: ignore[misc]
        if found["recall"] >= least_recall and found["chair_i"] < lowest["chair_i"]:
            best, lowest = threshold, found
    return best
