"""A slow implementation of HEAL: one row at a time, without a cache, running state or heal's code.

At every step the model runs on the whole row. The positions that generated a token keep their factors; the
newest one is measured by replacing keys and values by zeros, for each head,
in double precision. Masking and replacement are `zero`, so there is no randomness.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tests import zoo

NAME = "oracle"
DEAD_ZONE = 1e-6  # smaller scores are zero
CAUSAL, INFO, VISUAL, LANGUAGE, SYNERGY, UNKNOWN = 0, 1, 2, 3, 4, 255


@dataclass(frozen=True)
class Settings:
    """The options of HEAL that the oracle supports, with the values of the paper."""

    alpha: float
    limit: float = 2.0
    interval: int = 10
    mad: float = 2.9652
    sigma_causal: float = 3.0
    sigma_info: float = 3.0
    neutral_sinks: bool = False
    layers: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Step:
    """The measurements of one token, [layers, heads] each."""

    logits: np.ndarray
    visual: np.ndarray
    language: np.ndarray
    total: np.ndarray
    contribution: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray
    types: np.ndarray


def generate(model: Any, batch: dict[str, Tensor], steps: int, settings: Settings) -> list[Step]:
    """The greedy answer to the one row of `batch`."""
    made: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    out = []
    with _installed(model):
        first = _Pass(model, batch["input_ids"][0], settings, None, made).run(batch)
        types, contribution = first.types(), first.contribution
        for step in range(steps):
            now = _Pass(model, batch["input_ids"][0], settings, types == SYNERGY, made).run(batch)
            refresh = step > 0 and step % settings.interval == 0
            seen = contribution if step == 0 else now.contribution if refresh else np.full_like(contribution, np.nan)
            out.append(Step(now.logits, now.visual, now.language, now.total, seen, now.beta, now.gamma, types))
            made[now.last] = (now.beta, now.gamma)
            types = now.types() if refresh else types
            batch = _extended(model, batch, int(now.logits.argmax()))
    return out


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """(1 + cos)/2. The cosine of a zero vector is 0."""
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return (1 + (float(a @ b) / norms if norms > 0 else 0.0)) / 2


def attention(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, cap: float | None = None
) -> np.ndarray:
    scores = keys @ query * scale
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def added(block: Any, output: np.ndarray) -> np.ndarray:
    """The update of the residual stream: Gemma 2 and 3 normalise the output of o_proj, Granite scales it."""
    if hasattr(block, "pre_feedforward_layernorm"):
        norm = block.post_attention_layernorm
        size = np.sqrt((output**2).mean() + norm.eps)
        return output / size * (1 + norm.weight.detach().double().numpy())
    return output * getattr(block, "residual_multiplier", 1.0)


def classify(
    visual: np.ndarray, language: np.ndarray, total: np.ndarray, contribution: np.ndarray, settings: Settings
) -> np.ndarray:
    """The types of all heads of one row, head by head."""
    bounds = contribution.mean(1) - settings.sigma_causal * contribution.std(1)
    considered = [(i, j) for i, j in np.ndindex(total.shape) if i in settings.layers]
    heads = [at for at in considered if contribution[at] >= bounds[at[0]]]
    kept = np.array([total[at] for at in heads])
    least = kept.mean() - settings.sigma_info * kept.std()
    x = {
        at: np.log(visual[at] / language[at])
        for at in heads
        if total[at] >= least and visual[at] > 0 and language[at] > 0
    }
    median = np.median(list(x.values())) if x else 0.0
    cut = settings.mad * np.median([abs(value - median) for value in x.values()]) if x else 0.0

    types = np.full(total.shape, UNKNOWN)
    for at in considered:
        types[at] = CAUSAL
    for at in heads:
        if total[at] < least or (visual[at] <= 0 and language[at] <= 0):
            types[at] = INFO
        elif at not in x:
            types[at] = VISUAL if visual[at] > 0 else LANGUAGE
        else:
            types[at] = VISUAL if x[at] > median + cut else LANGUAGE if x[at] < median - cut else SYNERGY
    return types


@dataclass
class _Pass:
    """One forward pass over a whole row."""

    model: Any
    ids: Tensor
    settings: Settings
    synergy: np.ndarray | None
    """Heads to calibrate at the last position. None: only measure."""
    made: dict[int, tuple[np.ndarray, np.ndarray]]
    """β and γ [layers, heads] of the positions that generated earlier tokens."""
    residual: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = self.model.config.get_text_config()
        shape = (text.num_hidden_layers, text.num_attention_heads)
        self.visual, self.language, self.total, self.contribution = (np.zeros(shape) for _ in range(4))
        self.beta, self.gamma = np.ones(shape), np.ones(shape)
        self.last = len(self.ids) - 1
        self.is_visual = zoo.visual_mask(self.model, self.ids).numpy()
        self.is_neutral = np.zeros_like(self.is_visual)
        if self.settings.neutral_sinks:
            self.is_neutral = np.isin(self.ids.numpy(), [zoo.PAD, zoo.BOS])
            self.is_neutral[0] = not self.is_visual[0]

    def run(self, batch: dict[str, Tensor]) -> "_Pass":
        _running.append(self)
        try:
            with torch.no_grad():
                self.logits = self.model(**batch, use_cache=False).logits[0, -1].double().numpy()
        finally:
            _running.remove(self)
        return self

    def types(self) -> np.ndarray:
        return classify(self.visual, self.language, self.total, self.contribution, self.settings)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: tuple, out: Tensor
    ) -> None:
        """Overwrite the calibrated heads in the plain output [1, positions, heads, dim]."""
        query, keys, values = (t[0].double().numpy() for t in (q, k, v))
        shared = len(query) // len(keys)
        for position in (*self.made, self.last):
            seen = self._seen(mask, position)
            is_visual, is_language = (self.is_visual & seen), (~self.is_visual & ~self.is_neutral & seen)
            for head in range(len(query)):
                cell = (query[head, position], keys[head // shared], values[head // shared], scale)
                if position == self.last:
                    self._measure(layer, head, cell, seen, is_visual, is_language)
                beta, gamma = self._factors(position, layer, head)
                if (beta, gamma) != (1, 1):
                    factor = 1 + (beta - 1) * is_visual + (gamma - 1) * is_language
                    scaled = attention(cell[0], cell[1][seen], (factor[:, None] * cell[2])[seen], *scale)
                    out[0, position, head] = torch.from_numpy(scaled)

    def _seen(self, mask: Tensor | None, position: int) -> np.ndarray:
        if mask is None:
            return np.arange(self.last + 1) <= position
        return mask[0, 0, position].numpy()

    def _measure(
        self, layer: int, head: int, cell: tuple, seen: np.ndarray, is_visual: np.ndarray, is_language: np.ndarray
    ) -> None:
        query, keys, values, scale = cell

        def without(gone: np.ndarray) -> np.ndarray:
            left = ~gone[:, None]
            return attention(query, (keys * left)[seen], (values * left)[seen], *scale)

        h11, h01, h10, h00 = map(without, (np.zeros_like(seen), is_visual, is_language, is_visual | is_language))
        neither = similarity(h11, h00)
        visual, language = (
            0.0 if abs(score) <= DEAD_ZONE else score for score in (similarity(h11, h) - neither for h in (h10, h01))
        )
        self.visual[layer, head], self.language[layer, head] = visual, language
        self.total[layer, head] = 1 - neither
        if self.synergy is not None and self.synergy[layer, head] and visual > 0 and language > 0:
            share = visual / (visual + language)
            bounds = (1 / self.settings.limit, self.settings.limit)
            self.beta[layer, head] = np.clip(self.settings.alpha / share, *bounds)
            self.gamma[layer, head] = np.clip((1 - self.settings.alpha) / (1 - share), *bounds)

    def _factors(self, position: int, layer: int, head: int) -> tuple[float, float]:
        beta, gamma = self.made.get(position, (self.beta, self.gamma))
        return beta[layer, head], gamma[layer, head]

    def project(self, layer: int, heads: Tensor, projection: nn.Linear) -> None:
        """Remove each head in turn and measure how far the residual stream moves."""
        weight = projection.weight.detach().double().numpy()
        bias = 0.0 if projection.bias is None else projection.bias.detach().double().numpy()
        outputs, count = heads.double().numpy(), self.total.shape[1]
        block = self.model.get_decoder().layers[layer]
        stream = self.residual[layer] + added(block, weight @ outputs + bias)
        for head in range(count):
            left = outputs.reshape(count, -1).copy()
            left[head] = 0
            without = self.residual[layer] + added(block, weight @ left.flatten() + bias)
            self.contribution[layer, head] = 1 - similarity(stream, without)


_running: list[_Pass] = []


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    cap = options.get("softcap")
    if cap is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    else:
        out = _capped(query, key, value, attention_mask, options["scaling"], cap)
    _running[-1].attend(module.layer_idx, query, key, value, attention_mask, (options["scaling"], cap), out)
    return out, None


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float) -> Tensor:
    """Attention of all positions of a row with capped scores, [1, positions, heads, dim]."""
    q, k, v = (t[0].double().numpy() for t in (query, key, value))
    out = np.zeros((q.shape[1], q.shape[0], v.shape[2]))
    for position, head in np.ndindex(q.shape[1], q.shape[0]):
        seen = np.arange(k.shape[1]) <= position if mask is None else mask[0, 0, position].numpy()
        own = head * len(k) // len(q)
        out[position, head] = attention(q[head, position], k[own][seen], v[own][seen], scale, cap)
    return torch.from_numpy(out)[None].to(query.dtype)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def _installed(model: Any) -> Iterator[None]:
    before = model.config.get_text_config()._attn_implementation
    hooks = []
    for index, layer in enumerate(model.get_decoder().layers):
        hooks.append(layer.register_forward_pre_hook(_keep_residual(index), with_kwargs=True))
        hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(_project(index)))
    model.set_attn_implementation({"text_config": NAME})
    try:
        yield
    finally:
        model.set_attn_implementation({"text_config": before})
        for hook in hooks:
            hook.remove()


def _keep_residual(layer: int) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        _running[-1].residual[layer] = hidden[0, -1].double().numpy()

    return hook


def _project(layer: int) -> Any:
    def hook(module: nn.Linear, args: tuple) -> None:
        _running[-1].project(layer, args[0][0, -1], module)

    return hook


def _extended(model: Any, batch: dict[str, Tensor], token: int) -> dict[str, Tensor]:
    """Append one text token. For PaliGemma it is part of the causal suffix."""
    suffix = int(model.config.model_type == "paligemma")
    more = {"input_ids": token, "attention_mask": 1, "mm_token_type_ids": 0, "token_type_ids": suffix}
    return {
        key: torch.cat([value, value.new_full((1, 1), more[key])], 1) if key in more else value
        for key, value in batch.items()
    }
