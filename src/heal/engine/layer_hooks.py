"""What happens inside a forward pass: the layers' attention, streams and blocks, with the method taking part."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from heal.analysis.counterfactual import Attended
from heal.engine import attention
from heal.engine.comparison import Changes
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import UnsupportedError


class LayerHooks:
    """Calls the method at each layer of the pass that runs, and notes what it changes."""

    def __init__(self, layout: Layout, runtime: Runtime) -> None:
        self.layout = layout
        self.runtime = runtime
        self._pass: Generation | None = None
        self._thread: int | None = None  # whose pass it is
        self._attended = 0  # layers of this pass that came by
        self._changes = Changes(0, torch.device("cpu"))
        self._original = ""  # the model's own attention implementation
        self._index = {module: i for i, module in enumerate(layout.attention)}

    @property
    def _current(self) -> Generation | None:
        """The generation of the pass that runs. A pass of another thread has none: it is the plain model's."""
        return self._pass if self._thread == get_ident() else None

    def _begin_pass(self, generation: Generation) -> None:
        self._attended = 0
        self._changes = Changes(generation.rows, generation.owners.device)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if self._thread != get_ident():
            return attention.original_attention(self._original, module, query, key, value, mask, **options)
        generation, layer = self._pass, self._index[module]
        if generation is None:
            return attention.plain_attention(module, query, key, value, mask, **options)
        self._attended += 1
        if self.runtime.takes_part(layer, generation.branch):
            out = self._attend(generation, layer, module, query, key, value, mask, **options)
        else:
            out, _ = attention.plain_attention(module, query, key, value, mask, **options)
        if self.runtime.changes_heads:
            before, out = out, self.runtime.heads(generation, layer, out)
            if out is not before and not generation.branch:
                self._changes.heads(before[:, -1], out[:, -1], exact=True)
        return out, None

    def _attend(
        self,
        generation: Generation,
        layer: int,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> Tensor:
        if options.get("position_bias") is not None:
            raise UnsupportedError("attention with position_bias is not softmax over the keys alone")
        length = min(key.shape[2], generation.length)
        regions = generation.regions(self.layout.kinds[layer], mask, length, key.device)
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        softcap = options.get("softcap")
        at = Attended(query[:, :, -1], key[:, :, :length], value[:, :, :length], regions, scale, softcap)

        unchanged: list[Tensor] = []

        def plain() -> Tensor:
            if not unchanged:
                unchanged.append(attention.plain_attention(module, query, key, value, mask, **options)[0])
            return unchanged[0]

        if generation.phase != "prompt":
            out = self.runtime.attend(generation, layer, at, plain)
            if not unchanged or out is not unchanged[0]:
                self._compare(generation, at, out[:, -1], plain)
            return out.to(query.dtype)
        out, last = plain(), self.runtime.observe(generation, layer, at)
        if last is not None:
            if not generation.branch:
                self._changes.heads(out[:, -1], last)
            out[:, -1] = last.to(out.dtype)
        return out

    def _compare(self, generation: Generation, at: Attended, out: Tensor, plain: Callable[[], Tensor]) -> None:
        """With the plain output: for free where the method split the attention itself, else by computing it."""
        if generation.branch:
            return
        if at.known_split is not None:
            self._changes.merged(at.known_split, out)
        else:
            self._changes.heads(plain()[:, -1], out)

    def _before_layer(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._current is not None and self.runtime.wants_stream(self._current, layer):
                hidden = args[0] if args else kwargs["hidden_states"]
                self.runtime.residual(self._current, layer, hidden)

        return hook

    def _projection(self, layer: int, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def forward(heads: Tensor) -> Tensor:
            generation = self._current
            if generation is not None and self.runtime.wants_projection(generation, layer) and heads.shape[1] == 1:
                out = self.runtime.project(generation, layer, heads[:, 0], self.layout.attention[layer].o_proj)
                if out is not None:
                    return out.unsqueeze(1)
            return original(heads)

        return forward

    def _after_projection(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._current is not None and self.runtime.wants_projection(self._current, layer):
                self.runtime.projected(self._current, layer, args[0][:, -1], output[:, -1], module)

        return hook

    def _after_mlp(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if self._current is None:
                return None
            before = output[0] if isinstance(output, tuple) else output
            after = self.runtime.fed(self._current, layer, args[0], before)
            if after is not before and not self._current.branch:
                self._changes.block(before[:, -1], after[:, -1])
            # some mixtures of experts give their routing too
            return (after, *output[1:]) if isinstance(output, tuple) else after

        return hook
