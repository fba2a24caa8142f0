"""Hostile judge servers (leaks, slow or endless replies, redirects), invalid addresses and keys."""

import gzip
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from heal.bench.tasks.judge import Judge, JudgeOptions
from heal.bench.tasks.judged import Prompt
from heal.bench.tasks.redaction import redacted, without_credentials
from heal.cli.app import app
from heal.errors import ConfigError
from tests.bench.judge_server import GOOD, PROMPT, Handler, Rest, Server, judge, serving

KEY = "sk-Tq7+zP/91xw=Vb"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────


def echo(change: Callable[[str], str], status: int = 401) -> Callable[[Handler], None]:
    """Returns the key of the request, changed in some way."""

    def answer(handler: Handler) -> None:
        key = handler.headers["Authorization"].removeprefix("Bearer ")
        text = f"Wrong key: <{change(key)}>, look it up."
        body = text if status != 200 else json.dumps({"choices": [{"message": {"content": text + " Rating: 5"}}]})
        handler.reply(status, body.encode())

    return answer


ECHOES: dict[str, Callable[[str], str]] = {
    "whole": lambda key: key,
    "url": lambda key: quote(key, safe=""),
    "upper": str.upper,
    "start": lambda key: key[:9] + "…",
    "middle": lambda key: "***" + key[6:13] + "***",
    "json": lambda key: json.dumps({"k": key}),
    "page": lambda key: "." * 170 + key,
}


def leaked(text: str) -> bool:
    """Five consecutive characters of the key, plain or encoded."""
    forms = {KEY.lower(), quote(KEY, safe="").lower()}
    return any(form[at : at + 5] in text.lower() for form in forms for at in range(len(form) - 4))


@pytest.mark.parametrize("how", ECHOES)
@pytest.mark.parametrize("status", [401, 500])
def test_returned_key_is_redacted_in_errors(server: Server, how: str, status: int) -> None:
    server.script = [echo(ECHOES[how], status)] * 2
    with judge(server, Rest(), key=KEY, attempts=2) as asked:
        reply = asked(PROMPT)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert reply.text is None
    assert reply.reason == f"HTTP {status}"
    assert "Wrong key: <" in reply.error
    assert not leaked(repr(reply) + repr(asked.options) + repr(asked))


@pytest.mark.parametrize("how", ["whole", "url", "json"])
def test_key_in_a_reply_is_not_stored(server: Server, tmp_path: Path, how: str) -> None:
    server.script = [echo(ECHOES[how], 200)]
    with judge(server, Rest(), tmp_path, key=KEY) as asked:
        reply = asked(PROMPT)
    assert "Rating: 5" in str(reply.text)
    (kept,) = tmp_path.rglob("*.json")
    assert not leaked(repr(reply) + kept.read_text())


def test_redaction_keeps_ordinary_words(server: Server) -> None:
    """A key of ordinary words must not make a rating unreadable."""
    with judge(server, Rest(), key="my-rating-5") as asked:
        assert asked(PROMPT).text == "Rating: 5"


@pytest.mark.parametrize(
    "key", ["sk-12\n34", "sk-12\r\nX: y", "sk-12 34", "sk-1234\n", "schlüssel-12", "sk-\x0012", " "]
)
def test_invalid_keys(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    with pytest.raises(ConfigError, match=r"the judge's key \(OPENAI_API_KEY\) has a line break") as told:
        JudgeOptions("m", "http://there/v1", key)
    assert "\n" not in str(told.value)
    assert "12" not in str(told.value)


def test_user_in_the_address_is_redacted(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.script = [401, "cut", 500]
    url = server.url.replace("//", "//ann:pass%2Fw0rd@")
    with judge(server, Rest(), key=None, base_url=url, attempts=3) as asked:
        replies = [asked(PROMPT), asked(PROMPT)]
    assert server.headers[0]["Authorization"] == "Basic YW5uOnBhc3MvdzByZA=="
    told = repr(replies) + repr(asked.options) + caplog.text
    assert "HTTP Request" in caplog.text
    assert not any(secret in told for secret in ("w0rd", "YW5uOn", "ann:"))
    with pytest.raises(ConfigError, match="give one of them") as refused:
        JudgeOptions("m", "http://ann:w0rd@there", "key")
    assert "w0rd" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "secret", "clean"),
    [
        ("it is abcdef.", "abcdef", "it is [key]."),
        ("abcdefabcdef", "abcdef", "[key][key]"),
        ("xxbcdexx", "abcdef", "xx[key]xx"),
        ("k is no key, but Ok is ok", "k", "[key] is no key, but Ok is ok"),
        ("YWJjZGVm", "abcdef", "[key]"),
        ("İ abcdef", "abcdef", "İ [key]"),
        ("", "abcdef", ""),
        ("nothing", "", "nothing"),
    ],
)
def test_redaction(text: str, secret: str, clean: str) -> None:
    assert redacted(text, secret) == clean


