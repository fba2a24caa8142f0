import numpy as np
import pytest

from heal.studies.head_maps import CLAIMS, POINTS, STUDY, along, chosen, cloud, image_counts, numbers, transitions
from heal.studies.parts import Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.token_kinds import TokenKind
from heal.studies.traces import TracedAnswer
from tests.studies.made import C, L, S, V, cells, name, traced

O, W, F, R = TokenKind.OBJECT, TokenKind.CONTENT, TokenKind.FUNCTION, TokenKind.REST  # noqa: E741

TYPES = [[[S, S, L, V]], [[S, L, S, V]], [[L, L, S, S]], [[S, S, S, S]], [[V, V, V, V]]]
ANSWER = traced("a", TYPES, kinds=[F, O, F, R, R], names=[name(1)])


def found_of(*records):
    return Found(Setup(), {"traces natural": Records.of(records)})


def test_transitions_between_two_steps():
    found = transitions(np.array([[S, S, L, V]], np.uint8), np.array([[S, L, S, 255]], np.uint8))
    assert {(b, a): int(n) for (b, a), n in np.ndenumerate(found) if n} == {(S, S): 1, (S, L): 1, (L, S): 1}


def test_counts_of_an_image_by_hand():
    found = image_counts(TracedAnswer.of(ANSWER))
    assert {key: n for key, n in found.items() if n and key.startswith(("tokens", "move"))} == {
        "tokens 0": 1, "tokens 2": 2,
        f"move 0 {S} {S}": 1, f"move 0 {S} {L}": 1, f"move 0 {L} {S}": 1, f"move 0 {V} {V}": 1,
        f"move 2 {S} {L}": 1, f"move 2 {L} {L}": 1, f"move 2 {S} {S}": 1, f"move 2 {V} {S}": 1,
    }  # fmt: skip
    assert found[f"number 2 {L}"] == 1 + 2
    assert found[f"number 0 {V}"] == 1


def test_rows():
    report = STUDY.report(found_of(ANSWER, ANSWER))
    moves = cells(report, "kind of token", "type before")
    row = moves["object", "synergy"]
    assert (row["to synergy"].value, row["to language"].value, row["heads"]) == (50, 50, 2)
    assert moves["function word", "visual"]["to synergy"].value == 100
    assert ("other content word", "synergy") not in moves
    numbers_of = cells(report, "kind of token", table=1)
    assert numbers_of["function word"]["language"].value == 1.5
    assert numbers_of["other content word"]["tokens"] == 0
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.TOO_FEW}


def test_claims_of_the_text_on_made_answers():
    """Function words turn all synergy heads toward language, object words turn them back."""
    one = [[[S, S]], [[L, L]], [[S, S]], [[L, L]], [[S, S]], [[S, S]]]
    kinds = [O, F, O, F, O, R]
    report = STUDY.report(found_of(*(traced(str(i), one, kinds=kinds) for i in range(FEW))))
    assert [verdict.outcome for verdict in report.verdicts] == [Outcome.TOO_FEW] * 3  # nothing to compare with
    kinds = [O, F, O, O, F, R]
    report = STUDY.report(found_of(*(traced(str(i), one, kinds=kinds) for i in range(FEW))))
    values = cells(report, "kind of token", "type before")
    assert values["function word", "synergy"]["to language"].value == 100
    assert values["object", "synergy"]["to language"].value == 100
    assert report.verdicts[0].outcome == Outcome.NOT_CONFIRMED
    assert len(report.verdicts) == len(CLAIMS)


FEW = 30


def test_numbers_along_the_answer():
    first, second = (numbers(TracedAnswer.of(r)) for r in (ANSWER, traced("b", [[[V, V, V, V]]] * 3)))
    lines = along([first, second])
    assert [m.value for m in lines[list(lines)[2]]] == [2.5, 2.5, 0, 0]  # visual; half of the answers have four steps
    assert along([])[next(iter(lines))] == []


def test_tokens_for_maps():
    names = [name(1), name(2, correct=False)]
    answer = TracedAnswer.of(traced("a", TYPES, kinds=[F, O, O, W, R], names=names))
    labels = [token.label.split("\n")[1] for token in chosen([TracedAnswer.of(ANSWER), answer])]
    # the function word at step 0 has no token before it
    assert labels == ["content word, step 3", "correct object, step 1", "hallucinated object, step 2"]
    assert chosen([]) == []


def test_cloud_of_heads_at_names():
    answer = TracedAnswer.of(traced("a", TYPES, 0.25, 0.5, 1.0, names=[name(1), name(4)]))
    found = cloud([answer], 0)
    assert sorted(found.types.tolist()) == sorted([S, L, S, V])  # the last step has no types
    np.testing.assert_allclose(found.points, np.tile([0.25, 0.5, 0.25], (4, 1)))
    assert len(cloud([answer] * POINTS, 0).types) == POINTS


@pytest.mark.parametrize("records", [(ANSWER,), (traced("a", [[[C]], [[V]]], kinds=[R, R]),)], ids=["one", "nothing"])
def test_figures_can_be_drawn(records):
    report = STUDY.report(found_of(*records))
    assert list(report.figures) == ["maps", "along", "scatter", "transitions"]
    for draw in report.figures.values():
        assert draw().axes
