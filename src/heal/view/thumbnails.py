"""Small pictures of the samples of a run, drawn or read again by the task."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

from PIL import Image

from heal.bench.tasks.base import Sample, Task
from heal.errors import HealError

SIDE = 192
QUALITY = 80
MOST_BYTES = 4_000_000
"""Of all pictures of a task; later samples have none."""


@dataclass
class Thumbnails:
    """Pictures by unit, so that several questions about one image share it."""

    own: dict[str, Sample] = field(default_factory=dict)
    """The samples of the task as it is now, by id."""
    sources: list[str] = field(default_factory=list)
    """data: addresses"""
    known: dict[str, int | None] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, task: Task) -> Thumbnails:
        """Pictures of a task; none if its data is not there any more."""
        try:
            return cls({sample.id: sample for sample in task.samples()})
        except HealError:
            return cls()

    def index(self, sample: Sample) -> int | None:
        """The index of the picture of a sample in `sources`, or None."""
        if sample.unit not in self.known:
            self.known[sample.unit] = self._add(sample)
        return self.known[sample.unit]

    def _add(self, sample: Sample) -> int | None:
        own = self.own.get(sample.id)
        if own is None or (own.unit, own.prompt) != (sample.unit, sample.prompt) or self.size > MOST_BYTES:
            return None
        try:
            source = _encoded(own.image())
        except HealError:  # the image file is missing or broken
            return None
        self.size += len(source)
        self.sources.append(source)
        return len(self.sources) - 1


def _encoded(image: Image.Image) -> str:
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    small.info.clear()
    small.save(buffer, format="JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
