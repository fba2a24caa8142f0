"""Train the embedded model in the usual stages of multimodal models.

    python training/train.py --out DIR [--config training/config.json] [--only STAGE]

1. language: the decoder alone, on text of the natural distribution, which gives it a strong prior;
2. vision: the vision tower alone, on category, colour and position of every patch;
3. projector, with the other parts frozen: first patches are mapped to the word embeddings of their objects, with
   colour and position still readable (`align`), then trained on conversations about images (`projector`);
4. joint: a short instruction tuning on descriptions, captions and questions.

Each stage writes a log of losses and a checkpoint to DIR and is skipped if its checkpoint exists. The state is saved
regularly; a killed run resumes from it and ends with the same weights. The joint stage also saves intermediate
weights (`joint-300.pt` …) for choosing the amount of multimodal tuning.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import data
import model as architecture
import numpy as np
import torch
from config import Config
from conversations import Conversations, pixels, verdicts
from stage import Stage, optimise
from torch import Tensor, nn
from torch.nn import functional as F

from heal.world import World

STAGES = ("language", "vision", "align", "projector", "joint")
LOOKS = len(data.COLOURS) + 1 + 2 * data.GRID  # outputs for colour, column and row
DOCUMENTS = 256  # scenes reserved per step, more than it can use
PARTS = 6  # number of parts that a batch is split into
BACKDROP = 0.1  # loss weight of background patches


def documents(seed: int, step: int) -> Iterator[str]:
    """Text for one step, from scenes without images."""
    world, first = World(seed, "train"), 1_000_000 + step * DOCUMENTS
    for index in range(first, first + DOCUMENTS):
        yield data.document(world.scene(index), np.random.default_rng([seed, index]), 0)


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


def appearance_loss(scores: Tensor, colours: Tensor) -> Tensor:
    """Loss of colour, column and row: scores [patches, LOOKS], colours [images, GRID, GRID]."""
    colour, column, row = scores.split([len(data.COLOURS) + 1, data.GRID, data.GRID], dim=-1)
    places = torch.arange(data.GRID**2).repeat(len(colours))
    return (
        F.cross_entropy(colour, colours.flatten(), reduction="none")
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
        # most patches are background, so they get a lower weight
        weight = torch.where(truth == data.BACKGROUND, 0.3, 1.0)
        loss = (F.cross_entropy(what, truth, reduction="none") * weight).mean()
        loss = loss + 0.3 * (appearance_loss(rest, torch.from_numpy(colours[rows]).long()) * weight).mean()
        thing = truth != data.BACKGROUND
        right = (what.argmax(-1) == truth)[thing].float().mean()
        return loss, {"patch_accuracy": float(right)}

    optimise(stage, loss_at)


def train_align(net: Any, tokenizer: Any, config: Config, folder: Path, stage: Stage) -> None:
    """Map patches to the embedding of the first token of their object's name. Colour and position must remain
    readable, because later stages cannot recover them."""
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
        weight = torch.where(truth == data.BACKGROUND, BACKDROP, 1.0)
        loss = (F.cross_entropy(scores, words[truth], reduction="none") * weight).sum() / weight.sum()
        # match the norm of word embeddings, which the decoder's first layer expects
        length = (out.norm(dim=-1) / size - 1).square().mean()
        thing = truth != data.BACKGROUND
        right = (scores.argmax(-1) == words[truth])[thing].float().mean()
        seen_still = (
            appearance_loss(head(out), torch.from_numpy(colours[rows]).long()) * weight
        ).sum() / weight.sum()
        return loss + length + 0.5 * seen_still, {"patch_accuracy": float(right), "looks": seen_still.item()}

    optimise(stage, loss_at)


def train_conversations(net: Any, tokenizer: Any, config: Config, folder: Path, stage: Stage) -> None:
    """Train on conversations about images. Colour and position must remain readable from patches here too."""
    source, said = Conversations(tokenizer, config, folder, net.config.image_token_id), verdicts(tokenizer)
    head, core = stage.parts[-1], net.model
    trained = [p for part in stage.parts for p in part.parameters()]
    for parameter in net.parameters():
        parameter.requires_grad_(any(parameter is p for p in trained))

    def gradients_of(part: dict[str, Tensor], words: Tensor, things: Tensor) -> tuple[Tensor, ...]:
        """Backward pass for some rows; `words` and `things` are the weights of the whole batch."""
        ids, weights = part["ids"], part["weights"][:, 1:]
        with torch.no_grad():
            seen = core.vision_tower(part["pixels"]).last_hidden_state[:, 1:]
        patches = core.multi_modal_projector(seen).flatten(0, 1)
        at = (ids == net.config.image_token_id)[..., None]
        embedded = core.language_model.embed_tokens(ids).masked_scatter(at, patches)
        # padding is on the right, so no mask is needed
        hidden = core.language_model(inputs_embeds=embedded, use_cache=False)[0][:, :-1]
        answered = weights > 0
        logits, truth = net.lm_head(hidden[answered]), ids[:, 1:][answered]
        answer_loss = (F.cross_entropy(logits, truth, reduction="none") * weights[answered]).sum() / words
        appearance = (appearance_loss(head(patches), part["colours"]) * part["things"].flatten()).sum() / things
        loss = answer_loss + config.readable * appearance
        gradients = torch.autograd.grad(loss, trained)
        return loss.detach(), (logits.argmax(-1) == truth).float(), truth, weights[answered], *gradients

    def loss_at(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = source.batch(step, 1 + STAGES.index(stage.name))
        batch["things"] = torch.where(batch["kinds"] == data.BACKGROUND, BACKDROP, 1.0)
        words, things = batch["weights"][:, 1:].sum(), batch["things"].sum()
        found = list(workers.map(lambda part: gradients_of(part, words, things), by_length(batch, PARTS)))
        for parameter, *gradients in zip(trained, *(x[4:] for x in found), strict=True):
            parameter.grad = torch.stack(gradients).sum(0)
        loss, right, truth, weights = (torch.cat([x[i].reshape(-1) for x in found]) for i in range(4))
        asked = torch.isin(truth, said)
        named = (weights == config.answer_weight) & ~asked
        return loss.sum(), {
            "yes_no": float(right[asked].mean()) if asked.any() else 0.5,
            "names": float(right[named].mean()) if named.any() else 0.0,
        }

    # one thread per part, because matrices this small gain little from more
    with ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,)) as workers:
        optimise(stage, loss_at)


def by_length(batch: dict[str, Tensor], parts: int) -> Iterator[dict[str, Tensor]]:
    """Split a batch into parts of similar length, longest first, to reduce padding."""
    lengths = (batch["weights"] > 0).long().mul(torch.arange(batch["weights"].shape[1])).amax(1) + 1
    for rows in lengths.argsort(descending=True, stable=True).tensor_split(parts):
        cut = int(lengths[rows].max())
        yield {k: v[rows, :cut] if k in ("ids", "weights") else v[rows] for k, v in batch.items()}


# ── all stages ───────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="image cache (default: OUT/data)")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=STAGES, help="run only this stage")
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
    head = reading_head(config)
    for name in [options.only] if options.only else STAGES:
        stage = stage_of(name, net, config, out, head)
        if not stage.done.exists():
            net.train()
            run(stage, net, tokenizer, config, folder)
        stage.load(torch.load(stage.done))
    if not options.only:
        net.eval().half().save_pretrained(out / "model")
        architecture.processor(tokenizer).save_pretrained(out / "model")


def tokenizer_of(config: Config) -> Any:
    """Train the tokenizer on text of another seed; the result is deterministic."""
    source = itertools.chain.from_iterable(documents(config.seed + 1, step) for step in itertools.count())
    return architecture.train_tokenizer(itertools.islice(source, 8000))


def stage_of(name: str, net: Any, config: Config, out: Path, head: nn.Module | None = None) -> Stage:
    """`head` predicts colour and position from projected patches and is shared by all stages that use it."""
    head = head or reading_head(config)
    language, tower, projector = net.model.language_model, net.model.vision_tower, net.model.multi_modal_projector
    if name == "language":
        parts = [language]
    elif name == "vision":
        parts = [tower, nn.Linear(config.vision_hidden, data.BACKGROUND + 1 + LOOKS)]
    else:  # the auxiliary head is trained too, but not exported
        trained = {"align": [projector], "projector": [projector], "joint": [projector, language]}[name]
        parts = [*trained, head]
    rate, steps = getattr(config, f"{name}_rate"), getattr(config, f"{name}_steps")
    return Stage(name, parts, rate, steps, out, keep=300 if name == "joint" else 0)


def reading_head(config: Config) -> nn.Module:
    return nn.Linear(config.hidden, LOOKS)


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
