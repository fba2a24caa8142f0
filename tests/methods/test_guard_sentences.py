"""Sentences of an answer, and the decision about each."""

import pytest

from heal.engine.answers import Sentence
from heal.methods.guard_sentences import (
    Attempts,
    ObjectWord,
    Risk,
    decided,
    judged,
    object_word,
    sentence_spans,
    token_ranges,
)


def sentences(text: str, finished: bool = True) -> list[str]:
    return [text[start:stop] for start, stop in sentence_spans(text, finished)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ", []),
        ("yes", ["yes"]),
        ("Yes. No", ["Yes.", " No"]),
        ("A cat. A dog!  ", ["A cat.", " A dog!  "]),
        ('He says "stop." Then he goes', ['He says "stop."', " Then he goes"]),
        ("It costs 3.5 dollars. Fine", ["It costs 3.5 dollars.", " Fine"]),
        ("Seen:\n1. A cat\n2. A dog\n", ["Seen:", "\n1. A cat", "\n2. A dog\n"]),
        ("- a cup\n- a fork", ["- a cup", "\n- a fork"]),
        ("One.\n\nTwo.", ["One.", "\n\nTwo."]),
        ("What? ... Well", ["What?", " ...", " Well"]),
    ],
)
def test_sentences_of_a_finished_text(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
    assert "".join(expected) == (text if text.strip() else "")


def test_the_last_sentence_of_an_unfinished_text_is_open() -> None:
    assert sentences("A cat. A do", finished=False) == ["A cat."]
    assert sentences("A cat.", finished=False) == []  # it may go on as 'A cat.5'
    assert sentences("A cat.\n", finished=False) == ["A cat."]


def test_sentences_do_not_change_when_the_text_grows() -> None:
    text = 'There are 2 cats. One has 3.5 legs!\n\n1. A "dog."\n2. A bus? Yes'
    whole = sentence_spans(text, finished=True)
    for end in range(len(text)):
        early = sentence_spans(text[:end], finished=False)
        assert early == whole[: len(early)]


def test_a_token_belongs_to_the_sentence_in_which_it_begins() -> None:
    text = "A b. C d."
    tokens = [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 9), (9, 9)]
    assert token_ranges(sentence_spans(text, True), tokens) == [(0, 3), (3, 7)]
    assert token_ranges(sentence_spans(text, False), tokens) == [(0, 3)]
    crossing = [(0, 3), (3, 6), (6, 9)]
    assert token_ranges(sentence_spans(text, True), crossing) == [(0, 2), (2, 3)]


def test_a_sentence_has_the_risk_of_its_riskiest_word() -> None:
    text, tokens = "A b. C d e.", [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 10), (10, 11)]
    words = [object_word("x", text, span, tokens) for span in ((5, 6), (7, 8), (9, 10))]
    assert [(w.text, w.start, w.stop) for w in words] == [("C", 3, 4), ("d", 4, 5), ("e", 5, 6)]
    risks = list(map(Risk, words, (0.1, 0.7, 0.4)))
    found = [own.sentence(Attempts(2)) for own in judged(text, sentence_spans(text, True), tokens, risks)]
    assert {s.tries for s in found} == {2}
    assert [(s.text, s.start, s.stop, s.risk, s.word) for s in found] == [
        ("A b.", 0, 3, None, None),
        ("C d e.", 3, 7, 0.7, "d"),
    ]


def of(*risks: float | None) -> list[Sentence]:
    return [Sentence(2 * i, 2 * i + 2, "text", risk) for i, risk in enumerate(risks)]


def test_risky_sentences_are_dropped() -> None:
    kept = decided(of(0.2, 0.9, None, 0.5), 0.5, drop=True, finished=True)
    assert kept.tokens == (0, 1, 4, 5, 6, 7)
    assert kept.until == 8
    assert [(s.marked, s.kept) for s in kept.sentences] == [
        (False, True),
        (True, False),
        (False, True),
        (False, True),
    ]


def test_marking_drops_nothing() -> None:
    kept = decided(of(0.2, 0.9), 0.5, drop=False, finished=True)
    assert kept.tokens == (0, 1, 2, 3)
    assert [s.marked for s in kept.sentences] == [False, True]


def test_a_finished_answer_keeps_its_least_risky_sentence() -> None:
    kept = decided(of(0.9, 0.7, 0.8), 0.5, drop=True, finished=True)
    assert kept.tokens == (2, 3)
    assert all(s.marked for s in kept.sentences)
    assert decided(of(0.9, 0.7, 0.8), 0.5, drop=True, finished=False).tokens == ()


def test_no_risk_exceeds_one() -> None:
    assert decided(of(1.0, 1.0), 1.0, drop=True, finished=True).tokens == (0, 1, 2, 3)


def test_a_word_without_tokens_is_in_no_sentence() -> None:
    found = judged("A b.", [(0, 4)], [(0, 4)], [Risk(ObjectWord("x", "x", 9, 9), 1.0)])
    assert found[0].risks == ()
