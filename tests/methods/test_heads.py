"""The heads to calibrate: synergy heads, or others as a control."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from heal import HEAL, VLM
from heal.analysis.taxonomy import HeadType
from heal.errors import ConfigError

NEW = 12


@pytest.fixture(scope="module")
def vlm():
    return VLM.random()


def pictures(count):
    return list(np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8))


def traces(vlm, count=2, **options):
    method = HEAL(**{"alpha": 0.4, "factor_limit": None} | options)
    answers = vlm.generate(
        pictures(count), ["describe", "describe this image"][:count], method=method, trace=True, max_new_tokens=NEW
    )
    return [answer.trace for answer in answers]


def changed(trace):
    return (trace.beta != 1) & ~np.isnan(trace.beta)


@pytest.mark.parametrize("kind", ["synergy", "visual", "language"])
def test_heads_of_one_type(vlm, kind):
    for trace in traces(vlm, heads=kind):
        wanted = (trace.types == int(HeadType[kind.upper()])) & ~np.isnan(trace.alpha_vis)
        np.testing.assert_array_equal(changed(trace), wanted)


def test_all_heads_that_have_a_mix(vlm):
    for trace in traces(vlm, heads="all"):
        np.testing.assert_array_equal(changed(trace), ~np.isnan(trace.alpha_vis))


def test_heads_that_drifted_toward_language_alone(vlm):
    for trace in traces(vlm, alpha=0.5, drift="language"):
        synergy = (trace.types == int(HeadType.SYNERGY)) & ~np.isnan(trace.alpha_vis)
        assert (synergy & (trace.alpha_vis > 0.5)).any()
        np.testing.assert_array_equal(changed(trace), synergy & (trace.alpha_vis < 0.5))
        assert np.nanmin(trace.beta) == 1
        assert np.nanmax(trace.gamma) == 1


def test_as_many_random_heads_as_synergy_heads(vlm):
    for trace in traces(vlm, heads="random"):
        synergy = (trace.types == int(HeadType.SYNERGY)).sum((1, 2))
        some = changed(trace)
        assert (some.sum((1, 2)) <= synergy).all()
        assert some.any()
        assert (some & (trace.types != int(HeadType.SYNERGY))).any()
        mixed = ~np.isnan(trace.alpha_vis)
        # between two refreshes the choice is the same: a mixed head that was changed is changed at the next step
        steady = mixed[1] & mixed[2]
        np.testing.assert_array_equal(some[1] & steady, some[2] & steady)


def test_a_random_choice_depends_on_the_seed_and_not_on_the_batch(vlm):
    # with unbounded factors, rounding errors that depend on the batch would change tokens
    together = traces(vlm, heads="random", factor_limit=2.0)
    alone = vlm.generate(
        pictures(2)[1],
        "describe this image",
        method=HEAL(alpha=0.4, factor_limit=2.0, heads="random"),
        trace=True,
        max_new_tokens=NEW,
    ).trace
    np.testing.assert_array_equal(changed(alone), changed(together[1]))
    other = traces(vlm, heads="random", factor_limit=2.0, seed=1)
    assert (changed(other[0])[0] != changed(together[0])[0]).any()


@pytest.mark.parametrize("path", ["auto", "reference"])
def test_permuted_factors_are_those_of_the_synergy_heads_on_other_heads(vlm, path):
    for trace in traces(vlm, heads="permuted", preset="expected", path=path):
        synergy = (trace.types == int(HeadType.SYNERGY)) & ~np.isnan(trace.alpha_vis)
        own = np.stack(
            [np.where(synergy, 0.4 / trace.alpha_vis, 1), np.where(synergy, 0.6 / (1 - trace.alpha_vis), 1)]
        )
        given = np.nan_to_num(np.stack([trace.beta, trace.gamma]), nan=1)
        for layer in range(trace.layers):
            error = np.abs(own[:, :, layer, :, None] / given[:, :, layer, None, :] - 1).max((0, 1))
            np.fill_diagonal(error, np.inf)  # no head keeps its own factors
            assert error[linear_sum_assignment(error > 1e-3)].max() < 1e-3
        assert (changed(trace) & ~synergy).any()


def test_a_permutation_depends_on_the_seed_and_not_on_the_batch(vlm):
    method = HEAL(alpha=0.4, heads="permuted", factor_limit=2.0)
    together = traces(vlm, heads="permuted", factor_limit=2.0)
    alone = vlm.generate(pictures(2)[1], "describe this image", method=method, trace=True, max_new_tokens=NEW).trace
    np.testing.assert_allclose(alone.beta, together[1].beta, rtol=1e-3)
    other = traces(vlm, heads="permuted", factor_limit=2.0, seed=1)
    assert (changed(other[0])[0] != changed(together[0])[0]).any()


def test_compiled_steps_cannot_permute():
    with pytest.raises(ConfigError, match="compile cannot permute"):
        HEAL(heads="permuted", compile=True, preset="gaussian")


def test_types_can_be_found_once(vlm):
    for trace in traces(vlm, interval=1_000_000):
        assert trace.refreshed.tolist() == [True] + [False] * (NEW - 1)
        assert (trace.types == trace.types[0]).all()
    assert any((t.types != t.types[0]).any() for t in traces(vlm, interval=2))
