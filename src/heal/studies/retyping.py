"""Find the head types of a traced answer anew from its scores, with other thresholds."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8

from heal.analysis.contribution import causally_redundant
from heal.analysis.information import HeadScores
from heal.analysis.taxonomy import classify
from heal.methods.heal import HEAL
from heal.studies.traces import TracedAnswer


def types_with(answer: TracedAnswer, method: HEAL) -> UInt8[np.ndarray, "step layer head"]:
    """The types of all steps with the options mad, sigma_causal, sigma_info, yeo_johnson, layers and replacement
    (none or not) of a method. Its other options change the scores, which must be measured."""
    visual, language, total, contribution = (
        torch.from_numpy(np.array(array))
        for array in (answer.visual, answer.language, answer.total, answer.contribution)
    )
    redundant = torch.zeros_like(total, dtype=torch.bool)
    if method.replaced_by != "none":
        redundant = causally_redundant(contribution, method.sigma_causal, method.yeo_johnson)
    considered = None
    if method.layers is not None:
        considered = torch.zeros(total.shape[1:], dtype=torch.bool)
        considered[list(method.layers)] = True
    scores = HeadScores(visual, language, total)
    found = classify(scores, redundant, method.mad, method.sigma_info, considered, method.yeo_johnson)
    return found.types.numpy()
