"""VCD: contrast with the logits for the same image under noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from heal.analysis.noise import Noise
from heal.engine.branches import Branch, Prompt
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.contrast import ContrastRuntime

Preset = Literal["paper", "release"]
CUTOFFS = {"paper": 0.1, "release": 0.2}
STEPS = 1000


@register
@dataclass(frozen=True)
class VCD(Method):
    """Contrast the logits with those for the image under diffusion noise, with two passes per token."""

    name: ClassVar[str] = "vcd"
    summary: ClassVar[str] = "contrasts with the same image under noise"
    paper: ClassVar[str] = (
        "Mitigating Object Hallucinations in Large Vision-Language Models through Visual Contrastive Decoding "
        "(CVPR 2024)"
    )

    alpha: float = 1.0
    """Strength of the contrast: (1 + alpha)·l − alpha·l′. 0: no contrast."""

    beta: float | None = None
    """Keep tokens with at least this share of the highest probability. None: from the preset. 0: all."""

    noise_step: int = 500
    """Diffusion step, 0 to 999: 500 leaves 0.86 of the image, 999 leaves 0.29."""

    preset: Preset = "paper"
    """paper: beta 0.1; release: beta 0.2, as in the published evaluation script."""

    seed: int = 0
    """Seed of the noise. The noise is the same for every image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, Preset, "preset")
        checks.at_least(self, 0, "alpha")
        checks.fraction(self, "beta")
        checks.whole(self, 0, "seed")
        checks.whole(self, 0, "noise_step", high=STEPS - 1)

    @property
    def cutoff(self) -> float:
        return CUTOFFS[self.preset] if self.beta is None else self.beta

    @property
    def passes_per_token(self) -> float:
        return 2.0

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return ContrastRuntime(self.alpha, self.cutoff, Branch("noisy", partial(_noisy, self)))


def remaining(step: int) -> tuple[float, float]:
    """The weights of image and noise at a diffusion step: √ā and √(1 − ā)."""
    rates = torch.sigmoid(torch.linspace(-6, 6, STEPS, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    kept = float(torch.cumprod(1 - rates, 0)[step])
    return kept**0.5, (1 - kept) ** 0.5


def noise_like(pixels: Tensor, sizes: Tensor | None, seed: int) -> Tensor:
    """Standard normal noise for images. Every image gets the same noise, in any batch.

    `sizes` are the grids of images whose patches are packed one after another. Tiles that pad rows with fewer images
    are all zero and stay zero, because models detect padding by that.
    """
    source = Noise(seed, pixels.device)
    if pixels.dim() == 2:
        counts = [pixels.shape[0]] if sizes is None else sizes.prod(-1).tolist()
        table = source.normal((pixels.shape[1],), max(counts)).T
        return torch.cat([table[:n] for n in counts])
    channels, height, width = pixels.shape[-3:]
    if pixels.dim() == 4:
        return source.normal((channels, height), width, 0).expand_as(pixels)
    tiles = [source.normal((channels, height), width, tile) for tile in range(pixels.shape[1])]
    return torch.stack(tiles) * pixels.flatten(2).any(-1)[..., None, None, None]


def _noisy(config: VCD, prompt: Prompt) -> dict[str, Any]:
    """The prompt with noise on its images."""
    kept, added = remaining(config.noise_step)
    sizes = {e.pixels: e.arguments.get(f"{e.modality}_grid_thw") for e in prompt.encodings}

    def change(name: str, pixels: Tensor) -> Tensor:
        noise = noise_like(pixels, sizes[name], config.seed)
        return (kept * pixels.float() + added * noise).to(pixels.dtype)

    return prompt.with_pixels(change)
