"""A local judge server with scripted responses, including bad ones."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from heal.bench.tasks.judge import Judge, JudgeOptions
from heal.bench.tasks.judged import Prompt

GOOD = {"choices": [{"message": {"content": "Rating: 5"}}]}
PROMPT = Prompt("Be fair.", "Rate this.")


class Server(ThreadingHTTPServer):
    """Responds according to `script`, one entry per request, then correctly."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Any] = []
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.sent: list[int] = []

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
            self.reply(200, json.dumps(GOOD).encode(), cut=20)
        elif what == "slow":
            time.sleep(1.0)
        elif callable(what):
            what(self)
        elif isinstance(what, int):
            self.reply(what, b"busy")
        elif isinstance(what, tuple):
            self.reply(what[0], b"busy", {"Retry-After": what[1]})
        else:
            self.reply(200, what.encode() if isinstance(what, str) else json.dumps(what).encode())

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int = 0) -> None:
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


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Rest:
    """Records sleeps without sleeping."""

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
