"""Readers of mutated files return valid data or raise one clear error, without tracebacks or hangs."""

import json
import math
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal.bench import create
from heal.bench.run.folder import Folder, _sample_line
from heal.bench.score.summary import Summary, rescore
from heal.bench.tasks import chair, mme, pope
from heal.bench.tasks.base import Task, figures, fingerprint, unit_counts
from heal.bench.tasks.data_folder import survey
from heal.bench.tasks.image_presence import presence
from heal.errors import HealError, TraceError
from heal.methods.equilibrium import Equilibrium
from heal.trace import Trace
from tests.bench import official
from tests.bench.folders import finished
from tests.bench.mutation import mutated

TIMES = int(os.environ.get("HEAL_FUZZ", "30"))
"""Set HEAL_FUZZ=1000 for more iterations."""


def short(error: HealError) -> None:
    """Check that a message is one short line."""
    assert 10 < len(str(error)) < 1500, str(error)[:3000]


def sensible(task: Task) -> None:
    """Check the properties that a run relies on."""
    samples = task.samples()
    assert samples
    assert len({s.id for s in samples}) == len(samples)
    for sample in samples:
        assert sample.prompt.strip()
        assert sample.unit
        _sample_line("x", sample).encode()
    assert fingerprint(samples)
    seen = presence(samples)
    assert len(seen.missing) == seen.total
    assert all("etc/passwd" not in str(path) for path in seen.missing)
    parses = {s.id: task.parse(s, "Yes, a dog.") for s in samples}
    for name, value in figures(task, unit_counts(task, samples, parses).values()).items():
        assert math.isnan(value) or 0 <= value <= 200 * 14, name


@pytest.mark.parametrize("name", official.EVERY)
def test_data(tmp_path: Path, name: str) -> None:
    task, options, files = official.EVERY[name]
    rng, refused = random.Random(f"data {name}"), 0
    good = files()
    for _ in range(TIMES):
        official.put(tmp_path, good)
        victim = rng.choice([file for file in good if not file.startswith("judge")])
        official.put(tmp_path, {victim: mutated(good[victim], rng)})
        try:
            sensible(create(task, tmp_path, **options))
        except HealError as error:
            short(error)
            refused += 1
        assert all(len(finding.problem) < 1500 for finding in survey(tmp_path))
    assert refused > TIMES // 3  # ensure that the mutations are effective


ANSWERS = {
    "pope": (
        official.jsonl([{"question_id": i, "answer": "yes", "image": i // 2} for i in range(1, 5)]),
        official.pope()["coco_pope_random.json"],
    ),
    "chair": (
        official.jsonl([{"image_id": i, "caption": "A dog."} for i in (1, 2)]),
        official.chair()["objects.json"],
    ),
    "mme": (official.mme()["count.txt"].replace("\n", "\tYes\n"), ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_other_programs(tmp_path: Path, name: str) -> None:
    rng, refused = random.Random(f"answers {name}"), 0
    for _ in range(TIMES):
        first, second = ANSWERS[name]
        which = rng.random() < 0.6 or not second
        said, asked = tmp_path / "count.txt", tmp_path / "asked"
        said.write_bytes(mutated(first, rng) if which else first.encode())
        asked.write_bytes(second.encode() if which else mutated(second, rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = (
                    mme.score_files(tmp_path) if name == "mme" else
                    (pope if name == "pope" else chair).score_files(said, asked)
                )  # fmt: skip
            assert found["n"] > 0
        except HealError as error:
            short(error)
            refused += 1
    assert refused > TIMES // 3


def right(summary: Summary) -> None:
    for row in summary.rows:
        assert 0 <= row.answered <= row.asked
        for name, interval in row.figures.items():
            assert math.isnan(interval.value) or (row.answered and 0 <= interval.value <= 100), name


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "records.jsonl"])
def test_run_folders(tmp_path: Path, name: str) -> None:
    good = finished(tmp_path / "good")
    rng, refused = random.Random(f"folder {name}"), 0
    content = (good / name).read_text()
    for number in range(TIMES):
        path = Path(shutil.copytree(good, tmp_path / str(number)))
        (path / name).write_bytes(mutated(content, rng))
        try:
            right(rescore(path))
            Folder(path).merge_records()
        except HealError as error:
            short(error)
            refused += 1
    assert refused > TIMES // 3


def test_traces_and_equilibria(tmp_path: Path) -> None:
    shape = (2, 1, 3)
    scores: dict[str, Any] = {
        n: np.ones(shape, np.float32) for n in ("visual", "language", "synergy", "total", "contribution")
    }
    scores |= {n: np.ones(shape, np.float32) for n in ("beta", "gamma")}
    trace = Trace(
        **scores,
        types=np.ones(shape, np.uint8),
        refreshed=np.ones(2, bool),
        token_ids=np.ones(2, np.int64),
        tokens=("a", "b"),
        text="a b",
        config={"x": [1]},
        seed=0,
        versions={"heal": "1"},
    )
    trace.save(tmp_path / "trace")
    whole, rng = (tmp_path / "trace").read_bytes(), random.Random("trace")
    good = {"mean": 0.5, "logits": [[0.1, None]], "counts": [[30, 2]], "source": {}}
    refused = 0
    for _ in range(TIMES):
        at = rng.randrange(len(whole))
        odd = rng.choice((whole[:at], whole[:at] + bytes([rng.randrange(256)]) + whole[at + 1 :], whole + b"x", b""))
        (tmp_path / "odd").write_bytes(odd)
        (tmp_path / "equilibrium.json").write_bytes(mutated(json.dumps(good), rng))
        try:
            assert Trace.load(tmp_path / "odd").steps == 2
        except TraceError as error:
            short(error)
            refused += 1
        try:
            found = Equilibrium.load(tmp_path / "equilibrium.json")
            assert 0 < found.mean < 1
            assert found.logits.shape == found.counts.shape
        except HealError as error:
            short(error)
            refused += 1
    assert refused > TIMES // 3
