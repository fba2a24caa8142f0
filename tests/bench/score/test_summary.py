"""Summaries: figures, differences, times, and judging after the run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heal import HEAL, VLM
from heal.bench import create
from heal.bench.run.folder import Folder
from heal.bench.run.plan import Settings
from heal.bench.run.records import Record
from heal.bench.run.runner import run
from heal.bench.score.summary import rescore
from heal.bench.tasks.base import Sample
from heal.bench.tasks.judged import JudgedTask, Prompt
from heal.cli.summary import remarks
from heal.errors import RunError
from heal.json_values import json_values
from tests.bench.questions import Questions, pictures


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


def test_summary(vlm: VLM, tmp_path: Path) -> None:
    methods = {"plain": None, "measured": HEAL(calibrate=False), "heal": HEAL(alpha=0.6)}
    summary = run(vlm, [create("mini-chair", count=3)], methods, tmp_path / "run", Settings(max_new_tokens=4))
    plain, measured, healed = summary.rows
    assert (plain.differences, plain.changed, plain.fired, plain.unchanged) == (None, None, None, False)
    assert (measured.changed, measured.fired, measured.unchanged) == (0, 0, True)
    assert "calibrate=False" in str(measured.reason)
    assert measured.differences is not None
    assert all(d.value == d.low == d.high == 0 for d in measured.differences.values())
    assert (healed.fired, healed.unchanged) == (3, False)
    assert (healed.changed or 0) > 0
    assert plain.time_ratio == 1
    assert healed.time_ratio > 1
    assert (plain.mean_tokens, plain.headline, plain.higher_is_better) == (4, "chair_s", False)
    again = rescore(tmp_path / "run")  # NaN as null: the captions reach no common recall
    assert json_values(again.scores()) == json_values(summary.scores())
    assert plain.equal_recall is None
    assert healed.equal_recall is not None
    found = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert [row["unchanged"] for row in found["rows"]] == [False, True, False]


def test_scores_depend_only_on_the_answers(vlm: VLM, tmp_path: Path) -> None:
    """Known answers, times and activity: two images, two questions each, one failed with the method."""
    task, path = Questions(pictures(tmp_path / "pictures", 2)), tmp_path / "run"
    run(vlm, {"q": task}, [None, HEAL(alpha=0.6)], path)
    fired = {"steps": 1, "changes": 2, "sizes": {"beta": 0.1, "gamma": 0.0}, "reason": None}
    idle = {"steps": 0, "changes": 0, "sizes": {}, "reason": "no image"}

    def made(method: str, sample: str, text: str, seconds: float, **more: Any) -> Record:
        batch = int(sample[-1])
        return Record("q", method, sample, batch, text, 3, "stop", seconds, 0.5, 7, parse={"right": False}, **more)

    name = "heal:alpha=0.6"
    records = [
        *(made("plain", s, t, 1.5) for s, t in (("0-0", "yes"), ("0-1", "no"), ("1-0", "no"), ("1-1", "no"))),
        *(made(name, s, t, 2.5, fired=f) for s, t, f in (("0-0", "yes", idle), ("0-1", "yes", fired))),
        made(name, "1-0", "yes", 4.5, fired=fired),
        Record("q", name, "1-1", 1, error="ImageError: gone"),
    ]
    (path / "records.jsonl").write_text("".join(record.line() for record in records))
    with pytest.raises(RunError, match="questions is not in the catalogue"):
        rescore(path)
    plain, healed = rescore(path, tasks={"q": task}).rows
    assert (plain.figures["accuracy"].value, healed.figures["accuracy"].value) == (25, 100)
    assert healed.differences is not None
    assert healed.differences["accuracy"].value == pytest.approx(100 - 100 / 3)
    assert (healed.answered, healed.failed, healed.missing) == (3, 1, 0)
    assert (healed.changed, healed.fired, healed.reason) == (2, 2, "no image")
    assert plain.seconds_per_token == pytest.approx(0.5)
    assert healed.seconds_per_token == pytest.approx(((2 + 4) / 4 + 2 / 2) / 2)
    assert healed.time_ratio == pytest.approx((3 + 2) / 2)
    (path / "records.jsonl").write_text("".join(record.line() for record in records[:-1]))
    assert rescore(path, tasks={"q": task}).missing == 1


class Rated(JudgedTask, Questions):
    """The same questions, rated by a judge."""

    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        return Prompt("", f"{sample.id}: {text}")

    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        return {"right": reply == "good"}

    def unjudged(self) -> dict[str, Any]:
        return {"right": None, "unjudged": True}

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return self.unjudged()

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        known = [p["right"] for p in parses if p["right"] is not None]
        return {"right": float(sum(known)), "n": float(len(known))}


def test_judging_after_the_run(vlm: VLM, tmp_path: Path) -> None:
    task = Rated(pictures(tmp_path / "pictures", 2))
    (row,) = run(vlm, {"q": task}, [None], tmp_path / "run").rows
    assert row.answered == 4
    assert math.isnan(row.figures["accuracy"].value)
    replies = iter(["good", "bad", None, "good"])
    asked: list[str] = []

    def judge(prompt: Prompt) -> str | None:
        asked.append(prompt.text)
        return next(replies)

    (row,) = rescore(tmp_path / "run", judge, {"q": task}).rows
    assert row.figures["accuracy"].value == pytest.approx(200 / 3)
    assert row.note == "1 of 4 not judged: 1 × no reply"
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["rows"][0]["note"] == row.note
    assert remarks([row])[0] == "q: 1 of 4 not judged: 1 × no reply"
    assert remarks([row, replace(row, method="other", note="judge j")])[0].startswith("! ")
    assert asked == [f"{key.sample}: {r.text}" for key, r in sorted(Folder(tmp_path / "run").records().items())]


def test_differences_use_samples_judged_for_both(vlm: VLM, tmp_path: Path) -> None:
    """All ratings are equal, so the difference is zero although different samples were skipped."""
    task = Rated(pictures(tmp_path / "pictures", 2))
    run(vlm, {"q": task}, {"plain": None, "heal": HEAL(alpha=0.6)}, tmp_path / "run")
    assert rescore(tmp_path / "run", lambda _: None, {"q": task}).rows[1].differences == {}
    replies = iter(["good", "bad", "bad", "good", "good", None, None, "good"])
    plain, healed = rescore(tmp_path / "run", lambda _: next(replies), {"q": task}).rows
    assert (plain.figures["accuracy"].value, healed.figures["accuracy"].value) == (50, 100)
    assert healed.differences is not None
    assert healed.differences["accuracy"].value == 0
