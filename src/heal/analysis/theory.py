"""Quantities of the theory of calibration: the mix, the alignment, and the margin of a layer.

A head's output is h = h_v + h_l, the parts from visual and from language positions. Calibration scales the parts by
β and γ so that the visual share becomes α. All functions are batched over leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Measure = Callable[[Float[Tensor, "*batch d"]], Float[Tensor, "*batch"]]
Scalar = float | Float[Tensor, "..."]


def _up(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return x if x.dtype == torch.float64 else x.float()


def _share(alpha: Scalar) -> Scalar:
    return _up(alpha) if isinstance(alpha, Tensor) else alpha


def norm(h: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """The positively homogeneous measure of information that the theorems use."""
    return torch.linalg.vector_norm(_up(h), dim=-1)


def mix(
    h_v: Float[Tensor, "*batch d"], h_l: Float[Tensor, "*batch d"], measure: Measure = norm
) -> Float[Tensor, "*batch"]:
    """The visual share I(h_v) / (I(h_v) + I(h_l)). NaN if both parts carry no information."""
    visual, language = measure(_up(h_v)), measure(_up(h_l))
    return visual / (visual + language)


def rescaled(
    h_v: Float[Tensor, "*batch d"], h_l: Float[Tensor, "*batch d"], alpha: Scalar, measure: Measure = norm
) -> tuple[Float[Tensor, "*out d"], Float[Tensor, "*out d"]]:
    """The pair (β·h_v, γ·h_l) whose mix is exactly alpha. Not finite if a part carries no information."""
    h_v, h_l, alpha = _up(h_v), _up(h_l), _share(alpha)
    visual, language = measure(h_v), measure(h_l)
    total = visual + language
    # (1 − α)·total/language instead of (1 − α)/(1 − α_old) avoids cancellation if one part dominates.
    beta, gamma = alpha * total / visual, (1 - alpha) * total / language
    return beta[..., None] * h_v, gamma[..., None] * h_l


def alignment(
    h_v: Float[Tensor, "*batch d"], h_l: Float[Tensor, "*batch d"], beta: Scalar, gamma: Scalar
) -> Float[Tensor, "*out"]:
    """cos(β·h_v + γ·h_l, h_v) = (1 + τc)/√(1 + τ² + 2τc), τ = γ‖h_l‖/(β‖h_v‖), c = cos(h_v, h_l)."""
    h_v, h_l = _up(h_v), _up(h_l)
    unit = h_v / norm(h_v)[..., None]
    along = (h_l * unit).sum(-1)
    across = norm(h_l - along[..., None] * unit)
    # Multiplying by β‖h_v‖ and using hypot for the root allows β = 0 and avoids cancellation.
    forward = beta * norm(h_v) + gamma * along
    return forward / torch.hypot(forward, gamma * across)


def alignment_of_alpha(
    h_v: Float[Tensor, "*batch d"], h_l: Float[Tensor, "*batch d"], alpha: Scalar
) -> Float[Tensor, "*out"]:
    """cos(h(α), h_v) of the pair rescaled to the mix alpha. It depends on the directions and alpha only."""
    share = _share(alpha)
    return alignment(h_v / norm(h_v)[..., None], h_l / norm(h_l)[..., None], share, 1 - share)


@dataclass(frozen=True, eq=False)
class Margin:
    """G·r = s·u_v + p and ∂(G·r)/∂α = t·u_v + q with p, q ⟂ u_v, and the quantities derived from them."""

    s: Float[Tensor, "*batch"]
    t: Float[Tensor, "*batch"]
    p_norm: Float[Tensor, "*batch"]
    q_dot_p: Float[Tensor, "*batch"]
    value: Float[Tensor, "*batch"]
    """M = t‖p‖² − s⟨p, q⟩. A larger α turns the layer toward the image if M > 0."""
    alignment: Float[Tensor, "*batch"]
    """cos(G·r, u_v). The factor 1/rms(r) of RMSNorm does not change it."""
    slope: Float[Tensor, "*batch"]
    """∂ alignment/∂α = M/‖G·r‖³."""


def mix_directions(
    h_v: Float[Tensor, "*batch head d"],
    h_l: Float[Tensor, "*batch head d"],
    alpha_vis: Float[Tensor, "*batch head"],
    calibrated: Bool[Tensor, "*batch head"],
    o_proj: Float[Tensor, "model head*d"],
) -> tuple[Float[Tensor, "*batch model"], Float[Tensor, "*batch model"]]:
    """(a_v, a_l): the calibrated heads of a layer add α·a_v + (1 − α)·a_l to the residual stream."""

    def project(h: Tensor, share: Tensor) -> Tensor:
        unit_mix = torch.where(calibrated[..., None], _up(h) / share[..., None], 0.0)
        return unit_mix.flatten(-2) @ _up(o_proj).to(unit_mix.dtype).T

    return project(h_v, _up(alpha_vis)), project(h_l, 1 - _up(alpha_vis))


def margin(
    base: Float[Tensor, "*batch d"],
    a_v: Float[Tensor, "*batch d"],
    a_l: Float[Tensor, "*batch d"],
    alpha: Scalar,
    gain: Float[Tensor, " d"],
    direction: Float[Tensor, "*batch d"] | None = None,
) -> Margin:
    """Whether a larger α turns r = base + α·a_v + (1 − α)·a_l toward the image, after a norm with this gain.

    base is the residual stream with the outputs of the uncalibrated heads and the bias of o_proj. The gain is the
    effective one (1 + weight for some norms). The visual direction is G·a_v unless given.
    """
    base, a_v, a_l, gain = _up(base), _up(a_v), _up(a_l), _up(gain)
    share = _up(alpha)[..., None] if isinstance(alpha, Tensor) else alpha
    stream = gain * (base + share * a_v + (1 - share) * a_l)
    change = gain * (a_v - a_l)
    visual = gain * a_v if direction is None else _up(direction)
    unit = visual / norm(visual)[..., None]
    s, t = (stream * unit).sum(-1), (change * unit).sum(-1)
    p, q = stream - s[..., None] * unit, change - t[..., None] * unit
    p_norm, q_dot_p, size = norm(p), (p * q).sum(-1), norm(stream)
    value = t * p_norm**2 - s * q_dot_p
    return Margin(s, t.expand_as(s), p_norm, q_dot_p, value, s / size, value / size**3)
