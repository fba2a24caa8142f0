"""Requests: methods as text, invalid texts, and prompts with too many tokens."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heal import HEAL, VLM
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.errors import ConfigError, HealError, InputWarning, PromptError, first_line, shortened
from heal.world import World
from heal.world.likeness import unlike_scenes
from tests.bench.questions import Questions
from tests.vlm.asking import NEW, PICTURES, PROMPTS, ask, assert_alike

# ── methods ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_method_as_text(vlm: VLM) -> None:
    written, made = ask(vlm, method="heal:interval=2,alpha=0.6"), ask(vlm, method=HEAL(interval=2, alpha=0.6))
    assert_alike(written, made)
    assert written.fired == made.fired
    streamed = ask(vlm, method="heal:interval=2,alpha=0.6", stream=True)
    assert "".join(streamed) == made.text


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nonsense", "nonsense"),
        ("heal:nonsense=1", "is not an option of heal"),
        ("", "."),
        (HEAL, r"not the class HEAL: write HEAL\(\)"),
        (5, "a method must be a Method, a string .* not int"),
        ([HEAL()], "not list"),
    ],
)
def test_wrong_method(vlm: VLM, without_type_checker: None, method: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(vlm, method=method)


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what \ud800 is", "prompt 0 is not valid text: lone surrogate at position 5"),
        ("what\0is", "prompt 0 has a NUL character at position 4"),
    ],
)
def test_invalid_texts(vlm: VLM, text: str, message: str) -> None:
    for prompt in (text, [{"role": "user", "content": text}], [{"role": text, "content": "what"}]):
        with pytest.raises(PromptError, match=message):
            vlm.generate(None, prompt, max_new_tokens=1)


def test_values_that_are_not_prompts(vlm: VLM, without_type_checker: None) -> None:
    with pytest.raises(PromptError, match="a prompt must be a string or chat messages, not int"):
        vlm.generate(None, 5)  # type: ignore[arg-type]
    with pytest.raises(HealError, match="the image of prompt 0 must be a path, a PIL image or an array, not int"):
        vlm.generate(7, "what")


def test_text_longer_than_the_model(vlm: VLM) -> None:
    with pytest.raises(PromptError, match="prompt 1 has 2003 tokens of text, but the model has 1024 positions"):
        vlm.generate([None, None], ["what", "what " * 2000], max_new_tokens=1)


def test_an_answer_beyond_the_positions_warns_once(own: VLM) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.generate(None, "what " * 900, max_new_tokens=5)
    message = "a prompt of 903 tokens with up to 200 new ones may exceed the 1024 positions"
    with pytest.warns(InputWarning, match=message):
        own.generate(None, "what " * 900, max_new_tokens=200, eos_token_id=list(range(108)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.generate(None, "what " * 900, max_new_tokens=200, eos_token_id=list(range(108)))


@pytest.mark.parametrize(
    ("options", "new"), [({}, 512), ({"max_length": 1030}, 127), ({"max_new_tokens": 130, "max_length": 5}, 130)]
)
def test_every_way_to_ask_for_length(own: VLM, options: dict[str, int], new: int) -> None:
    with pytest.warns(InputWarning, match=f"a prompt of 903 tokens with up to {new} new ones"):
        own._check_length(own.inputs([None], ["what " * 900]), options)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_external_text_is_shortened() -> None:
    assert shortened("as it is") == "as it is"
    assert shortened("a\n  b\x1b[31m\udcff") == r"a b\x1b[31m\udcff"
    assert len(shortened("ü" * 10**6)) == 300
    assert shortened("0123456789", 5) == "0123…"
    assert all(len(shortened("\0" * n, 20)) <= 20 for n in range(30))
    assert first_line(ValueError("one:\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"
    assert len(first_line(ValueError("x" * 9999))) == 300


# ── the world of the embedded model ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def embedded() -> VLM:
    return VLM.embedded()


def scenes(count: int) -> list[Image.Image]:
    worlds = [World(3, "test", "natural"), World(3, "test", "counter")]
    return [worlds[i % 2].scene(i).image for i in range(count)]


def test_scenes_are_recognised_in_every_file_format(tmp_path: Path) -> None:
    """Without a single false alarm, because a benchmark has hundreds of scenes."""
    drawn, stored = scenes(120), []
    for scene in drawn[:60]:
        scene.resize((300, 300)).save(tmp_path / "it.jpg", quality=60)
        stored.append(unlike_scenes(Image.open(tmp_path / "it.jpg")))
    assert not any(map(unlike_scenes, drawn))
    assert sum(stored) <= 2


def test_other_images_are_not_recognised() -> None:
    gradient = np.indices((120, 120)).sum(0).astype(np.uint8)
    others = [Image.new("RGB", (640, 480), "white"), Image.new("RGB", (96, 96), "black"), Image.fromarray(gradient)]
    assert all(unlike_scenes(other.convert("RGB")) for other in others)


def test_the_embedded_model_warns_about_other_images(embedded: VLM, vlm: VLM) -> None:
    scene, photo, asked = scenes(1)[0], PICTURES[0], "What is in the image?"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedded.inputs([scene], [asked])
        vlm.inputs([photo], [PROMPTS[0]])
    with pytest.warns(InputWarning, match="so its answer is meaningless"):
        embedded.generate(photo, asked, max_new_tokens=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedded.generate(photo, asked, max_new_tokens=NEW)


def test_a_run_of_the_embedded_model_on_photos_warns_once(tmp_path: Path) -> None:
    for i, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    task = Questions(tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(VLM.embedded(), [task], [None], tmp_path / "run", Settings(batch_size=1, max_new_tokens=1))
    assert ["miniature world" in str(w.message) for w in said if issubclass(w.category, InputWarning)] == [True]
