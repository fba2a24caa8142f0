"""Information of heads on the device, from inner products of four or five vectors per head.

With h = H11, e₁ = v − l, e₂ = μ_v − v, e₃ = μ_l − l and e₄ = r − l (v, l, r the real means of the groups, μ those of
the noise), every counterfactual state is h plus a combination of e₁ … e₄. Its similarity to h follows from the inner
products, so that the number of states costs nothing per dimension.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.noise_world import NODES, cases, entry
from heal.kernels.numeric import LOWEST, TINY, at_least, root, tanh

COSINE = tl.constexpr(0)
L2 = tl.constexpr(1)


@triton.jit
@no_type_check
def shares(visual, language, neutral, NEUTRAL: tl.constexpr):
    """The shares of attention of the groups, from their log-normalisers. An empty one gets 0 unless all are empty.

    The third is undefined without neutral positions. One exponential for two groups: those of single slots would
    underflow in fp32, whose range is e^±87.
    """
    visual, language = at_least(visual, LOWEST), at_least(language, LOWEST)
    above = visual - language
    if NEUTRAL:
        neutral = at_least(neutral, LOWEST)
        top = tl.maximum(tl.maximum(visual, language), neutral)
        visual, language, neutral = tl.exp(visual - top), tl.exp(language - top), tl.exp(neutral - top)
        whole = visual + language + neutral
        visual, language, neutral = visual / whole, language / whole, neutral / whole
    else:
        less = tl.exp(-tl.abs(above))
        larger, smaller = 1 / (1 + less), less / (1 + less)
        visual, language = tl.where(above < 0, smaller, larger), tl.where(above < 0, larger, smaller)
    return visual, language, neutral


@triton.jit
@no_type_check
def dissimilarity(along, squared, norm, MEASURE: tl.constexpr):
    """1 − Sim(h, h + δ) from ⟨h, δ⟩, ‖δ‖² and ‖h‖, as `dissimilarity_of_shift` in heal.analysis.contribution."""
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
def information(
    h, visual, language, neutral, fake_visual, fake_language, lse_v, lse_l, lse_n, centre_v, centre_l,
    spread_v, spread_l, place_v, place_l, vary_v, vary_l, table_v, table_l,
    NEUTRAL: tl.constexpr, MEASURE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Visual, language and total information [HEADS], as means over the cases of the noise.

    Means of the groups and of the noise are [HEADS, DIMS], log-normalisers of the groups, centres and squared spreads
    of the noise scores [HEADS]. `place` is the entry of a table for s² = 1, `vary` the expected ‖value − mean‖² of
    one noise value, times the number of positions. LANES states are computed at once.
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
    own_v, _, own_n = shares(lse_v[:, None], lse_l[:, None], lse_n[:, None], NEUTRAL)
    index_v, rest_v = entry(spread_v, place_v)
    index_l, rest_l = entry(spread_l, place_l)
    both, only_l, only_v = tl.zeros_like(lse_v), tl.zeros_like(lse_v), tl.zeros_like(lse_v)
    PAIRS: tl.constexpr = NODES * NODES
    for first in range(0, PAIRS + 2 * NODES, LANES):
        # all pairs of cases (H00), then the cases of the language group (H10), then those of the visual group (H01)
        state = first + tl.arange(0, LANES)
        known = state < PAIRS + 2 * NODES
        is_pair, is_l = state < PAIRS, (state >= PAIRS) & (state < PAIRS + NODES)
        is_v = known & (state >= PAIRS + NODES)
        slot_v = tl.where(is_pair, 1 + state // NODES, tl.where(is_v, 1 + state - PAIRS - NODES, 0))
        slot_l = tl.where(is_pair, 1 + state % NODES, tl.where(is_l, 1 + state - PAIRS, 0))
        to_v, random_v = cases(table_v, index_v, rest_v, slot_v, lse_v, centre_v, known)
        to_l, random_l = cases(table_l, index_l, rest_l, slot_l, lse_l, centre_l, known)
        share_v, share_l, share_n = shares(to_v, to_l, lse_n[:, None], NEUTRAL)
        c1 = share_v - own_v
        c2 = tl.where((slot_v > 0)[None, :], share_v, 0.0)
        c3 = tl.where((slot_l > 0)[None, :], share_l, 0.0)
        along = c1 * h1 + c2 * h2 + c3 * h3
        squared = c1 * c1 * g11 + c2 * c2 * (g22 + random_v * vary_v) + c3 * c3 * (g33 + random_l * vary_l)
        squared += 2 * (c1 * c2 * g12 + c1 * c3 * g13 + c2 * c3 * g23)
        if NEUTRAL:
            c4 = share_n - own_n
            along += c4 * h4
            squared += c4 * c4 * g44 + 2 * c4 * (c1 * g14 + c2 * g24 + c3 * g34)
        distance = dissimilarity(along, squared, norm, MEASURE)
        both += tl.sum(tl.where(is_pair[None, :], distance, 0.0), 1)
        only_l += tl.sum(tl.where(is_l[None, :], distance, 0.0), 1)
        only_v += tl.sum(tl.where(is_v[None, :], distance, 0.0), 1)
    both, only_l, only_v = both / PAIRS, only_l / NODES, only_v / NODES
    return both - only_l, both - only_v, both
