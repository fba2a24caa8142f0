from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from heal.analysis.counterfactual import (
    COVARIANCES,
    MASKINGS,
    Attended,
    materialise,
    materialised_partials,
    noise_partials,
    swap_donor,
)
from heal.analysis.information import scores_from_partials
from heal.analysis.moments import Moments
from heal.analysis.split import Regions
from heal.errors import ConfigError
from tests.analysis.conftest import LETTERS, attended, cell, noise, plain, where

PADDED = ["...LVVVVLLL", "LVVVLLLLLLL", ".LVVVVVVVLL"]
EVEN = ["LVVVLLL", "LVVVLLL"]
TEXT = ["...LLLL", "LVVVLLL"]
NAMES = (0, 1)

every_pattern = pytest.mark.parametrize("patterns", [PADDED, EVEN, TEXT], ids=["padded", "even", "a row of text"])
every_covariance = pytest.mark.parametrize("covariance", COVARIANCES)
both_ways = pytest.mark.parametrize("way", [noise_partials, materialised_partials], ids=["closed", "materialised"])


def moments_of(at: Attended) -> Moments:
    return Moments.of(at.key, at.value, at.regions)


def assert_partials(one, other, exact=False):
    assert len(one) == len(other) == 2
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.value, b.value, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
        # a logarithm of one number and of many may differ in the last bit
        torch.testing.assert_close(a.lse, b.lse, rtol=2e-7 if exact else 1e-5, atol=0 if exact else 1e-5)


def by_loop(at, patterns, fake):
    """Partials for each row and head. fake(row, head, name, inside) returns the noise keys and values."""
    for name in NAMES:
        for row, pattern in enumerate(patterns):
            inside = where(pattern, LETTERS[name])
            for head in range(at.query.shape[1]):
                keys, values = fake(row, head, name, inside)
                yield name, row, head, plain(cell(at, row, head)[0], keys, values, at.scale)


def assert_loop(partials, at, patterns, fake, atol=1e-5):
    for name, row, head, (value, lse) in by_loop(at, patterns, fake):
        np.testing.assert_allclose(partials[name].value[row, head], value, rtol=1e-5, atol=atol)
        np.testing.assert_allclose(partials[name].lse[row, head], lse, rtol=1e-5, atol=atol)


# ── replacements without noise ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_pattern
def test_zero_closed_form_is_materialised_zero_exactly(patterns, dtype):
    at = attended(patterns, dtype=dtype)
    closed = noise_partials(at, moments_of(at), "zero", noise())
    assert_partials(closed, materialised_partials(at, moments_of(at), "zero", noise()), exact=True)
    assert_loop(closed, at, patterns, lambda row, head, name, inside: np.zeros((2, len(inside), 8)))


@both_ways
def test_swap_takes_the_tokens_of_the_previous_row(way):
    at = attended(["..LVVVNLL", "LVVVVVNLL", "LLLLLLNLL"], groups=3)
    patterns = ["LLLLLLNLL", "..LVVVNLL", "LVVVVVNLL"]

    def donor(row, head, name, inside):
        _, keys, values = cell(at, row - 1, head)
        return keys[inside], values[inside]

    partials = way(at, moments_of(at), "swap", noise())
    assert_loop(partials, at, patterns, donor)
    assert (partials[0].lse[0] == -torch.inf).all()  # the last row has no image


def test_swap_needs_another_row():
    at = attended(["LVVL"])
    with pytest.raises(ConfigError, match="at least two rows"):
        noise_partials(at, moments_of(at), "swap", noise())
    with pytest.raises(ConfigError):
        swap_donor(1)
    assert swap_donor(2) == [1, 0]
    assert swap_donor(4) == [3, 0, 1, 2]


@pytest.mark.parametrize("masking", ["gaussian", "uniform"])
@every_covariance
@both_ways
def test_noise_for_a_constant_is_that_constant(way, masking, covariance):
    at = attended(["..VVVLLLL", "VVVVVLLLL"])
    for states in (at.key, at.value):
        states[:, :, :5], states[:, :, 5:] = states[:, :, 4:5].clone(), states[:, :, 5:6].clone()
    partials = way(at, moments_of(at), masking, noise(), covariance)
    assert_partials(partials, at.split())


