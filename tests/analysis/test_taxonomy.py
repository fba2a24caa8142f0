import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heal.analysis.information import HeadScores
from heal.analysis.taxonomy import MAD, HeadMap, HeadType, classify
from tests.analysis.conftest import examples

INF = float("inf")
C, P, V, L, S, U = (
    HeadType.CAUSAL_REDUNDANT,
    HeadType.INFO_REDUNDANT,
    HeadType.VISUAL,
    HeadType.LANGUAGE,
    HeadType.SYNERGY,
    HeadType.UNKNOWN,
)


def scores_of(visual, language, total=None) -> HeadScores:
    """[rows, layers, heads] from nested lists. The total is the same for all heads unless given."""
    visual, language = torch.tensor(visual), torch.tensor(language)
    return HeadScores(visual, language, torch.full_like(visual, 0.5) if total is None else torch.tensor(total))


def none_of(scores: HeadScores) -> torch.Tensor:
    return torch.zeros_like(scores.total, dtype=torch.bool)


def types_of(scores: HeadScores, redundant=None, **options) -> list:
    return classify(scores, none_of(scores) if redundant is None else redundant, **options).types.tolist()


def obvious(visual, language, total, redundant, mad, sigma, considered, yeo_johnson) -> np.ndarray:
    """One row [layers, heads], for each head, in double precision."""
    heads = list(np.ndindex(total.shape))
    taken = [h for h in heads if considered[h] and not redundant[h]]
    found = dict.fromkeys(taken, np.nan)
    if sigma != INF and taken:
        values = np.array([total[h] for h in taken])
        if yeo_johnson and len(values) > 2:
            values = stats.yeojohnson((values - values.mean()) / values.std(ddof=1))[0]
        low = values.mean() - sigma * values.std()
        found = {h: value - low for h, value in zip(taken, values, strict=True)}
    live = [h for h in taken if not found[h] < 0]
    logits = {h: np.log(visual[h] / language[h]) for h in live if visual[h] > 0 and language[h] > 0}
    median = np.median(list(logits.values())) if logits else 0.0
    spread = np.median([abs(x - median) for x in logits.values()]) if logits else 0.0
    cut = INF if mad == INF else mad * spread
    types = np.full(total.shape, int(U))
    for h in heads:
        if not considered[h]:
            continue
        if redundant[h]:
            types[h] = C
        elif h not in live:
            types[h] = P
        elif h in logits:
            types[h] = V if logits[h] > median + cut else L if logits[h] < median - cut else S
        else:
            types[h] = V if visual[h] > 0 else L if language[h] > 0 else P
    return types


def random_scores(rows, layers, heads, seed=0):
    generator = torch.Generator().manual_seed(seed)
    visual, language = torch.randn(2, rows, layers, heads, generator=generator) * 0.1 + 0.1
    total = torch.randn(rows, layers, heads, generator=generator) * 0.1 + 0.5
    redundant = torch.rand(rows, layers, heads, generator=generator) < 0.1
    return HeadScores(visual, language, total), redundant


# ── every branch by hand ─────────────────────────────────────────────────────────────────────────────────


def test_the_signs_decide_if_a_head_has_one_modality():
    scores = scores_of([[[0.2, 0.2, -0.1, 0.0, -0.1, 0.0]]], [[[-0.1, 0.0, 0.2, 0.2, -0.2, 0.0]]])
    assert types_of(scores) == [[[V, V, L, L, P, P]]]


def test_the_cut_on_the_logit_decides_if_a_head_is_mixed():
    # logits −2 … 2 in steps of 1, and ±9: median 0, MAD 2, cut at ±5.93; all scores outside the dead zone
    logits = [[[-9.0, -2.0, -1.0, 0.0, 1.0, 2.0, 9.0]]]
    visual = torch.tensor(logits).exp() * 0.1
    scores = HeadScores(visual, torch.full_like(visual, 0.1), torch.full_like(visual, 0.5))
    assert types_of(scores) == [[[L, S, S, S, S, S, V]]]
    assert types_of(scores, mad=0.9) == [[[L, L, S, S, S, V, V]]]
    assert types_of(scores, mad=4.4) == [[[L, S, S, S, S, S, V]]]
    assert types_of(scores, mad=4.6) == [[[S] * 7]]
    assert types_of(scores, mad=INF) == [[[S] * 7]]
    assert types_of(scores, mad=0.0) == [[[L, L, L, S, V, V, V]]]


