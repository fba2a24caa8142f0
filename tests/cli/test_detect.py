"""`heal detect` and `heal run --risk`: fitting, judging, resuming, marking doubtful words, and errors."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from heal.cli import app as application
from heal.cli.risk import UNDERLINED, explain, marked
from heal.detect import Detector, Judged, ObjectRisk, Reason, collecting
from heal.generate import Answer
from heal.vlm import EMBEDDED
from heal.world import World

FEW = ("--limit", "48", "--batch-size", "16", "--max-new-tokens", "60")
DESCRIBE = "Please describe this image in detail."


def cli(*args: str) -> Result:
    result = CliRunner().invoke(application.app, list(args))
    assert result.exception is None, result.output
    return result


def refused(*args: str) -> str:
    result = CliRunner().invoke(application.app, list(args))
    assert result.exception is not None
    return str(result.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector that was fitted by the command, with its features."""
    folder = tmp_path_factory.mktemp("detect")
    cli("detect", "fit", *FEW, "--out", str(folder / "d.json"), "--features", str(folder / "features"), "--json")
    return folder


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scene") / "scene.png"
    World(0, "test", "counter").scene(0).image.save(path)
    return str(path)


@pytest.mark.slow
def test_fit_writes_a_detector(folder: Path) -> None:
    found = Detector.load(folder / "d.json")
    assert (found.words, found.options) == ("world", {"calibrate": False})
    assert found.source["captions"] == 48
    assert "24 natural scenes" in found.source["data"]
    assert "24 counter scenes" in found.source["data"]
    assert list(found.models) == ["everything", "without hidden states", "text"]


