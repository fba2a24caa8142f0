import pytest
import torch
from scipy import stats

from heal.analysis.noise import BLOCK
from tests.analysis.conftest import noise

KINDS = ["normal", "uniform", "cauchy"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def draw(source, kind, leading, length, *address):
    return getattr(source, kind)(leading, length, *address)


@every_kind
def test_a_draw_depends_on_its_address_only(kind):
    one, other = noise(3), noise(3)
    first = draw(one, kind, (2, 5), 40, 7, 1)
    draw(other, "normal", (9,), 1000, 4)
    draw(other, "uniform", (1,), 3, 7, 1)
    assert torch.equal(first, draw(other, kind, (2, 5), 40, 7, 1))
    assert torch.equal(first, draw(one, kind, (2, 5), 40, 7, 1))


@every_kind
def test_at_extends_the_address(kind):
    expected = draw(noise(), kind, (3,), 10, 4, -1, 2)
    assert torch.equal(expected, draw(noise().at(4), kind, (3,), 10, -1, 2))
    assert torch.equal(expected, draw(noise().at(4, -1).at(2), kind, (3,), 10))
    assert noise().at(4).at(2).address == (4, 2)


@every_kind
def test_a_longer_draw_begins_with_a_shorter_one(kind):
    longest = draw(noise(), kind, (2, 3), 3 * BLOCK + 5, 1)
    assert longest.shape == (2, 3, 3 * BLOCK + 5)
    for length in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17):
        shorter = draw(noise(), kind, (2, 3), length, 1)
        assert shorter.shape == (2, 3, length)
        assert torch.equal(shorter, longest[..., :length])


@every_kind
def test_nothing_repeats_within_a_draw(kind):
    values = draw(noise(), kind, (4,), 4 * BLOCK)
    blocks = values.view(4, 4, BLOCK).flatten(0, 1)
    for i in range(len(blocks)):
        for j in range(i):
            assert (blocks[i] == blocks[j]).float().mean() < 0.01


@every_kind
def test_different_addresses_and_seeds_differ(kind):
    addresses = [(), (0,), (1,), (-1,), (0, 0), (0, 1), (1, 0), (1, 1), (11,), (1, 1, 0), (12, 3), (1, 23)]
    draws = [draw(noise(5), kind, (2,), 300, *address) for address in addresses]
    draws += [draw(noise(seed), kind, (2,), 300) for seed in (0, 1, -1, 2**40)]
    # block 1 of one address differs from block 0 of another
    pieces = [piece for d in draws for piece in (d[0, :44], d[1, :44], d[0, BLOCK:][:44], d[1, BLOCK:][:44])]
    for i in range(len(pieces)):
        for j in range(i):
            assert (pieces[i] == pieces[j]).float().mean() < 0.1


@every_kind
def test_the_global_generator_is_not_used(kind):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw(noise(), kind, (2,), 600, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(draw(noise(), kind, (2,), 600, 3), first)


def test_normal_is_standard_normal():
    values = noise().normal((100,), 1000).double().flatten()
    assert abs(float(values.mean())) < 4 / 100_000**0.5
    assert abs(float(values.var()) - 1) < 4 * (2 / 100_000) ** 0.5
    assert stats.kstest(values, "norm").pvalue > 1e-3


def test_uniform_has_mean_zero_and_variance_one():
    values = noise().uniform((100,), 1000).double().flatten()
    edge = 3**0.5
    assert -edge - 1e-6 <= float(values.min()) < -edge + 1e-3
    assert edge - 1e-3 < float(values.max()) <= edge + 1e-6
    assert abs(float(values.mean())) < 4 / 100_000**0.5
    assert abs(float(values.var()) - 1) < 4 * (0.8 / 100_000) ** 0.5
    assert stats.kstest(values, "uniform", (-edge, 2 * edge)).pvalue > 1e-3


def test_cauchy_has_median_zero_and_deviation_one():
    values = noise().cauchy((100,), 1000).double().flatten()
    error = 4 * (torch.pi / 2) / 100_000**0.5
    assert values.isfinite().all()
    assert abs(float(values.median())) < error
    assert abs(float(values.abs().median()) - 1) < error
    assert stats.kstest(values, "cauchy").pvalue > 1e-3