def test_the_default_cut_is_two_deviations():
    assert pytest.approx(2.9652) == MAD


def test_heads_with_equal_mixes_are_synergy():
    scores = scores_of([[[0.3] * 5]], [[[0.1] * 5]])
    for mad in (0.0, MAD, INF):
        assert types_of(scores, mad=mad) == [[[S] * 5]]


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    # logits 0, 0, 1, 1: median and MAD are 1/2, so with λ < 1 all are beyond, with λ > 1 none is
    visual = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]).exp()
    scores = HeadScores(visual, torch.ones_like(visual), torch.full_like(visual, 0.5))
    assert types_of(scores, mad=0.9) == [[[L, L, V, V]]]
    assert types_of(scores, mad=1.1) == [[[S] * 4]]


def test_a_head_with_little_information_is_redundant_for_all_signs():
    total = torch.full((1, 3, 4), 0.5)
    total[0, 2, 1] = 0.0  # mean 0.458, std 0.138: 0 < mean − 3·std = 0.0437
    visual = torch.full_like(total, 0.2)
    scores = HeadScores(visual, visual.clone(), total)
    types = classify(scores, none_of(scores)).types
    assert types[0, 2, 1] == P
    assert (types == int(S)).sum() == 11
    assert types_of(scores, sigma=INF) == [[[S] * 4] * 3]
    rich = HeadScores(visual, visual.clone(), 1 - total)  # far above is not redundant
    assert types_of(rich) == [[[S] * 4] * 3]


def test_redundant_heads_are_not_part_of_the_median():
    # the two outermost logits are of redundant heads: without them the cut is much smaller
    logits = torch.tensor([[[0.0, 0.1, -0.1, 2.0, -10.0, 10.0]]])
    scores = HeadScores(logits.exp(), torch.ones_like(logits), torch.full_like(logits, 0.5))
    redundant = torch.tensor([[[False, False, False, False, True, True]]])
    assert types_of(scores, redundant) == [[[S, S, S, V, C, C]]]
    poor = HeadScores(scores.visual, scores.language, torch.tensor([[[0.5, 0.5, 0.5, 0.5, 0.1, 0.1]]]))
    assert types_of(poor, sigma=1.0) == [[[S, S, S, V, P, P]]]
    # all six: median 0.05, MAD 1.05, the mean of the middle two of 0.05, 0.05, 0.15, 1.95, 9.95, 10.05
    assert types_of(scores, sigma=INF) == [[[S, S, S, S, L, V]]]


def test_causally_redundant_heads_are_not_part_of_the_mean():
    total = torch.full((1, 1, 14), 0.5)
    total[..., 0], total[..., 1] = 0.0, -40.0
    same = torch.full_like(total, 0.2)
    scores = HeadScores(same, same.clone(), total)
    redundant = none_of(scores)
    redundant[..., 1] = True
    assert types_of(scores, redundant) == [[[P, C, *[S] * 12]]]
    assert types_of(scores) == [[[S, P, *[S] * 12]]]


def test_heads_not_considered_are_unknown_and_not_part_of_the_statistics():
    logits = torch.tensor([[[0.0, 0.1, -0.1, 2.0], [-30.0, 30.0, 30.0, -30.0]]])
    total = torch.tensor([[[0.5] * 4, [-9.0] * 4]])
    scores = HeadScores(logits.exp(), torch.ones_like(logits), total)
    considered = torch.tensor([[True] * 4, [False] * 4])
    redundant = none_of(scores)
    redundant[0, 1, 2] = True  # unknown has priority: nothing was measured
    assert types_of(scores, redundant, considered=considered) == [[[S, S, S, V], [U] * 4]]
    assert redundant.sum() == 1  # the caller's tensors are unchanged
    assert considered.sum() == 4


