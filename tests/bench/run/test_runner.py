"""Runs: equal answers after interruptions and with any batching or sharding, refused inputs, isolated failures."""

import json
import multiprocessing
import random
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from heal import HEAL, VLM
from heal.bench import create
from heal.bench.run.folder import Folder
from heal.bench.run.plan import Settings, batches, sample_seed
from heal.bench.run.records import Key
from heal.bench.run.runner import Progress, run
from heal.bench.run.shard import Shard
from heal.bench.score.summary import Summary
from heal.cli.evaluate import evaluate
from heal.errors import ConfigError, HealWarning, ImageError, RunError
from heal.methods import OPERA
from tests.bench.questions import Questions, pictures
from tests.known import known

METHODS = [None, HEAL(alpha=0.6)]
SMALL = Settings(limit=10, batch_size=4, max_new_tokens=3)
EXACT = ("batch", "text", "tokens", "finish", "fired", "parse", "error")
TIMES = 2  # methods


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


@pytest.fixture(scope="module")
def whole(vlm: VLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(vlm, [create("mini-pope", count=1)], METHODS, path, SMALL)
    return path


def again(vlm: VLM, path: Path, settings: Settings = SMALL, **options: Any) -> Summary:
    return run(vlm, [create("mini-pope", count=1)], METHODS, path, settings, **options)


def exact(path: Path) -> dict[Key, dict[str, Any]]:
    """Everything except time and memory. Each record occurs once, and every line is complete."""
    lines = [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]
    found = {Key(r["task"], r["method"], r["sample"]): {name: r[name] for name in EXACT} for r in lines}
    assert len(found) == len(lines)
    assert [p.name for p in path.glob("records*")] == ["records.jsonl"]
    return found


def copied(whole: Path, to: Path) -> Path:
    to.mkdir()
    for file in whole.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_records_match_the_model(vlm: VLM, whole: Path) -> None:
    task = create("mini-pope", count=1)
    records = Folder(whole).records()
    assert len(records) == 10 * TIMES
    for sample in task.samples()[:10:3]:
        for name, method in (("plain", None), ("heal:alpha=0.6", METHODS[1])):
            record = records[Key("mini-pope:count=1", name, sample.id)]
            answer = vlm.generate(sample.image(), sample.prompt, method=method, max_new_tokens=3, do_sample=False)
            assert (record.text, record.tokens, record.finish) == (answer.text, 3, answer.finish)
            assert record.parse == task.parse(sample, answer.text)
            assert (record.fired is None) == (answer.fired is None) == (method is None)
            assert record.fired is None or record.fired["changes"] == answer.fired.changes > 0
            assert 0 < record.first_token_seconds < record.seconds
            assert record.memory > 0


def test_rows_of_a_batch_share_its_time_unless_they_are_generated_one_by_one(
    vlm: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = VLM.generate

    def timed(*args: Any, **options: Any) -> list[Any]:
        return [replace(answer, seconds=8.0, first_token_seconds=4.0) for answer in generate(*args, **options)]

    monkeypatch.setattr(VLM, "generate", timed)
    methods = {"plain": None, "opera": OPERA(beams=1, candidates=1)}
    run(vlm, [create("mini-pope", count=1)], methods, tmp_path / "run", replace(SMALL, limit=4))
    records = Folder(tmp_path / "run").records().values()
    assert {(r.method, r.seconds, r.first_token_seconds) for r in records} == {("plain", 2, 1), ("opera", 8, 4)}


def test_folder_describes_the_run(vlm: VLM, whole: Path) -> None:
    found = json.loads((whole / "run.json").read_text())
    configuration, environment = found["configuration"], found["environment"]
    task = configuration["tasks"]["mini-pope:count=1"]
    assert (task["name"], task["samples"], task["options"]["count"]) == ("mini-pope", 10, 1)
    assert task["decoding"] == {"do_sample": False, "num_beams": 1, "max_new_tokens": 3}
    assert len(task["fingerprint"]) == 16
    assert configuration["methods"]["plain"] is None
    assert configuration["methods"]["heal:alpha=0.6"] == {"name": "heal", "options": known(METHODS[1]).options()}
    assert (configuration["seed"], configuration["limit"], configuration["batch_size"]) == (0, 10, 4)
    assert configuration["model"]["name"] == "random"
    assert environment["versions"].keys() >= {"torch", "transformers", "heal-mllm"}
    assert environment["hardware"]["cores"] > 0
    stored = Folder(whole).samples()["mini-pope:count=1"]
    assert stored == list(create("mini-pope", count=1).samples()[:10])
    with pytest.raises(ImageError, match="stores no images"):
        stored[0].image()


def test_progress_is_reported(vlm: VLM, tmp_path: Path) -> None:
    seen: list[Progress] = []
    again(vlm, tmp_path / "run", watch=seen.append)
    assert [p.done for p in seen] == [0, 4, 8, 12, 16, 18, 20]
    assert {(p.total, p.failed, p.task) for p in seen} == {(20, 0, "mini-pope:count=1")}


@pytest.mark.parametrize(("size", "limit"), [(1, 3), (16, 10)])
def test_answers_do_not_depend_on_the_batch_size(
    vlm: VLM, whole: Path, tmp_path: Path, size: int, limit: int
) -> None:
    again(vlm, tmp_path / "run", Settings(limit=limit, batch_size=size, max_new_tokens=3))
    mine, theirs = exact(tmp_path / "run"), exact(whole)
    assert len(mine) == limit * TIMES
    for key in mine:
        assert mine[key]["text"] == theirs[key]["text"]
        assert (mine[key]["fired"] or {}).get("changes") == (theirs[key]["fired"] or {}).get("changes")


def test_prefix_cache_gives_the_same_answers(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    passes: list[int] = []
    hook = vlm.model.base_model.vision_tower.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        again(vlm, tmp_path / "once", replace(SMALL, prefix_cache=True))
    finally:
        hook.remove()
    found, expected = exact(tmp_path / "once"), exact(whole)
    assert len(passes) == len({record["batch"] for record in expected.values()})
    assert found.keys() == expected.keys()
    assert all(found[key]["text"] == expected[key]["text"] for key in expected)


def test_sampling_depends_only_on_the_seed(vlm: VLM, tmp_path: Path) -> None:
    def texts(name: str, size: int, seed: int, limit: int) -> dict[Key, str]:
        settings = Settings(limit, seed, size, 3, {"do_sample": True, "temperature": 3.0})
        run(vlm, [create("mini-pope", count=1)], [None], tmp_path / name, settings)
        return {key: value["text"] for key, value in exact(tmp_path / name).items()}

    first = texts("a", 4, 0, 3)
    assert {key: text for key, text in texts("b", 1, 0, 4).items() if key in first} == first
    assert texts("c", 4, 1, 3) != first


def test_batches_have_prompts_of_similar_length(tmp_path: Path) -> None:
    samples = {"task": Questions(pictures(tmp_path, 3)).samples()}
    found = batches(samples, 2, len)
    assert [len(batch.samples) for batch in found] == [2, 2, 2]
    assert [batch.number for batch in found] == [0, 1, 2]
    assert [s.id for batch in found for s in batch.samples] == ["0-0", "1-0", "2-0", "0-1", "1-1", "2-1"]
    assert sample_seed(0, "a", "1") == sample_seed(0, "a", "1")
    assert len({sample_seed(s, t, i) for s in (0, 1) for t in "ab" for i in "12"}) == 8


# ── interrupting and resuming ─────────────────────────────────────────────────────────────────────────────


def test_killed_runs_end_with_the_same_records(whole: Path, tmp_path: Path) -> None:
    """Repeated SIGKILL at random moments and right after a write."""
    path, rng = tmp_path / "run", random.Random(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["heal.bench.run.runner", "heal.cli.summary", "heal.random_llava", "heal.cli.evaluate"]
    )
    options = {"method": ["plain,heal:alpha=0.6"], "limit": 10, "batch_size": 4, "max_new_tokens": 3, "resume": True}

    def started() -> Any:
        process = context.Process(target=evaluate, args=(["mini-pope:count=1"], path, "random"), kwargs=options)
        process.start()
        return process

    def size() -> int:
        records = path / "records.jsonl"
        return records.stat().st_size if records.exists() else 0

    first = started()
    while not (path / "run.json").exists() and first.is_alive():
        time.sleep(0.002)
    first.kill()
    first.join()
    for _ in range(3):
        process, before = started(), size()
        while size() == before and process.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
    assert 0 < len(Folder(path).records()) < 20
    last = started()
    last.join(60)
    assert last.exitcode == 0
    assert exact(path) == exact(whole)
    assert json.loads((path / "scores.json").read_text())["missing"] == 0


@pytest.mark.parametrize("rest", [0, 137, 2000, "nothing", "zeros"])
def test_incomplete_last_line_is_dropped(vlm: VLM, whole: Path, tmp_path: Path, rest: int | str) -> None:
    path = copied(whole, tmp_path / "run")
    content = (path / "records.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    half = {"nothing": b"", "zeros": b"".join(lines[:5]) + b"\0" * 300 + b"\n"}
    (path / "records.jsonl").write_bytes(content[: -1 - rest] if isinstance(rest, int) else half[rest])
    summary = again(vlm, path, resume=True)
    assert exact(path) == exact(whole)
    assert summary.missing == 0


def test_broken_line_in_the_middle_is_an_error(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path / "run")
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    (path / "records.jsonl").write_text("".join([lines[0], lines[1][:50] + "\n", *lines[2:]]))
    with pytest.raises(RunError, match="line 2 is not a record"):
        again(vlm, path, resume=True)


def test_resuming_a_finished_run_generates_nothing(
    vlm: VLM, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(whole, tmp_path / "run")
    monkeypatch.setattr(VLM, "generate", None)
    again(vlm, path, resume=True)
    assert (path / "records.jsonl").read_bytes() == (whole / "records.jsonl").read_bytes()


def test_different_configuration_is_refused(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path / "run")
    refused: list[tuple[str, Callable[[], Summary]]] = [
        (r"limit was 10, now 9", lambda: again(vlm, path, Settings(9, 0, 4, 3), resume=True)),
        (r"seed was 0, now 1", lambda: again(vlm, path, Settings(10, 1, 4, 3), resume=True)),
        (r"max_new_tokens was 3, now 4", lambda: again(vlm, path, Settings(10, 0, 4, 4), resume=True)),
        (r"methods.heal:alpha=0.6 was .*, now null", lambda: other([None], vlm)),
        (r"model.weights was", lambda: other(METHODS, VLM.random(seed=1))),
    ]

    def other(methods: list[Any], vlm: VLM) -> Summary:
        return run(vlm, [create("mini-pope", count=1)], methods, path, SMALL, resume=True)

    for message, attempt in refused:
        with pytest.raises(RunError, match=f"different configuration: .*{message}"):
            attempt()
    assert exact(path) == exact(whole)
    assert (path / "run.json").read_bytes() == (whole / "run.json").read_bytes()


def test_unusable_folders(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exists already: give another folder, or resume"):
        again(vlm, whole)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"is not a run: it has thesis.tex and no run.json"):
        again(vlm, tmp_path / "other", resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file cannot be written: it is not a folder"):
        again(vlm, tmp_path / "file")
    with Folder(whole).locked(), pytest.raises(RunError, match="another process is writing"):
        again(vlm, whole, resume=True)


def test_different_environment_is_reported(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path / "run")
    found = json.loads((path / "run.json").read_text())
    found["environment"]["versions"]["torch"] = "1.0"
    (path / "run.json").write_text(json.dumps(found))
    with pytest.warns(HealWarning, match=r"started in a different environment: versions.torch was \"1.0\""):
        again(vlm, path, resume=True)


def test_full_disk(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    """The operating system refuses to write more in the middle of a line."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4500, hard))
    try:
        with pytest.raises(
            RunError, match=r"cannot be written: .*Earlier records are intact: free some space, then resume"
        ):
            again(vlm, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    there = exact(tmp_path / "run")
    assert 0 < len(there) < 20
    assert all(exact(whole)[key] == value for key, value in there.items())
    again(vlm, tmp_path / "run", resume=True)
    assert exact(tmp_path / "run") == exact(whole)


# ── isolated failures ─────────────────────────────────────────────────────────────────────────────────────


def test_broken_image_fails_alone(vlm: VLM, tmp_path: Path) -> None:
    task = Questions(pictures(tmp_path / "pictures"))
    good = run(vlm, {"q": task}, METHODS, tmp_path / "good", Settings(batch_size=3))
    (tmp_path / "pictures" / "1.png").write_bytes(b"\x89PNG no more")
    summary = run(vlm, {"q": task}, METHODS, tmp_path / "bad", Settings(batch_size=3))
    assert (good.failed, summary.failed, summary.missing) == (0, 4, 0)
    assert [(row.answered, row.failed) for row in summary.rows] == [(6, 2), (6, 2)]
    before, after = exact(tmp_path / "good"), exact(tmp_path / "bad")
    for key, value in after.items():
        if key.sample.startswith("1-"):
            assert value["text"] is value["parse"] is None
            assert "ImageError: " in value["error"]
            assert "1.png cannot be read as an image" in value["error"]
        else:
            assert value["error"] is None
            assert value["text"] == before[key]["text"]
    resumed = run(vlm, {"q": task}, METHODS, tmp_path / "bad", Settings(batch_size=3), resume=True)
    assert resumed.failed == 4
    assert exact(tmp_path / "bad") == after


@pytest.mark.parametrize("kind", ["AVIF", "WEBP", "TIFF", "JPEG", "GIF"])
def test_truncated_image_of_any_format_fails_alone(vlm: VLM, tmp_path: Path, kind: str) -> None:
    """All files are named .png, as downloads often are."""
    path = pictures(tmp_path / "pictures", 2) / "1.png"
    with Image.open(path) as picture:
        picture.load()
    picture.save(path, kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    summary = run(vlm, [Questions(path.parent)], [None], tmp_path / "run", Settings(batch_size=4))
    assert (summary.failed, summary.missing, summary.rows[0].answered) == (2, 0, 2)
    assert (
        run(vlm, [Questions(path.parent)], [None], tmp_path / "run", Settings(batch_size=4), resume=True).failed == 2
    )


def test_sample_that_breaks_its_batch_fails_alone(vlm: VLM, tmp_path: Path) -> None:
    task = Questions(pictures(tmp_path / "pictures", 2), asked=("what is this ?", " "))
    summary = run(vlm, [task], METHODS, tmp_path / "run")
    assert [(row.answered, row.failed) for row in summary.rows] == [(2, 2), (2, 2)]
    errors = {key.sample: value["error"] for key, value in exact(tmp_path / "run").items()}
    assert errors["0-0"] is errors["1-0"] is None
    assert errors["0-1"] == "PromptError: prompt 0 is empty"


def test_invalid_input_is_refused_before_a_folder_is_created(vlm: VLM, tmp_path: Path) -> None:
    task, out = create("mini-pope", count=1), tmp_path / "run"
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("no task", lambda: run(vlm, [], METHODS, out)),
        ("no method", lambda: run(vlm, [task], [], out)),
        ("heal:alpha=0.6 is named twice", lambda: run(vlm, [task], [HEAL(alpha=0.6), HEAL(alpha=0.6)], out)),
        ("mini-pope:count=1 is named twice", lambda: run(vlm, [task, task], METHODS, out)),
        ("has 6", lambda: run(vlm, [task], [HEAL(layers=(6,))], out)),
        ("limit must be 1 or more", lambda: Settings(limit=0)),
        ("seed must be 0 or more", lambda: Settings(seed=-1)),
        ("at most 9223372036854775807", lambda: Settings(seed=2**63)),
        ("a sample has one answer", lambda: Settings(generate={"num_return_sequences": 2})),
        ("no option 'nonsense'", lambda: Settings(generate={"nonsense": 2})),
    ]
    for message, attempt in wrong:
        with pytest.raises(ConfigError, match=message):
            attempt()
    assert not out.exists()


# ── several processes ─────────────────────────────────────────────────────────────────────────────────────


def test_shards_form_one_run(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    """Shards run one after the other; the second is interrupted and finished by a single process."""
    path = tmp_path / "run"
    assert again(vlm, path, shard=Shard(0, 2)).missing == 8
    seen: list[Progress] = []
    again(vlm, path, shard=Shard(1, 2), watch=seen.append)
    assert (seen[0].total, seen[-1].done) == (8, 8)
    shard = path / "records-001.jsonl"
    shard.write_bytes(shard.read_bytes()[:-700])
    summary = again(vlm, path, resume=True)
    assert exact(path) == exact(whole)
    assert summary.missing == 0


def test_interrupted_merge_loses_nothing(vlm: VLM, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path / "run")
    lines = (whole / "records.jsonl").read_text().splitlines(keepends=True)
    (path / "records-000.jsonl").write_text("".join(lines[:8]))
    (path / "records-001.jsonl").write_text("".join(lines[8:]) + lines[0][:40])
    (path / ".records.jsonl.0a1b2c3d.part").write_text(lines[0][:40])
    again(vlm, path, resume=True)
    assert not list(path.glob(".*.part"))
    assert exact(path) == exact(whole)
