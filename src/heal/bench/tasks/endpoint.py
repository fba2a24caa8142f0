"""HTTP requests with limits on time and size, for servers that may be slow, endless or hostile."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from heal.bench.tasks.redaction import without_credentials
from heal.errors import ConfigError
from heal.extras import optional

with optional():
    import httpx

LIMIT = 2**20
"""Maximum size of a reply in bytes, compressed or not."""


class RequestFailed(Exception):
    """A request failed for a possibly temporary reason."""


@dataclass(frozen=True)
class Received:
    """Response of the server."""

    status: int
    body: bytes
    retry_after: float


def checked_address(text: str, what: str) -> httpx.URL:
    """Validate the address of a server. Error messages do not contain its password."""
    shown = repr(without_credentials(text))
    if any(ch.isspace() or not ch.isprintable() for ch in text):
        raise ConfigError(f"{what} has a space or a control character: {shown}")
    if not text.lower().startswith(("http://", "https://")):
        raise ConfigError(f"{what} must begin with http:// or https://, not {shown}")
    try:
        url = httpx.URL(text)
        host = url.raw_host.decode()
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigError(f"{what} is not a web address: {shown}") from None
    if not host or max(map(len, host.split("."))) > 63:
        raise ConfigError(f"{what} has no usable host name: {shown}")
    if url.port is not None and not 0 < url.port < 65536:
        raise ConfigError(f"{what} has the port {url.port}: it must be 1 to 65535")
    if url.query or url.fragment:
        raise ConfigError(f"{what} must end before ? and #: {shown}")
    return url


def post(client: httpx.Client, address: str, body: Mapping[str, Any], seconds: float) -> Received:
    """Send JSON. The whole exchange takes at most `seconds`, and redirects are not followed."""
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    with _Deadline(seconds) as deadline:
        try:
            request = client.stream(
                "POST",
                address,
                content=content,
                headers=headers,
                timeout=seconds,
                follow_redirects=False,
                extensions={"trace": deadline.trace},
            )
            with request as response:
                raw = bytearray()
                for chunk in response.iter_raw():
                    raw += chunk
                    deadline.check()
                    if len(raw) > LIMIT:
                        raise RequestFailed(f"reply of more than {LIMIT // 2**20} MB")
                deadline.check()
                unpacked = _unpacked(bytes(raw), response.headers.get("content-encoding", ""))
                return Received(response.status_code, unpacked, _retry_after(response))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            deadline.check()
            if isinstance(error, httpx.TimeoutException):
                raise RequestFailed(f"{type(error).__name__}, no reply within {seconds:g} s") from None
            raise RequestFailed(f"{type(error).__name__}: {error}") from None


def _unpacked(raw: bytes, encoding: str) -> bytes:
    """Decompress at most LIMIT bytes."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise RequestFailed("reply in an encoding that was not requested")
    try:
        found = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(raw, LIMIT + 1)
    except zlib.error:
        raise RequestFailed("compressed reply that cannot be decompressed") from None
    if len(found) > LIMIT:
        raise RequestFailed(f"reply of more than {LIMIT // 2**20} MB")
    return found


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


class _Deadline:
    """Closes the connection at a deadline: socket timeouts restart with every received byte."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Callback of the HTTP library that records new connections, plain and encrypted."""
        if event.endswith(("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            self.check()

    def check(self) -> None:
        if time.monotonic() >= self._end:
            raise RequestFailed(f"no complete reply within {self.seconds:g} s")

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
