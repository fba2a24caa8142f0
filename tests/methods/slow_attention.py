"""Slow implementations of SID and VAR from their papers: one row, no cache, attention weights head by head."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heal.methods import SID, VAR
from tests import zoo
from tests.methods.slow import Inputs, extended, only_plausible, plain
from tests.methods.slow_eager import changed_attention


def in_one_pass(model: Any, batch: Inputs, tokens: list[int]) -> np.ndarray:
    """Logits of every token from one pass over the prompt and the tokens before the last."""
    with torch.no_grad():
        logits = model(**extended(model, batch, tokens[:-1]), use_cache=False).logits
    return logits[0, batch["input_ids"].shape[1] - 1 :].double().numpy()


def sid(model: Any, batch: Inputs, tokens: list[int], method: SID) -> np.ndarray:
    """Each pass sees the visual tokens that its last query attended least in the previous layer."""
    alpha = {"paper": 1.0, "release": 0.5}[method.preset] if method.alpha is None else method.alpha
    visual = np.flatnonzero(zoo.visual_mask(model, batch["input_ids"])[0].numpy())
    prompt = batch["input_ids"].shape[1]
    attended: dict[int, np.ndarray] = {}

    def least(layer: int, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
        if layer == method.layer - 1:
            attended[0] = weights.mean(0)
        if layer < method.layer:
            return weights
        out = weights.copy()
        for query in range(weights.shape[1]):
            own = max(query, prompt - 1)  # the prompt is one pass, and its last query selects the tokens
            there = visual[attended_by(seen, own, visual)]
            keep = method.keep or max(1, round(len(there) * 100 / 576))
            order = there[np.argsort(attended[0][own, there], kind="stable")]
            for head in range(len(weights)):
                out[head, query, order[keep:]] = 0
                if out[head, query].sum() == 0:  # nothing else precedes this query
                    out[head, query] = 1.0 * seen[query]
                    out[head, query, order[keep:]] = 0
                out[head, query] /= max(out[head, query].sum(), 1e-300)
        return out

    clean = plain(model, batch, tokens)
    with changed_attention(model, weights=least):
        wrong = in_one_pass(model, batch, tokens)
    rows = zip(clean, wrong, strict=True)
    return np.stack([only_plausible((1 + alpha) * a - alpha * b, a, method.beta) for a, b in rows])


def attended_by(seen: np.ndarray, query: int, places: np.ndarray) -> np.ndarray:
    return seen[query, places]


def var(model: Any, batch: Inputs, tokens: list[int], method: VAR) -> np.ndarray:
    visual = zoo.visual_mask(model, batch["input_ids"])[0].numpy()
    prompt, layers = len(visual), model.get_decoder().layers
    sinks: dict[int, np.ndarray] = {}

    def watch(layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
            hidden = (args[0] if args else kwargs["hidden_states"])[0, :prompt].double().numpy()
            dims = method.dimensions or tuple(np.argsort(-np.abs(hidden[0]))[:2])
            found = [max(abs(x[d]) for d in dims) / np.sqrt((x * x).mean()) > method.threshold for x in hidden]
            sinks[layer] = np.array(found)

        return hook

    def redistribute(layer: int, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
        if not 2 <= layer < max(3, len(layers) - 1):
            return weights
        out = weights.copy()
        for query in range(weights.shape[1]):
            text_after_image = query >= prompt or (not visual[query] and visual[:query].any())
            if not text_after_image:
                continue
            for head in range(len(weights)):
                row = out[head, query]
                image = row[:prompt][visual].sum()
                others = row[:prompt][visual & ~sinks[layer]].sum()
                if image < method.least or others == 0 or others / image < method.rho:
                    continue
                freed = method.strength * row[:prompt][sinks[layer]].sum()
                row[:prompt][sinks[layer]] *= 1 - method.strength
                row[:prompt][visual & ~sinks[layer]] *= 1 + freed / others
        return out

    handles = [layer.register_forward_pre_hook(watch(i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        with changed_attention(model, weights=redistribute):
            return in_one_pass(model, batch, tokens)
    finally:
        for handle in handles:
            handle.remove()
