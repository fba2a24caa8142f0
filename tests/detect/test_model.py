"""The detector: risks, contributions, its file, and detectors of other models."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal import VLM
from heal.detect import Detector
from heal.detect.features import Features
from heal.detect.fitting import fit
from heal.detect.model import as_detector
from heal.errors import ConfigError
from tests.detect.making import HEADS, LAYERS, labelled, text_only


@cache
def detector() -> Detector:
    return fit(labelled(), words="world", source={"model": "none"}, options={"calibrate": False})


def saved(path: Path) -> Path:
    detector().save(path)
    return path


def test_risks_are_probabilities() -> None:
    risk = detector().risk(labelled().features)
    assert ((risk > 0) & (risk < 1)).all()
    assert risk[labelled().hallucinated].mean() > risk[~labelled().hallucinated].mean() + 0.2


def test_contributions_add_up_to_the_log_odds() -> None:
    features = labelled().features
    model = detector().models["everything"]
    for step in (0, 5):
        told = detector().contributions(features, step)
        assert [abs(value) for _, value in told] == sorted((abs(value) for _, value in told), reverse=True)
        assert {name for name, _ in told} == set(model.families)
        odds = sum(value for _, value in told) + model.bias * model.link.slope + model.link.shift  # type: ignore[attr-defined]
        risk = detector().risk(features)[step]
        assert odds == pytest.approx(np.log(risk / (1 - risk)), abs=1e-6)


def test_a_method_without_heads_gets_the_model_of_the_text() -> None:
    risk = detector().risk(text_only(labelled()))
    text = detector().models["text"]
    np.testing.assert_array_equal(risk, text.link.probability(text.scores(labelled().features)))
    assert {name for name, _ in detector().contributions(text_only(labelled()), 0)} == set(text.families)


def test_a_single_missing_value_counts_as_average() -> None:
    values = {name: own.copy() for name, own in labelled().features.values.items()}
    values["summary"][:, 0] = np.nan
    found = detector().models["everything"].terms(Features(values, LAYERS, HEADS))
    assert np.isfinite(found).all()
    assert (found == 0).all(axis=0).sum() >= 1


def test_nothing_measured_gives_no_risk() -> None:
    values = {name: np.full_like(own, np.nan) for name, own in labelled().features.values.items()}
    assert np.isnan(detector().risk(Features(values, LAYERS, HEADS))).all()


def test_round_trip(tmp_path: Path) -> None:
    loaded = Detector.load(saved(tmp_path / "d.json"))
    np.testing.assert_allclose(
        loaded.risk(labelled().features), detector().risk(labelled().features), rtol=1e-4, atol=1e-6
    )
    for name in ("layers", "heads", "words", "threshold", "options", "source"):
        assert getattr(loaded, name) == getattr(detector(), name)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "d.json").read_text()


def changed(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        record = json.loads(path.read_text())
        path.write_text(json.dumps(change(record) or record))

    return write


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another file": (lambda r: {"mean": 0.5}, "format"),
    "a list": (lambda r: [1], "format"),
    "a newer format": (lambda r: r.update(heal_detector=2), "format"),
    "no models": (lambda r: r.update(models={}), "no models"),
    "a missing field": (lambda r: r.pop("threshold") and None, "threshold"),
    "a threshold": (lambda r: r.update(threshold=1.5), "threshold must lie between 0 and 1"),
    "too few weights": (
        lambda r: r["models"]["everything"]["weights"].pop() and None,
        r"must have \d+ numbers",
    ),
    "an infinite weight": (lambda r: r["models"]["everything"]["weights"].__setitem__(0, 1e300), "out of range"),
    "a string": (lambda r: r["models"]["everything"]["weights"].__setitem__(0, "1"), "weights must be numbers"),
    "a zero scale": (lambda r: r["models"]["everything"]["scale"].__setitem__(0, 0.0), "scale is not positive"),
    "other names": (lambda r: r["models"]["everything"]["names"].__setitem__(0, "x"), "no feature 'x'"),
    "baselines": (lambda r: r.update(baselines=[1]), "items"),
    "a falling link": (lambda r: r["models"]["everything"]["link"].update(slope=-1.0), "must not be negative"),
    "no layers": (lambda r: r.update(layers=0), "positive integers"),
    "too many heads": (lambda r: r.update(heads=10**30), "no model has"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_refused(kind: str, tmp_path: Path) -> None:
    change, complaint = BROKEN[kind]
    changed(change)(saved(tmp_path / "d.json"))
    with pytest.raises(ConfigError, match=rf"(?s)d\.json is not a detector .*{complaint}"):
        Detector.load(tmp_path / "d.json")


@pytest.mark.parametrize("content", ["", "{", "NaN", "\x00"])
def test_files_that_are_not_json(content: str, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(content)
    with pytest.raises(ConfigError, match=r"d\.json"):
        Detector.load(tmp_path / "d.json")


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no detector at .*heal detect fit"):
        Detector.load(tmp_path / "d.json")


def test_a_model_without_a_detector_says_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"no detector: make one with `heal detect fit"):
        VLM.random().generate(np.zeros((40, 40, 3), np.uint8), "what ?", risk=True)


def test_a_detector_of_another_model_is_refused() -> None:
    vlm = VLM.random()
    with pytest.raises(ConfigError, match=r"2 layers of 3 heads, but this model has 6 of 8.*heal detect fit"):
        vlm.generate(np.zeros((40, 40, 3), np.uint8), "what ?", risk=detector(), max_new_tokens=1)


def test_what_risk_accepts(tmp_path: Path) -> None:
    assert as_detector(None, None) is as_detector(False, None) is None
    assert as_detector(detector(), None) is detector()
    assert known(as_detector(saved(tmp_path / "d.json"), None)).words == "world"
    with pytest.raises(ConfigError, match="risk must be"):
        as_detector(3, None)


def known(found: Detector | None) -> Detector:
    assert found is not None
    return found


def test_the_embedded_model_has_a_detector() -> None:
    found = Detector.of_model(VLM.embedded().model)
    assert (found.layers, found.heads, found.words) == (8, 8, "world")
    assert found.source["hallucinated"] > 1000
    assert replace(found, threshold=0.1).threshold == 0.1
