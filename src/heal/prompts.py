"""Convert prompts to chat messages, and render chat messages as the text that a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from heal.errors import CheckpointError, ImageError, PromptError, first_line

Messages = Sequence[Mapping[str, Any]]

TRIAL = ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},)


def is_image(given: Any) -> bool:
    return isinstance(given, (str, Path, Image.Image, np.ndarray))


def is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def paired(images: Any, prompts: Any) -> list[tuple[Any, Any]]:
    """A list of prompts, each with its images."""
    if not isinstance(prompts, Sequence):
        raise PromptError(f"a prompt must be a string or chat messages, not {type(prompts).__name__}")
    if len(prompts) == 0:
        raise PromptError("there is no prompt")
    given = [None] * len(prompts) if images is None else images
    if is_image(given) or not isinstance(given, Sequence) or len(given) != len(prompts):
        count = 1 if is_image(given) else len(given) if isinstance(given, Sequence) else 0
        raise ImageError(
            f"{len(prompts)} prompts need a list of as many images (an image, a list of images or None for each), "
            f"but {count} were given"
        )
    return list(zip(given, prompts, strict=True))


def as_chat(prompt: Any, images: int, where: str) -> list[dict[str, Any]]:
    """Chat messages with a placeholder for each image."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError(f"{where} is empty")
        content = [{"type": "image"}] * images + [{"type": "text", "text": prompt}]
        return [{"role": "user", "content": content}]
    if not is_chat(prompt) or not all(_is_message(m) for m in prompt):
        raise PromptError(
            f"{where} must be text, or chat messages with a role and a content: a string, or a list of "
            '{"type": "image"} and {"type": "text", "text": …}'
        )
    if not any(m["content"] for m in prompt):
        raise PromptError(f"{where} is empty")
    return [dict(m) for m in prompt]


def without_images(messages: Messages) -> tuple[dict[str, Any], ...]:
    """Roles, texts and image placeholders, which can be stored as JSON."""
    return tuple(
        {"role": m["role"], "content": c if isinstance(c := m["content"], str) else [_part(p) for p in c]}
        for m in messages
    )


def _part(part: Mapping[str, Any]) -> dict[str, str]:
    return {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"}


def check(messages: list[dict[str, Any]], images: int, image_token: str | None, where: str) -> None:
    """Check that there is a placeholder for each image, and that the text is valid."""
    parts = [p for m in messages if not isinstance(m["content"], str) for p in m["content"]]
    placeholders = sum(part.get("type") == "image" for part in parts)
    for words in _words(messages):
        if image_token and image_token in words:
            raise PromptError(f"{where} contains {image_token}: pass the image separately instead")
        if "\0" in words:
            raise PromptError(f"{where} has a NUL character at position {words.index(chr(0))}: remove it")
        try:
            words.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"{where} is not valid text: lone surrogate at position {error.start}. Decode it as UTF-8"
            ) from None
    if placeholders != images:
        raise ImageError(f"{where} has placeholders for {placeholders} images, but {images} were given")


def render(processor: Any, messages: list[dict[str, Any]], where: str) -> str:
    """The text that the model reads. Base models have no chat format: images first, then the text."""
    from jinja2 import TemplateSyntaxError

    if getattr(processor, "chat_template", None) is None:
        return _without_template(messages, getattr(processor, "image_token", "<image>"))
    try:
        return processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is broken at line {error.lineno}: {first_line(error)}") from error
    except Exception as error:  # a template is a program that may raise anything
        raise PromptError(f"{where} is rejected by the model's chat template: {first_line(error)}") from error


def check_template(processor: Any, name: str) -> None:
    """Check that the chat template can render a question about an image."""
    try:
        render(processor, [dict(message) for message in TRIAL], "a question about an image")
    except (CheckpointError, PromptError) as error:
        raise CheckpointError(f"{name} cannot be used: {error}. Fix its chat_template.jinja") from error


def _without_template(messages: list[dict[str, Any]], token: str) -> str:
    parts = [p for m in messages for p in ([m["content"]] if isinstance(m["content"], str) else m["content"])]
    return token * sum(isinstance(p, dict) and p["type"] == "image" for p in parts) + "\n".join(
        p if isinstance(p, str) else p["text"] for p in parts if isinstance(p, str) or p["type"] == "text"
    )


def question(messages: list[dict[str, Any]]) -> str:
    """What the user wrote, in all turns."""
    return "\n".join(_texts([message for message in messages if message["role"] == "user"]))


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    contents = [m["content"] for m in messages]
    parts = [p for c in contents if not isinstance(c, str) for p in c]
    return [c for c in contents if isinstance(c, str)] + [p["text"] for p in parts if p["type"] == "text"]


def _words(messages: list[dict[str, Any]]) -> list[str]:
    """All texts and role names."""
    return _texts(messages) + [m["role"] for m in messages]


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, str):
        return True
    return isinstance(content, (list, tuple)) and all(
        isinstance(part, Mapping)
        and (part.get("type") == "image" or (part.get("type") == "text" and isinstance(part.get("text"), str)))
        for part in content
    )
