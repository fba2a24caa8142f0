"""Train the embedded model in the order in which real multimodal models are made.

    python training/train.py --out DIR [--config training/config.json] [--only STAGE]

1. language: the decoder alone, on text of the natural distribution, so that its prior is strong;
2. vision: the tower alone, on the label, colour and place of every patch;
3. projector: between the two, both frozen: first what a patch shows becomes the word for it, with colour and place
   still to be read from it (`align`), then what is said of pictures (`projector`);
4. joint: a short instruction tuning on descriptions, captions and questions.

Each stage writes a log of losses and a checkpoint into DIR and is skipped if its checkpoint is there. Within a stage
the state is saved every so often; a killed run goes on from there and ends with the same weights. The joint stage
also keeps the weights along its way (`joint-300.pt` …), because how much multimodal tuning is enough is a question.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import data
import model as architecture
import numpy as np
import optimiser
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heal.world import World
from heal.world.mentions import mentions

STAGES = ("language", "vision", "align", "projector", "joint")
JOINT = 1 + STAGES.index("joint")  # its address among the draws
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])
LOOKS = len(data.COLOURS) + 1 + 2 * data.GRID  # scores of colour, column and row
DETAIL = re.compile(rf"\b(left|right|middle|top|bottom|{'|'.join(data.COLOURS)})\b", re.IGNORECASE)


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
    align_steps: int = 400
    align_rate: float = 2e-3
    projector_steps: int = 150
    projector_rate: float = 2e-3
    joint_steps: int = 3000
    joint_batch: int = 12
    joint_rate: float = 1e-3
    joint_vision: bool = False
    """Whether the tower is tuned in the joint stage."""
    guessing: int = 1600
    """Joint step from which on some descriptions go on to what is not there."""
    guesses: float = 0.5
    """The share of those descriptions."""
    answer_weight: float = 4.0
    """Weight of the names of things in the loss (and of yes and no in text): few where words of grammar are many."""
    verdict_weight: float = 8.0
    """Weight of yes and no in conversations about pictures, from the step `looking` on; before it, as of names."""
    looking: int = 500
    """Joint step from which on some pictures are asked about existence alone, and some about details: by then names
    are read. From then on colours and places count like names in the loss."""
    existence: float = 0.2
    """The share of pictures that are then asked about existence alone."""
    details: float = 0.25
    """The share that are asked about colours, places and counts alone."""


class Log:
    """One JSON line every so many steps, also on the terminal."""

    def __init__(self, path: Path, total: int, every: int = 50) -> None:
        self.path, self.total, self.every = path, total, every
        self.start = time.time()
        self.values: list[dict[str, float]] = []

    def __call__(self, step: int, **values: float) -> None:
        self.values.append(values)
        if (step + 1) % self.every and step + 1 != self.total:
            return
        means = {k: float(np.mean([v[k] for v in self.values])) for k in values}
        self.values.clear()
        line = {
            "step": step + 1,
            **{k: round(v, 4) for k, v in means.items()},
            "seconds": round(time.time() - self.start),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{self.path.stem} {line}", flush=True)


def save(state: object, path: Path) -> None:
    """Whole or not at all."""
    torch.save(state, part := path.with_suffix(".part"))
    os.replace(part, path)


@dataclass(frozen=True)
class Stage:
    """One stage of training: what is trained, for how long, and where its state is kept."""

    name: str
    parts: list[nn.Module]
    rate: float
    steps: int
    out: Path
    keep: int = 0
    """Keep the weights every so many steps; 0: only the last."""

    @property
    def done(self) -> Path:
        return self.out / f"{self.name}.pt"

    def weights(self) -> list[dict[str, Tensor]]:
        return [part.state_dict() for part in self.parts]

    def load(self, weights: list[dict[str, Tensor]]) -> None:
        for part, state in zip(self.parts, weights, strict=True):
            part.load_state_dict(state)


def optimise(stage: Stage, loss_at: Callable[[int], tuple[Tensor, dict[str, float]]], every: int = 100) -> None:
    """A warm-up and a cosine. `loss_at(step)` depends on nothing but the step and the weights."""
    parameters = [p for part in stage.parts for p in part.parameters()]
    optimisers = optimiser.optimisers(stage.parts, stage.rate)
    running, first = stage.out / f"{stage.name}.state", 0
    if running.exists():
        state = torch.load(running)
        first = state["step"]
        stage.load(state["weights"])
        for one, kept in zip(optimisers, state["optimisers"], strict=True):
            one.load_state_dict(kept)
    log = Log(stage.out / f"{stage.name}.jsonl", stage.steps)
    warm = max(1, min(100, stage.steps // 10))
    for step in range(first, stage.steps):
        share = min(1.0, (step + 1) / warm) * (0.05 + 0.95 * (0.5 + 0.5 * np.cos(np.pi * step / stage.steps)))
        for group in (g for one in optimisers for g in one.param_groups):
            group["lr"] = float(stage.rate * share)
        loss, values = loss_at(step)
        for p in parameters:
            p.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for one in optimisers:
            one.step()
        log(step, loss=loss.item(), **values)
        if (step + 1) % every == 0:
            kept = [one.state_dict() for one in optimisers]
            save({"step": step + 1, "weights": stage.weights(), "optimisers": kept}, running)
        if stage.keep and (step + 1) % stage.keep == 0:
            save(stage.weights(), stage.out / f"{stage.name}-{step + 1}.pt")
    save(stage.weights(), stage.done)
    running.unlink(missing_ok=True)


# ── the four stages ───────────────────────────────────────────────────────────────────────────────────────


DOCUMENTS = 256  # scenes set aside for one step: more than it can use


def documents(seed: int, step: int) -> Iterator[str]:
    """Text for one step; scenes far beyond those that get pictures."""
    world, first = World(seed, "train"), 1_000_000 + step * DOCUMENTS
    for index in range(first, first + DOCUMENTS):
        yield data.document(world.scene(index), np.random.default_rng([seed, index]), 0)


def verdicts(tokenizer: Any) -> Tensor:
    """The tokens of yes and no."""
    return torch.tensor([tokenizer(f" {w}", add_special_tokens=False)["input_ids"][0] for w in ("Yes", "No")])


def train_language(net: Any, tokenizer: Any, config: Config, stage: Stage) -> None:
    size = config.language_batch * (config.language_length + 1)

    weighted = verdicts(tokenizer)

    def batch(step: int) -> Tensor:
        tokens: list[int] = []
        source = documents(config.seed, step)
        while len(tokens) < size:
            tokens += [tokenizer.bos_token_id, *tokenizer(next(source), add_special_tokens=False)["input_ids"]]
        return torch.tensor(tokens[:size]).view(config.language_batch, -1)

    def loss_at(step: int) -> tuple[Tensor, dict[str, float]]:
        ids = batch(step)
        hidden = net.model.language_model(input_ids=ids[:, :-1], use_cache=False)[0]
        logits, truth = net.lm_head(hidden).flatten(0, 1), ids[:, 1:].flatten()
        decided = torch.isin(truth, weighted)
        weights = torch.where(decided, config.answer_weight, 1.0)
        loss = (F.cross_entropy(logits, truth, reduction="none") * weights).sum() / weights.sum()
        right = (logits.argmax(-1) == truth)[decided].float().mean()
        return loss, {"yes_no": float(right) if decided.any() else 0.5}

    optimise(stage, loss_at)


def pixels(images: np.ndarray) -> Tensor:
    """As the processor makes them."""
    x = torch.from_numpy(images).float().div_(255)
    return ((x - MEAN) / STD).permute(0, 3, 1, 2).contiguous()


def looks(scores: Tensor, colours: np.ndarray) -> Tensor:
    """How badly colour, column and row of patches are told, one loss each; scores [patches, LOOKS]."""
    colour, column, row = scores.split([len(data.COLOURS) + 1, data.GRID, data.GRID], dim=-1)
    places = torch.arange(data.GRID**2).repeat(len(colours))
    return (
        F.cross_entropy(colour, torch.from_numpy(colours).long().flatten(), reduction="none")
        + 0.5 * F.cross_entropy(column, places % data.GRID, reduction="none")
        + 0.5 * F.cross_entropy(row, places // data.GRID, reduction="none")
    )


def train_vision(net: Any, config: Config, folder: Path, stage: Stage) -> None:
    images, kinds, colours = data.pictures(folder, "train", config.pictures, config.seed)
    tower, head = stage.parts

    def loss_at(step: int) -> tuple[Tensor, dict[str, float]]:
        rows = np.random.default_rng([config.seed, 2, step]).integers(0, len(images), config.vision_batch)
        out = head(tower(pixels(images[rows])).last_hidden_state[:, 1:]).flatten(0, 1)
        what, rest = out.split([data.BACKGROUND + 1, LOOKS], dim=-1)
        truth = torch.from_numpy(kinds[rows]).long().flatten()
        # most patches are background: they count less, or nothing else would be learned at first
        weight = torch.where(truth == data.BACKGROUND, 0.3, 1.0)
        loss = (F.cross_entropy(what, truth, reduction="none") * weight).mean()
        loss = loss + 0.3 * (looks(rest, colours[rows]) * weight).mean()
        thing = truth != data.BACKGROUND
        right = (what.argmax(-1) == truth)[thing].float().mean()
        return loss, {"patch_accuracy": float(right)}

    optimise(stage, loss_at)


def train_align(net: Any, tokenizer: Any, config: Config, folder: Path, stage: Stage) -> None:
    """A patch of a thing is brought to the embedding of the first token of its name. Its colour and place must stay
    to be read from it, or no later stage will ever see them."""
    images, kinds, colours = data.pictures(folder, "train", config.pictures, config.seed)
    first = [tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in data.INDEX]
    words = torch.tensor([*first, tokenizer(".", add_special_tokens=False)["input_ids"][0]])
    tower, (projector, head) = net.model.vision_tower, stage.parts
    table = net.model.language_model.embed_tokens.weight.detach()
    size = table.norm(dim=-1).mean()

    def loss_at(step: int) -> tuple[Tensor, dict[str, float]]:
        rows = np.random.default_rng([config.seed, 5, step]).integers(0, len(images), config.vision_batch)
        with torch.no_grad():
            seen = tower(pixels(images[rows])).last_hidden_state[:, 1:]
        out = projector(seen).flatten(0, 1)
        truth = torch.from_numpy(kinds[rows]).long().flatten()
        unit = F.normalize(table, dim=-1)
        scores = F.normalize(out, dim=-1) @ unit.T * 20
        weight = torch.where(truth == data.BACKGROUND, 0.1, 1.0)
        loss = (F.cross_entropy(scores, words[truth], reduction="none") * weight).sum() / weight.sum()
        # as long as words are, so that the decoder's first layer meets nothing strange
        length = (out.norm(dim=-1) / size - 1).square().mean()
        thing = truth != data.BACKGROUND
        right = (scores.argmax(-1) == words[truth])[thing].float().mean()
        seen_still = (looks(head(out), colours[rows]) * weight).sum() / weight.sum()
        return loss + length + 0.5 * seen_still, {"patch_accuracy": float(right), "looks": float(seen_still)}

    optimise(stage, loss_at)


class Conversations:
    """Batches of pictures and what is said about them; the loss counts answers only."""

    def __init__(self, tokenizer: Any, config: Config, folder: Path, image_token: int) -> None:
        self.images, *_ = data.pictures(folder, "train", config.pictures, config.seed)
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
        return {"ids": ids, "weights": weights, "pixels": pixels(self.images[rows])}

    def mixture(self, step: int, stage: int) -> data.Mixture:
        """What is said about pictures at this step."""
        config = self.config
        if stage != JOINT or step < config.looking:
            return data.Mixture(0.45, 0.1)
        guesses = config.guesses if step >= config.guessing else 0.0
        return data.Mixture(0.35, 0.05, config.existence, config.details, guesses)

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
        """What is decided by looking counts more: names of things, yes and no, later colours and places."""
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


def train_conversations(net: Any, tokenizer: Any, config: Config, folder: Path, stage: Stage) -> None:
    source, said = Conversations(tokenizer, config, folder, net.config.image_token_id), verdicts(tokenizer)
    wanted = {id(p) for part in stage.parts for p in part.parameters()}
    for parameter in net.parameters():
        parameter.requires_grad_(id(parameter) in wanted)

    def loss_at(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = source.batch(step, 1 + STAGES.index(stage.name))
        ids, weights = batch["ids"], batch["weights"][:, 1:].flatten()
        mask = (ids != tokenizer.pad_token_id).long()
        logits = net(input_ids=ids, attention_mask=mask, pixel_values=batch["pixels"], use_cache=False).logits
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        truth = ids[:, 1:].flatten()
        right = (logits[:, :-1].flatten(0, 1).argmax(-1) == truth).float()
        asked = torch.isin(truth, said) & (weights > 0)
        named = (weights == config.answer_weight) & ~asked
        return (losses * weights).sum() / weights.sum(), {
            "yes_no": float(right[asked].mean()) if asked.any() else 0.5,
            "names": float(right[named].mean()) if named.any() else 0.0,
        }

    optimise(stage, loss_at)


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="where pictures are kept (default: OUT/data)")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=STAGES, help="this stage alone: language and vision need nothing else")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = replace(Config(), **json.loads(options.config.read_text())) if options.config else Config()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(asdict(config), indent=1) + "\n")
    folder = options.data or out / "data"
    torch.manual_seed(config.seed)
    tokenizer = tokenizer_of(config)
    net = architecture.build(
        tokenizer, config.hidden, config.layers, config.heads, config.kv_heads, config.vision_hidden
    )
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, vocabulary {len(tokenizer)}", flush=True)
    for name in [options.only] if options.only else STAGES:
        stage = stage_of(name, net, config, out)
        if not stage.done.exists():
            net.train()
            run(stage, net, tokenizer, config, folder)
        stage.load(torch.load(stage.done))
    if not options.only:
        net.eval().half().save_pretrained(out / "model")
        architecture.processor(tokenizer).save_pretrained(out / "model")


def tokenizer_of(config: Config) -> Any:
    """Trained anew each time: on text of another seed, so always the same."""
    source = itertools.chain.from_iterable(documents(config.seed + 1, step) for step in itertools.count())
    return architecture.train_tokenizer(itertools.islice(source, 8000))


def stage_of(name: str, net: Any, config: Config, out: Path) -> Stage:
    language, tower, projector = net.model.language_model, net.model.vision_tower, net.model.multi_modal_projector
    if name == "language":
        parts = [language]
    elif name == "vision":
        parts = [tower, nn.Linear(config.vision_hidden, data.BACKGROUND + 1 + LOOKS)]
    elif name == "align":
        parts = [projector, nn.Linear(config.hidden, LOOKS)]
    elif name == "projector":
        parts = [projector]
    else:
        parts = [projector, language, tower] if config.joint_vision else [projector, language]
    rate, steps = getattr(config, f"{name}_rate"), getattr(config, f"{name}_steps")
    return Stage(name, parts, rate, steps, out, keep=300 if name == "joint" else 0)


def run(stage: Stage, net: Any, tokenizer: Any, config: Config, folder: Path) -> None:
    if stage.name == "language":
        train_language(net, tokenizer, config, stage)
    elif stage.name == "vision":
        train_vision(net, config, folder, stage)
    elif stage.name == "align":
        train_align(net, tokenizer, config, folder, stage)
    else:
        train_conversations(net, tokenizer, config, folder, stage)


if __name__ == "__main__":
    main()