@pytest.mark.slow
def test_fit_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the parts that are missing are measured, and the detector is the same."""
    parts = sorted((folder / "features" / "natural").glob("part-*.npz"))
    assert len(parts) == 2
    parts[1].unlink()
    measured = []
    original = collecting._described

    def counting(*args: Any) -> Any:
        measured.append(len(args[1]))
        return original(*args)

    monkeypatch.setattr(collecting, "_described", counting)
    cli("detect", "fit", *FEW, "--out", str(tmp_path / "d.json"), "--features", str(folder / "features"))
    assert measured == [8]
    assert json.loads((tmp_path / "d.json").read_text()) == json.loads((folder / "d.json").read_text())


@pytest.mark.slow
def test_features_of_other_options_are_refused(folder: Path, tmp_path: Path) -> None:
    again = ("--out", str(tmp_path / "d.json"), "--features", str(folder / "features"))
    assert "measured with another max_new_tokens" in refused("detect", "fit", *FEW[:-1], "50", *again)
    assert not (tmp_path / "d.json").exists()


@pytest.mark.slow
def test_eval_writes_tables_and_figures(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--limit", "64", "--batch-size", "32", "--max-new-tokens", "60", "--resamples", "50")
    curve = ("--curve", str(folder / "features"))
    text = cli("detect", "eval", *options, "--detector", str(folder / "d.json"), "--out", str(out), *curve).output
    assert "AUROC" in text
    files = {f"{name}.{kind}" for name in ("auroc", "reliability", "learning-curve") for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == files | {"table.md", "table.csv", "table.json"}
    record = json.loads((out / "table.json").read_text())
    assert [(one["kind"], one["mentions"]) for one in record["verdicts"]] == [
        (kind, mentions) for kind in ("natural", "counter") for mentions in ("all", "first")
    ]
    counter = record["verdicts"][2]
    assert counter["figures"][0]["name"] == "detector"
    assert counter["figures"][0]["auroc"]["value"] > 0.7
    assert "48" in record["learning_curve"]["counter"]


def test_show_describes_the_detector_of_the_checkpoint() -> None:
    told = json.loads(cli("detect", "show", "--json").output)
    assert told["model"] == "embedded"
    assert {own["model"] for own in told["models"]} > {"everything", "text", "log-probability"}
    assert all(0.5 < own["auroc"] < 1 for own in told["models"])


@pytest.mark.slow
def test_images_of_your_own(tmp_path: Path) -> None:
    for index in range(24):
        World(0, "train", "counter").scene(index).image.save(tmp_path / f"{index}.png")
    lines = [
        json.dumps({"image": f"{i}.png", "objects": sorted(World(0, "train", "counter").scene(i).objects)})
        for i in range(24)
    ]
    (tmp_path / "images.jsonl").write_text("\n".join(lines))
    cli("detect", "fit", *FEW, "--data", str(tmp_path / "images.jsonl"), "--out", str(tmp_path / "d.json"))
    found = Detector.load(tmp_path / "d.json")
    assert (found.words, found.source["captions"], found.source["data"]) == ("coco", 24, "images.jsonl")
    assert not (tmp_path / "d.json.features").exists()


def test_bad_input_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "d.json"))
    assert "detectors are fitted to what heal measures" in refused("detect", "fit", *out, "--method", "vcd")
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty.jsonl is empty" in refused("detect", "fit", *out, "--data", str(tmp_path / "empty.jsonl"))
    assert "objects.json is missing" in refused("detect", "fit", *out, "--data", str(tmp_path))
    assert "no detector" in refused("detect", "eval", "--model", "random", "--out", str(tmp_path / "e"))
    assert "no features" in refused("detect", "eval", "--out", str(tmp_path / "e"), "--curve", str(tmp_path / "x"))


@pytest.mark.slow
def test_too_few_words_are_told(tmp_path: Path) -> None:
    told = refused("detect", "fit", "--out", str(tmp_path / "d.json"), "--limit", "6")
    assert "at least 20 of each" in told


# ── heal run ──────────────────────────────────────────────────────────────────────────────────────────────


def test_run_with_a_lower_threshold(scene: str, tmp_path: Path) -> None:
    """Every object word is doubtful."""
    replace(Detector.load(EMBEDDED / "detector.json"), threshold=0.0).save(tmp_path / "d.json")
    options = ("--method", "heal:calibrate=false", "--risk", "--detector", str(tmp_path / "d.json"))
    result = cli("run", scene, DESCRIBE, *options)
    found = json.loads(cli("run", scene, DESCRIBE, *options, "--json").output)["answer"]
    assert len(found["risk"]) == len(found["token_ids"])
    assert found["doubtful"] == found["objects"] != []
    for word in found["doubtful"]:
        assert found["text"][slice(*word["span"])] == word["text"]
        assert f"[?{word['text']} {word['risk']:.2f}?]" in result.stdout
        assert len(word["reasons"]) == 3


def test_run_without_risk_has_none(scene: str) -> None:
    found = json.loads(cli("run", scene, DESCRIBE, "--json").output)["answer"]
    assert not {"risk", "objects", "doubtful"} & set(found)


def test_run_with_the_detector_of_the_checkpoint(scene: str) -> None:
    assert "risk: " in cli("run", scene, DESCRIBE, "--risk").stderr
    assert "this model has no detector" in refused("run", scene, DESCRIBE, "--risk", "--model", "random")


# ── marks ─────────────────────────────────────────────────────────────────────────────────────────────────


def answer(text: str, *words: tuple[str, float]) -> Answer:
    objects = []
    for word, risk in words:
        at = text.index(word)
        told = (Reason("visual share of the heads", 1.25), Reason("earlier mentions", -0.5))
        objects.append(ObjectRisk(word, word, (at, at + len(word)), (0, 1), risk, told))
    return Answer(text, (1,), (0.0,), "stop", 1, 1.0, 1.0, judged=Judged((0.5,), tuple(objects), 0.5))


def test_marks_with_and_without_colours() -> None:
    one = answer("A kite, a dog\x1b[2J and a cat.", ("kite", 0.83), ("dog", 0.2), ("cat", 0.5))
    assert marked(one, False) == r"A [?kite 0.83?], a dog\x1b[2J and a [?cat 0.50?]."
    kite, cat = (f"{UNDERLINED}{word}\x1b[0m" for word in ("kite", "cat"))
    assert marked(one, True) == rf"A {kite}, a dog\x1b[2J and a {cat}."
    assert marked(replace(one, judged=None), True) == r"A kite, a dog\x1b[2J and a cat."


def test_explanations() -> None:
    both = explain(answer("kite dog", ("kite", 0.83), ("dog", 0.2)).judged)  # type: ignore[arg-type]
    assert both == (
        "risk: kite (kite) is hallucinated with a probability of 0.83: visual share of the heads +1.2, "
        "earlier mentions -0.5"
    )
    assert "no doubtful words; the highest risk of 1" in explain(answer("dog", ("dog", 0.2)).judged)  # type: ignore[arg-type]
    assert "names no objects" in explain(answer("x").judged)  # type: ignore[arg-type]


def test_risks_without_an_image_are_null_in_json() -> None:
    from heal.cli.risk import as_dict
    from heal.json_values import json_values

    assert json_values(as_dict(Judged((float(np.nan),), (), 0.5)))["risk"] == [None]
    assert os.linesep not in explain(Judged((), (), 0.5))
