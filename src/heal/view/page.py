"""Build HTML from data: a page of its own, or a component in an iframe."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from string import Template
from typing import Any, Literal

import heal
from heal.errors import ConfigError
from heal.view.format import FORMAT, VERSION

Theme = Literal["auto", "light", "dark"]
THEMES = ("auto", "light", "dark")
SCRIPTS = (
    "data.js", "figures.js", "maps.js", "text.js", "patches.js", "heads.js", "answer.js", "table.js", "run.js",
    "summary.js", "view.js",
)  # fmt: skip
"""In this order they are one program."""
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""Written as escapes, so that no text in the data can end its element or start another."""


def page(*data: Mapping[str, Any], title: str = "", theme: Theme = "auto", layout: str = "page") -> str:
    """One HTML document that shows these data objects below each other. It needs no network and no other file."""
    if not data:
        raise ConfigError("there is nothing to show: give the data of an answer or a run")
    for one in data:
        check(one)
    if theme not in THEMES:
        raise ConfigError(f"theme cannot be {theme!r}: choose one of {', '.join(THEMES)}")
    script, style = program(), source("view.css")
    return Template(source("page.html")).substitute(
        data=embedded(data),
        generator=html.escape(f"heal {heal.__version__}"),
        layout=html.escape(layout),
        plain="\n".join(f"<p>{html.escape(line)}</p>" for one in data for line in plain_text(one)),
        policy=policy(script, style),
        script=script,
        style=style,
        theme=theme,
        title=html.escape(title or str(data[0]["title"])),
    )


def component(data: Mapping[str, Any], height: int = 560, theme: Theme = "auto") -> str:
    """The same as an iframe, for a notebook cell or an app. It cannot read or change the page around it."""
    document = html.escape(page(data, theme=theme, layout="cell"))
    return (
        f'<iframe srcdoc="{document}" sandbox="allow-scripts" title="heal: {html.escape(str(data["title"]))}" '
        f'width="100%" height="{int(height)}" style="border:0;width:100%" loading="lazy"></iframe>'
    )


def check(data: Mapping[str, Any]) -> None:
    """Refuse data of another format or of a newer version."""
    if data.get("format") != FORMAT:
        raise ConfigError(f"this is not data of the view: its format is {data.get('format')!r}, not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise ConfigError(
            f"the data has version {data.get('version')!r} of the format; this version of heal shows {VERSION}"
        )


def embedded(data: object) -> str:
    """JSON in ASCII for a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return "".join(UNSAFE.get(sign, sign) for sign in text)


def policy(script: str, style: str) -> str:
    """Only this script and this style run, images come from the page itself, and nothing is sent or fetched."""
    return (
        f"default-src 'none'; img-src data:; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def plain_text(data: Mapping[str, Any]) -> list[str]:
    """What a reader without JavaScript sees."""
    rows = (" | ".join(row) for row in (data["headings"], *data["rows"])) if data["kind"] == "summary" else ()
    return [str(data["title"]), *rows, *(f"{one['name']}: {one['text']}" for one in data.get("answers", ()))]


@lru_cache(maxsize=1)
def program() -> str:
    """All scripts in one function, so that they share names with nothing else."""
    parts = "\n".join(source(f"js/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


@lru_cache
def source(name: str) -> str:
    return (files("heal.view") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
