"""Information of a head: similarities between its counterfactual outputs, and their difference in differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import hardshrink

from heal.analysis.split import LANGUAGE, LOWEST, TINY, VISUAL, Partial, merge

Measure = Literal["cosine", "l2", "cosine+l2"]
MEASURES: tuple[str, ...] = get_args(Measure)

DEAD_ZONE = 1e-6
"""Visual and language information up to this size is set to zero, because its sign is a rounding error."""


@dataclass(frozen=True)
class HeadScores:
    """Visual, language, synergy and total information of heads (synergy = total − visual − language).

    Visual and language information inside the dead zone is set to zero here, so that the sign is the same everywhere.
    """

    visual: Float[Tensor, "*heads"]
    language: Float[Tensor, "*heads"]
    total: Float[Tensor, "*heads"]

    def __post_init__(self) -> None:
        for name in ("visual", "language"):
            object.__setattr__(self, name, hardshrink(getattr(self, name), DEAD_ZONE))

    @property
    def synergy(self) -> Float[Tensor, "*heads"]:
        return self.total - self.visual - self.language

    @property
    def alpha_vis(self) -> Float[Tensor, "*heads"]:
        """The visual share of mixed heads, NaN for other heads."""
        mixed = (self.visual > 0) & (self.language > 0)
        return torch.where(mixed, self.visual / (self.visual + self.language), torch.nan)


def similarity(
    a: Float[Tensor, "*#heads dim"], b: Float[Tensor, "*#heads dim"], measure: Measure = "cosine"
) -> Float[Tensor, "*heads"]:
    """1 for equal vectors. cosine: (1 + cos)/2. l2: 2σ(−‖a−b‖ / (‖a‖+‖b‖)). cosine+l2: their mean.

    The sigmoid is doubled so that equal vectors give 1 for every measure.
    """
    return 1 - dissimilarity(a, b, measure)


def dissimilarity(
    a: Float[Tensor, "*#heads dim"], b: Float[Tensor, "*#heads dim"], measure: Measure = "cosine"
) -> Float[Tensor, "*heads"]:
    """1 − Sim without cancellation for similar vectors: (1−cos)/2 = ‖â−b̂‖²/4."""
    a, b = a.float(), b.float()
    norm_a, norm_b = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (a, b))
    if measure == "cosine":
        return _cosine_distance(a, b, norm_a, norm_b)
    distance = torch.linalg.vector_norm(a - b, dim=-1) / (norm_a + norm_b).squeeze(-1).clamp(min=TINY)
    l2 = torch.tanh(distance / 2)  # 1 − 2σ(−x)
    return l2 if measure == "l2" else (_cosine_distance(a, b, norm_a, norm_b) + l2) / 2


def _cosine_distance(a: Tensor, b: Tensor, norm_a: Tensor, norm_b: Tensor) -> Tensor:
    """(1 − cos)/2, with the cosine of a zero vector defined as 0."""
    distance = (a / norm_a.clamp(min=TINY) - b / norm_b.clamp(min=TINY)).square().sum(-1) / 4
    return distance.masked_fill(((norm_a == 0) | (norm_b == 0)).squeeze(-1), 0.5)


def difference_in_differences(
    h11: Float[Tensor, "*heads dim"],
    h01: Float[Tensor, "*heads dim"],
    h10: Float[Tensor, "*heads dim"],
    h00: Float[Tensor, "*heads dim"],
    measure: Measure = "cosine",
) -> HeadScores:
    """Scores from the four states. The first index is visual, the second language; 0 means replaced by noise."""
    return _scores(torch.stack([h11, h10, h01, h00]).float(), measure)


def scores_from_partials(
    real: Sequence[Partial], noise: Sequence[Partial], measure: Measure = "cosine"
) -> HeadScores:
    """Scores from two passes instead of four: every state is a merge of real or noise partials and the neutral ones.

    All states are computed at once, because a decoding step consists of many operations on small tensors.
    """
    return _scores(_states(real, noise), measure)


def _scores(states: Float[Tensor, "4 *heads dim"], measure: Measure) -> HeadScores:
    """From H11, H10, H01 and H00."""
    gains = _l2_gains(states) if measure == "l2" else _cosine_gains(states)
    if measure == "cosine+l2":
        gains = (gains + _l2_gains(states)) / 2
    total, visual, language = gains.unbind()
    return HeadScores(visual, language, total)


def _l2_gains(states: Float[Tensor, "4 *heads dim"]) -> Float[Tensor, "3 *heads"]:
    distances = dissimilarity(states[:1], states, "l2")
    return distances[3] - distances[:3]


def _cosine_gains(states: Float[Tensor, "4 *heads dim"]) -> Float[Tensor, "3 *heads"]:
    """Sim(H11, x) − Sim(H11, H00) for x = H11, H10 and H01, without cancellation.

    With d = û − û11, this is (‖d00‖² − ‖d‖²)/4 = (d00 − d)·(d00 + d)/4.
    """
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    unit = states / norm.clamp(min=TINY)
    away = unit - unit[0]
    near, far = away[:3], away[3]
    gains = torch.linalg.vecdot(far - near, far + near)
    # the cosine of a zero vector is 0: ‖û‖² is 0, and its dissimilarity to every other vector is 1/2
    length = norm.squeeze(-1).sign()
    gains.add_(length[:3]).sub_(length[3])
    gains[0].sub_(length[0], alpha=2).add_(2)
    return gains.mul_(0.25)


def _states(real: Sequence[Partial], noise: Sequence[Partial]) -> Float[Tensor, "4 rows heads dim"]:
    """H11, H10, H01, H00: visual is the outer index, language the inner one, real before noise."""
    visual, language = (
        (torch.stack([real[m].value, noise[m].value]), torch.stack([real[m].lse, noise[m].lse]).clamp_(min=LOWEST))
        for m in (VISUAL, LANGUAGE)
    )
    share = torch.sigmoid(visual[1].unsqueeze(1) - language[1]).unsqueeze(-1)
    merged = torch.lerp(language[0].expand(2, *language[0].shape), visual[0].unsqueeze(1), share).flatten(0, 1)
    if len(real) <= LANGUAGE + 1:
        return merged
    both = torch.logaddexp(visual[1].unsqueeze(1), language[1]).flatten(0, 1)
    rest = Partial(merge(real[LANGUAGE + 1 :]), torch.stack([p.lse for p in real[LANGUAGE + 1 :]]).logsumexp(0))
    own = torch.sigmoid(rest.lse.clamp(min=LOWEST) - both).unsqueeze(-1)
    return torch.lerp(merged, rest.value.expand_as(merged), own)


def mean_scores(draws: Sequence[HeadScores]) -> HeadScores:
    """The average over several noise draws."""
    if len(draws) == 1:
        return draws[0]
    return HeadScores(
        *(torch.stack([getattr(d, name) for d in draws]).mean(0) for name in ("visual", "language", "total"))
    )
