"""The replies of judges on disk: one folder per judge, one file per prompt."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.atomic_write import atomic_write
from heal.bench.tasks.judged import Prompt, Reply
from heal.errors import DataError

FOLDER = "judge"
"""Where a run stores the replies."""
TEMPERATURE, MAX_TOKENS = 0.0, 1024
"""Defaults of requests."""


@dataclass(frozen=True)
class StoredReplies:
    """The cache of one judge. Called like a judge, it sends no requests: what it does not have is not judged."""

    model: str
    cache: Path | None
    """The folder of all judges. None: nothing is stored."""
    temperature: float = TEMPERATURE
    max_tokens: int = MAX_TOKENS

    def __call__(self, prompt: Prompt) -> Reply:
        reason = "no stored reply"
        return self.read(prompt) or Reply(None, reason=reason, error=reason, judge=self.model)

    def place(self, prompt: Prompt) -> Path | None:
        """The file of a reply: in one folder per judge, named by a hash of the prompt."""
        if self.cache is None:
            return None
        folder = re.sub(r"[^A-Za-z0-9.-]+", "_", self.model)[:60] + "-" + _digest(self.model)[:8]
        settings = [prompt.system, prompt.text, self.temperature, self.max_tokens]
        return self.cache / folder / f"{_digest(json.dumps(settings))}.json"

    def read(self, prompt: Prompt) -> Reply | None:
        path = self.place(prompt)
        record = None if path is None else _record(path)
        if record is None:
            return None  # the reply will be requested and stored again
        return Reply(record["reply"], cached=True, cut=record.get("cut") is True, judge=self.model)

    def write(self, prompt: Prompt, reply: Reply) -> None:
        path = self.place(prompt)
        if path is None:
            return
        record = {"judge": self.model, "prompt": prompt.text, "reply": reply.text, "cut": reply.cut}
        try:
            atomic_write(path, json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
        except OSError as error:
            raise DataError(f"the judge's reply cannot be stored in {path.parent}: {error.strerror}") from error


def most_used(cache: Path) -> StoredReplies | None:
    """The judge with the most replies in this folder; None if there are none."""
    records = (_record(path) for path in cache.glob("*/*.json"))
    names = Counter(str(record["judge"]) for record in records if record is not None and "judge" in record)
    return StoredReplies(max(names, key=lambda name: (names[name], name)), cache) if names else None


def _record(path: Path) -> dict[str, Any] | None:
    """The content of a file; None if there is none, or if it is damaged."""
    try:
        record = strict_json.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    text = record.get("reply") if isinstance(record, dict) else None
    return record if isinstance(text, str) and text.strip() else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
