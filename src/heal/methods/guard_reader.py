"""Read the sentences of an answer with the risks of their object words, also while the answer grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heal.engine.answers import AnswerTokens
from heal.engine.generation import Generation
from heal.errors import UnsupportedError
from heal.measured import TokenValues
from heal.methods.guard_risk import RiskSource
from heal.methods.guard_sentences import Judged, Risk, judged, sentence_spans, words_in
from heal.token_spans import Span, decoded, token_spans


def tokenizer_of(generation: Generation[Any]) -> Any:
    try:
        processor = generation.source.processor
    except UnsupportedError as error:
        raise UnsupportedError(
            "the guard reads the text of the answer: use VLM.generate, or give attach(source=Source(processor, …))"
        ) from error
    return getattr(processor, "tokenizer", processor)


class SentenceReader:
    """The finished sentences of a growing answer. A token that finishes none costs one decoding of the text."""

    def __init__(self, source: RiskSource) -> None:
        self.source = source
        self._spans: list[Span] = []

    def read(
        self, generation: Generation[Any], answer: AnswerTokens, values: Callable[[], TokenValues]
    ) -> list[Judged] | None:
        """All finished sentences; None if they are those of the last call, and the answer is not finished.

        `values` gives what is known of the tokens of the answer.
        """
        tokenizer = tokenizer_of(generation)
        text = decoded(tokenizer, answer.ids)
        spans = sentence_spans(text, answer.finished)
        if not answer.finished and spans == self._spans:
            return None
        self._spans = spans
        if not spans:
            return []
        tokens = token_spans(tokenizer, answer.ids)
        words = words_in(text, spans, tokens, self.source.words.find)
        asked = self._asked_for(generation, answer.sample)
        risks = map(Risk, words, self.source.risks(generation, values(), words) if words else ())
        return judged(text, spans, tokens, [risk for risk in risks if risk.word.category not in asked])

    def _asked_for(self, generation: Generation[Any], sample: int) -> frozenset[str]:
        """The objects that the question names: an answer may speak of them."""
        source = generation.source
        question = (source.questions or source.texts)[sample]
        return frozenset(mention.category for mention in self.source.words.find(question))