# ── the same draws, row by row and head by head ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("masking", ["gaussian", "uniform"])
@every_pattern
def test_materialised_noise_is_mean_plus_deviation_times_draw(masking, patterns):
    at = attended(patterns, heads=6, kv_heads=2)
    source = noise(4)
    draw = source.normal if masking == "gaussian" else source.uniform

    def fake(row, head, name, inside):
        out = []
        for which, states in enumerate(cell(at, row, head)[1:]):
            draws = draw((2, 8), at.regions.length, name, which)[head // 3].double().numpy()
            real = states[inside]
            noisy = [real.mean(0) + real.std(0) * draws[:, j] for j in range(len(inside))]
            out.append(np.array(noisy).reshape(-1, 8))
        return out

    assert_loop(materialised_partials(at, moments_of(at), masking, source), at, patterns, fake)
    if masking == "uniform":
        assert_loop(noise_partials(at, moments_of(at), masking, source), at, patterns, fake)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@every_pattern
def test_gaussian_closed_form_by_hand(patterns, dtype):
    at = attended(patterns, heads=6, kv_heads=2, dtype=dtype)
    source = noise(4)
    partials = noise_partials(at, moments_of(at), "gaussian", source)
    for name in NAMES:
        score_draws = source.normal((6,), at.regions.length, name).double().numpy()
        value_draws = source.normal((2, 6), 8, 2)[name].double().numpy()
        for row, pattern in enumerate(patterns):
            inside = where(pattern, LETTERS[name])
            for head in range(6):
                value, lse = partials[name].value[row, head], float(partials[name].lse[row, head])
                if not inside:
                    assert lse == -np.inf
                    assert not value.any()
                    continue
                query, keys, values = cell(at, row, head)
                keys, values = keys[inside], values[inside]
                spread = np.sqrt((query**2 * keys.var(0)).sum()) * at.scale
                weights = np.exp(query @ keys.mean(0) * at.scale + spread * score_draws[head, : len(inside)])
                deviation = np.sqrt((weights**2).sum()) / weights.sum() * values.std(0)
                np.testing.assert_allclose(lse, np.log(weights.sum()), rtol=1e-5, atol=1e-5)
                expected = values.mean(0) + deviation * value_draws[head]
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_only_masked_positions_are_replaced():
    at = attended(["..NLVVLN", "NLVVVLLN"], groups=3)
    for masking in ("gaussian", "zero", "uniform"):
        key, value, regions = materialise(at, moments_of(at), masking, noise())
        assert regions is at.regions
        kept = ~at.regions.masks[:, :2].any(1)[:, None, :, None].expand_as(key)
        for fake, real in ((key, at.key), (value, at.value)):
            assert torch.equal(fake[kept], real[kept])
            assert (fake[~kept] != real[~kept]).all()


def test_uniform_noise_stays_within_its_bounds():
    at = attended(["V" * 40 + "L" * 60])
    key, value, _ = materialise(at, moments_of(at), "uniform", noise())
    for fake, real in ((key, at.key), (value, at.value)):
        for part in (slice(0, 40), slice(40, 100)):
            real_part, fake_part = real[:, :, part], fake[:, :, part]
            off = (fake_part - real_part.mean(2, keepdim=True)) / real_part.std(2, keepdim=True, correction=0)
            assert 1.6 < float(off.abs().max()) < 3**0.5 + 1e-5
            assert abs(float(off.square().mean()) - 1) < 0.1


def test_other_addresses_give_other_noise():
    at = attended(PADDED)
    covariances: tuple[Any, ...] = COVARIANCES
    for masking in ("gaussian", "uniform"):
        for covariance in covariances:
            one, same, other = (
                noise_partials(at, moments_of(at), masking, noise().at(address), covariance) for address in (0, 0, 1)
            )
            assert_partials(one, same, exact=True)
            for a, b in zip(one, other, strict=True):
                assert (a.lse != b.lse).all()
                assert (a.value != b.value).all()


# ── a row alone equals the row in a batch ────────────────────────────────────────────────────────────────

ALONE = {
    "short": ("LVVVLLLL", ["....LVVVLLLL", "LVVVVVVVLLLL", "......LLLLLL"]),
    "beyond a block": ("L" + "V" * 270 + "LLL", ["." * 9 + "L" + "V" * 270 + "LLL", "V" * 12 + "L" * 271]),
}


@pytest.mark.parametrize(("pattern", "patterns"), ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("masking", [m for m in MASKINGS if m != "swap"])
@every_covariance
@both_ways
def test_a_row_alone_equals_the_row_in_a_padded_batch(way, covariance, masking, pattern, patterns):
    batch = attended(patterns)
    padding = len(patterns[0]) - len(pattern)
    key, value = batch.key[:1, :, padding:], batch.value[:1, :, padding:]
    regions = Regions.of(batch.regions.masks[:1, :, padding:])
    alone = Attended(batch.query[:1], key, value, regions, batch.scale)
    one = way(alone, moments_of(alone), masking, noise(), covariance)
    many = way(batch, moments_of(batch), masking, noise(), covariance)
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a.value[0], b.value[0], rtol=1e-6, atol=2e-6)
        torch.testing.assert_close(a.lse[0], b.lse[0], rtol=1e-6, atol=2e-6)


# ── equal distributions ──────────────────────────────────────────────────────────────────────────────────

DRAWS, ADDRESSES = 8000, 16
IN_LAW = ["N...LVVVVLLL", "NLVVVLLLLLLL", "N.LVVVVVVVLL"]
STATISTICS = (
    *(f"{what} {name}" for name in "VL" for what in ("lse", "value", "deviation")),
    *("visual", "language", "total"),
)
COMPONENT = 2
RISK = 1e-3
"""The probability that a family of tests fails by chance with random seeds."""


def in_law() -> Attended:
    return attended(IN_LAW, heads=4, kv_heads=2, dim=6, groups=3, seed=8)


@cache
def drawn(way: str, covariance: Any) -> dict[str, np.ndarray]:
    """Every statistic [rows, heads, draws]. Heads are repeated, because each kv head has its own noise."""
    at, copies = in_law(), DRAWS // ADDRESSES
    tiled = Attended(
        at.query.repeat(1, copies, 1),
        at.key.repeat(1, copies, 1, 1),
        at.value.repeat(1, copies, 1, 1),
        at.regions,
        at.scale,
    )
    real, moments = tiled.split(), moments_of(tiled)
    make = noise_partials if way == "closed" else materialised_partials
    found: dict[str, list] = {name: [] for name in STATISTICS}
    for address in range(ADDRESSES):
        partials = make(tiled, moments, "gaussian", noise(11).at(address), covariance)
        scores = scores_from_partials(real, partials)
        for letter, name in (("V", 0), ("L", 1)):
            component = partials[name].value[..., COMPONENT]
            centre = moments.mean[:, name, :, 1, COMPONENT].repeat_interleave(2, dim=1)
            found[f"lse {letter}"].append(partials[name].lse)
            found[f"value {letter}"].append(component)
            found[f"deviation {letter}"].append((component - centre).abs())
        for score in ("visual", "language", "total"):
            found[score].append(getattr(scores, score))
    shape = (ADDRESSES, len(IN_LAW), copies, 4)
    return {
        name: torch.stack(many).view(shape).permute(1, 3, 0, 2).flatten(2).double().numpy()
        for name, many in found.items()
    }


@cache
def by_the_book(covariance: str, key_std: float = 1.0, value_std: float = 1.0) -> dict[str, np.ndarray]:
    """The same with numpy's noise: materialised keys and values, and the four states one after another."""
    at, rng = in_law(), np.random.default_rng(5)
    found = {name: np.empty((len(IN_LAW), 4, DRAWS)) for name in STATISTICS}
    for row, pattern in enumerate(IN_LAW):
        for head in range(4):
            query, keys, values = cell(at, row, head)
            groups = [where(pattern, letter) for letter in LETTERS]
            visual, language, neutral = (
                (np.tile(keys[s], (DRAWS, 1, 1)), np.tile(values[s], (DRAWS, 1, 1))) for s in groups
            )
            no_visual, no_language = (
                (gaussian(rng, keys[s], covariance, key_std), gaussian(rng, values[s], covariance, value_std))
                for s in groups[:2]
            )
            for letter, fake, inside in (("V", no_visual, groups[0]), ("L", no_language, groups[1])):
                output, found[f"lse {letter}"][row, head] = many_plain(query, [fake], at.scale)
                found[f"value {letter}"][row, head] = output[:, COMPONENT]
                off = output[:, COMPONENT] - values[inside].mean(0)[COMPONENT]
                found[f"deviation {letter}"][row, head] = np.abs(off)
            h11 = many_plain(query, [visual, language, neutral], at.scale)[0]
            s01, s10, s00 = (
                (1 + (h11 * other).sum(1) / np.linalg.norm(h11, axis=1) / np.linalg.norm(other, axis=1)) / 2
                for other, _ in (
                    many_plain(query, [no_visual, language, neutral], at.scale),
                    many_plain(query, [visual, no_language, neutral], at.scale),
                    many_plain(query, [no_visual, no_language, neutral], at.scale),
                )
            )
            found["visual"][row, head] = s10 - s00
            found["language"][row, head] = s01 - s00
            found["total"][row, head] = 1 - s00
    return found


def gaussian(rng, states: np.ndarray, covariance: str, scale: float) -> np.ndarray:
    centred = states - states.mean(0)
    matrix = centred.T @ centred / len(states)
    if covariance == "diagonal":
        matrix = np.diag(np.diag(matrix))
    size = (DRAWS, len(states))
    return rng.multivariate_normal(states.mean(0), matrix * scale**2, size=size, method="eigh")


def many_plain(query, parts, scale):
    keys, values = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    weights = np.exp(keys @ query * scale)
    total = weights.sum(1)
    return np.einsum("tn,tnd->td", weights, values) / total[:, None], np.log(total)


def p_values(one, other, names=STATISTICS) -> dict[str, np.ndarray]:
    """Two-sample Kolmogorov–Smirnov, by row and head, times the number of tests of the whole family."""
    tests = sum(sample[..., 0].size for sample in one.values())
    found = {name: np.empty((len(IN_LAW), 4)) for name in names}
    for name, p in found.items():
        for at in np.ndindex(p.shape):
            p[at] = stats.ks_2samp(one[name][at], other[name][at], method="asymp").pvalue * tests
    return found


@every_covariance
@pytest.mark.parametrize("pair", [("closed", "materialised"), ("closed", "book"), ("materialised", "book")])
def test_closed_form_and_materialised_noise_agree_in_distribution(covariance, pair):
    one, other = (by_the_book(covariance) if way == "book" else drawn(way, covariance) for way in pair)
    assert all(sample.shape == (3, 4, DRAWS) for sample in one.values())
    accidents = {name: p for name, p in p_values(one, other).items() if (p < RISK).any()}
    assert not accidents


@every_covariance
@pytest.mark.parametrize("way", ["closed", "materialised"])
@pytest.mark.parametrize("what", ["key", "value"])
def test_a_wrong_variance_is_detected(covariance, way, what):
    wrong = by_the_book(covariance, **{f"{what}_std": 1.15})
    seen = p_values(drawn(way, covariance), wrong, STATISTICS[:6])
    for letter in "VL":
        lse, deviation = seen[f"lse {letter}"], seen[f"deviation {letter}"]
        if what == "key":
            assert (lse < RISK).mean() > 0.9  # a head with nearly constant scores cannot detect it
        else:
            assert (deviation < RISK).all()
            assert (lse >= RISK).all()  # the other statistics are not affected


@pytest.mark.parametrize("way", ["closed", "materialised"])
def test_diagonal_and_full_covariance_are_distinguished(way):
    seen = p_values(drawn(way, "full"), by_the_book("diagonal"), ("lse V", "lse L", "total"))
    assert all((seen[f"lse {letter}"] < RISK).mean() > 0.5 for letter in "VL")
    assert (seen["total"] < RISK).any()
