"""The layer callbacks of a forward pass: attention, head outputs, residual stream and feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from heal.engine import attention
from heal.engine.attention_call import AttentionCall
from heal.engine.comparison import Changes
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.patches import PatchRecorder
from heal.engine.runtime import Runtime
from heal.errors import UnsupportedError


class LayerHooks:
    """Calls the method at each layer of the current pass and records what it changes."""

    def __init__(self, layout: Layout, runtime: Runtime[Any]) -> None:
        self.layout = layout
        self.runtime = runtime
        self._attends = runtime.overrides("attention")
        self._changes_heads = runtime.overrides("head_outputs")
        self.patches: PatchRecorder | None = None
        """Records where each head looks in the image, if that was asked for."""
        self._pass: Generation[Any] | None = None
        self._thread: int | None = None  # the thread of the current pass
        self._attended = 0  # layers of this pass whose attention was called
        self._changes = Changes(0, torch.device("cpu"))
        self._original = ""  # the model's own attention implementation
        self._index = {module: i for i, module in enumerate(layout.attention)}

    @property
    def _current(self) -> Generation[Any] | None:
        """The generation of the current pass; None in another thread, whose passes are plain."""
        return self._pass if self._thread == get_ident() else None

    def _begin_pass(self, generation: Generation[Any]) -> None:
        self._attended = 0
        self._changes = Changes(generation.rows, generation.groups.device)

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
        if self._attends or self.patches is not None:
            out = self._attention(generation, layer, module, query, key, value, mask, **options)
        else:
            out, _ = attention.plain_attention(module, query, key, value, mask, **options)
        if self._changes_heads:
            before, out = out, self.runtime.head_outputs(generation, layer, out)
            if out is not before and not generation.branch:
                self._changes.heads(before[:, -1], out[:, -1], exact=True)
        return out, None

    def _attention(
        self,
        generation: Generation[Any],
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
        unchanged: list[Tensor] = []

        def plain() -> Tensor:
            if not unchanged:
                unchanged.append(attention.plain_attention(module, query, key, value, mask, **options)[0])
            return unchanged[0]

        length = generation.length
        whole = key.shape[2] <= length  # a static cache is longer
        call = AttentionCall(
            generation,
            layer,
            self.layout.kinds[layer],
            query,
            key if whole else key[:, :, :length],
            value if whole else value[:, :, :length],
            mask,
            options.get("scaling") or query.shape[-1] ** -0.5,
            options.get("softcap"),
            plain,
        )
        if self.patches is not None:
            self.patches.see(call)
        if not self._attends:
            return plain()
        out = self.runtime.attention(generation, call, plain)
        if not generation.branch and (call.newest_replaced or not unchanged or out is not unchanged[0]):
            self._compare(call, out[:, -1])
        return out.to(query.dtype)

    def _compare(self, call: AttentionCall, out: Tensor) -> None:
        """Compare with the plain output. It is free if the method split the attention; otherwise it is computed."""
        known = vars(call).get("known_plain")
        if known is not None:
            self._changes.heads(known[0], out, exact=known[1])
            return
        partials = call.newest.known_split if "newest" in vars(call) and call.queries == 1 else None
        if partials is not None:
            self._changes.merged(partials, out)
        else:
            self._changes.heads(call.plain_newest, out)

    def _before_layer(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._current is None:
                return None
            hidden = args[0] if args else kwargs["hidden_states"]
            new = self.runtime.residual(self._current, layer, hidden)
            if new is None or new is hidden:
                return None
            if not self._current.branch:
                self._changes.block(hidden[:, -1], new[:, -1])
            return ((new, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": new})

        return hook

    def _projection(self, layer: int, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def forward(heads: Tensor) -> Tensor:
            generation = self._current
            if generation is not None and heads.shape[1] == 1:
                out = self.runtime.project(generation, layer, heads[:, 0], self.layout.attention[layer].o_proj)
                if out is not None:
                    return out.unsqueeze(1)
            return original(heads)

        return forward

    def _after_projection(self, layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._current is not None:
                self.runtime.projected(self._current, layer, args[0], output, module)

        return hook

    def _after_mlp(self, layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if self._current is None:
                return None
            before = output[0] if isinstance(output, tuple) else output
            after = self.runtime.mlp_output(self._current, layer, args[0], before)
            if after is not before and not self._current.branch:
                self._changes.block(before[:, -1], after[:, -1])
            # some mixtures of experts return their routing too
            return (after, *output[1:]) if isinstance(output, tuple) else after

        return hook
