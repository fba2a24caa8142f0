"""A benchmark for tests: images on disk, correct or wrong answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from heal.bench.tasks.base import File, Number, Sample, Task, ratio


@dataclass(frozen=True)
class Questions(Task):
    """Two questions per image of a folder; `right` is the first word of a correct answer."""

    name: ClassVar[str] = "questions"
    summary: ClassVar[str] = "for tests"
    max_new_tokens: ClassVar[int] = 3
    headline: ClassVar[str] = "accuracy"

    folder: Path
    right: str = "yes"
    asked: tuple[str, ...] = ("what is this ?", "is there a dog near the large red table ?")

    def samples(self) -> Sequence[Sample]:
        return [
            Sample(f"{path.stem}-{number}", path.stem, prompt, {"label": self.right}, File(path))
            for path in sorted(self.folder.glob("*.png"))
            for number, prompt in enumerate(self.asked)
        ]

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return {"right": text.startswith(sample.truth["label"])}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {"right": float(sum(p["right"] for p in parses)), "n": float(len(parses))}

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return {"accuracy": ratio(totals["right"], totals["n"], 100)}


def pictures(folder: Path, count: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(count):
        Image.fromarray(rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return folder
