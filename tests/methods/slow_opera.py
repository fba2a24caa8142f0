"""A slow implementation of OPERA: a hypothesis is a list of tokens, and every step runs the whole sequence."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heal.methods import OPERA
from tests import zoo
from tests.methods.slow import Inputs, extended, last_logits, log_softmax
from tests.methods.slow_eager import changed_attention


@dataclass
class Beam:
    tokens: list[int]
    score: float
    columns: list[int] = field(default_factory=list)


def look(model: Any, batch: Inputs, tokens: list[int], layer: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Next logits, the attention among the generated tokens, and the last one's attention to the image."""
    kept: list[np.ndarray] = []

    def watch(index: int, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
        if index == layer:
            kept.append(weights.max(0))
        return weights

    with changed_attention(model, weights=watch):
        logits = last_logits(model, extended(model, batch, tokens))
    rows = kept[0] / kept[0].sum(1, keepdims=True)
    prompt = batch["input_ids"].shape[1]
    visual = zoo.visual_mask(model, batch["input_ids"])[0].numpy()
    return logits, rows[prompt:, prompt:], float(rows[-1, :prompt][visual].sum())


def penalty_of(attention: np.ndarray, image: float, method: OPERA) -> tuple[float, int]:
    count = len(attention)
    products = [1e-7 * np.prod([method.sigma * attention[i, j] for i in range(j, count)]) for j in range(count)]
    column = int(np.argmax(products))
    return (-image if count <= method.start else products[column]), column


def most_frequent(values: list[int]) -> int:
    return min(set(values), key=lambda v: (-values.count(v), v))


def opera(model: Any, batch: Inputs, new: int, method: OPERA) -> tuple[list[int], int]:
    """The answer, and how often the search rolled back. There is no end-of-sequence token."""
    layer = len(model.get_decoder().layers) - 1
    beams = [Beam([], 0.0 if row == 0 else -1e9) for row in range(method.beams)]
    states: dict[int, list[Beam]] = {}
    forbidden: dict[int, set[int]] = {}
    visits: dict[int, int] = {}
    back = 0
    while True:
        at = len(beams[0].tokens)
        states[at] = beams
        options = []
        for row, beam in enumerate(beams):
            logits, _, _ = look(model, batch, beam.tokens, layer) if beam.tokens else (None, None, None)
            logits = last_logits(model, batch) if logits is None else logits
            columns: list[int] = []
            if forbidden.get(at):
                scores = logits.copy()
                scores[list(forbidden[at])] = -np.inf
            else:
                scores = np.full_like(logits, -np.inf)
                for token in np.argsort(-logits, kind="stable")[: method.candidates]:
                    _, attention, image = look(model, batch, [*beam.tokens, int(token)], layer)
                    penalty, column = penalty_of(attention, image, method)
                    scores[token] = logits[token] - method.alpha * penalty
                    columns.append(column)
            for token, value in enumerate(log_softmax(scores)):
                options.append((beam.score + value, row, token, columns))
        options.sort(key=lambda option: -option[0])
        beams = [
            Beam([*beams[row].tokens, token], score, beams[row].columns + ([most_frequent(c)] if c else []))
            for score, row, token, c in options[: method.beams]
        ]
        if len(beams[0].tokens) == new:
            return max(beams, key=lambda beam: beam.score).tokens, back
        if method.rollback is None or not all(beam.columns for beam in beams):
            continue
        summary = most_frequent([beam.columns[-1] for beam in beams])
        if summary >= method.start and all(beam.columns.count(summary) > method.rollback for beam in beams):
            for keep in (summary + 1, summary):
                if 0 < keep < len(beams[0].tokens) and visits.get(keep, 0) < method.candidates:
                    visits[keep] = visits.get(keep, 0) + 1
                    forbidden[keep] = forbidden.get(keep, set()) | {beam.tokens[keep] for beam in beams}
                    forbidden = {place: tokens for place, tokens in forbidden.items() if place <= keep}
                    beams, back = states[keep], back + 1
                    break
