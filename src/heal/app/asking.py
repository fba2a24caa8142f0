"""What a user asked for, from the values of the page: they are checked here, because anyone can send others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from heal.engine.layout import Layout
from heal.errors import ConfigError, HealError, ImageError, PromptError, shortened
from heal.images import open_image
from heal.methods.base import Method, available
from heal.methods.parsing import parse
from heal.vlm import VLM

MOST_BYTES = 20 * 2**20
"""Of an uploaded file."""
MOST_TOKENS = 512
MOST_SIGNS = 4_000
"""Of a question."""
LONGEST_INTERVAL = 64
PLAIN = "plain"
GUARDED = "heal+guard"


@dataclass(frozen=True)
class Asked:
    """A question about a picture, and how to answer it."""

    image: Image.Image
    question: str
    method: Method | None
    name: str
    """The name of the method."""
    tokens: int
    """The maximum length of an answer."""

    @classmethod
    def of(cls, folder: Path, values: tuple[Any, ...], names: tuple[str, ...]) -> Asked:
        """From the picture, question, method, α, interval, one-sided switch and length of the page.

        `folder` holds the uploads, `names` are the methods that the page offers.
        """
        picture, question, name, alpha, interval, one_sided, tokens = values
        image = picture_of(picture, folder)
        if not isinstance(question, str) or not question.strip():
            raise PromptError("the question is empty: write one")
        if len(question) > MOST_SIGNS:
            raise PromptError(f"the question has {len(question):,} characters: the limit is {MOST_SIGNS:,}")
        if name not in names:
            raise ConfigError(f"there is no method {shortened(name, 40)!r} for this model: choose one of the list")
        method = method_of(name, number(alpha, "α"), whole(interval, "interval", LONGEST_INTERVAL), bool(one_sided))
        return cls(image, question.strip(), method, name, whole(tokens, "length", MOST_TOKENS))


def method_names(vlm: VLM, detector: bool) -> tuple[str, ...]:
    """The methods that suit: those that can stream, and the guard if the model has a detector."""
    layout = Layout.of(vlm.model, frozenset())
    others = [name for name, own in available().items() if name not in ("heal", "guard") and _streams(own, layout)]
    return (PLAIN, "heal", *(("guard", GUARDED) if detector else ()), *others)


def _streams(own: type[Method], layout: Layout) -> bool:
    """Whether the method generates token by token, with its default options."""
    if own.searches:
        return False
    try:
        return not own().runtime(layout, False).overrides("search")
    except (HealError, TypeError):  # it does not support this model, or has options without a default
        return False


def method_of(name: str, alpha: float, interval: int, one_sided: bool) -> Method | None:
    """The method with the options of the page. None: the plain model."""
    if name == PLAIN:
        return None
    heal = f"heal:alpha={alpha:g},interval={interval},drift={'language' if one_sided else 'both'}"
    return parse({"heal": heal, GUARDED: f"{heal}+guard"}.get(name, name))


def picture_of(given: Any, folder: Path) -> Image.Image:
    """The picture that was uploaded to this folder or chosen there."""
    if not isinstance(given, dict) or not isinstance(given.get("path"), str):
        raise ImageError("there is no picture: upload one, or choose an example")
    path, name = Path(given["path"]), shortened(given.get("orig_name") or "the picture", 80)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ImageError("the picture was not uploaded here: upload it again")
    if not path.is_file():
        raise ImageError("the picture is no longer there, because uploads are deleted after a while: upload it again")
    if path.stat().st_size > MOST_BYTES:
        raise ImageError(f"{name} is larger than {MOST_BYTES // 2**20} MB: make it smaller")
    try:
        return open_image(path)
    except ImageError as error:
        raise ImageError(str(error).replace(shortened(path), name)) from error


def number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{what} must be a number, not {shortened(value, 40)!r}")
    return float(value)


def whole(value: Any, what: str, most: int) -> int:
    found = number(value, what)
    if not 1 <= found <= most or found != int(found):
        raise ConfigError(f"{what} must be a whole number from 1 to {most}, not {found:g}")
    return int(found)
