"""The data of an answer view: what is taken from traces and answers."""

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heal.detect import Judged
from heal.detect.risk import ObjectRisk, Reason
from heal.errors import ConfigError
from heal.generate import Answer
from heal.trace import Trace
from heal.view import answer_data, page
from heal.view.answer import SCORES
from heal.view.format import unpacked_scores
from heal.view.patches import patch_data
from tests.view.traces import patches, plain, trace

OBJECTS = ["dog", "car"]


def test_measurements_are_those_of_the_trace() -> None:
    one = trace()
    data = answer_data({"plain": plain(), "heal": one}, objects=OBJECTS)
    assert [answer["name"] for answer in data["answers"]] == ["plain", "heal"]
    found = data["answers"][1]
    assert found["tokens"] == list(one.tokens)
    np.testing.assert_allclose(found["logprobs"], one.logprobs, rtol=1e-4)
    np.testing.assert_allclose(np.array(found["share"], float), one.mean_alpha(), rtol=1e-4)
    assert found["refreshed"] == [0, 5, 10]
    assert found["equilibrium"] == 0.5
    for name in SCORES:
        expected = getattr(one, name)
        if name == "contribution":
            expected = expected[np.arange(12) // 5 * 5]
        read = unpacked_scores(found["heads"][name], expected.shape)
        np.testing.assert_allclose(read, expected, atol=1e-4)
    assert found["heads"]["types"]["steps"] == [0, 5, 10]
    assert len(base64.b64decode(found["heads"]["types"]["data"])) == 3 * 12
    assert data["answers"][0]["heads"]["beta"] is None


def test_objects_are_marked_where_the_truth_is_known() -> None:
    text = "".join(trace().tokens)
    marked = answer_data(trace(), objects=OBJECTS)["answers"][0]["mentions"]
    assert [(text[m["start"] : m["stop"]], m["category"], m["correct"]) for m in marked] == [
        ("kite", "kite", False),
        ("dogs", "dog", True),
    ]
    assert answer_data(trace())["answers"][0]["mentions"] == []
    assert answer_data(trace())["objects"] is None


def test_objects_outside_the_vocabulary_are_found_by_their_name() -> None:
    tokens = (" A", " zeppelin", " and", " a", " dog", *[""] * 7)
    marked = answer_data(trace(tokens=tokens), objects=["zeppelin"])["answers"][0]["mentions"]
    assert [(m["category"], m["correct"]) for m in marked] == [("zeppelin", True), ("dog", False)]


def test_other_models_name_objects_with_the_synonyms_of_chair() -> None:
    config = {"method": "heal", "model": "llava"}
    tokens = (" Two", " women", " and", " a", " puppy", *[""] * 7)
    marked = answer_data(trace(tokens=tokens, config=config), objects=["person"])["answers"][0]["mentions"]
    assert [(m["category"], m["correct"]) for m in marked] == [("person", True), ("dog", False)]


def test_the_plain_model_is_called_plain() -> None:
    assert answer_data(plain())["answers"][0]["name"] == "plain"
    assert answer_data(trace())["answers"][0]["name"] == "heal"


def test_title_prompt_and_picture() -> None:
    data = answer_data(trace(), notes=["a note"])
    assert (data["title"], data["prompt"], data["notes"]) == ("What is this?", "What is this?", ["a note"])
    (image,) = data["images"]
    assert (image["width"], image["height"]) == (40, 30)
    assert base64.b64decode(image["source"].removeprefix("data:image/png;base64,")) == trace().images[0].thumbnail


def answered(own: Trace | None) -> Answer:
    return Answer("A kite.", (1, 2), (-0.1, -0.2), "stop", 9, 1.0, 0.5, None, own)


def test_an_answer_without_a_trace_has_its_text_only() -> None:
    (found,) = answer_data(answered(None))["answers"]
    assert (found["text"], found["tokens"], found["heads"]) == ("A kite.", None, None)


def test_risk_is_shown_where_an_answer_has_it() -> None:
    answer = answered(trace())
    answer = replace(answer, judged=Judged(tuple(np.linspace(0, 1, 12)), (), 0.5))
    assert answer_data(answer)["answers"][0]["risk"] == pytest.approx(np.linspace(0, 1, 12), rel=1e-4)


def judged() -> Judged:
    reasons = (Reason("visual share of the heads", 1.25), Reason("earlier mentions", -0.5))
    kite = ObjectRisk("kite", "kite", (23, 27), (5, 6), 0.9, reasons)
    dogs = ObjectRisk("dogs", "dog", (36, 40), (8, 10), 0.4, reasons[1:])
    return Judged((0.1,) * 12, (kite, dogs), 0.5)


def test_object_words_say_why_they_are_doubtful() -> None:
    (found,) = answer_data(replace(answered(trace()), judged=judged()))["answers"]
    reasons = [["visual share of the heads", 1.25], ["earlier mentions", -0.5]]
    assert found["words"] == [
        {"start": 5, "stop": 6, "category": "kite", "risk": 0.9, "doubtful": True, "reasons": reasons},
        {"start": 8, "stop": 10, "category": "dog", "risk": 0.4, "doubtful": False, "reasons": reasons[1:]},
    ]
    assert answer_data(trace())["answers"][0]["words"] is None


def test_alternatives_are_texts_with_log_probabilities() -> None:
    one = trace()
    (found,) = answer_data(one)["answers"]
    assert [[text for text, _ in step] for step in found["alternatives"]] == list(map(list, one.alternative_tokens))
    values = [[value for _, value in step] for step in found["alternatives"]]
    np.testing.assert_allclose(values, one.alternative_logprobs, rtol=1e-4)


def test_impossible_alternatives_are_left_out() -> None:
    values = trace().alternative_logprobs.copy()
    values[2, 3:] = -np.inf
    (found,) = answer_data(trace(alternative_logprobs=values))["answers"]
    assert [len(step) for step in found["alternatives"]] == [5, 5, 3, *[5] * 9]
    older: dict[str, Any] = {"alternatives": None, "alternative_logprobs": None, "alternative_tokens": ()}
    assert answer_data(trace(**older))["answers"][0]["alternatives"] is None


def test_patches_are_those_of_the_trace() -> None:
    own = patches()
    (found,) = answer_data(trace(patches=own))["answers"]
    read = found["patches"]
    assert (read["grid"], read["box"], read["steps"]) == ([2, 3], [0.25, 0, 0.75, 1], list(range(12)))
    assert base64.b64decode(read["levels"]) == own.levels.tobytes()
    assert base64.b64decode(read["unit"]) == own.unit.tobytes()
    assert answer_data(trace())["answers"][0]["patches"] is None
    assert answer_data(trace(patches=replace(own, grid=None)))["answers"][0]["patches"] is None
    assert answer_data(trace(patches=own), small=True)["answers"][0]["patches"] is None


@pytest.mark.parametrize(("count", "steps"), [(12, list(range(12))), (11, [0, 5, 10]), (2, [0, 10]), (1, [0])])
def test_patches_are_thinned_to_a_budget(count: int, steps: list[int]) -> None:
    found = patch_data(trace(patches=patches()), count * 3 * 4 * 6)
    assert found is not None
    assert found["steps"] == steps
    assert len(base64.b64decode(found["levels"])) == len(steps) * 3 * 4 * 6


def test_patches_that_are_too_large_are_left_out() -> None:
    assert patch_data(trace(patches=patches()), 3 * 4 * 6 - 1) is None


def test_a_method_that_measures_nothing_has_no_heads() -> None:
    nothing: Any = np.full((12, 3, 4), np.nan, np.float32)
    bare = trace(**dict.fromkeys([*SCORES, "synergy"], nothing), types=np.full((12, 3, 4), 255, np.uint8))
    (found,) = answer_data(bare)["answers"]
    assert (found["heads"], found["share"]) == (None, None)
    assert found["logprobs"] is not None


def test_an_empty_answer_can_be_shown() -> None:
    empty = trace(steps=0, tokens=(), text="")
    data = answer_data(empty)
    assert (data["answers"][0]["heads"], data["answers"][0]["tokens"]) == (None, None)
    assert "What is this?" in page(data)


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to show"):
        answer_data({})


def test_the_data_is_json() -> None:
    data = answer_data({"plain": plain(), "heal": trace()}, objects=OBJECTS)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_cell_shows_an_answer_and_a_trace() -> None:
    for shown in (trace(), answered(trace()), answered(None)):
        text = shown._repr_html_()
        assert text.startswith("<iframe srcdoc=")
        assert 'sandbox="allow-scripts"' in text


def test_a_cell_leaves_out_the_scores_of_very_many_heads() -> None:
    large = trace(steps=60, layers=80, heads=64)
    full, small = answer_data(large), answer_data(large, small=True)
    assert full["answers"][0]["heads"]["visual"] is not None
    assert "visual" not in small["answers"][0]["heads"]
    assert len(page(small)) < 600_000
