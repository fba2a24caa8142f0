"""Tests of the fuzzer itself."""

import json
import time
from pathlib import Path

import pytest

from heal.errors import ConfigError, HealError
from tests.fuzz import commands, odd
from tests.fuzz.commands import Ended, judge_ended
from tests.fuzz.kinds import KINDS
from tests.fuzz.longrun import cases
from tests.fuzz.oracle import Case, Draw, Kind, Nonsense, Outcome, check, judge

CASE = Case("x", 1)


def tried(attempt: object, seconds: float = 5) -> Outcome:
    return judge(Kind("x", attempt, 1, 1, seconds), CASE)  # type: ignore[arg-type]


def refuse(draw: Draw) -> None:
    raise ConfigError("say 5")


def mute(draw: Draw) -> None:
    raise HealError("")


def crash(draw: Draw) -> None:
    draw.show("what was drawn")
    raise KeyError("x")


def hang(draw: Draw) -> None:
    try:
        while True:
            pass
    except Exception:
        pass


def wait(draw: Draw) -> None:
    time.sleep(30)


def devour(draw: Draw) -> None:
    bytearray(2**36)


def accept_nonsense(draw: Draw) -> None:
    check(False, "0 is more than 1")


def leave(draw: Draw) -> None:
    raise SystemExit(1)


def test_verdicts() -> None:
    assert tried(lambda draw: None).verdict == "ok"
    assert (tried(refuse).verdict, tried(refuse).what) == ("refused", "say 5")
    assert tried(mute).verdict == "failed"
    assert (tried(crash).verdict, tried(crash).what, tried(crash).shown) == (
        "failed",
        "KeyError: 'x'",
        "what was drawn",
    )
    assert tried(hang, 0.1).what == "TooLong: more than 0.1 s"
    assert tried(wait, 0.1).what == "TooLong: more than 0.6 s by the clock"
    assert tried(devour).what.startswith("MemoryError")
    assert tried(accept_nonsense).what == "Nonsense: 0 is more than 1"
    assert tried(leave).what == "SystemExit: 1"


def test_cases_are_deterministic_and_clean_up(tmp_path: Path) -> None:
    """This allows failures to be replayed."""
    made = [judge(KINDS["method"], Case("method", 7), tmp_path) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].shown != judge(KINDS["method"], Case("method", 8), tmp_path).shown
    assert list(tmp_path.iterdir()) == []
    assert Case.of(str(Case("run", 12))) == Case("run", 12)


def test_every_kind_is_drawn() -> None:
    found = cases(500, 3, [])
    assert {case.kind for case in found} == set(KINDS)
    assert len(found) == len(set(found)) == pytest.approx(500, abs=20)
    assert not set(found) & set(cases(500, 4, []))


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (Ended(1, "", "heal: error: x\n"), "exit code 1"),
        (Ended(2, "", "Traceback (most recent call last):\n"), "a traceback was printed"),
        (Ended(2, "", ""), "0 error lines"),
        (Ended(2, "", "heal: error: a\nheal: error: b\n"), "2 error lines"),
        (Ended(2, "f1 3.0\n", "heal: error: a\n"), "a refusal with results"),
        (Ended(2, "", "heal: error: \x1b[31mred\n"), "raw control characters"),
        (Ended(0, "f1  nan\n", ""), "NaN is printed"),
        (Ended(0, '{"f1": NaN}\n', ""), "it contains NaN"),
        (Ended(0, "f1\n", ""), "--json does not print JSON"),
        (Ended(0, "{}", "heal: error: x"), "an error with exit code 0"),
    ],
)
def test_bad_endings_are_detected(ended: Ended, problem: str) -> None:
    with pytest.raises(Nonsense, match=problem):
        judge_ended(["score", "chair", *["--json"] * ended.out.startswith(("{", "f1\n"))], ended)


def test_numbers_that_take_long_are_left_out() -> None:
    left_out = {n for n in odd.NUMBERS if commands._takes_long(n)}
    assert {"1_000", "1000000"} < left_out
    assert not left_out & {"1", " 1", "+1", "1e3", "9" * 5000, "nan", ""}


def test_good_endings_are_accepted() -> None:
    judge_ended(["score", "--json"], Ended(0, '{"f1": null}\n', "model: x\n"))
    judge_ended(["score"], Ended(2, "", "heal: error: there is no file x\n"))
    judge_ended(["score"], Ended(3, "", "Usage: heal score\n\nError: no such option\n"))


def test_every_command_and_option_is_tried(tmp_path: Path) -> None:
    given = []
    for number in range(400):
        place = tmp_path / str(number)
        place.mkdir()
        given.append(commands.arguments(Draw(Case("command", number), place)))
    for words, command in commands.commands().items():
        own = [g for g in given if tuple(g[: len(words)]) == words]
        assert own, words
        wanted = {o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"}
        seen = {a.partition("=")[0] for g in own for a in g}
        assert len(wanted - seen) <= len(wanted) / 3, (words, wanted - seen)


def test_mutations_differ_and_describe_the_change(tmp_path: Path) -> None:
    value = [{"id": 1, "text": "a", "more": [1, 2]}, {"id": 2, "text": "b", "more": []}]
    kinds = set()
    for number in range(300):
        mutated = odd.mutate_document(Draw(Case("m", number), tmp_path), value, lines=True)
        kinds.add(mutated.change)
        if mutated.change == "value" and "became" in mutated.how:
            found = [json.loads(line) for line in mutated.content.splitlines()]
            assert [set(record) for record in found] == [set(record) for record in value]
    assert kinds == {"value", "removed", "structure"}
