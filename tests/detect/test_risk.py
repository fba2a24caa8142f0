"""Risks of answers: every architecture and way of generating, spans, and answers without an image."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal import VLM, Answer
from heal.detect import Detector
from heal.detect.collecting import Setup, collect
from heal.detect.features import Features, features
from heal.detect.fitting import fit
from heal.detect.labels import Labelled
from heal.detect.words import finder
from heal.measured import measured
from heal.token_spans import decoded
from heal.tracing import measurements
from heal.world import World
from tests import zoo
from tests.known import known
from tests.vlm.asking import NEW, PICTURES, PROMPTS
from tests.zoo_vlm import zoo_vlm

FEW = ("llava", "qwen3_vl", "gemma3")
DESCRIBE = "Please describe this image in detail."


@cache
def embedded() -> VLM:
    return VLM.embedded()


def scene(index: int = 0) -> Any:
    return World(0, "test", "counter").scene(index).image


def ask(**options: Any) -> Any:
    return embedded().generate(scene(), DESCRIBE, **({"risk": True, "max_new_tokens": 60} | options))


def assert_judged(answer: Answer) -> None:
    risk = np.array(known(answer.risk))
    assert len(risk) == len(answer.token_ids)
    assert ((risk > 0) & (risk < 1)).all()
    for word in known(answer.judged).objects:
        assert answer.text[slice(*word.span)] == word.text
        assert word.risk == risk[word.tokens[0]]
        assert len(word.reasons) == 3
    found = finder("world")(answer.text)
    assert [(m.category, (m.start, m.stop)) for m in found] == [
        (word.category, word.span) for word in known(answer.judged).objects
    ]


def random_detector(vlm: VLM, table: Path) -> Detector:
    """Fitted to the features of two answers with random labels. Every word of the tiny tokenizer is an object."""
    table.write_text("\n".join(f"w{index}" for index in range(zoo.VOCAB)))
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], trace=True, max_new_tokens=30, do_sample=False)
    parts = [features(answer.trace, ()).values for answer in answers]
    values = {name: np.tile(np.concatenate([part[name] for part in parts]), (3, 1)) for name in parts[0]}
    rng, count = np.random.default_rng(0), len(values["share"])
    words = Labelled(
        Features(values, answers[0].trace.layers, answers[0].trace.heads),
        picture=rng.integers(0, 10, count),
        step=np.zeros(count, int),
        order=np.zeros(count, int),
        first=rng.random(count) < 0.5,
        hallucinated=rng.random(count) < 0.5,
        category=np.full(count, "w3"),
        captions=10,
    )
    return fit(words, words=str(table))


def architectures() -> list[Any]:
    """One of each kind in every run, all of them before a release."""
    return [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in zoo.NAMES]


@pytest.mark.parametrize("name", architectures())
def test_every_architecture_has_risks(name: str, tmp_path: Path) -> None:
    vlm = zoo_vlm(name)
    detector = random_detector(vlm, tmp_path / "words.txt")
    assert len(detector.models) == 3
    for answer in vlm.generate(PICTURES[:2], PROMPTS[:2], risk=detector, max_new_tokens=NEW, do_sample=False):
        risk = np.array(known(answer.risk))
        assert ((risk > 0) & (risk < 1)).all()
        assert answer.trace is None
        assert [word.tokens[0] for word in known(answer.judged).objects] == [
            index for index, token in enumerate(answer.token_ids) if f"w{token}" in answer.text.split()
        ]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"do_sample": True, "seed": 1}, {"method": "heal"}, {"method": "vcd"}, {"trace": True}],
    ids=str,
)
def test_every_way_of_generating(options: dict[str, Any]) -> None:
    assert_judged(ask(**options))


def test_a_batch_gives_each_image_its_own_risks() -> None:
    images = [scene(i) for i in range(3)]
    together = embedded().generate(images, [DESCRIBE] * 3, risk=True, max_new_tokens=40, do_sample=False)
    for image, batch in zip(images, together, strict=True):
        alone = embedded().generate(image, DESCRIBE, risk=True, max_new_tokens=40, do_sample=False)
        assert alone.token_ids == batch.token_ids
        np.testing.assert_allclose(alone.risk, batch.risk, atol=2e-3)
        assert_judged(batch)


def test_asking_for_risks_changes_nothing_else() -> None:
    plain, judged = ask(risk=False), ask()
    assert plain.token_ids == judged.token_ids
    assert plain.risk is None
    assert plain.doubtful == ()
    assert judged.fired is None
    assert judged.trace is None


def test_a_stream_ends_with_the_risks() -> None:
    with embedded().generate(scene(), DESCRIBE, risk=True, stream=True, max_new_tokens=40) as stream:
        text = "".join(stream)
    assert_judged(stream.answer)
    assert stream.answer.text == text.strip()
    assert stream.answer.risk == pytest.approx(ask(max_new_tokens=40).risk)


def test_doubtful_words_are_those_above_the_threshold() -> None:
    from dataclasses import replace

    detector = Detector.of_model(embedded().model)
    objects = known(ask().judged).objects
    middle = float(np.median([word.risk for word in objects]))
    answer = ask(risk=replace(detector, threshold=middle))
    assert answer.doubtful == tuple(word for word in objects if word.risk >= middle)
    assert 0 < len(answer.doubtful) < len(objects)


def test_without_an_image_there_is_no_risk() -> None:
    both = embedded().generate([None, scene()], ["What is a dog?", DESCRIBE], risk=True, max_new_tokens=20)
    assert np.isnan(both[0].risk).all()
    assert both[0].judged.objects == ()
    assert_judged(both[1])


def test_the_shipped_detector_finds_hallucinated_words() -> None:
    """A smoke test of its quality; docs/detection.md has the real figures."""
    setup = Setup("test", "world", batch=32, max_new_tokens=80)
    words = next(collect(embedded(), [World(0, "test", "counter").scene(index) for index in range(32)], setup))
    risk = Detector.of_model(embedded().model).risk(words.features)
    assert risk[words.hallucinated].mean() > risk[~words.hallucinated].mean() + 0.2


def test_step_records_so_far_give_the_features_of_the_complete_answer() -> None:
    """As a method computes them during a generation: from the records, before the answer is complete."""
    from heal.detect.words import object_words
    from heal.measured import TokenValues
    from heal.methods.observer import observer

    vlm = embedded()
    answer = ask(trace=True)
    inputs = vlm.inputs([scene()], [DESCRIBE])
    with observer().attach(vlm.model, trace=True) as handle:
        out = vlm.model.generate(
            **inputs, max_new_tokens=60, return_dict_in_generate=True, output_logits=True, do_sample=False
        )
        ids = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        whole = features(answer.trace, object_words(vlm.tokenizer, answer.token_ids, finder("world")))
        for end in [i + 1 for i, token in enumerate(ids) if decoded(vlm.tokenizer, [token]).strip() == "."]:
            values = TokenValues.of(out.logits, ids[:end], [0] * end, 0)
            state = known(handle.attachment.latest).state
            so_far = features(
                measured(state, handle.attachment.layout, values),
                object_words(vlm.tokenizer, ids[:end], finder("world")),
            )
            for name, own in so_far.values.items():
                np.testing.assert_allclose(own, whole.values[name][:end], atol=1e-5)
        assert measurements(handle, values).visual.shape == (end, 8, 8)
