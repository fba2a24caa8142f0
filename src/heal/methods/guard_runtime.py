"""The guard during a generation: it measures, judges each sentence, and decides which tokens to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heal.engine.answers import AnswerTokens, Kept, Sentence
from heal.engine.generation import Generation
from heal.engine.runtime import CHANGING, LAYER_CALLBACKS, Runtime
from heal.engine.state import State, StepRecord
from heal.errors import UnsupportedError
from heal.methods.counting import seeing
from heal.methods.guard_risk import RiskSource
from heal.methods.guard_sentences import ObjectWord, Risk, decided, judged, object_word, sentence_spans
from heal.token_spans import decoded, token_spans

if TYPE_CHECKING:
    from heal.methods.guard import Guard

NEXT = "log-probabilities"
"""The log-probabilities of the next token, [rows, vocabulary]: in the rows of the state, which follow the beams, and in
those of the newest record, which do not."""
READ = "read"
"""The log-probability of the token that was read at a step, [rows], in its record."""
PASSED_ON = sorted({*LAYER_CALLBACKS, *CHANGING, "before_pass", "after_pass", "check_rows"} - {"logits"})
"""Callbacks that the guard leaves to the runtime that measures."""


def logprob(generation: Generation[Any], answer: AnswerTokens, index: int) -> float:
    """The log-probability of a token of an answer."""
    records = generation.state.records
    if index + 1 < min(len(records), len(answer.at)):
        return float(records[index + 1].values[READ][answer.at[index + 1]])
    return float(records[index].values[NEXT][answer.at[index], answer.ids[index]])


class GuardRuntime(Runtime[State]):
    """Passes the callbacks of another runtime on, which measures, and decides what to keep of each answer."""

    def __init__(self, config: Guard, source: RiskSource, inner: Runtime[Any]) -> None:
        self.config, self.source, self.inner = config, source, inner
        self.threshold = source.threshold if config.threshold is None else config.threshold
        for name in PASSED_ON:
            if inner.overrides(name):
                vars(self)[name] = getattr(inner, name)
        for name in ("group_count", "repeats_last_position", "last_position_only", "branches", "neutral"):
            vars(self)[name] = getattr(inner, name)
        self.changes_output = config.action != "mark" or (
            inner.changes_output and any(map(inner.overrides, CHANGING))
        )

    def begin(self, generation: Generation[State], earlier: State | None) -> State:
        _tokenizer(generation)
        return self.inner.begin(generation, earlier)

    def facts(self) -> dict[str, Any]:
        return self.inner.facts() | {"threshold": self.threshold}

    def logits(self, generation: Generation[State], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        """Record the log-probability of the token that was read, and those of the next one."""
        logits = self.inner.logits(generation, logits, branches)
        state, following = generation.state, logits.log_softmax(-1)
        if len(state.records) < generation.step + 1:  # the inner runtime records nothing
            state.records.append(StepRecord({}))
        added = {NEXT: following}
        if generation.step > 0:
            last = generation.answer[:, -1:].to(logits.device)
            added[READ] = state.rows[NEXT].gather(1, last)[:, 0]
            before = state.records[-2]
            state.records[-2] = replace(before, values={k: v for k, v in before.values.items() if k != NEXT})
        state.records[-1] = replace(state.records[-1], values={**state.records[-1].values, **added})
        state.rows[NEXT] = following
        return logits

    def why_unchanged(self, generation: Generation[State]) -> str:
        if self.config.action == "mark":
            return "action=mark reports risky sentences and changes nothing"
        return f"no sentence had a risk above {self.threshold:g}"

    # ── sentences ─────────────────────────────────────────────────────────────────────────────────────

    def keep(self, generation: Generation[State], answer: AnswerTokens) -> Kept:
        every = Kept(len(answer.ids), tuple(range(len(answer.ids))))
        if not answer.ids or not bool(seeing(generation)[answer.at[-1]]):
            return every
        sentences = self.judge(generation, answer)
        if not sentences:
            return every if answer.finished else Kept(0, ())
        return decided(sentences, self.threshold, self.config.action != "mark", answer.finished)

    def judge(self, generation: Generation[State], answer: AnswerTokens) -> list[Sentence]:
        """The finished sentences of an answer with their risks."""
        tokenizer = _tokenizer(generation)
        text = decoded(tokenizer, answer.ids)
        sentences = sentence_spans(text, answer.finished)
        if not sentences:
            return []
        tokens = token_spans(tokenizer, answer.ids)
        asked = self._asked_for(generation, answer.sample)
        words: list[ObjectWord] = []
        for first, last in sentences:
            # what follows a sentence must not change how it is read
            found = [mention for mention in self.source.find(text[:last]) if mention.start >= first]
            words += [object_word(m.category, text, (m.start, m.stop), tokens) for m in found]
        risks = map(Risk, words, self.source.risks(generation, answer, words))
        return judged(text, sentences, tokens, [risk for risk in risks if risk.word.category not in asked])

    def _asked_for(self, generation: Generation[State], sample: int) -> frozenset[str]:
        """The objects that the question names: an answer may speak of them."""
        source = generation.source
        question = (source.questions or source.texts)[sample]
        return frozenset(mention.category for mention in self.source.find(question))


def _tokenizer(generation: Generation[Any]) -> Any:
    try:
        processor = generation.source.processor
    except UnsupportedError as error:
        raise UnsupportedError(
            "the guard reads the text of the answer: use VLM.generate, or give attach(source=Source(processor, …))"
        ) from error
    return getattr(processor, "tokenizer", processor)
