"""The guard during a generation: it measures, judges each sentence, and decides which tokens to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heal.analysis.uncertainty import distribution_facts
from heal.engine.answers import AnswerTokens, Kept
from heal.engine.generation import Generation
from heal.engine.runtime import CHANGING, LAYER_CALLBACKS, Runtime
from heal.engine.search import Search
from heal.engine.state import State, StepRecord
from heal.errors import UnsupportedError
from heal.measured import TokenValues
from heal.methods.counting import seeing
from heal.methods.guard_reader import SentenceReader, tokenizer_of
from heal.methods.guard_retry import RetrySearch
from heal.methods.guard_risk import RiskSource
from heal.methods.guard_sentences import Attempts, Judged, decided

if TYPE_CHECKING:
    from heal.methods.guard import Guard

NEXT = "next"
"""The log-probabilities of the next token, [rows, vocabulary]: in the rows of the state, which follow the beams, and
in those of the newest record, which do not."""
READ = "read"
"""The log-probability of the token that was read at a step, [rows], in its record."""
ABOUT = "about"
"""Entropy and margin of the next token, [rows, 2], in the record of its step."""
PASSED_ON = sorted({*LAYER_CALLBACKS, *CHANGING, "before_pass", "after_pass"} - {"logits"})
"""Callbacks that the guard leaves to the runtime that measures."""
FACTS = ("group_count", "repeats_last_position", "last_position_only", "branches", "neutral")


class GuardRuntime(Runtime[State]):
    """Passes the callbacks of another runtime on, which measures, and decides what to keep of each answer."""

    counts_choices = False

    def __init__(self, config: Guard, source: RiskSource, inner: Runtime[Any]) -> None:
        self.config, self.source, self.inner = config, source, inner
        self.threshold = source.threshold if config.threshold is None else config.threshold
        for name in PASSED_ON:
            if inner.overrides(name):
                vars(self)[name] = getattr(inner, name)
        vars(self).update({name: getattr(inner, name) for name in FACTS})
        if config.action == "retry":
            vars(self)["search"] = self._search
        calibrates = inner.changes_output and any(map(inner.overrides, CHANGING))
        self.changes_output = config.action != "mark" or calibrates
        self._forget()

    def _forget(self) -> None:
        """Forget the previous answer."""
        self._reader, self._kept = SentenceReader(self.source), Kept(0, ())
        self._attempts: dict[int, Attempts] = {}
        self._chosen: Search | None = None  # the search that knows the log-probabilities

    def facts(self) -> dict[str, Any]:
        return self.inner.facts() | {"threshold": self.threshold}

    def check_rows(self, samples: int, copies: int) -> None:
        self.inner.check_rows(samples, copies)
        if self.config.action == "retry":
            check_single(samples, copies)

    def begin(self, generation: Generation[State], earlier: State | None) -> State:
        tokenizer_of(generation)
        self._forget()
        return self.inner.begin(generation, earlier)

    def logits(self, generation: Generation[State], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        """Record the log-probability of the token that was read, and those of the next one."""
        logits = self.inner.logits(generation, logits, branches)
        state, following = generation.state, logits.log_softmax(-1)
        if len(state.records) < generation.step + 1:  # the inner runtime records nothing
            state.records.append(StepRecord({}))
        added = {NEXT: following, ABOUT: distribution_facts(following)}
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
        found = self._read(self._reader, generation, answer)
        if found is None:
            return self._kept
        if not found:
            return every if answer.finished else Kept(0, ())
        sentences = [own.sentence(self._attempts.get(own.start, Attempts())) for own in found]
        kept = decided(sentences, self.threshold, self.config.action != "mark", answer.finished)
        points = {own: self._attempts[own.start].point for own in found if own.start in self._attempts}
        self._kept = replace(kept, again=tuple(t for own, point in points.items() for t in range(point, own.stop)))
        return self._kept

    def _read(
        self, reader: SentenceReader, generation: Generation[State], answer: AnswerTokens
    ) -> list[Judged] | None:
        return reader.read(generation, answer, lambda: self._values(generation, answer))

    def _values(self, generation: Generation[State], answer: AnswerTokens) -> TokenValues:
        """What is known of the distributions of the tokens."""
        if self._chosen is not None:
            return TokenValues.of_search(self._chosen.values[0], answer.ids, answer.at, answer.sample)
        records, count = [record.values for record in generation.state.records], len(answer.ids)
        at = [*answer.at[: count + 1], answer.at[-1]]
        read = [records[step][READ][at[step]] for step in range(1, count)]
        last = records[count - 1].get(NEXT)  # it is there if the last token was not read yet
        read.append(records[count][READ][at[count]] if last is None else last[at[count - 1], answer.ids[-1]])
        about = [records[step][ABOUT][at[step]] for step in range(count)]
        found = torch.cat([torch.stack(read)[:, None], torch.stack(about)], dim=1)
        return TokenValues.of_search(found, answer.ids, at[:count], answer.sample)

    def _search(self, search: Search) -> None:
        """The search with action=retry."""
        reader = SentenceReader(self.source)

        def sentences(answer: AnswerTokens) -> Sequence[Judged]:
            self._chosen, self._attempts = search, retry.attempts
            if not search.generation.visual:
                return ()
            return self._read(reader, search.generation, answer) or ()

        @cache
        def names(category: str) -> frozenset[int]:
            return self.source.words.single_tokens(tokenizer_of(search.generation), category)

        retry = RetrySearch(search, sentences, self.threshold, self.config.tries, names)
        retry.run()


def check_single(samples: int, copies: int) -> None:
    """Refuse what cannot be rolled back answer by answer."""
    if copies > 1:
        raise UnsupportedError(
            "guard with action=retry returns one answer per prompt: leave out num_beams and num_return_sequences, or "
            "use action=drop"
        )
    if samples > 1:
        raise UnsupportedError(
            f"guard with action=retry rolls back each answer separately: give generate() one prompt instead of "
            f"{samples}, or use VLM.generate, which runs a batch row by row"
        )
