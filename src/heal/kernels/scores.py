"""Information of heads on the device, from inner products of four or five vectors per head.

With h = H11, e₁ = v − l, e₂ = μ_v − v, e₃ = μ_l − l and e₄ = r − l (v, l, r the real means of the groups, μ those of
the noise), every counterfactual state is h plus a combination of e₁ … e₄. Its similarity to h follows from the inner
products, so that the number of states costs nothing per dimension.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.numeric import LOWEST, TINY, at_least, root, tanh

DEAD_ZONE = tl.constexpr(1e-6)
"""As in heal.analysis.information."""
COSINE = tl.constexpr(0)
L2 = tl.constexpr(1)


@triton.jit
@no_type_check
def shares(visual, language, neutral, NEUTRAL: tl.constexpr):
    """The shares of attention of the groups, from their log-normalisers. An empty one gets 0 unless all are empty.

    The third is undefined without neutral positions.
    """
    visual, language, neutral = at_least(visual, LOWEST), at_least(language, LOWEST), at_least(neutral, LOWEST)
    top = tl.maximum(visual, language)
    if NEUTRAL:
        top = tl.maximum(top, neutral)
    visual, language = tl.exp(visual - top), tl.exp(language - top)
    whole = visual + language
    if NEUTRAL:
        neutral = tl.exp(neutral - top)
        whole += neutral
    return visual / whole, language / whole, neutral / whole


@triton.jit
@no_type_check
def dissimilarity(along, squared, norm, MEASURE: tl.constexpr):
    """1 − Sim(h, h + δ) from ⟨h, δ⟩, ‖δ‖² and ‖h‖, as `_dissimilarity_of_shift` in heal.analysis.contribution."""
    unit = at_least(norm, TINY)
    size = root(at_least(squared, 0.0)) / unit
    forward = 1 + along / unit / unit
    across = at_least(size * size - (forward - 1) * (forward - 1), 0.0)
    new = root(forward * forward + across)
    turned = tl.where(forward > 0, across / at_least(new + forward, TINY), new - forward)
    cosine = tl.where((norm == 0) | (new == 0), 0.5, turned / at_least(new, TINY) / 2)
    if MEASURE == COSINE:
        result = cosine
    else:
        l2 = tanh(tl.where(norm == 0, (squared > 0).to(tl.float32), size / (1 + new)) / 2)
        if MEASURE == L2:
            result = l2
        else:
            result = (cosine + l2) / 2
    return result


@triton.jit
@no_type_check
def _dot(a, b):
    """Inner products of heads, [HEADS, 1] beside the states."""
    return tl.sum(a * b, 1)[:, None]


@triton.jit
@no_type_check
def _shrunk(x):
    """torch.nn.functional.hardshrink: NaN stays NaN."""
    return tl.where(tl.abs(x) <= DEAD_ZONE, 0.0, x)


@triton.jit
@no_type_check
def information(
    h, visual, language, neutral, fake_visual, fake_language, lse_v, lse_l, lse_n,
    noise_v, noise_l, random_v, random_l, weight, NEUTRAL: tl.constexpr, MEASURE: tl.constexpr,
):  # fmt: skip
    """Visual, language and total information [HEADS], as means over the pairs of noise worlds.

    Means of the groups and of the noise are [HEADS, DIMS], log-normalisers of the groups [HEADS], those of the noise
    [HEADS, pairs], `random` the expected ‖value − mean‖² of the noise [HEADS, pairs], `weight` that of a pair.
    """
    e1, e2, e3 = visual - language, fake_visual - visual, fake_language - language
    e4 = neutral - language
    hh, h1, h2, h3 = _dot(h, h), _dot(h, e1), _dot(h, e2), _dot(h, e3)
    g11, g22, g33 = _dot(e1, e1), _dot(e2, e2), _dot(e3, e3)
    g12, g13, g23 = _dot(e1, e2), _dot(e1, e3), _dot(e2, e3)
    h4, g44, g14, g24, g34 = hh, hh, hh, hh, hh
    if NEUTRAL:
        h4, g44, g14, g24, g34 = _dot(h, e4), _dot(e4, e4), _dot(e1, e4), _dot(e2, e4), _dot(e3, e4)
    norm = root(hh)
    lse_v, lse_l, lse_n = lse_v[:, None], lse_l[:, None], lse_n[:, None]
    own_v, _, own_n = shares(lse_v, lse_l, lse_n, NEUTRAL)
    both, only_v, only_l = 0.0, 0.0, 0.0
    for state in tl.static_range(3):  # H00, H10 (language replaced), H01 (visual replaced)
        to_v = noise_v if state != 1 else lse_v
        to_l = noise_l if state != 2 else lse_l
        share_v, share_l, share_n = shares(to_v, to_l, lse_n, NEUTRAL)
        c1 = share_v - own_v
        c2 = share_v if state != 1 else share_v * 0
        c3 = share_l if state != 2 else share_l * 0
        along = c1 * h1 + c2 * h2 + c3 * h3
        squared = c1 * c1 * g11 + c2 * c2 * (g22 + random_v) + c3 * c3 * (g33 + random_l)
        squared += 2 * (c1 * c2 * g12 + c1 * c3 * g13 + c2 * c3 * g23)
        if NEUTRAL:
            c4 = share_n - own_n
            along += c4 * h4
            squared += c4 * c4 * g44 + 2 * c4 * (c1 * g14 + c2 * g24 + c3 * g34)
        distance = dissimilarity(along, squared, norm, MEASURE)
        mean = tl.sum(distance * weight[None, :], 1)
        if state == 0:
            both = mean
        if state == 1:
            only_l = mean
        if state == 2:
            only_v = mean
    return _shrunk(both - only_l), _shrunk(both - only_v), both
