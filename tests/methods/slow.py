"""Slow implementations of the methods from their papers: one row, no cache, no branches.

Each function takes a model, the inputs of one row without padding, the generated tokens, and the method's
options. It returns the logits [tokens, vocabulary] of these tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heal.methods import PAI, VCD, VHR, DoLa, MemVR
from heal.methods.vcd import noise_like
from tests import zoo
from tests.known import known
from tests.methods.slow_eager import changed_attention

Inputs = dict[str, Tensor]


def extended(model: Any, batch: Inputs, tokens: list[int]) -> Inputs:
    """Append text tokens. For PaliGemma they are part of the causal suffix."""
    suffix = int(model.config.model_type == "paligemma")
    fixed = {"attention_mask": 1, "mm_token_type_ids": 0, "token_type_ids": suffix}
    more = {name: torch.full((1, len(tokens)), value) for name, value in fixed.items()}
    more["input_ids"] = torch.tensor([tokens], dtype=torch.long)
    return {name: torch.cat([value, more[name]], 1) if name in more else value for name, value in batch.items()}


def text_only(model: Any, batch: Inputs) -> Inputs:
    """The row without its images and their tokens."""
    text = ~zoo.visual_mask(model, batch["input_ids"])
    names = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    return {name: batch[name][text][None] for name in names if name in batch}


@torch.no_grad()
def last_logits(model: Any, batch: Inputs) -> np.ndarray:
    return model(**batch, use_cache=False).logits[0, -1].double().numpy()


def plain(model: Any, batch: Inputs, tokens: list[int]) -> np.ndarray:
    return np.stack([last_logits(model, extended(model, batch, tokens[:step])) for step in range(len(tokens))])


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def only_plausible(scores: np.ndarray, logits: np.ndarray, share: float) -> np.ndarray:
    """Exclude tokens below this share of the highest probability."""
    probabilities = np.exp(log_softmax(logits))
    out = scores.copy()
    for token, probability in enumerate(probabilities):
        if probability < share * probabilities.max():
            out[token] = -np.inf
    return out


# ── VCD ──────────────────────────────────────────────────────────────────────────────────────────────────


def noisy(batch: Inputs, step: int, seed: int) -> Inputs:
    """All pixels after the given diffusion step. The random numbers are those of heal."""
    left = 1.0
    for i in range(step + 1):
        left *= 1 - ((0.005 - 1e-5) / (1 + np.exp(6 - 12 * i / 999)) + 1e-5)
    out = dict(batch)
    for name, grid in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
        if name in batch:
            noise = noise_like(batch[name], batch.get(grid), seed)
            out[name] = left**0.5 * batch[name] + (1 - left) ** 0.5 * noise
    return out


def vcd(model: Any, batch: Inputs, tokens: list[int], method: VCD) -> np.ndarray:
    """Two complete passes per token."""
    beta = method.beta if method.beta is not None else {"paper": 0.1, "release": 0.2}[method.preset]
    other = noisy(batch, method.noise_step, method.seed)
    out = []
    for clean, wrong in zip(plain(model, batch, tokens), plain(model, other, tokens), strict=True):
        out.append(only_plausible((1 + method.alpha) * clean - method.alpha * wrong, clean, beta))
    return np.stack(out)


# ── DoLa ─────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def dola(model: Any, batch: Inputs, tokens: list[int], method: DoLa) -> np.ndarray:
    out = []
    for step in range(len(tokens)):
        result = model(**extended(model, batch, tokens[:step]), use_cache=False, output_hidden_states=True)
        logits = result.logits[0, -1].double().numpy()
        last = log_softmax(logits)
        early = [
            log_softmax(model.get_output_embeddings()(result.hidden_states[layer][0, -1]).double().numpy())
            for layer in known(method.layers)
        ]
        chosen = max(early, key=lambda other: _divergence(last, other, method.divergence))
        out.append(only_plausible(last - method.strength * chosen, logits, method.relative_top))
    return np.stack(out)


def _divergence(last: np.ndarray, early: np.ndarray, kind: str) -> float:
    total = 0.0
    for a, b in zip(last, early, strict=True):
        p, q = np.exp(a), np.exp(b)
        m = (p + q) / 2
        if kind == "js":
            total += (p * np.log(p / m) + q * np.log(q / m)) / 2
        else:
            total += (m * np.log(m / p) + m * np.log(m / q)) / 2
    return total


# ── PAI ──────────────────────────────────────────────────────────────────────────────────────────────────


def pai(model: Any, batch: Inputs, tokens: list[int], method: PAI) -> np.ndarray:
    alpha, gamma = {"paper": (0.5, 1.1), "release": (0.2, 1.1)}[method.preset]
    alpha = alpha if method.alpha is None else method.alpha
    gamma = gamma if method.gamma is None else method.gamma
    visual = zoo.visual_mask(model, batch["input_ids"])[0].numpy()
    first = len(visual) - 1

    def raised(layer: int, scores: np.ndarray) -> np.ndarray:
        # every position that was the last one: the end of the prompt and all generated tokens
        if layer >= method.start_layer:
            scores[first:, : len(visual)] += alpha * np.abs(scores[first:, : len(visual)]) * visual
        return scores

    with changed_attention(model, raised):
        seeing = plain(model, batch, tokens)
    blind = plain(model, text_only(model, batch), tokens)
    if gamma == 1:
        return seeing
    out = []
    for logits, text in zip(seeing, blind, strict=True):
        own, other = log_softmax(logits), log_softmax(text)
        out.append(only_plausible(gamma * (own - other) + other, logits, method.cutoff))
    return np.stack(out)


# ── VHR ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _head_outputs(model: Any, change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """`change` gets the head outputs [positions, heads, dim] of a layer, before o_proj."""
    heads = model.config.get_text_config().num_attention_heads

    def hook(layer: int) -> Any:
        def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            new = change(layer, args[0][0].unflatten(-1, (heads, -1)))
            return None if new is None else (new.flatten(-2)[None],)

        return before

    layers = enumerate(model.get_decoder().layers)
    handles = [layer.self_attn.o_proj.register_forward_pre_hook(hook(i)) for i, layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def vhr(model: Any, batch: Inputs, tokens: list[int], method: VHR) -> np.ndarray:
    blind: dict[int, np.ndarray] = {}
    last = batch["input_ids"].shape[1] - 1

    def keep(layer: int, outputs: Tensor) -> None:
        blind[layer] = outputs[-1].double().numpy()

    def reinforce(layer: int, outputs: Tensor) -> Tensor | None:
        if layer not in known(method.layers):
            return None
        scale = np.ones(outputs.shape[1])
        for head in chosen_heads(outputs[last].double().numpy(), blind[layer], method.outliers):
            scale[head] = method.alpha
        return outputs * torch.from_numpy(scale)[None, :, None].to(outputs.dtype)

    with _head_outputs(model, keep):
        last_logits(model, text_only(model, batch))
    with _head_outputs(model, reinforce):
        return plain(model, batch, tokens)


def chosen_heads(seen: np.ndarray, blind: np.ndarray, outliers: bool) -> list[int]:
    divergence = np.array([np.linalg.norm(a - b) for a, b in zip(seen, blind, strict=True)])
    loud = np.array([(b * b).sum() for b in blind])
    if outliers and divergence.std(ddof=1) > 1:
        bounds = [x.mean() + x.std(ddof=1) for x in (divergence, loud)]
        for head in range(len(loud)):
            if divergence[head] > bounds[0] and loud[head] > bounds[1]:
                divergence[head] = 0
    return [head for head in range(len(loud)) if divergence[head] > np.median(divergence)]


# ── MemVR ────────────────────────────────────────────────────────────────────────────────────────────────


def features(model: Any, batch: Inputs) -> Tensor:
    """The outputs of the projector for all images, concatenated."""
    given = {name: batch[name] for name in ("pixel_values", "image_grid_thw", "image_sizes") if name in batch}
    found = model.base_model.get_image_features(**given).pooler_output
    return torch.cat([f.flatten(0, -2) for f in found])


@torch.no_grad()
def memvr(model: Any, batch: Inputs, tokens: list[int], method: MemVR) -> np.ndarray:
    """One pass over the whole sequence that treats the prompt and each token as separate passes."""
    decoder, memory = model.get_decoder(), features(model, batch).double()
    start = 0 if method.start is None else method.start
    end = 2 if method.end is None else method.end
    prompt = batch["input_ids"].shape[1]
    passes = [slice(0, prompt), *(slice(at, at + 1) for at in range(prompt, prompt + len(tokens) - 1))]
    fired: dict[int, int] = {}  # the changed layer of each pass

    def decide(layer: int) -> Any:
        def after(module: nn.Module, args: tuple, output: Any) -> None:
            hidden = (output[0] if isinstance(output, tuple) else output)[0]
            for index, positions in enumerate(passes):
                logits = model.get_output_embeddings()(decoder.norm(hidden[positions][-1]))
                top = np.sort(logits.double().numpy())[-10:]
                p = np.exp(log_softmax(top))
                entropy = -(p * np.log(p)).sum() / np.log(10)
                if entropy > method.threshold and start < layer < end and index not in fired:
                    fired[index] = layer + 1

        return after

    def retrace(layer: int) -> Any:
        def after(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> Any:
            new = (output[0] if isinstance(output, tuple) else output).clone()
            for index, positions in enumerate(passes):
                if fired.get(index) == layer:
                    x, ffn = args[0][0, positions].double(), new[0, positions].double()
                    products = x @ memory.T
                    again = (products * torch.sigmoid(products) if method.activation == "silu" else products) @ memory
                    scale = ffn.abs().mean() / again.abs().mean()
                    new[0, positions] = ((1 - method.ratio) * ffn + method.ratio * scale * again).to(new.dtype)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        return after

    handles = [layer.register_forward_hook(decide(i)) for i, layer in enumerate(decoder.layers)]
    handles += [layer.mlp.register_forward_hook(retrace(i)) for i, layer in enumerate(decoder.layers)]
    try:
        logits = model(**extended(model, batch, tokens[:-1]), use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits[0, prompt - 1 :].double().numpy()
