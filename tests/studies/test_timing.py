"""Times of methods, measured in turns."""

import math
from dataclasses import replace

import pytest

from heal import VLM
from heal.methods import HEAL, Beam
from heal.studies import timing
from heal.studies.parts import Measured, Records
from heal.studies.setup import Setup


def record(id, skipped=None, **ms):
    times = {
        name: {"ms": float(value), "first_ms": 10.0 * value, "memory": 100.0 * value} for name, value in ms.items()
    }
    return Measured(id, {"times": times, "skipped": skipped or {}})


RECORDS = Records.of([record("a", {"y": "no"}, plain=2, x=4), record("b", plain=4, x=12), record("c", plain=1, x=5)])


def test_ratios_are_of_the_same_image():
    found, skipped = timing.times_of(RECORDS, "plain")
    assert list(found) == ["plain", "x"]
    assert (found["x"].ms.value, found["x"].ratio.value) == (5, 3)
    assert (found["x"].ratio.low, found["x"].ratio.high) == (2, 5)
    assert (found["plain"].ratio.value, found["plain"].ratio.low) == (1, 1)
    assert (found["x"].first_ms.value, found["x"].memory) == (50, 1200)
    assert skipped == {"y": "no"}
    assert timing.ratio_between(RECORDS, "x", "plain").value == pytest.approx(1 / 3)


def test_one_image_has_no_interval_and_none_has_no_median():
    found, _ = timing.times_of(Records.of([record("a", plain=2)]), "plain")
    assert found["plain"].ms.value == 2
    assert math.isnan(found["plain"].ms.low)
    assert math.isnan(timing.median_interval([]).value)
    assert timing.times_of(Records.of([]), "plain") == ({}, {})


def test_methods_take_turns_and_all_answers_are_equally_long(monkeypatch):
    monkeypatch.setattr(timing, "STEPS", 4)
    vlm, asked = VLM.random(), []
    generate = vlm.generate

    def noted(*given, **options):
        answer = generate(*given, **options)
        asked.append((options["method"], len(answer[0].token_ids)))
        return answer

    monkeypatch.setattr(vlm, "generate", noted)
    heal, beam = HEAL(alpha=0.5), Beam(2)
    methods = {"plain": None, "heal": heal, "beam": beam, "odd": HEAL(layers=(99,))}
    part = timing.timed("t", Setup(samples=2).captions("natural"), lambda vlm: (methods, {"none": "x"}), {"count": 4})
    assert (part.batch_size, part.tokens, part.passes, part.options["steps"]) == (2, 5, 4, 4)
    first, second = part.measure(vlm, part.samples)
    assert list(first.facts["skipped"]) == ["none", "odd"]
    assert "layer" in first.facts["skipped"]["odd"]
    assert all(times["ms"] > 0 and times["first_ms"] > 0 for times in first.facts["times"].values())
    assert list(second.facts["times"]) == ["heal", "beam", "plain"]
    assert asked[3:] == [(m, 5) for m in (None, heal, beam, heal, beam, None)]


def test_a_batch_is_one_record_and_its_time_is_divided_by_its_rows(monkeypatch):
    samples = Setup(samples=5).captions("natural")
    vlm, asked = VLM.random(), []
    generate = vlm.generate

    def noted(images, prompts, **options):
        asked.append((len(prompts), options["max_new_tokens"]))
        answers = generate(images, prompts, **options)
        return [replace(answer, seconds=2.4, first_token_seconds=0.4) for answer in answers]

    monkeypatch.setattr(vlm, "generate", noted)
    part = timing.timed("t", samples, lambda vlm: ({"plain": None}, {}), {"count": 1}, steps=5, batch=2)
    assert [s.id for s in part.samples] == [samples[0].id, samples[2].id]
    assert (part.options["batch"], part.options["steps"], part.passes) == (2, 5, 2)
    records = part.measure(vlm, part.samples)
    assert asked == [(2, timing.WARM_UP), (2, 6), (2, 6)]
    assert records[0].facts["times"]["plain"]["ms"] == pytest.approx(1e3 * 2.0 / (2 * 5))
    assert records[0].facts["times"]["plain"]["first_ms"] == pytest.approx(400)
    others = timing.timed("t", [*samples[:3], samples[4]], lambda vlm: ({}, {}), {"count": 1}, steps=5, batch=2)
    assert others.content() != part.content()


def test_too_few_images_are_one_smaller_batch():
    a, b, c, d, e = Setup(samples=5).captions("natural")
    assert timing.rows_of([a, b, c], 8) == [[a, b, c]]
    assert timing.rows_of([a, b, c, d, e], 2) == [[a, b], [c, d]]
    assert timing.rows_of([a, b], 1) == [[a], [b]]
