"""The search of the guard: a risky sentence is generated again from the point before its risky object word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heal.engine.answers import AnswerTokens
from heal.engine.calls import token_ids
from heal.engine.search import Mark, Search
from heal.methods.guard_sentences import Attempts, Judged, Risk


@dataclass
class RetrySearch:
    """Greedy search or sampling of one answer, with roll-backs.

    An object word that is too risky is forbidden in its sentence: the token at which it began, at that point, and its
    names of one token in the rest of the sentence. If it occurs again all the same, the sentence is risky.
    """

    search: Search
    sentences: Callable[[AnswerTokens], Sequence[Judged]]
    """The finished sentences of an answer. Empty if they are the same as when it was last called."""
    threshold: float
    tries: int
    names: Callable[[str], frozenset[int]]
    """The tokens that are a name of a category by themselves."""

    attempts: dict[int, Attempts] = field(default_factory=dict)
    """By the first token of a sentence."""
    _marks: list[Mark] = field(default_factory=list)  # before each token
    _forbidden: list[set[int]] = field(default_factory=list)  # at each position
    _settled: int = 0  # the end of the sentences that stay
    _streamed: int = 0

    def run(self) -> None:
        search = self.search
        first = logits = search.start()
        while True:
            at = search.answer.shape[1]
            if at == len(self._marks):
                self._marks.append(search.mark())
                self._forbidden.append(set())
            search.commit(self._choose(logits, at), logits)
            finished = bool(search.stopped().all())
            point = self._retry_from(finished)
            if point is not None:
                search.restore(self._marks[point])
                logits = search.read(search.ids[:, -1]) if point else first
            elif finished:
                break
            else:
                self._stream(self._settled)
                logits = search.read(search.ids[:, -1])
        self._stream(search.answer.shape[1])

    def _choose(self, logits: Tensor, at: int) -> Tensor:
        scores = self.search.processed(logits)
        forbidden = sorted(self._forbidden[at] | self._names_at(at))
        if forbidden:
            left = scores.clone()
            left[:, forbidden] = -torch.inf
            # forced tokens leave no choice
            scores = left if bool((left > -torch.inf).any()) else scores
        if self.search.config.do_sample:
            return torch.multinomial(scores.softmax(-1), num_samples=1)[:, 0]
        return scores.argmax(-1)

    def _names_at(self, at: int) -> frozenset[int]:
        """Tokens that name a forbidden object of the sentence at this position."""
        attempts = self.attempts.get(self._settled)
        if attempts is None or at < attempts.point:
            return frozenset()
        return frozenset().union(*map(self.names, attempts.objects))

    def _retry_from(self, finished: bool) -> int | None:
        """The position from which the newest sentence has to be generated again. It settles sentences otherwise."""
        ids = tuple(self.search.answer[0].tolist())
        if finished and ids[-1] in token_ids(self.search.config.eos_token_id):
            ids = ids[:-1]
        for sentence in self.sentences(AnswerTokens(ids, (0,) * len(ids), 0, finished)):
            if sentence.start < self._settled:
                continue
            before = self.attempts.get(sentence.start, Attempts())
            risky = next((r.word for r in sentence.risks if self._too_risky(r, before)), None)
            if risky is None or before.count >= self.tries:
                self._settled = sentence.stop
                continue
            self._forbidden[risky.start].add(ids[risky.start])
            del self._marks[risky.start + 1 :], self._forbidden[risky.start + 1 :]
            point = min(risky.start, before.point) if before.count else risky.start
            objects = before.objects | {risky.category}
            self.attempts[sentence.start] = Attempts(before.count + 1, point, objects)
            return risky.start
        return None

    def _too_risky(self, risk: Risk, before: Attempts) -> bool:
        return risk.value > self.threshold or risk.word.category in before.objects

    def _stream(self, until: int) -> None:
        self.search.stream(self.search.answer[0, self._streamed : until])
        self._streamed = max(self._streamed, until)
