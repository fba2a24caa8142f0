"""Answers step by step, with the embedded model: growing texts, comparison, Stop, leaving, errors."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("gradio")

from heal import VLM
from heal.app.answering import Answerer, Progress
from heal.app.sessions import MOST, Session, Sessions
from heal.engine.locks import lock_of
from heal.studies.objects import PROMPT
from tests.engine.clean import footprint
from tests.zoo_vlm import zoo_vlm

TOKENS = 40


def ask(answerer: Answerer, session: Session, picture: object, method: str = "heal", compare: bool = False) -> Any:
    session.ask()
    return answerer.answers(session, (picture, PROMPT, method, 0.5, 10, True, TOKENS), compare)


def test_a_text_grows(answerer: Answerer, scene: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heal.app.answering.REDRAW", 0.0)
    session = Session()
    found: list[Progress] = list(ask(answerer, session, scene))
    assert found[0].message == "Generating: heal …"
    texts = ["".join(one.panels[0].so_far.tokens) for one in found]
    assert len(set(texts)) > 3
    last = found[-1]
    answer = last.panels[0].answer
    assert answer is not None
    assert answer.trace is not None
    assert texts[-1].strip() == answer.text
    assert all(answer.text.startswith(text.strip()) for text in texts)
    assert last.panels[0].so_far.risk == answer.risk
    assert last.message == "Done."
    assert session.answered is last.answered is not None
    data = last.answered.data()
    assert [one["name"] for one in data["answers"]] == ["heal"]
    assert set(data["objects"]) == {"bottle", "motorcycle", "person", "stop sign", "vase"}
    assert any(not mention["correct"] for mention in data["answers"][0]["mentions"])


def test_compare_asks_the_plain_model_first(answerer: Answerer, vlm: VLM, scene: dict[str, object]) -> None:
    last = list(ask(answerer, Session(), scene, "heal", compare=True))[-1]
    assert [panel.name for panel in last.panels] == ["plain", "heal"]
    image = answerer.examples.all[4].image
    for panel, method in zip(last.panels, (None, "heal:alpha=0.5,drift=language"), strict=True):
        assert panel.answer is not None
        expected = vlm.generate(image, PROMPT, method=method, max_new_tokens=TOKENS, do_sample=False)
        assert panel.answer.token_ids == expected.token_ids


def test_the_plain_model_is_not_compared_with_itself(answerer: Answerer, scene: dict[str, object]) -> None:
    assert len(list(ask(answerer, Session(), scene, "plain", compare=True))[-1].panels) == 1


def test_a_model_without_a_detector_shows_visual_shares(scene: dict[str, object], answerer: Answerer) -> None:
    own = Answerer(VLM.random(), answerer.folder)
    assert own.detector is None
    assert "guard" not in own.names
    last = list(ask(own, Session(), scene, "plain"))[-1]
    assert last.panels[0].so_far.share
    assert not last.panels[0].so_far.risk
    assert "untrained" in last.message


def until_text(steps: Iterator[Progress]) -> Progress:
    return next(one for one in steps if one.panels and one.panels[-1].so_far.tokens)


def assert_free(vlm: VLM, before: object) -> None:
    """Nobody uses the model, and nothing is left in it."""
    with lock_of(vlm.model).session(timeout=5.0):
        assert footprint(vlm.model) == before


@pytest.mark.parametrize("method", ["heal", "plain", "heal+guard", "vcd"])
def test_stop(answerer: Answerer, vlm: VLM, scene: dict[str, object], method: str) -> None:
    before, session = footprint(vlm.model), Session()
    steps = ask(answerer, session, scene, method, compare=True)
    next(steps)
    session.stop()
    last = list(steps)[-1]
    assert last.message == "Stopped."
    assert len(last.panels) == 1  # the second answer was not begun
    assert_free(vlm, before)
    again = list(ask(answerer, session, scene, method))[-1]
    assert again.message == "Done."


def test_stop_keeps_the_text_so_far(answerer: Answerer, scene: dict[str, object]) -> None:
    session = Session()
    steps = ask(answerer, session, scene)
    seen = until_text(steps)
    session.stop()
    last = list(steps)[-1]
    answer = last.panels[0].answer
    assert last.message == "Stopped."
    assert answer is not None
    assert answer.text.startswith("".join(seen.panels[0].so_far.tokens).strip())


def test_stop_while_waiting(answerer: Answerer, scene: dict[str, object]) -> None:
    session = Session()
    steps = ask(answerer, session, scene)
    session.stop()
    assert [one.message for one in steps] == ["Stopped."]


def test_leaving_ends_the_generation(answerer: Answerer, vlm: VLM, scene: dict[str, object]) -> None:
    before, sessions = footprint(vlm.model), Sessions()
    steps = ask(answerer, sessions.of("a"), scene)
    next(steps)
    sessions.leave("a")  # gradio says that the page was closed
    assert_free(vlm, before)
    steps.close()
    other = ask(answerer, sessions.of("b"), scene)
    next(other)
    other.close()  # or drops the generator
    assert_free(vlm, before)


def test_errors_are_messages(answerer: Answerer, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(ask(answerer, Session(), None))
    assert [(one.failed, one.message) for one in found] == [
        (True, "there is no picture: upload one, or choose an example")
    ]
    assert capsys.readouterr().err == ""


def test_bugs_are_messages_and_in_the_log(
    answerer: Answerer, vlm: VLM, scene: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before = footprint(vlm.model)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose\nsecond line")

    with monkeypatch.context() as patch:
        patch.setattr(vlm.model.lm_head, "forward", fails)
        last = list(ask(answerer, Session(), scene))[-1]
    assert (last.failed, last.message) == (True, "RuntimeError: on purpose")
    assert "Traceback" in capsys.readouterr().err
    assert_free(vlm, before)


def test_photos_are_noted(answerer: Answerer) -> None:
    from PIL import Image

    path = answerer.folder / "dark.png"
    Image.new("RGB", (200, 80), "black").save(path)
    last = list(ask(answerer, Session(), {"path": str(path)}, "plain"))[-1]
    assert "does not look like a scene" in last.message
    assert last.answered is not None
    assert last.answered.data()["notes"] == list(last.answered.notes)
    assert last.answered.data()["objects"] is None


def test_waiting_questions_are_counted() -> None:
    sessions = Sessions()
    for name in "abc":
        sessions.of(name).ask()
        sessions.of(name).ask()  # instead of the earlier one
    assert sessions.waiting == 3
    ticket = sessions.of("a").begin()
    sessions.leave("b")
    assert sessions.waiting == 1
    assert not ticket.cancelled
    sessions.of("a").ask()
    assert ticket.cancelled


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "llava_next"])
def test_any_model(name: str, answerer: Answerer, scene: dict[str, object]) -> None:
    own = Answerer(zoo_vlm(name), answerer.folder)
    assert not own.examples.all
    last = list(ask(own, Session(), scene, compare=True))[-1]
    assert (last.message, [panel.name for panel in last.panels]) == ("Done.", ["plain", "heal"])
    assert all(panel.so_far.share for panel in last.panels)


def test_sessions_are_bounded() -> None:
    sessions = Sessions()
    first = sessions.of("first")
    first.ask()
    ticket = first.begin()
    for index in range(MOST):
        sessions.of(str(index))
    assert ticket.cancelled
    assert sessions.of("first") is not first
