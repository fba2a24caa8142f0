"""The judge's client against a real server that also misbehaves."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from heal.bench.judge import Judge, JudgeOptions
from heal.bench.judged import Prompt
from heal.errors import ConfigError, DataError

GOOD = {"choices": [{"message": {"content": "Rating: 5"}}]}
PROMPT = Prompt("Be fair.", "Rate this.")


class Server(ThreadingHTTPServer):
    """Answers as `script` says, one entry a request, then well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Any] = []
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.headers.append(dict(self.headers))
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        what = self.server.script.pop(0) if self.server.script else GOOD
        if what == "cut":
            self.connection.close()
        elif what == "half":
            self._send(200, json.dumps(GOOD).encode(), cut=20)
        elif what == "slow":
            time.sleep(1.0)
        elif isinstance(what, int):
            self._send(what, b"busy")
        elif isinstance(what, tuple):
            self._send(what[0], b"busy", {"Retry-After": what[1]})
        else:
            self._send(200, what.encode() if isinstance(what, str) else json.dumps(what).encode())

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int = 0) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - cut])
        if cut:
            self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Rest:
    """Sleeps that are only noted."""

    def __init__(self) -> None:
        self.naps: list[float] = []
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def judge(server: Server, rest: Rest, cache: Path | None = None, **options: Any) -> Judge:
    chosen = JudgeOptions(**{"model": "judge-1", "base_url": server.url, "key": "secret"} | options)
    return Judge(chosen, cache, rest.sleep, rest.clock)


def test_a_request_as_others_make_it(server: Server) -> None:
    rest = Rest()
    with judge(server, rest, max_tokens=7) as asked:
        assert asked(PROMPT) == "Rating: 5"
        assert asked.ask(Prompt("", "Alone.")).text == "Rating: 5"
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
def test_trouble_passes(server: Server, trouble: Any) -> None:
    rest = Rest()
    server.script = [trouble, trouble]
    with judge(server, rest) as asked:
        reply = asked.ask(PROMPT)
    assert (reply.text, reply.cached, reply.error) == ("Rating: 5", False, "")
    assert len(server.seen) == 3
    assert rest.naps == [1.0, 2.0]


@pytest.mark.parametrize(
    ("trouble", "why"), [(429, "status 429: busy"), ("cut", "Error"), ("nonsense", "makes no sense: 'nonsense'")]
)
def test_trouble_that_stays_gives_no_reply(server: Server, tmp_path: Path, trouble: Any, why: str) -> None:
    rest = Rest()
    server.script = [trouble] * 4
    with judge(server, rest, tmp_path, attempts=4) as asked:
        reply = asked.ask(PROMPT)
        assert reply.text is None
        assert why in reply.error
        assert rest.naps == [1.0, 2.0, 4.0]
        assert not list(tmp_path.rglob("*.json"))
        assert asked(PROMPT) == "Rating: 5"


def test_a_refusal_is_not_repeated(server: Server) -> None:
    rest = Rest()
    server.script = [401]
    with judge(server, rest) as asked:
        reply = asked.ask(PROMPT)
    assert reply.text is None
    assert "status 401" in reply.error
    assert "secret" not in reply.error + repr(asked.options)
    assert len(server.seen) == 1


def test_a_slow_judge_is_given_up(server: Server) -> None:
    server.script = ["slow", "slow"]
    with judge(server, Rest(), attempts=1, timeout=0.1) as asked:
        assert "Timeout" in asked.ask(PROMPT).error


def test_nobody_there() -> None:
    with Server() as gone:
        url = gone.url
    with Judge(JudgeOptions("m", url, attempts=2), sleep=lambda _: None) as asked:
        assert "ConnectError" in asked.ask(PROMPT).error


def test_the_server_says_how_long_to_wait(server: Server) -> None:
    rest = Rest()
    server.script = [(429, "7"), (429, "9999"), (503, "soon")]
    with judge(server, rest) as asked:
        assert asked(PROMPT) == "Rating: 5"
    assert rest.naps == [7.0, 60.0, 4.0]


def test_rate_limit(server: Server) -> None:
    rest = Rest()
    with judge(server, rest, per_minute=30.0) as asked:
        for number in range(4):
            asked(Prompt("", str(number)))
    assert rest.naps == [2.0, 2.0, 2.0]


def test_each_thing_is_asked_once(server: Server, tmp_path: Path) -> None:
    with judge(server, Rest(), tmp_path) as asked:
        assert not asked.ask(PROMPT).cached
        assert asked.ask(PROMPT).cached
    with judge(server, Rest(), tmp_path) as again:
        assert again.ask(PROMPT).text == "Rating: 5"
        assert len(server.seen) == 1
        again.ask(Prompt("Be kind.", "Rate this."))
        again.ask(Prompt("Be fair.", "Rate that."))
    assert len(server.seen) == 3
    for options in ({"model": "judge-2"}, {"model": "judge_1"}, {"temperature": 0.5}):
        with judge(server, Rest(), tmp_path, **options) as other:
            assert not other.ask(PROMPT).cached
    assert {json.loads(p.read_text())["judge"] for p in tmp_path.rglob("*.json")} == {"judge-1", "judge-2", "judge_1"}
    assert not list(tmp_path.rglob("*.part"))


def test_a_broken_cache_file_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    with judge(server, Rest(), tmp_path) as asked:
        asked(PROMPT)
        path = asked.place(PROMPT)
        assert path is not None
        for content in ('{"reply": "Rat', "[]", '{"reply": 3}'):
            path.write_text(content)
            reply = asked.ask(PROMPT)
            assert (reply.text, reply.cached) == ("Rating: 5", False)
        assert asked.ask(PROMPT).cached


def test_a_cache_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with judge(server, Rest(), tmp_path / "file") as asked, pytest.raises(DataError, match="cannot be kept"):
        asked(PROMPT)


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    found = JudgeOptions.from_environment("m", attempts=2)
    assert (found.base_url, found.key, found.attempts) == ("http://there/v1", "k", 2)
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(ConfigError, match="set OPENAI_BASE_URL"):
        JudgeOptions.from_environment("m")
    for wrong in ({"model": ""}, {"base_url": "there"}, {"attempts": 0}, {"per_minute": 0.0}):
        with pytest.raises(ConfigError):
            JudgeOptions(**{"model": "m", "base_url": "http://there"} | wrong)
