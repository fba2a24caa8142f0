"""The source of a prompt: the original images, the rendered text, and the processor that joined them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from heal.errors import ConfigError


@dataclass(frozen=True)
class Source:
    """The images and texts of a batch before the processor converts them to tensors.

    Methods that crop, mask or search an image need the image itself, because pixel values are resized and normalised.
    """

    processor: Any
    texts: tuple[str, ...]
    """One rendered prompt per row, with the image placeholders of the chat template."""
    images: tuple[tuple[Image.Image, ...], ...]
    """The images of each row, in the order of their placeholders."""
    questions: tuple[str, ...] = ()
    """What the user wrote in each row, without the words of the chat template. Empty: not known."""

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.images):
            raise ConfigError(f"{len(self.texts)} prompts need as many lists of images, not {len(self.images)}")

    def inputs(self, images: Sequence[Sequence[Image.Image]], samples: Sequence[int] | None = None) -> dict[str, Any]:
        """The model's arguments for the same texts with these images, padded on the left.

        `samples` is the index of the text of each row, because beams and return sequences are several rows of one
        text.
        """
        texts = list(self.texts) if samples is None else [self.texts[sample] for sample in samples]
        if len(images) != len(texts):
            raise ConfigError(f"{len(texts)} rows need as many lists of images, not {len(images)}")
        flat = [image for row in images for image in row]
        arguments: dict[str, Any] = {"text": texts, "padding": True, "return_tensors": "pt"}
        if flat:
            arguments["images"] = [list(row) for row in images] if all(images) else flat
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        tokenizer.padding_side = "left"
        return dict(self.processor(**arguments))
