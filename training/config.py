"""Hyperparameters of the embedded model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    seed: int = 0
    hidden: int = 160
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    vision_hidden: int = 128
    pictures: int = 40_000
    language_steps: int = 1000
    language_batch: int = 16
    language_length: int = 160
    language_rate: float = 2e-3
    vision_steps: int = 2800
    vision_batch: int = 48
    vision_rate: float = 1e-3
    align_steps: int = 1000
    align_rate: float = 2e-3
    projector_steps: int = 150
    projector_rate: float = 2e-3
    joint_steps: int = 3600
    joint_batch: int = 12
    joint_rate: float = 1e-3
    readable: float = 0.2
    """Weight of the auxiliary loss that keeps colour and position readable from projected patches."""
    guessing: int = 1600
    """Joint step after which some descriptions mention an absent object."""
    guesses: float = 0.6
    """Share of these descriptions."""
    answer_weight: float = 4.0
    """Loss weight of object names (and of yes and no in text), which are rare compared with function words."""
    verdict_weight: float = 8.0
    """Loss weight of yes and no in conversations about images after the step `looking`; before, as for names."""
    looking: int = 350
    """Joint step after which some images only have existence questions and some only questions about details, because
    names are learned by then. Colours and positions then have the loss weight of names."""
    descriptions: float = 0.38
    """Share of images with a long description after that step."""
    existence: float = 0.17
    """Share of images with only existence questions after that step."""
    details: float = 0.3
    """Share of images with only questions about colours, positions and counts after that step."""
