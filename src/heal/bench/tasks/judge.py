"""A judge model behind an OpenAI-compatible chat endpoint, with retries, rate limit and a cache of replies."""

from __future__ import annotations

import base64
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.bench.tasks.endpoint import Received, RequestFailed, checked_address, post
from heal.bench.tasks.judged import Prompt, Reply
from heal.bench.tasks.redaction import LONG, redacted, without_credentials
from heal.bench.tasks.stored_replies import MAX_TOKENS, TEMPERATURE, StoredReplies
from heal.errors import ConfigError
from heal.extras import optional
from heal.values import check_types

with optional():
    import httpx

AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
URL, KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
SHOWN = 200
"""Maximum number of characters of a server's error message."""


@dataclass(frozen=True, repr=False)
class JudgeOptions:
    """Model, address, retries and rate limit of the judge."""

    model: str
    base_url: str
    key: str | None = None
    attempts: int = 5
    """Maximum number of requests for one reply."""
    backoff: float = 1.0
    """Seconds before the first retry; doubled before each further one."""
    longest: float = 60.0
    """Maximum seconds between two requests, whatever the server asks for."""
    per_minute: float | None = None
    """Maximum number of requests per minute."""
    timeout: float = 120.0
    """Maximum seconds per request, from the connection to the last byte of the reply."""
    temperature: float = TEMPERATURE
    max_tokens: int = MAX_TOKENS
    give_up: int = 8
    """Stop sending requests after this many consecutive failures."""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.model:
            raise ConfigError("the judge needs a model name")
        address = checked_address(self.base_url, "the judge's address")
        if self.key is not None and not all("!" <= ch <= "~" for ch in self.key):
            raise ConfigError(
                f"the judge's key ({KEY}) has a line break, a space or a character outside ASCII: copy it again"
            )
        if self.key and address.userinfo:
            raise ConfigError("the judge has a key and also a user in its address: give one of them")
        for name in ("attempts", "max_tokens", "give_up"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("timeout", "per_minute"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be more than 0, not {value}")
        for name in ("backoff", "longest", "temperature"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be 0 or more, not {value}")

    def __repr__(self) -> str:
        return f"JudgeOptions(model={self.model!r}, base_url={without_credentials(self.base_url)!r})"

    @classmethod
    def from_environment(cls, model: str, **options: Any) -> JudgeOptions:
        """Read address and key from the environment variables that other clients use."""
        address = os.environ.get(URL)
        if not address:
            raise ConfigError(f"the judge's address is not set: set {URL} (and {KEY}, if it needs a key)")
        return cls(model, address, os.environ.get(KEY), **options)

    @property
    def address(self) -> str:
        """The URL of requests, without user and password: these are sent as a header, which is never logged."""
        return str(httpx.URL(self.base_url.rstrip("/") + "/chat/completions").copy_with(userinfo=b""))

    @property
    def headers(self) -> dict[str, str]:
        url = httpx.URL(self.base_url)
        if url.userinfo:
            pair = f"{url.username}:{url.password}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def secrets(self) -> tuple[str, ...]:
        url = httpx.URL(self.base_url)
        pair = f"{url.username}:{url.password}" if url.userinfo else ""
        return tuple(filter(None, (self.key, url.password, pair)))


class Judge:
    """Asks the judge. A context manager. Replies are stored in `cache`, so that rescoring needs no requests."""

    def __init__(
        self,
        options: JudgeOptions,
        cache: Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.stored = StoredReplies(options.model, cache, options.temperature, options.max_tokens)
        self._sleep, self._clock = sleep, clock
        self._lock = threading.Lock()
        self._next = 0.0
        self._failed = 0
        # one connection per request, so that an abandoned reply cannot reach the next request
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(headers=options.headers, limits=limits)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def __call__(self, prompt: Prompt) -> Reply:
        """Return the cached reply, or request one. Failures are not cached and have no text."""
        known = self.stored.read(prompt)
        if known is not None:
            return known
        if self._failed >= self.options.give_up:
            return self._failure(f"not asked after {self._failed} consecutive failures")
        reply = self._asked(prompt)
        self._failed = self._failed + 1 if reply.text is None else 0
        if reply.text is not None:
            self.stored.write(prompt, reply)
        return reply

    # ── the endpoint ──────────────────────────────────────────────────────────────────────────────────────

    def _asked(self, prompt: Prompt) -> Reply:
        failure = self._failure("not asked")
        for attempt in range(self.options.attempts):
            self._wait_for_turn()
            pause = self.options.backoff * 2.0 ** min(attempt, 60)
            try:
                received = post(self._client, self.options.address, self._body(prompt), self.options.timeout)
                if 200 <= received.status < 300:
                    return self._reply(received)
                failure = self._refused(received)
                if received.status not in AGAIN:
                    break
                pause = max(pause, received.retry_after)
            except RequestFailed as problem:
                kind = str(problem).partition(":")[0]
                failure = self._failure(kind, str(problem))
            if attempt + 1 < self.options.attempts:
                self._sleep(min(pause, self.options.longest))
        return failure

    def _refused(self, received: Received) -> Reply:
        told = received.body[:4096].decode("utf-8", "replace")
        moved = ", a redirect, which is not followed" if 300 <= received.status < 400 else ""
        return self._failure(f"HTTP {received.status}{moved}", f"HTTP {received.status}{moved}: {told}")

    def _failure(self, reason: str, error: str = "") -> Reply:
        """Build a failure. `error` may contain the key and is redacted; `reason` is our own wording."""
        clean = " ".join(redacted(error or reason, *self.options.secrets).split())
        return Reply(None, reason=reason, error=clean[:SHOWN], judge=self.options.model)

    def _reply(self, received: Received) -> Reply:
        try:
            choice = strict_json.parse(strict_json.decode(received.body), surrogates=True)["choices"][0]
            text = choice["message"]["content"]
            cut = choice.get("finish_reason") == "length"
        except (ValueError, LookupError, TypeError, AttributeError):
            shown = repr(received.body[:4096].decode("utf-8", "replace"))
            raise RequestFailed(f"reply that is not a chat completion: {shown}") from None
        if not isinstance(text, str) or not text.strip():
            raise RequestFailed("empty reply")
        text = text.encode("utf-8", "replace").decode()  # an unpaired surrogate could not be written to a file
        return Reply(redacted(text, *self.options.secrets, part=LONG), cut=cut, judge=self.options.model)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        return {
            "model": self.options.model,
            "messages": [*system, {"role": "user", "content": prompt.text}],
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
        }

    def _wait_for_turn(self) -> None:
        """Space requests evenly, across threads."""
        if self.options.per_minute is None:
            return
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + 60 / self.options.per_minute
        if turn > now:
            self._sleep(turn - now)
