"""The page without a browser: the queue, and what is sent for a question."""

from typing import Any

import pytest

pytest.importorskip("gradio")

from gradio import Error, Request, SelectData

from heal.app.answering import Answerer
from heal.app.sessions import Sessions
from heal.studies.objects import PROMPT


@pytest.fixture
def page(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(answerer.folder))
    from heal.app.page import Page

    return Page(answerer, Sessions())


def user(name: str) -> Any:
    return Request(session_hash=name)


def test_one_question_at_a_time(page: Any) -> None:
    asking = [one for one in page.blocks.fns.values() if one.fn in (page._answer, page._compare)]
    assert [(one.queue, one.concurrency_id, one.concurrency_limit) for one in asking] == [(True, "model", 1)] * 2
    assert page.blocks._queue.max_size == 32


def test_a_full_queue_is_refused_before_anything_changes(page: Any) -> None:
    for index in range(16):
        page._asked(user(str(index)))
    with pytest.raises(Error, match="16 questions are waiting already"):
        page._asked(user("late"))
    assert "16 questions" in page._refused()
    page.sessions.leave("3")
    locked = page._asked(user("late"))
    assert [one["interactive"] for one in locked[:3]] == [False, False, True]


def test_a_question_from_the_page(page: Any, scene: dict[str, object]) -> None:
    page._asked(user("a"))
    steps = list(page._answer(user("a"), scene, PROMPT, "plain", 0.5, 10, True, 16))
    status, live, links, view = steps[-1]
    assert "Done." in status
    assert live.count("<section") == 1
    key = page.sessions.of("a").answered.key
    assert f"heal/{key}/answer.html" in links
    assert view.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in view
    assert steps[0][2:] == ["", ""]


def test_examples_and_uploads(page: Any, scene: dict[str, object]) -> None:
    chosen, status = page._example(SelectData(None, {"index": 4, "value": None}))
    assert (chosen, status) == (scene["path"], "")
    assert page._uploaded(scene)[1] == ""
    cleared, status = page._uploaded({"path": "/etc/passwd"})
    assert cleared is None
    assert 'role="alert"' in status