def test_a_row_without_mixed_heads():
    scores = scores_of([[[0.1, -0.1]], [[0.1, 0.2]]], [[[-0.1, 0.1]], [[0.1, 0.2]]])
    for mad in (MAD, INF):
        assert types_of(scores, mad=mad) == [[[V, L]], [[S, S]]]


def test_everything_redundant():
    scores = scores_of([[[0.1, 0.2]]], [[[0.1, 0.2]]])
    assert types_of(scores, ~none_of(scores)) == [[[C, C]]]
    assert types_of(scores, considered=torch.zeros(1, 2, dtype=torch.bool)) == [[[U, U]]]


# ── compared with a simple classifier ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mad", [0.7, MAD, INF])
@pytest.mark.parametrize("sigma", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("yeo_johnson", [False, True])
@pytest.mark.parametrize("partly", [False, True])
def test_types_equal_those_of_a_simple_classifier(mad, sigma, yeo_johnson, partly):
    seen = set()
    for seed, shape in enumerate([(3, 4, 8), (2, 12, 12), (2, 1, 5), (1, 6, 3)]):
        scores, redundant = random_scores(*shape, seed=seed)
        considered = torch.ones(shape[1:], dtype=torch.bool)
        if partly:
            considered[0] = False
        options = {"mad": mad, "sigma": sigma, "yeo_johnson": yeo_johnson}
        found = classify(scores, redundant, considered=considered if partly else None, **options)
        for row in range(shape[0]):
            expected = obvious(
                scores.visual[row].double().numpy(),
                scores.language[row].double().numpy(),
                scores.total[row].double().numpy(),
                redundant[row].numpy(),
                mad,
                sigma,
                considered.numpy(),
                yeo_johnson,
            )
            assert found.types[row].tolist() == expected.tolist()
            seen |= set(expected.flatten().tolist())
    assert seen == {C, P, V, L, S} | ({U} if partly else set())


@given(st.integers(0, 10_000), st.integers(2, 4), st.booleans())
@examples(60)
def test_a_row_alone_is_the_row_in_a_batch(seed, rows, yeo_johnson):
    scores, redundant = random_scores(rows, 3, 6, seed=seed)
    together = classify(scores, redundant, sigma=1.5, yeo_johnson=yeo_johnson)
    for row in range(rows):
        own = HeadScores(*(t[row : row + 1] for t in (scores.visual, scores.language, scores.total)))
        alone = classify(own, redundant[row : row + 1], sigma=1.5, yeo_johnson=yeo_johnson)
        assert torch.equal(alone.types[0], together.types[row])


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────


def head_map(*types) -> HeadMap:
    return HeadMap(torch.tensor(types, dtype=torch.uint8))


def test_head_maps_are_equal_by_what_they_say():
    one = head_map([V, L], [S, C])
    assert one == head_map([V, L], [S, C])
    assert one != head_map([V, L], [S, P])
    assert one != head_map([V, L])
    assert one != one.types


def test_head_maps_have_no_hash_because_equal_ones_would_differ():
    with pytest.raises(TypeError):
        hash(head_map([V, L], [S, C]))


def test_counts_by_label():
    types = head_map([V, L, S], [S, C, U], [P, S, V])
    assert types.counts() == {
        "causal-redundant": 1,
        "info-redundant": 1,
        "visual": 2,
        "language": 1,
        "synergy": 3,
        "unknown": 1,
    }
    assert types.count(S) == 3
    assert types.mask(S).tolist() == [[False, False, True], [True, False, False], [False, True, False]]
    assert [kind.label for kind in (C, P)] == ["causal-redundant", "info-redundant"]


def test_agreement_is_a_share():
    assert head_map([V, L, S, S]).agreement(head_map([V, L, S, S])) == 1
    assert head_map([V, L, S, S]).agreement(head_map([V, S, S, L])) == 0.5
    assert head_map([V]).agreement(head_map([L])) == 0
