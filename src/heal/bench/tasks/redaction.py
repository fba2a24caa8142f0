"""Remove secrets from text: a server may return the key it was given, complete, partial or encoded."""

from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

HIDDEN = "[key]"
PART = 4
"""Minimum length of a part of a secret that is removed from an error message."""
LONG = 8
"""The same for texts that are stored, such as a judge's reply, where accidental matches should be rare."""


def redacted(text: str, *secrets: str, part: int = PART) -> str:
    """Remove secrets and long parts of them, in any case and encoding."""
    for form in sorted({form for secret in secrets if secret for form in _forms(secret)}, key=len, reverse=True):
        text = _without(text, form, part)
    return text


def without_credentials(url: str) -> str:
    """Remove user, password and query from an address, even if it is malformed."""
    shown = re.sub(r"^(\w+://)?.*@", rf"\1{HIDDEN}@", url, flags=re.S)
    return re.sub(r"\?.+", f"?{HIDDEN}", shown, flags=re.S)


def _forms(secret: str) -> set[str]:
    """The encodings of a secret."""
    encoded = base64.b64encode(secret.encode("utf-8", "replace")).decode().rstrip("=")
    plain = {secret, quote(secret, safe=""), quote_plus(secret), html.escape(secret), json.dumps(secret)[1:-1]}
    return plain | {encoded, encoded.replace("+", "-").replace("/", "_")}


def _without(text: str, secret: str, part: int) -> str:
    """Remove every part of the secret that has at least this length."""
    if len(secret) < part:  # too short to be matched inside words
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text, flags=re.I)
    parts = {secret[at : at + part].lower() for at in range(len(secret) - part + 1)}
    low = text.lower()
    if len(low) != len(text):  # a few capital letters have two lower-case letters
        low = text
    kept, at = [], 0
    while at < len(text):
        end = at
        while low[end : end + part] in parts:
            end += 1
        if end == at:
            kept.append(text[at])
            at += 1
        else:
            kept.append(HIDDEN)
            at = end + part - 1
    return "".join(kept)
