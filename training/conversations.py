"""Batches of images and conversations, with the loss weight of every token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import data
import numpy as np
import torch
from config import Config
from torch import Tensor

from heal.world import World
from heal.world.mentions import mentions

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])
DETAIL = re.compile(rf"\b(left|right|middle|top|bottom|{'|'.join(data.COLOURS)})\b", re.IGNORECASE)
JOINT = 5  # the random stream of the joint stage


def verdicts(tokenizer: Any) -> Tensor:
    """Token ids of yes and no."""
    return torch.tensor([tokenizer(f" {w}", add_special_tokens=False)["input_ids"][0] for w in ("Yes", "No")])


def pixels(images: np.ndarray) -> Tensor:
    """Preprocess images like the processor."""
    x = torch.from_numpy(images).float().div_(255)
    return ((x - MEAN) / STD).permute(0, 3, 1, 2).contiguous()


class Conversations:
    """Batches of images and conversations; only answers count in the loss."""

    def __init__(self, tokenizer: Any, config: Config, folder: Path, image_token: int) -> None:
        self.images, self.kinds, self.colours = data.pictures(folder, "train", config.pictures, config.seed)
        self.world = World(config.seed, "train")
        self.tokenizer, self.config, self.image_token = tokenizer, config, image_token
        self.weighted = set(verdicts(tokenizer).tolist())

    def batch(self, step: int, stage: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.config.seed, stage, step])
        rows = rng.integers(0, len(self.images), self.config.joint_batch)
        mixture = self.mixture(step, stage)
        verdict = self.config.verdict_weight if mixture.existence else self.config.answer_weight
        examples = [
            self._tokens(
                data.conversation(self.world.scene(int(r)), rng, int(rng.integers(8)), mixture),
                verdict,
                mixture.details > 0,
            )
            for r in rows
        ]
        length = max(len(ids) for ids, _ in examples)
        ids = torch.full((len(rows), length), self.tokenizer.pad_token_id)
        weights = torch.zeros(len(rows), length)
        for i, (tokens, own) in enumerate(examples):
            ids[i, : len(tokens)] = torch.tensor(tokens)
            weights[i, : len(tokens)] = torch.tensor(own)
        kinds, colours = (torch.from_numpy(labels[rows]).long() for labels in (self.kinds, self.colours))
        return {
            "ids": ids,
            "weights": weights,
            "pixels": pixels(self.images[rows]),
            "kinds": kinds,
            "colours": colours,
        }

    def mixture(self, step: int, stage: int) -> data.Mixture:
        """The mixture of conversations at this step."""
        config = self.config
        if stage != JOINT or step < config.looking:
            return data.Mixture(0.45, 0.1)
        guesses = config.guesses if step >= config.guessing else 0.0
        return data.Mixture(config.descriptions, 0.05, config.existence, config.details, guesses)

    def _tokens(self, turns: list[tuple[str, str]], verdict: float, details: bool) -> tuple[list[int], list[float]]:
        ids, weights = [self.tokenizer.bos_token_id], [0.0]
        for question, answer in turns:
            asked = self._ids(f"USER: {question} ASSISTANT:")
            said = self.tokenizer(f" {answer}", add_special_tokens=False, return_offsets_mapping=True)
            ids += [*asked, *said["input_ids"], self.tokenizer.eos_token_id]
            weights += [0.0] * len(asked)
            spans = [(m.start, m.stop) for m in mentions(f" {answer}")]
            spans += [m.span() for m in DETAIL.finditer(f" {answer}")] if details else []
            weights += [*self._weights(spans, said["input_ids"], said["offset_mapping"], verdict), 1.0]
        return ids, weights

    def _weights(
        self, spans: list[tuple[int, int]], ids: list[int], offsets: list[tuple[int, int]], verdict: float
    ) -> list[float]:
        """Loss weights. Tokens that depend on the image count more: names, yes and no, colours and positions."""
        return [
            verdict
            if token in self.weighted
            else self.config.answer_weight
            if any(start < stop and a < stop and start < b for a, b in spans)
            else 1.0
            for token, (start, stop) in zip(ids, offsets, strict=True)
        ]

    def _ids(self, text: str) -> list[int]:
        out: list[int] = []
        for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            out += [token] * (data.GRID**2 if token == self.image_token else 1)
        return out
