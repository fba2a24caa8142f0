"""Compare a method in a padded batch with its slow implementation, row by row."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from heal import Method
from tests import zoo
from tests.methods import slow
from tests.zoo import Row

ROWS = (Row(), Row(text_before=6, text_after=9, images=2, salt=1))
NEW = 3
NAMES = ("llava", "qwen2_5_vl", "qwen3_vl")  # one with ordinary positions, two with multimodal positions

model_of = cache(zoo.build)


def said(name: str, method: Method, rows: tuple[Row, ...] = ROWS, **options: Any) -> tuple[torch.Tensor, np.ndarray]:
    """The tokens of each row and their logits [rows, tokens, vocabulary]."""
    model = model_of(name)
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True} | options
    with method.attach(model):
        out = model.generate(**zoo.inputs(model, list(rows)), **options)
    return out.sequences[:, -len(out.logits) :], torch.stack(out.logits, 1).double().numpy()


def assert_agrees(oracle: Callable[..., np.ndarray], name: str, method: Method, rows: tuple[Row, ...] = ROWS) -> None:
    model = model_of(name)
    tokens, logits = said(name, method, rows)
    for index, row in enumerate(rows):
        batch, answer = zoo.inputs(model, [row]), tokens[index].tolist()
        expected, plain = oracle(model, batch, answer, method), slow.plain(model, batch, answer)
        assert (np.isinf(logits[index]) == np.isinf(expected)).all()
        kept = np.isfinite(expected)
        # relative to the largest number, because a contrast amplifies rounding errors
        close = 1e-5 * max(1.0, np.abs(plain).max(), np.abs(expected[kept]).max())
        assert np.abs(logits[index][kept] - expected[kept]).max() < close
        # the plain model must differ, otherwise agreement would prove nothing
        assert (np.abs(slow.log_softmax(plain[0]) - slow.log_softmax(expected[0])) > 10 * close).any()
        assert answer == expected.argmax(-1).tolist()
