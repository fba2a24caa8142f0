"""The information of the heads of a layer at one position, with the noise that HEAL was configured with."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from heal.analysis.counterfactual import Attended, noise_partials
from heal.analysis.expected import StepTables, expected_scores
from heal.analysis.information import HeadScores, mean_scores, scores_from_partials
from heal.analysis.lognormal import NodeTables
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.analysis.reference import reference_scores
from heal.analysis.reference_expected import reference_expected_scores
from heal.methods.heal import HEAL

HELD = 4
"""Tables of one step: layers with sliding windows, or on other devices, have their own."""


class ScoreStage:
    """Visual, language and total information of every head, [rows, heads, 3]."""

    def __init__(self, config: HEAL) -> None:
        self.config = config
        self.expected = config.noise == "expected"
        self._sources: dict[torch.device, NodeTables] = {}
        self._steps: dict[tuple[object, ...], StepTables] = {}

    def of(self, at: Attended, moments: Moments | None, noise: Noise | None) -> Float[Tensor, "rows heads three"]:
        """`moments` are None on the reference path, which reads the cache. Expected noise needs no `noise`."""
        if self.expected:
            return self._expected(at, moments)
        assert noise is not None
        config, found = self.config, []
        for draw in range(config.draws):
            own = noise.at(draw)
            if moments is None:
                found.append(reference_scores(at, config.noise, own, config.covariance, config.measure))
            else:
                fake = noise_partials(at, moments, config.noise, own, config.covariance)
                found.append(scores_from_partials(at.split(), fake, config.measure))
        return stacked(mean_scores(found))

    def _expected(self, at: Attended, moments: Moments | None) -> Tensor:
        config = self.config
        if moments is None:
            return stacked(reference_expected_scores(at, config.covariance, config.measure))
        tables = self.tables(at)
        return expected_scores(at, moments, tables, config.measure, config.covariance).flatten(1, 2)

    def tables(self, at: Attended) -> StepTables:
        """The tables for the numbers of positions of this step, shared by the layers."""
        device = at.query.device
        place = (device, at.scale, at.regions.counts)
        if place not in self._steps:
            if len(self._steps) == HELD:
                del self._steps[next(iter(self._steps))]
            source = self._sources.setdefault(device, NodeTables(device))
            self._steps[place] = StepTables.of(at.regions, at.scale, source)
        return self._steps[place]


def stacked(scores: HeadScores) -> Float[Tensor, "rows heads three"]:
    return torch.stack([scores.visual, scores.language, scores.total], dim=-1)
