"""VCD: noise, formula and options."""

from itertools import pairwise

import pytest
import torch

from heal.errors import ConfigError
from heal.methods import VCD, parse
from heal.methods.vcd import noise_like, remaining
from tests.methods import slow
from tests.methods.agreement import NAMES, assert_agrees, said
from tests.zoo import Row


@pytest.mark.parametrize("name", [*NAMES, "llava_next"])
def test_agrees_with_two_complete_passes_per_token(name: str) -> None:
    assert_agrees(slow.vcd, name, VCD())


@pytest.mark.parametrize(
    "method",
    [
        VCD(alpha=0.5, beta=0.0),
        VCD(alpha=3.0, beta=0.0, noise_step=999, seed=7),
        VCD(preset="release"),
        VCD(alpha=0.0, beta=0.3),
        VCD(beta=1.0),
    ],
    ids=["weak", "much noise", "release", "plausible only", "likeliest only"],
)
def test_options_agree_with_two_complete_passes(method: VCD) -> None:
    assert_agrees(slow.vcd, "llava", method)


def test_images_and_videos_both_get_noise() -> None:
    rows = (Row(), Row(video_frames=3, salt=6))
    for name in ("qwen2_5_vl", "qwen3_vl"):
        assert_agrees(slow.vcd, name, VCD(), rows)


@pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")
def test_no_noise_is_no_contrast() -> None:
    """The first diffusion step removes less than a hundredth of the image, so there is nearly no contrast."""
    (_, little), (_, none), (_, much) = (
        said("llava", VCD(alpha=alpha, beta=0.0, noise_step=step), max_new_tokens=1)
        for alpha, step in ((1.0, 0), (0.0, 0), (1.0, 999))
    )
    assert 1e-4 < abs(little - none).max() < 0.1 * abs(much - none).max()


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("step", "left", "added"), [(500, 0.863, 0.505), (999, 0.285, 0.959)])
def test_schedule(step: int, left: float, added: float) -> None:
    assert remaining(step) == pytest.approx((left, added), abs=6e-4)


def test_schedule_keeps_the_variance_and_is_monotonic() -> None:
    left = [remaining(step) for step in range(0, 1000, 37)]
    assert all(a * a + b * b == pytest.approx(1) for a, b in left)
    assert all(one[0] > other[0] for one, other in pairwise(left))
    assert remaining(0)[0] > 0.9999


@pytest.mark.parametrize("shape", [(1, 3, 64, 64), (1, 2, 3, 64, 64), (200, 96)], ids=["image", "tiles", "patches"])
def test_noise_is_standard_normal(shape: tuple[int, ...]) -> None:
    pixels = torch.ones(shape)
    noise = noise_like(pixels, None, 0)
    assert noise.shape == pixels.shape
    assert abs(float(noise.mean())) < 0.05
    assert float(noise.std()) == pytest.approx(1, abs=0.05)
    assert torch.equal(noise, noise_like(pixels, None, 0))
    assert not torch.equal(noise, noise_like(pixels, None, 1))


def test_noise_does_not_depend_on_other_images() -> None:
    images = torch.ones(3, 3, 8, 8)
    assert torch.equal(noise_like(images, None, 0)[2:], noise_like(images[:1], None, 0))
    packed = noise_like(torch.ones(24 + 6, 5), torch.tensor([[1, 4, 6], [1, 2, 3]]), 0)
    assert torch.equal(packed[24:], noise_like(torch.ones(6, 5), torch.tensor([[1, 2, 3]]), 0))
    assert torch.equal(packed[24:], packed[:6])


def test_padding_tiles_stay_zero() -> None:
    pixels = torch.ones(2, 2, 3, 4, 4)
    pixels[1, 1] = 0
    noise = noise_like(pixels, None, 0)
    assert (noise[1, 1] == 0).all()
    assert torch.equal(noise[0, 0], noise[1, 0])
    assert not torch.equal(noise[0, 0], noise[0, 1])


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────


def test_parse() -> None:
    assert parse("vcd:alpha=1.0,beta=0.1") == VCD(alpha=1.0, beta=0.1)
    assert parse("vcd:noise_step=999,preset=release,beta=none") == VCD(noise_step=999, preset="release")


def test_presets() -> None:
    assert (VCD().alpha, VCD().cutoff, VCD().noise_step) == (1.0, 0.1, 500)
    assert VCD(preset="release").cutoff == 0.2
    assert VCD(preset="release", beta=0.0).cutoff == 0.0


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"alpha": float("inf")},
        {"beta": -0.1},
        {"beta": 1.1},
        {"beta": float("nan")},
        {"noise_step": -1},
        {"noise_step": 1000},
        {"noise_step": 1.5},
        {"preset": "nonsense"},
        {"seed": -1},
        {"seed": 0.5},
    ],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        VCD(**options)
