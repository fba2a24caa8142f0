"""How a decoder layer adds its attention output to the residual stream.

Most layers compute y = x + a. Granite multiplies a by a constant; Gemma 2 and 3, GLM-4 and OLMo 2 normalise it first.
The rule is determined by running the layer with its attention replaced by a known vector, so it does not depend on
attribute names, and layers that compute something else are detected.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heal.engine.transformers_api import execution_device
from heal.errors import UnsupportedError


@dataclass(frozen=True)
class ResidualAdd:
    """y = x + multiplier · norm(a), where a is the output of o_proj. Without a norm, y = x + multiplier · a."""

    multiplier: float = 1.0
    norm: nn.Module | None = None

    def added(self, output: Tensor) -> Tensor:
        """The part of the residual stream that this output of o_proj adds, in fp32."""
        if self.norm is not None:
            output = _in_single_precision(self.norm, output)
        return output.float() * self.multiplier


class _Stop(Exception):
    """Raised to stop the layer after its attention block."""


class _Known(nn.Module):
    """Replaces a layer's attention."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output
        self.called = False

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        self.called = True
        return self.output, None


class _Watched(nn.Module):
    """Replaces another module of a layer, and records its input and output after the attention."""

    def __init__(self, part: nn.Module, attention: _Known, seen: list[tuple[nn.Module, Tensor, Tensor]]) -> None:
        super().__init__()
        self.part, self.attention, self.seen = part, attention, seen

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.attention.called:
            return _in_single_precision(self.part, hidden)
        if hidden is not self.attention.output:
            self.seen.append((self.part, hidden, hidden))
            raise _Stop
        self.seen.append((self.part, hidden, _in_single_precision(self.part, hidden)))
        return self.seen[-1][2]


def _in_single_precision(part: nn.Module, hidden: Tensor) -> Tensor:
    """Apply a norm in fp32, or in the dtype of its weights if it refuses fp32."""
    try:
        return part(hidden.float()).float()
    except RuntimeError:
        return part(hidden.to(next(part.parameters()).dtype)).float()


# layer -> (its submodules, result), cached because the probe takes longer than attaching
_asked: weakref.WeakKeyDictionary[nn.Module, tuple[Any, ResidualAdd]] = weakref.WeakKeyDictionary()


def residual_add(layer: nn.Module, attention: nn.Module, hidden_size: int) -> ResidualAdd:
    """The residual rule of this layer. UnsupportedError if it is not x + m·norm(a)."""
    numbers = {name: value for name, value in vars(layer).items() if isinstance(value, (int, float))}
    made_of = ([id(part) for part in layer.children()], id(type(layer)), numbers)
    known = _asked.get(layer)
    if known is None or known[0] != made_of:
        known = _asked[layer] = (made_of, _ask(layer, attention, hidden_size))
    return known[1]


def _ask(layer: nn.Module, attention: nn.Module, hidden_size: int) -> ResidualAdd:
    device = execution_device(layer)
    if device is None:
        device = next((p.device for p in layer.parameters() if p.device.type != "meta"), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    stream, output = (torch.randn(2, 1, 1, hidden_size, generator=generator) + 0.5).to(device)
    found = _after_attention(layer, attention, stream, output)
    if found is not None:
        norm, added, after = found
        multiplier = float(((after - stream).double() * added.double()).sum() / added.double().square().sum())
        error = (after - stream - multiplier * added).abs().max() / added.abs().max()
        if multiplier != 0 and float(error) < 1e-4:
            return ResidualAdd(1.0 if abs(multiplier - 1) < 1e-5 else multiplier, norm)
    raise UnsupportedError(
        f"{type(layer).__name__} does not add the output of its attention to the residual stream in a way that is "
        "known here, so it cannot be told which heads are causally redundant: give replacement='none'"
    )


def _after_attention(
    layer: nn.Module, attention: nn.Module, stream: Tensor, output: Tensor
) -> tuple[nn.Module | None, Tensor, Tensor] | None:
    """The norm of the attention output (or None), its output, and the residual stream after the addition."""
    known = _Known(output)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    probe = copy.copy(layer)  # a shallow copy with its own list of submodules, so the model is not changed
    probe.__dict__["_modules"] = {
        name: known if part is attention else _Watched(part, known, seen) for name, part in layer.named_children()
    }
    try:
        with torch.no_grad():
            end = type(layer).forward(probe, stream, attention_mask=None, position_embeddings=None)
    except _Stop:
        *norms, (_, after, _) = seen
    except Exception:  # an unknown kind of layer may raise anything
        return None
    else:
        *norms, after = *seen, end[0] if isinstance(end, tuple) else end
    if len(norms) > 1:
        return None
    if norms and not torch.equal(norms[0][2], output):  # different results: dropout is active
        return norms[0][0], norms[0][2], after
    return None, output, after
