"""A method in a model, for as long as a `with` block lasts. Whatever is changed here is undone here."""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from heal.analysis.counterfactual import Attended
from heal.analysis.split import LANGUAGE, NEUTRAL
from heal.engine import attention, caches
from heal.engine.branches import EncoderWatch, Prompt, Running
from heal.engine.calls import check_call, refuse_batching
from heal.engine.generation import Generation, first_positions, owners_of
from heal.engine.layout import Layout
from heal.engine.repetition import last_position
from heal.engine.runtime import Runtime
from heal.engine.shadowing import shadow
from heal.errors import AttachmentError, HealWarning, ModelError, NonFiniteError, UnsupportedError


class Attachment:
    """Hooks, settings and generation states of one method in one model."""

    def __init__(self, layout: Layout, runtime: Runtime) -> None:
        self.layout = layout
        self.runtime = runtime
        self.model = layout.model
        self.generations: weakref.WeakKeyDictionary[Cache, Generation] = weakref.WeakKeyDictionary()
        self.latest: Generation | None = None
        self._current: Generation | None = None
        self._index = {module: i for i, module in enumerate(layout.attention)}
        self._undo: list[Callable[[], Any]] = []
        self._busy = threading.Lock()
        self._warned = False
        self._encoder = EncoderWatch(layout.model)

    @property
    def whole_prompt(self) -> bool:
        return self.runtime.whole_prompt

    # ── entering and leaving ──────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Attachment:
        if any(attention.attached_to(m) is not None for m in self.layout.attention):
            raise AttachmentError(
                "a method is attached to this model already: leave its `with` block before you attach another"
            )
        try:
            self._switch_attention()
            self._hook()
            self._guard_generate()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()
        for cache in list(self.generations):
            caches.unfollow(cache)
        self._current = None

    def _switch_attention(self) -> None:
        configs = list({id(m.config): m.config for m in self.layout.attention}.values())
        if len({config._attn_implementation for config in configs}) != 1:
            raise ModelError("the decoder's layers use several attention implementations: load the model with one")
        for module in self.layout.attention:
            attention.claim(module, self)
            self._undo.append(partial(attention.release, module))
        attention.switch(self.model, configs[0])
        self._undo.append(partial(attention.switch_back, self.model, configs[0]))
        if any(config._attn_implementation != attention.NAME for config in configs):
            raise ModelError(
                f"{type(self.model).__name__} does not let its attention be replaced: it does not use "
                "transformers' attention interface"
            )

    def _hook(self) -> None:
        def keep(handle: Any) -> None:
            self._undo.append(handle.remove)

        keep(self.model.register_forward_pre_hook(self._before_model, with_kwargs=True))
        keep(self.model.register_forward_hook(self._after_model, with_kwargs=True))
        keep(self.layout.decoder.register_forward_hook(self._after_decoder, with_kwargs=True))
        for index, (layer, module) in enumerate(zip(self.layout.layers, self.layout.attention, strict=True)):
            keep(layer.register_forward_pre_hook(self._before_layer(index), with_kwargs=True))
            keep(module.o_proj.register_forward_hook(self._after_projection(index)))
            if self.runtime.projects and "forward" not in vars(module.o_proj):  # else it is offloaded or wrapped
                self._replace(module.o_proj, "forward", self._projection(index, module.o_proj.forward))
            if self.runtime.changes_mlp:
                keep(self._mlp(layer).register_forward_hook(self._after_mlp(index)))
        if self.runtime.branches:
            self._encoder.install(self._replace)

    def _mlp(self, layer: Any) -> nn.Module:
        if not hasattr(layer, "mlp"):
            raise ModelError(f"the layers of {type(self.model).__name__} have no mlp that the method could change")
        return layer.mlp

    def _guard_generate(self) -> None:
        self._replace(self.model, "generate", self._guarded(self.model.generate))
        for name in ("generate_batch", "init_continuous_batching"):
            if hasattr(self.model, name):
                self._replace(self.model, name, refuse_batching)

    def _replace(self, thing: Any, name: str, function: Callable[..., Any]) -> None:
        self._undo.append(shadow(thing, name, function))

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            kwargs |= self.runtime.generate_options
            self.runtime.check_rows(check_call(self.model, args, kwargs))
            if not self._busy.acquire(blocking=False):
                raise AttachmentError("this model is generating in another thread: give each thread its own model")
            try:
                self._encoder.taken()  # a call that failed may have left some
                if self.model.device.type != "cpu":
                    # generate() compiles a model with a static cache by itself, which would trace our hooks
                    kwargs.setdefault("disable_compile", True)
                result = original(*args, **kwargs)
            finally:
                self._current = None
                self._busy.release()
            self._say_if_silent()
            return result

        return generate

    def _say_if_silent(self) -> None:
        reason = None if self.latest is None else self.runtime.silence(self.latest)
        if reason and not self._warned:
            self._warned = True
            warnings.warn(f"nothing was changed: {reason}", HealWarning, stacklevel=4)

    # ── one forward pass ──────────────────────────────────────────────────────────────────────────────

    def _before_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args:
            names = list(inspect.signature(module.forward).parameters)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        self._current = None
        cache = kwargs.get("past_key_values")
        if not isinstance(cache, Cache):
            return  # no cache, no generation: a plain forward pass stays plain
        ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        given = embeds if ids is None else ids
        if given is None:
            return
        generation = self._generation(cache)
        if given.shape[1] == 1 and generation.length > 0 and ids is not None:
            generation.read_token(self._owners_of_tokens(ids))
            prompt = None
        else:
            generation.read_prompt(
                self._owners_of_prompt(ids, embeds, kwargs.get("attention_mask"), later=generation.length > 0)
            )
            prompt = Prompt(self.layout, kwargs, self._encoder.taken())
        if not generation.visual and self.runtime.needs_picture:
            return
        if prompt is not None:
            if self.runtime.repeats:
                caches.prepare(cache, generation.length)
            if self.runtime.changes_mlp:
                generation.mask = prompt.mask
            self.runtime.begin(generation)
            self._start_branches(generation, prompt)
        self._current = generation
        self.runtime.before(generation)

    def _start_branches(self, generation: Generation, prompt: Prompt) -> None:
        for branch in self.runtime.branches:
            if generation.length > prompt.ids.shape[1]:
                raise UnsupportedError("a second turn on one cache has no second branch yet: start with a new cache")
            running = Running(branch, prompt, self.runtime.sets)
            if branch.first:
                self._branch_logits(generation, running, None)
            if not branch.once:
                generation.running[branch.name] = running

    def _branch_logits(self, generation: Generation, running: Running, main: dict[str, Any] | None) -> Tensor:
        """One pass of a branch: its prompt, or the token that the model reads with `main`."""
        own = running.generation
        arguments = running.prompt() if main is None else running.token(main)
        if main is None:
            own.read_prompt(
                self._owners_of_prompt(arguments["input_ids"], None, arguments["attention_mask"], later=False)
            )
        else:
            own.read_token([LANGUAGE] * arguments["input_ids"].shape[0])
        self._current = own
        try:
            # not the module itself: its hooks are for what is generated
            return self.model.forward(**arguments).logits[:, -1].float()
        finally:
            self._current = generation

    def _generation(self, cache: Cache) -> Generation:
        known, length = self.generations.get(cache), int(cache.get_seq_length())
        if known is not None and length == known.length:
            self.latest = known
            return known
        if length > 0:
            raise UnsupportedError(
                "this cache was filled or cropped outside of the method, so it is not known which of its positions "
                "are visual: start with an empty cache inside the `with` block"
            )
        caches.unfollow(cache)  # a static cache is emptied and used again
        fresh = self.latest = self.generations[cache] = Generation(self.runtime.sets)
        caches.follow(cache, fresh.select)
        return fresh

    def _owners_of_prompt(self, ids: Tensor | None, embeds: Tensor | None, mask: Any, later: bool) -> Tensor:
        if ids is None:
            assert embeds is not None
            table = self.model.get_input_embeddings()
            visual = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
            for token in self.layout.visual_ids:
                visual |= (embeds == table(torch.tensor(token, device=embeds.device))).all(-1)
            special = torch.zeros_like(visual)
        else:
            visual = torch.isin(ids, torch.tensor(sorted(self.layout.visual_ids), device=ids.device))
            special = torch.isin(ids, torch.tensor(sorted(self.layout.special_ids), device=ids.device))
        if self.runtime.sets <= NEUTRAL:
            return owners_of(visual)
        return owners_of(visual, special, None if later else first_positions(visual, mask))

    def _owners_of_tokens(self, ids: Tensor) -> list[int]:
        if self.runtime.sets <= NEUTRAL:
            return [LANGUAGE] * ids.shape[0]
        return [NEUTRAL if token in self.layout.special_ids else LANGUAGE for token in ids[:, 0].tolist()]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        generation, layer = self._current, self._index[module]
        if generation is None:
            return attention.plain_attention(module, query, key, value, mask, **options)
        if self.runtime.takes_part(layer, generation.branch):
            out = self._attend(generation, layer, module, query, key, value, mask, **options)
        else:
            out, _ = attention.plain_attention(module, query, key, value, mask, **options)
        if self.runtime.changes_heads:
            out = self.runtime.heads(generation, layer, out)
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

        def plain() -> Tensor:
            return attention.plain_attention(module, query, key, value, mask, **options)[0]

        if generation.phase != "prompt":
            return self.runtime.attend(generation, layer, at, plain)
        out, last = plain(), self.runtime.observe(generation, layer, at)
        if last is not None:
            out[:, -1] = last.to(out.dtype)
        return out

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
            if isinstance(output, tuple):  # some mixtures of experts give their routing too
                return (self.runtime.fed(self._current, layer, args[0], output[0]), *output[1:])
            return self.runtime.fed(self._current, layer, args[0], output)

        return hook

    def _after_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        generation = self._current
        if generation is None:
            return
        others = {}
        for name, running in generation.running.items():
            assert isinstance(running, Running)
            others[name] = self._branch_logits(generation, running, None if running.waiting else kwargs)
        old = output.logits[:, -1].float()
        new = self.runtime.logits(generation, old, others)
        if new is not old:  # in fp32 whatever the model's type: contrasts of rounded numbers are noise
            output.logits = torch.cat([output.logits[:, :-1].float(), new.unsqueeze(1)], dim=1)

    def _after_decoder(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        generation = self._current
        if generation is None:
            return
        hidden = output[0]
        if not bool(torch.isfinite(hidden[:, -1]).all()):
            raise NonFiniteError(
                f"the model's output is not finite at step {generation.step}: load it in bfloat16 or float32, "
                "or lower factor_limit"
            )
        phase = generation.phase
        self.runtime.after(generation)
        if phase == "prompt" and self.runtime.repeats and not generation.branch:
            cache = kwargs["past_key_values"]
            caches.cut_back(cache)
            generation.repeat_last()
            self.runtime.before(generation)
            again = decoder(**last_position(kwargs, cache, self.layout.kinds))
            hidden[:, -1:] = again[0]
