import pytest
import torch

from heal.kernels.append import fused_append
from tests.kernels.problems import random_step, regions_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("patterns", [["..LVVL", "LLVVVV", "LVVLLN"], ["VVVVVL", "LLLLLV", "LVV..."]])
def test_the_newest_position_is_added_to_its_group(patterns, dtype):
    at = random_step(patterns, 4, 2, 80, dtype)
    found, expected = at.moments, at.moments.select(torch.arange(3, device=at.key.device))
    expected.append(at.key[:, :, -1], at.value[:, :, -1], regions_of(at.groups, at.neutral).masks[:, :, -1])
    fused_append(found, at.key, at.value, at.groups)
    assert torch.equal(found.count, expected.count)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.squared, expected.squared)


def test_nan_stays_in_its_group():
    at = random_step(["LVVVLL"], 2, 2, 64)
    at.key[0, 1, -1, 3] = torch.nan
    before = at.moments.mean[:, 0].clone()
    fused_append(at.moments, at.key, at.value, at.groups)
    assert torch.equal(at.moments.mean[:, 0], before)
    assert at.moments.mean[0, 1, 1, 0, 3].isnan()
    assert at.moments.mean.isnan().sum() == 1
