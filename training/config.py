"""The recipe of the embedded model."""

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
    """How much it counts, beside what is said, that colour and place can be read from projected patches."""
    guessing: int = 1600
    """Joint step from which on some descriptions go on to what is not there."""
    guesses: float = 0.6
    """The share of those descriptions."""
    answer_weight: float = 4.0
    """Weight of the names of things in the loss (and of yes and no in text): few where words of grammar are many."""
    verdict_weight: float = 8.0
    """Weight of yes and no in conversations about pictures, from the step `looking` on; before it, as of names."""
    looking: int = 350
    """Joint step from which on some pictures are asked about existence alone, and some about details: by then names
    are read. From then on colours and places count like names in the loss."""
    descriptions: float = 0.38
    """The share of pictures that are then described at length."""
    existence: float = 0.17
    """The share of pictures that are then asked about existence alone."""
    details: float = 0.3
    """The share that are asked about colours, places and counts alone."""
