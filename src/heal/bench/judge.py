"""A judge behind any OpenAI-compatible chat endpoint: patient, polite, and asked each thing once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from heal.bench.judged import Prompt
from heal.errors import ConfigError, DataError
from heal.files import write_whole

AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
URL, KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"


@dataclass(frozen=True)
class JudgeOptions:
    """Which judge, and how patiently it is asked."""

    model: str
    base_url: str
    key: str | None = field(default=None, repr=False)
    attempts: int = 5
    """Requests for one reply before it is given up."""
    backoff: float = 1.0
    """Seconds before the second request; doubled before each further one."""
    longest: float = 60.0
    """The most seconds to wait, whatever the server asks for."""
    per_minute: float | None = None
    """The most requests a minute."""
    timeout: float = 120.0
    temperature: float = 0.0
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("the judge needs a model name")
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"the judge's address must begin with http:// or https://, not {self.base_url!r}")
        if self.attempts < 1:
            raise ConfigError(f"attempts must be 1 or more, not {self.attempts}")
        if self.per_minute is not None and self.per_minute <= 0:
            raise ConfigError(f"per_minute must be more than 0, not {self.per_minute}")

    @classmethod
    def from_environment(cls, model: str, **options: Any) -> JudgeOptions:
        """The address and the key as other clients take them."""
        address = os.environ.get(URL)
        if not address:
            raise ConfigError(f"the judge's address is unknown: set {URL} (and {KEY}, if it needs a key)")
        return cls(model, address, os.environ.get(KEY), **options)


@dataclass(frozen=True)
class Reply:
    """What the judge wrote, or why there is nothing."""

    text: str | None
    cached: bool = False
    error: str = ""


class Judge:
    """Use as a context manager. Replies are kept in `cache`, so that scoring again costs nothing."""

    def __init__(
        self,
        options: JudgeOptions,
        cache: Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.cache = cache
        self._sleep, self._clock = sleep, clock
        self._lock = threading.Lock()
        self._next = 0.0
        headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
        self._client = httpx.Client(timeout=options.timeout, headers=headers)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def __call__(self, prompt: Prompt) -> str | None:
        return self.ask(prompt).text

    def ask(self, prompt: Prompt) -> Reply:
        """From the cache, else from the endpoint. What fails in the end is not cached and has no text."""
        known = self._known(prompt)
        if known is not None:
            return Reply(known, cached=True)
        reply = self._asked(prompt)
        if reply.text is not None:
            self._keep(prompt, reply.text)
        return reply

    # ── the endpoint ──────────────────────────────────────────────────────────────────────────────────────

    def _asked(self, prompt: Prompt) -> Reply:
        error = ""
        for attempt in range(self.options.attempts):
            self._wait_for_turn()
            pause = self.options.backoff * 2**attempt
            try:
                response = self._client.post(self._address, json=self._body(prompt))
                if response.is_success:
                    return Reply(_content(response))
                error = f"status {response.status_code}: {response.text[:200]}"
                if response.status_code not in AGAIN:
                    break
                pause = max(pause, _retry_after(response))
            except httpx.TransportError as problem:
                error = f"{type(problem).__name__}: {problem}"
            except _Nonsense as problem:
                error = f"a reply that makes no sense: {problem}"
            if attempt + 1 < self.options.attempts:
                self._sleep(min(pause, self.options.longest))
        return Reply(None, error=error)

    @property
    def _address(self) -> str:
        return self.options.base_url.rstrip("/") + "/chat/completions"

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        return {
            "model": self.options.model,
            "messages": [*system, {"role": "user", "content": prompt.text}],
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
        }

    def _wait_for_turn(self) -> None:
        """Requests at equal distances, also from several threads."""
        if self.options.per_minute is None:
            return
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + 60 / self.options.per_minute
        if turn > now:
            self._sleep(turn - now)

    # ── the cache ─────────────────────────────────────────────────────────────────────────────────────────

    def place(self, prompt: Prompt) -> Path | None:
        """The file of a reply: a folder for the judge, a name from the prompt."""
        if self.cache is None:
            return None
        model = self.options.model
        folder = re.sub(r"[^A-Za-z0-9.-]+", "_", model)[:60] + "-" + _digest(model)[:8]
        settings = [prompt.system, prompt.text, self.options.temperature, self.options.max_tokens]
        return self.cache / folder / f"{_digest(json.dumps(settings))}.json"

    def _known(self, prompt: Prompt) -> str | None:
        path = self.place(prompt)
        try:
            record = json.loads(path.read_text(encoding="utf-8")) if path else None
        except (OSError, ValueError):
            return None  # it will be asked again and written anew
        text = record.get("reply") if isinstance(record, dict) else None
        return text if isinstance(text, str) else None

    def _keep(self, prompt: Prompt, text: str) -> None:
        path = self.place(prompt)
        if path is None:
            return
        record = {"judge": self.options.model, "prompt": prompt.text, "reply": text}
        try:
            write_whole(path, json.dumps(record, ensure_ascii=False))
        except OSError as error:
            raise DataError(f"the judge's reply cannot be kept in {path.parent}: {error.strerror}") from error


class _Nonsense(Exception):
    """A successful response without a reply in it."""


def _content(response: httpx.Response) -> str:
    try:
        text = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise _Nonsense(repr(response.text[:200])) from None
    if not isinstance(text, str) or not text.strip():
        raise _Nonsense("it is empty")
    return text


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
