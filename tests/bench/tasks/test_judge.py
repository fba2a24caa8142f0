"""The judge client against a real server that also misbehaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heal.bench.tasks.judge import Judge, JudgeOptions
from heal.bench.tasks.judged import Prompt
from heal.errors import ConfigError, DataError
from tests.bench.judge_server import PROMPT, Rest, Server, judge, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def test_request_format(server: Server) -> None:
    rest = Rest()
    with judge(server, rest, max_tokens=7) as asked:
        assert asked(PROMPT).text == "Rating: 5"
        assert asked(Prompt("", "Alone.")).text == "Rating: 5"
    assert server.paths == ["/v1/chat/completions"] * 2
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.seen[0] == {
        "model": "judge-1",
        "messages": [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Rate this."}],
        "temperature": 0.0,
        "max_tokens": 7,
    }
    assert server.seen[1]["messages"] == [{"role": "user", "content": "Alone."}]
    assert rest.naps == []


def said(content: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}}]}


@pytest.mark.parametrize(
    "trouble", [429, 500, 503, "cut", "half", "not JSON", "[]", {}, {"choices": []}, said(None), said(" "), said([1])]
)
def test_temporary_errors_are_retried(server: Server, trouble: Any) -> None:
    rest = Rest()
    server.script = [trouble, trouble]
    with judge(server, rest) as asked:
        reply = asked(PROMPT)
    assert (reply.text, reply.cached, reply.error) == ("Rating: 5", False, "")
    assert len(server.seen) == 3
    assert rest.naps == [1.0, 2.0]


@pytest.mark.parametrize(
    ("trouble", "why"), [(429, "HTTP 429: busy"), ("cut", "Error"), ("nonsense", "not a chat completion: 'nonsense'")]
)
def test_permanent_errors_give_no_reply(server: Server, tmp_path: Path, trouble: Any, why: str) -> None:
    rest = Rest()
    server.script = [trouble] * 4
    with judge(server, rest, tmp_path, attempts=4) as asked:
        reply = asked(PROMPT)
        assert reply.text is None
        assert why in reply.error
        assert rest.naps == [1.0, 2.0, 4.0]
        assert not list(tmp_path.rglob("*.json"))
        assert asked(PROMPT).text == "Rating: 5"


def test_refused_requests_are_not_retried(server: Server) -> None:
    rest = Rest()
    server.script = [401]
    with judge(server, rest) as asked:
        reply = asked(PROMPT)
    assert reply.text is None
    assert "HTTP 401" in reply.error
    assert "secret" not in reply.error + repr(asked.options)
    assert len(server.seen) == 1


def test_slow_judge_times_out(server: Server) -> None:
    server.script = ["slow", "slow"]
    with judge(server, Rest(), attempts=1, timeout=0.1) as asked:
        assert "reply within 0.1 s" in asked(PROMPT).error


def test_unreachable_judge() -> None:
    with Server() as gone:
        url = gone.url
    with Judge(JudgeOptions("m", url, attempts=2), sleep=lambda _: None) as asked:
        assert "ConnectError" in asked(PROMPT).error


def test_retry_after_is_respected(server: Server) -> None:
    rest = Rest()
    server.script = [(429, "7"), (429, "9999"), (503, "soon")]
    with judge(server, rest) as asked:
        assert asked(PROMPT).text == "Rating: 5"
    assert rest.naps == [7.0, 60.0, 4.0]


def test_rate_limit(server: Server) -> None:
    rest = Rest()
    with judge(server, rest, per_minute=30.0) as asked:
        for number in range(4):
            asked(Prompt("", str(number)))
    assert rest.naps == [2.0, 2.0, 2.0]


def test_replies_are_cached(server: Server, tmp_path: Path) -> None:
    with judge(server, Rest(), tmp_path) as asked:
        assert not asked(PROMPT).cached
        assert asked(PROMPT).cached
    with judge(server, Rest(), tmp_path) as again:
        assert again(PROMPT).text == "Rating: 5"
        assert len(server.seen) == 1
        again(Prompt("Be kind.", "Rate this."))
        again(Prompt("Be fair.", "Rate that."))
    assert len(server.seen) == 3
    for options in ({"model": "judge-2"}, {"model": "judge_1"}, {"temperature": 0.5}):
        with judge(server, Rest(), tmp_path, **options) as other:
            assert not other(PROMPT).cached
    assert {json.loads(p.read_text())["judge"] for p in tmp_path.rglob("*.json")} == {"judge-1", "judge-2", "judge_1"}
    assert not list(tmp_path.rglob("*.part"))


def test_broken_cache_file_is_requested_again(server: Server, tmp_path: Path) -> None:
    with judge(server, Rest(), tmp_path) as asked:
        asked(PROMPT)
        path = asked.stored.place(PROMPT)
        assert path is not None
        for content in ('{"reply": "Rat', "[]", '{"reply": 3}'):
            path.write_text(content)
            reply = asked(PROMPT)
            assert (reply.text, reply.cached) == ("Rating: 5", False)
        assert asked(PROMPT).cached


def test_unwritable_cache_is_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with judge(server, Rest(), tmp_path / "file") as asked, pytest.raises(DataError, match="cannot be stored"):
        asked(PROMPT)


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    found = JudgeOptions.from_environment("m", attempts=2)
    assert (found.base_url, found.key, found.attempts) == ("http://there/v1", "k", 2)
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(ConfigError, match="set OPENAI_BASE_URL"):
        JudgeOptions.from_environment("m")
    nan = float("nan")
    for wrong in (
        {"model": ""},
        {"base_url": "there"},
        {"attempts": 0},
        {"max_tokens": 0},
        {"give_up": 0},
        {"per_minute": 0.0},
        {"timeout": nan},
        {"timeout": 0.0},
        {"longest": float("inf")},
        {"backoff": -1.0},
    ):
        with pytest.raises(ConfigError):
            JudgeOptions(**{"model": "m", "base_url": "http://there"} | wrong)
