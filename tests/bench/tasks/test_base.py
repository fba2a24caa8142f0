"""The task interface and the catalogue."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heal.bench import available_tasks, create
from heal.bench.score.summary import restore_task
from heal.bench.tasks.base import (
    File,
    Number,
    Sample,
    Task,
    figures,
    fingerprint,
    grouped_by_unit,
    ratio,
    totals,
    unit_counts,
)
from heal.bench.tasks.catalogue import needs_data, options_of
from heal.errors import ConfigError, DataError, ImageError
from heal.methods.options import options_of as documented


class Right(Task):
    """Percentage of correct answers."""

    name, summary, max_new_tokens, headline = "right", "", 1, "accuracy"

    def samples(self) -> Sequence[Sample]:
        return [sample(str(i), f"u{i // 2}") for i in range(4)]

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return {"right": text == "yes"}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"right": float(sum(p["right"] for p in parses)), "n": float(len(parses))}

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return {"accuracy": ratio(totals["right"], totals["n"], 100)}


def sample(id: str, unit: str = "u", prompt: str = "?", label: str = "yes") -> Sample:
    return Sample(id, unit, prompt, {"label": label}, File(Path("nowhere.png")))


def test_units_are_counted_once_and_failed_samples_skipped() -> None:
    task = Right()
    parses = {s.id: task.parse(s, text) for s, text in zip(task.samples(), ("yes", "no", "yes"), strict=False)}
    counts = unit_counts(task, task.samples(), parses)
    assert counts == {"u0": {"right": 1.0, "n": 2.0}, "u1": {"right": 1.0, "n": 1.0}}
    assert totals(counts.values()) == {"right": 2.0, "n": 3.0}
    assert figures(task, counts.values()) == {"accuracy": pytest.approx(200 / 3)}


def test_figures_of_nothing_are_nan() -> None:
    assert np.isnan(figures(Right(), [])["accuracy"])
    assert np.isnan(ratio(0.0, 0.0))
    assert np.asarray(ratio(np.array([1.0, 2.0]), np.array([0.0, 4.0]), 100)).tolist() == [
        pytest.approx(np.nan, nan_ok=True),
        50.0,
    ]


def test_samples_are_grouped_by_unit() -> None:
    mixed = [sample("1", "a"), sample("2", "b"), sample("3", "a")]
    assert [s.id for s in grouped_by_unit(mixed, "it")] == ["1", "3", "2"]
    with pytest.raises(DataError, match="the id 1 occurs twice"):
        grouped_by_unit([sample("1", "a"), sample("1", "b")], "it")


def test_fingerprints_depend_on_the_samples() -> None:
    plain = fingerprint([sample("1"), sample("2")])
    assert plain == fingerprint([sample("1"), sample("2")])
    others = ([sample("1")], [sample("2"), sample("1")], [sample("1"), sample("2", prompt="!")])
    assert len({plain, *(fingerprint(o) for o in others), fingerprint([sample("1"), sample("2", label="no")])}) == 5


def test_images_are_read_on_demand(tmp_path: Path) -> None:
    Image.new("L", (3, 2)).save(tmp_path / "grey.png")
    found = File(tmp_path / "grey.png").load()
    assert (found.mode, found.size) == ("RGB", (3, 2))
    with pytest.raises(ImageError, match=r"no image .*nowhere\.png"):
        sample("1").image()
    whole = (tmp_path / "grey.png").read_bytes()
    for name, content in (("text.jpg", b"not a picture"), ("half.png", whole[: len(whole) // 2]), ("none.png", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=f"{name} cannot be read as an image"):
            File(tmp_path / name).load()


def test_catalogue() -> None:
    for name, kind in available_tasks().items():
        assert kind.name == name
        assert kind.summary
        assert needs_data(name) == (not name.startswith("mini-"))
    task = create("mini-pope", count="5", splits="random+popular", parser="strict")
    assert options_of(task)["splits"] == ["random", "popular"]
    assert task == create("mini-pope", count=5, splits=["random", "popular"], parser="strict")
    assert sum(len(s.truth["splits"]) for s in task.samples()) == 5 * 2 * 6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pop", {}, "no task 'pop': choose one of .*mini-pope"),
        ("mini-pope", {"image": 3}, "no option 'image': it has count"),
        ("mini-pope", {"count": "many"}, "mini-pope:count cannot be 'many': write a whole number"),
        ("mini-pope", {"count": 0}, "count must be from 1 to 100000, not 0"),
        ("mini-pope", {"count": 10**12}, "count must be from 1 to 100000"),
        ("mini-pope", {"images": 3}, "mini-pope has no option 'images' any more: write count"),
        ("chair", {"number": 3}, "chair has no option 'number' any more: write count"),
        ("chair", {"images": "", "data": "."}, "chair:images cannot be empty"),
        ("mini-pope", {"splits": "random+odd"}, "cannot be 'odd': choose one of random, popular"),
        ("mini-pope", {"splits": "random+random"}, "chosen twice"),
        ("mini-chair", {"split": "train"}, "cannot be 'train'"),
        ("mini-chair", {"distribution": "odd"}, "cannot be 'odd'"),
        ("mini-mme", {"parser": "kind"}, "choose one of official, strict"),
        ("pope", {}, "needs official data: give its folder with --data"),
        ("pope", {"data": "/nowhere/at/all"}, "nowhere/at/all does not exist"),
    ],
)
def test_wrong_options_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(name, **options)


def test_stored_runs_may_use_former_option_names() -> None:
    again = restore_task({"name": "mini-pope", "options": {"images": 3, "splits": ["random"]}}, Path("run"))
    assert again == create("mini-pope", count=3, splits="random")


@pytest.mark.parametrize("kind", available_tasks().values(), ids=available_tasks())
def test_every_option_is_documented_and_means_the_same_everywhere(kind: type[Task]) -> None:
    for option in documented(kind):
        assert len(option.doc) > 8
        assert {"images": "Path | None", "count": "int"}.get(option.name, option.type) == option.type


def test_importing_the_package_does_not_import_benchmarks() -> None:
    code = "import heal, sys; print([m for m in sys.modules if m.startswith('heal.bench') or m == 'nltk'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
