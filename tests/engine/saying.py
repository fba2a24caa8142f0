"""The output of a tiny model, plain and with a method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from heal import Method
from heal.methods import HEAL
from tests.zoo import Row

NEW = 4
METHOD = HEAL(interval=2)
ROWS = [Row(), Row(text_before=6, text_after=4, salt=1)]


@dataclass(frozen=True)
class Said:
    """New tokens [rows, NEW] and their raw logits [rows, NEW, vocabulary]."""

    tokens: Tensor
    logits: Tensor

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Said)
        return torch.equal(self.tokens, other.tokens) and torch.equal(self.logits, other.logits)


def say(model: hf.PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> Said:
    settings = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(**batch, **(settings | options))
    return Said(out.sequences[:, -len(out.logits) :], torch.stack(out.logits, 1))


def healed(model: hf.PreTrainedModel, batch: dict[str, Tensor], method: Method = METHOD, **options: Any) -> Said:
    with method.attach(model) as handle:
        said = say(model, batch, **options)
    assert handle.fired
    return said


def forward(model: Any, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


class At:
    """A logits processor that acts at one step of a generation, counted from 1."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.left, self.act = step, act

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            self.act()
        return scores
