"""Secrets out of texts: a server may send back the key that it was given, whole, in part or encoded."""

from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

HIDDEN = "[key]"
PART = 4
"""So many characters of a secret in a row are taken for a part of it in an error message."""
LONG = 8
"""The same in a text that is worth keeping, such as a judge's reply, where chance finds should be rare."""


def redacted(text: str, *secrets: str, part: int = PART) -> str:
    """The text without the secrets, whatever their case and encoding, and without longer parts of them."""
    for form in sorted({form for secret in secrets if secret for form in _forms(secret)}, key=len, reverse=True):
        text = _without(text, form, part)
    return text


def without_credentials(url: str) -> str:
    """The address without user, password and query; also if it is no proper address."""
    shown = re.sub(r"^(\w+://)?.*@", rf"\1{HIDDEN}@", url, flags=re.S)
    return re.sub(r"\?.+", f"?{HIDDEN}", shown, flags=re.S)


def _forms(secret: str) -> set[str]:
    """The ways in which a secret may be written."""
    encoded = base64.b64encode(secret.encode("utf-8", "replace")).decode().rstrip("=")
    plain = {secret, quote(secret, safe=""), quote_plus(secret), html.escape(secret), json.dumps(secret)[1:-1]}
    return plain | {encoded, encoded.replace("+", "-").replace("/", "_")}


def _without(text: str, secret: str, part: int) -> str:
    """Every stretch of the text that is a part of the secret of at least this length."""
    if len(secret) < part:  # too short to be looked for inside of words
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text, flags=re.I)
    parts = {secret[at : at + part].lower() for at in range(len(secret) - part + 1)}
    low = text.lower()
    if len(low) != len(text):  # a few capitals have two small letters
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