def test_credentials_of_odd_addresses() -> None:
    assert without_credentials("http://a:b@c@d/e") == "http://[key]@d/e"
    assert without_credentials("a:b@d/e") == "[key]@d/e"
    assert without_credentials("http://d/e?key=f") == "http://d/e?[key]"
    assert without_credentials("http://d/e") == "http://d/e"


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("there/v1", "must begin with http://"),
        ("file:///etc/passwd", "must begin with http://"),
        ("ftp://there", "must begin with http://"),
        ("http://", "no usable host"),
        ("http:///v1", "no usable host"),
        (f"http://{'a' * 64}.com", "no usable host"),
        ("http://the re/v1", "a space or a control character"),
        ("http://there/v1\n", "a space or a control character"),
        ("http://there:port/v1", "not a web address"),
        ("http://there:99999/v1", "the port 99999"),
        ("http://there:0/v1", "the port 0"),
        ("http://[::1/v1", "not a web address"),
        ("http://ann:w0rd@the re/v1", "a space or a control character"),
        ("ann:w0rd@there//ann:w0rd@there", "must begin with http://"),
        ("http://there/v1?key=w0rd", "must end before"),
    ],
)
def test_invalid_addresses(url: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        JudgeOptions("m", url)
    assert "\n" not in str(told.value)
    assert "w0rd" not in str(told.value)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    result = CliRunner().invoke(app, ["score", "run", str(tmp_path), "--judge", "m"])
    assert result.exit_code != 0
    assert isinstance(result.exception, ConfigError)


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────


def drip_body(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    drip(handler)


def drip(handler: Handler) -> None:
    for _ in range(100):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


def drip_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    drip(handler)


@pytest.mark.parametrize("slow", [drip_body, drip_head])
def test_slow_reply_times_out(server: Server, slow: Callable[[Handler], None]) -> None:
    """Five seconds of single bytes, each within the socket timeout."""
    server.script = [slow]
    with judge(server, Rest(), attempts=1, timeout=0.4) as asked:
        reply = asked(PROMPT)
    assert (reply.text, reply.reason) == (None, "no complete reply within 0.4 s")


def flood(handler: Handler) -> None:
    """An endless reply."""
    handler.send_response(200)
    handler.end_headers()
    sent = 0
    try:
        while sent < 300 * 2**20:
            sent += handler.wfile.write(b"x" * 2**16)
    except OSError:
        pass
    handler.server.sent.append(sent)


def bomb(handler: Handler) -> None:
    handler.reply(200, gzip.compress(b" " * 40 * 2**20, 1), {"Content-Encoding": "gzip"})


def test_endless_reply_is_cut_off(server: Server) -> None:
    server.script = [flood]
    with judge(server, Rest(), attempts=1) as asked:
        reply = asked(PROMPT)
    assert (reply.text, reply.reason) == (None, "reply of more than 1 MB")
    for _ in range(200):
        if server.sent:
            break
        time.sleep(0.02)
    assert server.sent[0] < 100 * 2**20


def test_compression_bomb_is_not_decompressed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    from heal.bench.tasks import endpoint

    sizes: list[int] = []
    make = zlib.decompressobj

    class Watched:
        def __init__(self, *args: Any) -> None:
            self.real = make(*args)

        def decompress(self, raw: bytes, most: int) -> bytes:
            found = self.real.decompress(raw, most)
            sizes.append(len(found))
            return found

    monkeypatch.setattr(endpoint.zlib, "decompressobj", Watched)
    server.script = [bomb]
    with judge(server, Rest(), attempts=1) as asked:
        assert asked(PROMPT).reason == "reply of more than 1 MB"
    assert sizes == [2**20 + 1]


def packed(handler: Handler) -> None:
    handler.reply(200, gzip.compress(json.dumps(GOOD).encode()), {"Content-Encoding": "gzip"})


def encoded(name: str) -> Callable[[Handler], None]:
    return lambda handler: handler.reply(200, b"???", {"Content-Encoding": name})


def test_compressed_replies(server: Server) -> None:
    server.script = [packed, encoded("gzip"), encoded("br")]
    with judge(server, Rest(), attempts=1) as asked:
        assert asked(PROMPT).text == "Rating: 5"
        assert asked(PROMPT).reason == "compressed reply that cannot be decompressed"
        assert asked(PROMPT).reason == "reply in an encoding that was not requested"
    assert server.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_do_not_receive_the_key(server: Server, status: int) -> None:
    with serving() as other:
        server.script = [lambda handler: handler.reply(status, b"", {"Location": other.url})]
        with judge(server, Rest(), key=KEY) as asked:
            reply = asked(PROMPT)
        assert other.seen == []
    assert reply.reason == f"HTTP {status}, a redirect, which is not followed"


def test_waiting_is_limited(server: Server) -> None:
    rest = Rest()
    server.script = [(429, "inf"), (429, "nan"), (429, "-5"), *[503] * 100]
    with judge(server, rest, attempts=70, longest=3.0) as asked:
        assert asked(PROMPT).reason == "HTTP 503"
    assert len(rest.naps) == 69
    assert max(rest.naps) == 3.0


def test_requests_stop_after_repeated_failures(server: Server) -> None:
    """Waiting for a server that is down would not change the figures."""
    server.script = [401, 200, 401, 401, 401]
    server.script[1] = GOOD
    with judge(server, Rest(), give_up=3) as asked:
        found = [asked(Prompt("", str(number))) for number in range(8)]
    assert len(server.seen) == 5
    assert [reply.reason for reply in found[2:6]] == ["HTTP 401"] * 3 + ["not asked after 3 consecutive failures"]
    assert found[1].text == "Rating: 5"


# ── replies ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"choices": {"0": 1}}',
        '{"choices": [[]]}',
        '{"choices": [{"message": "Rating: 5"}]}',
        '{"choices": [{"message": {"content": {"Rating: 5": 1}}}]}',
        '{"choices": [{"message": {"content": NaN}}]}',
        '"choices"',
        "NaN",
        "null",
        "\ufeff{}",
    ],
)
def test_malformed_replies(server: Server, body: str) -> None:
    server.script = [body]
    with judge(server, Rest(), attempts=1) as asked:
        reply = asked(PROMPT)
    assert reply.text is None
    assert reply.reason in ("reply that is not a chat completion", "empty reply")


def test_invalid_utf8(server: Server, tmp_path: Path) -> None:
    half = '{"choices": [{"message": {"content": "Rating: 5 \\ud800"}}]}'
    server.script = [lambda handler: handler.reply(200, b"\xff\xfe\xff"), half]
    with judge(server, Rest(), tmp_path, attempts=1) as asked:
        assert asked(PROMPT).reason == "reply that is not a chat completion"
        assert asked(Prompt("", "an answer \udfff")).text == "Rating: 5 ?"
        assert asked(Prompt("", "an answer \udfff")).cached


def test_truncated_reply_is_recognised(server: Server, tmp_path: Path) -> None:
    server.script = [{"choices": [{"message": {"content": "It is"}, "finish_reason": "length"}]}]
    with judge(server, Rest(), tmp_path) as asked:
        first, second = asked(PROMPT), asked(PROMPT)
    assert (first.cut, second.cut, second.cached) == (True, True, True)


def test_unreachable_address() -> None:
    with Judge(JudgeOptions("m", "http://127.0.0.1:1/v1", attempts=1)) as asked:
        assert asked(PROMPT).reason == "ConnectError"
