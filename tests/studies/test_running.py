"""The runner of studies: resume after a kill, shared parts, reused records."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from heal import VLM
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.bench.score.summary import Row
from heal.errors import ImageError, RunError
from heal.methods import DoLa
from heal.studies.parts import Evaluated, Evaluation, Measured, Measurement
from heal.studies.running import PARTS, StudyRunner, model_facts
from heal.studies.setup import Setup
from heal.studies.storage import read

SETUP = Setup(samples=5, batch_size=2)


@pytest.fixture(scope="module")
def vlm():
    return VLM.random()


class Counting:
    """A measurement that counts its calls and can fail."""

    def __init__(self, broken=()):
        self.calls: list[list[str]] = []
        self.broken = broken

    def __call__(self, vlm, samples):
        self.calls.append([s.id for s in samples])
        if bad := [s.id for s in samples if s.id in self.broken]:
            raise ImageError(f"{bad[0]} cannot be read")
        return [Measured(s.id, {"objects": s.truth["objects"]}, {"n": np.arange(len(s.id))}) for s in samples]


def part(measure, **options):
    return Measurement("counted", "counting", SETUP.captions("natural"), measure, options, batch_size=2)


def measured(vlm, out, *parts):
    runner = StudyRunner(vlm, out)
    return runner.measured(parts, model_facts(vlm))


def test_records_come_back_in_order_and_are_measured_once(vlm, tmp_path):
    first, second = Counting(), Counting()
    ids = [s.id for s in SETUP.captions("natural")]
    for measure in (first, second):
        records = measured(vlm, tmp_path, part(measure))["counted"]
        assert [r.id for r in records] == ids
        assert len(records) == 5
        assert all(len(r.arrays["n"]) == len(r.id) for r in records)
    assert first.calls == [ids[:2], ids[2:4], ids[4:]]
    assert second.calls == []


def test_only_missing_and_damaged_batches_are_measured_again(vlm, tmp_path):
    measured(vlm, tmp_path, part(Counting()))
    (folder,) = (tmp_path / PARTS).iterdir()
    (folder / "batch-000001.safetensors").write_bytes(b"half a fi")
    (folder / "batch-000002.safetensors").unlink()
    again = Counting()
    records = measured(vlm, tmp_path, part(again))["counted"]
    assert [len(call) for call in again.calls] == [2, 1]
    assert len(list(records)) == 5


def test_other_options_are_another_part(vlm, tmp_path):
    again = Counting()
    measured(vlm, tmp_path, part(Counting()))
    measured(vlm, tmp_path, part(again, width=3))
    assert len(again.calls) == 3


def test_a_broken_sample_does_not_stop_the_others(vlm, tmp_path):
    bad = SETUP.captions("natural")[2].id
    records = measured(vlm, tmp_path, part(Counting(broken=[bad])))["counted"]
    assert len(list(records)) == 4
    assert records.failed() == {bad: f"ImageError: {bad} cannot be read"}


def test_a_measurement_must_return_one_result_per_sample(vlm, tmp_path):
    with pytest.raises(RunError, match="one result for each sample"):
        measured(vlm, tmp_path, part(lambda vlm, samples: []))


def test_a_changed_description_is_refused(vlm, tmp_path):
    measured(vlm, tmp_path, part(Counting()))
    (folder,) = (tmp_path / PARTS).iterdir()
    (folder / "measurement.json").write_text("{}")
    with pytest.raises(RunError, match="another measurement"):
        measured(vlm, tmp_path, part(Counting()))


# ── evaluations ───────────────────────────────────────────────────────────────────────────────────────────

SETTINGS = Settings(batch_size=3, max_new_tokens=4)


def evaluation(**methods):
    return Evaluation("answers", SETUP.tasks("pope"), methods, SETTINGS)


def facts_of(row: Row):
    return row.task, row.method, row.figures, row.changed


def methods_asked(vlm, monkeypatch):
    """A list that gets the method of each generation from now on."""
    asked, generate = [], vlm.generate

    def noted(*given, **options):
        asked.append(options["method"])
        return generate(*given, **options)

    monkeypatch.setattr(vlm, "generate", noted)
    return asked


def evaluated(runner, part):
    found = runner.measured([part], model_facts(runner.vlm))[part.name]
    assert isinstance(found, Evaluated)
    return found


def test_answers_of_other_runs_are_reused(vlm, tmp_path, monkeypatch):
    task = SETUP.task("pope", "natural")
    run(vlm, [task], [None], tmp_path / "eval", SETTINGS)
    asked = methods_asked(vlm, monkeypatch)
    runner = StudyRunner(vlm, tmp_path / "out", records=(tmp_path / "eval",))
    other = DoLa()
    reused = evaluated(runner, evaluation(plain=None, other=other))
    assert set(asked) == {other}
    fresh = evaluated(StudyRunner(vlm, tmp_path / "fresh"), evaluation(plain=None, other=other))
    assert list(map(facts_of, reused.summary.rows)) == list(map(facts_of, fresh.summary.rows))
    assert reused.texts("pope natural", "other") == fresh.texts("pope natural", "other")


def test_parts_of_other_studies_are_reused_unless_times_matter(vlm, tmp_path, monkeypatch):
    runner, model = StudyRunner(vlm, tmp_path), model_facts(vlm)
    runner.measured([evaluation(plain=None)], model)
    asked = methods_asked(vlm, monkeypatch)
    runner.measured([evaluation(first=None)], model)
    assert asked == []
    timed = Evaluation("timed", SETUP.tasks("pope"), {"plain": None}, SETTINGS, timed=True)
    runner.measured([timed], model)
    assert set(asked) == {None}


@pytest.mark.parametrize(
    "other",
    [
        Settings(batch_size=4, max_new_tokens=4),
        Settings(batch_size=3, max_new_tokens=5),
        Settings(batch_size=3, max_new_tokens=4, generate={"num_beams": 2}),
    ],
    ids=["batch", "tokens", "beams"],
)
def test_answers_with_other_decoding_are_not_reused(vlm, tmp_path, other):
    from heal.bench.run.folder import Folder
    from heal.bench.run.plan import batches
    from heal.bench.run.runner import describe
    from heal.studies.reuse import Asked, reusable

    tasks = SETUP.tasks("pope")
    run(vlm, tasks, [None], tmp_path / "eval", other)
    samples = {name: task.samples() for name, task in tasks.items()}
    asked = Asked(describe(vlm, tasks, {"plain": None}, samples, SETTINGS), samples, batches(samples, 3, len))
    assert Folder(tmp_path / "eval").records()
    assert reusable(asked, [tmp_path / "eval"]) == {}


# ── killed in the middle ──────────────────────────────────────────────────────────────────────────────────

COMMAND = [sys.executable, "-m", "heal", "study", "heads-by-token", "--samples", "6", "--batch-size", "1"]
COMMAND += ["--max-new-tokens", "24", "--out"]


SWEEP = [sys.executable, "-m", "heal", "study", "alpha", "--samples", "3", "--batch-size", "1"]
SWEEP += ["--max-new-tokens", "12", "--out"]


def start(out: Path, command: Sequence[str] = COMMAND) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, str(out)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_killed_study_continues_and_gives_the_same_table(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start(killed)
    deadline = time.time() + 120
    while len(list(killed.glob(f"{PARTS}/*/batch-*"))) < 2 and process.poll() is None and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    there = sorted(killed.glob(f"{PARTS}/*/batch-*"))
    assert 2 <= len(there) < 6, "it was not killed in the middle"
    before = [path.stat().st_mtime_ns for path in there]
    for out in (killed, whole):
        process = start(out)
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    assert [path.stat().st_mtime_ns for path in there] == before
    assert not list(killed.glob(f"{PARTS}/*/.*.part"))
    for name in ("table.md", "table.csv", "table.json", "verdict.txt", "figure.svg"):
        assert (killed / "heads-by-token" / name).read_bytes() == (whole / "heads-by-token" / name).read_bytes()
    (one,), (other,) = (list(out.glob(f"{PARTS}/*")) for out in (killed, whole))
    assert [r.facts for r in read(one / "batch-000000.safetensors")] == [
        r.facts for r in read(other / "batch-000000.safetensors")
    ]


def killed_when(ready: Callable[[], bool], out: Path) -> None:
    """Start the sweep and kill it as soon as it is ready."""
    process = start(out, SWEEP)
    deadline = time.time() + 240
    while not ready() and process.poll() is None and time.time() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it was killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def answered(out: Path) -> int:
    """The number of stored answers."""
    return sum(file.read_bytes().count(b"\n") for file in out.glob(f"{PARTS}/evaluation-*/records*.jsonl"))


@pytest.mark.slow
def test_a_study_of_answers_that_is_killed_twice_gives_the_same_tables(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed_when(lambda: answered(killed) >= 5, killed)
    first = answered(killed)
    killed_when(lambda: answered(killed) >= first + 8, killed)
    assert answered(killed) < 3 * 11, "it was not killed in the middle"
    for out in (killed, whole):
        process = start(out, SWEEP)
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    names = ("table.csv", "table-differences.csv", "table.json", "table.md", "verdict.txt", "figure.svg")
    for name in names:
        assert (killed / "alpha" / name).read_bytes() == (whole / "alpha" / name).read_bytes()
    assert answered(killed) == answered(whole) == 3 * 11
