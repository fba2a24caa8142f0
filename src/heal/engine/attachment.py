"""Attach a method to a model inside a `with` block. All changes to the model are undone at the end."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from heal.engine import attention, caches
from heal.engine.answers import AnswerTokens, Edit, HeldStreamer, Kept, edits_of, shortened
from heal.engine.branch_passes import BranchPasses
from heal.engine.branches import EncoderWatch, Main, Prompt
from heal.engine.calls import Call, check_call, refuse_batching, refuse_compiled
from heal.engine.comparison import SHIFT, BeamScores, Changes, moved
from heal.engine.finite import FiniteCheck
from heal.engine.generation import Generation
from heal.engine.layer_hooks import LayerHooks
from heal.engine.layout import Layout
from heal.engine.locks import lock_of
from heal.engine.masks import valid_positions
from heal.engine.position_groups import PositionGroups
from heal.engine.repetition import last_position
from heal.engine.runtime import CHANGING, Runtime
from heal.engine.search import owned_search
from heal.engine.shadowing import shadow
from heal.engine.source import Source
from heal.engine.state import State
from heal.engine.tally import Tallies, Tally
from heal.engine.transformers_api import Cache, attention_name
from heal.errors import AttachmentError, HealWarning, ModelError, UnsupportedError


class Attachment(LayerHooks):
    """The hooks, settings and generation states of one method in one model.

    Meanwhile other threads that use the model wait. If it is `shared`, every generate() of the model uses the method,
    whichever thread calls it, one call at a time.
    """

    def __init__(
        self,
        layout: Layout,
        runtime: Runtime[Any],
        options: Mapping[str, Any] | None = None,
        source: Source | None = None,
        shared: bool = False,
        timeout: float | None = None,
    ) -> None:
        """`options` are the options of generate() that the method sets."""
        super().__init__(layout, runtime)
        self.options = dict(options or {})
        self.source = source
        self.shared = shared
        self.timeout = timeout
        self.model = layout.model
        self.tallies = Tallies()
        """The counters of each generation."""
        self.generations: weakref.WeakKeyDictionary[Cache, Generation[Any]] = weakref.WeakKeyDictionary()
        self.latest: Generation[Any] | None = None
        self.edits: list[Edit] | None = None
        """The answers of the latest generate(), if the method may leave tokens out."""
        self._lock = lock_of(layout.model)
        # a search changes which tokens are chosen, not their scores
        changes_scores = any(map(runtime.overrides, CHANGING))
        searches = runtime.overrides("search") and runtime.counts_choices
        self._chooses_tokens = searches or (bool(self.options) and not changes_scores)
        self._groups = PositionGroups(layout, runtime.group_count)
        self._beams = 1
        self._recording = (
            False  # whether sliding windows store the positions that leave them, so that a crop can restore them
        )
        self._called: list[Tally] = []  # the tallies of the current call
        self._generating = False
        self._finite = FiniteCheck()
        self._check_later = False  # whether the end of generate() is early enough to report NaN
        self._attached = False
        self._undo: list[Callable[[], Any]] = []
        self._warned = False
        self._encoder = EncoderWatch(layout.model, lambda: self._lock.mine or self._lock.calling)

    @property
    def whole_prompt(self) -> bool:
        return self.runtime.whole_prompt

    # ── entering and leaving ──────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Attachment:
        self._lock.acquire(self.timeout)
        try:
            self._lock.settle()
            if any(attention.attached_to(m) is not None for m in self.layout.attention):
                raise AttachmentError(
                    "a method is attached to this model already: leave its `with` block before you attach another"
                )
            refuse_compiled(self.layout)
            self._switch_attention()
            self._hook()
            self._guard_generate()
            self._attached = True
        except BaseException:
            self._detach()
            self._lock.release()
            raise
        if self.shared:
            self._lock.release()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shared:
            self._lock.acquire()
        try:
            self._lock.settle()  # a stream may still be running
            self._detach()
        finally:
            self._lock.release()

    def _detach(self) -> None:
        self._attached = False
        while self._undo:
            self._undo.pop()()
        for cache in list(self.generations):
            caches.unfollow(cache)
        self._pass = self._thread = None

    def _switch_attention(self) -> None:
        configs = list({id(m.config): m.config for m in self.layout.attention}.values())
        if len({attention_name(config) for config in configs}) != 1:
            raise ModelError("the decoder's layers use several attention implementations: load the model with one")
        self._original = attention_name(configs[0])
        for module in self.layout.attention:
            attention.claim(module, self)
            self._undo.append(partial(attention.release, module))
        attention.switch(self.model, configs[0])
        self._undo.append(partial(attention.switch_back, self.model, configs[0]))
        if any(attention_name(config) != attention.NAME for config in configs):
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
        calls = self.runtime.overrides
        for index, (layer, module) in enumerate(zip(self.layout.layers, self.layout.attention, strict=True)):
            if calls("residual"):
                keep(layer.register_forward_pre_hook(self._before_layer(index), with_kwargs=True))
            if calls("projected"):
                keep(module.o_proj.register_forward_hook(self._after_projection(index)))
            if calls("project") and "forward" not in vars(module.o_proj):  # otherwise it is offloaded or wrapped
                self._replace(module.o_proj, "forward", self._projection(index, module.o_proj.forward))
            if calls("mlp_output"):
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
            with self._lock.call(self.timeout):
                if self._attached:
                    return self._generate(original, args, kwargs)
            # the method of another thread was detached while this call waited
            return self.model.generate(*args, **kwargs)

        return generate

    def _generate(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._generating:
            raise AttachmentError("generate() was called inside a generation of the same model: call it afterwards")
        kwargs |= self.options
        call = check_call(self.model, args, kwargs)
        self.runtime.check_rows(call.samples, call.copies)
        refuse_compiled(self.layout)
        self._encoder.taken()  # discard calls recorded by a failed generate()
        self._beams = call.beams
        if self.model.device.type != "cpu":
            # generate() compiles a model with a static cache, which would trace our hooks
            kwargs.setdefault("disable_compile", True)
        self._check_later = not call.every_step and not self.runtime.overrides("search")
        self.edits = None
        if edits := self.runtime.overrides("keep"):
            kwargs["return_dict_in_generate"] = True
            if kwargs.get("streamer") is not None:
                kwargs["streamer"] = HeldStreamer(kwargs["streamer"], call.end_tokens, self._keep)
        if self.runtime.overrides("search"):
            kwargs["custom_generate"] = owned_search(self.runtime.search, kwargs.pop("streamer", None), self._latest)
        self._called, self._generating = [], True
        try:
            result = original(*args, **kwargs)
            self._finite.check()
            if edits:
                self._edit(result, call)
        except Exception:
            self._finite.check()  # NaN is the cause of whatever failed after it
            raise
        finally:
            self._finite.clear()
            self._pass, self._beams, self._generating, self._check_later = None, 1, False, False
        self._explain(self._called)
        return result.sequences if edits and not call.returns_dict else result

    def _keep(self, answer: AnswerTokens) -> Kept:
        """The tokens of an answer that the method keeps."""
        generation = self._latest()
        if not generation.visual and self.runtime.needs_image:
            return Kept(len(answer.ids), tuple(range(len(answer.ids))))
        return self.runtime.keep(generation, answer)

    def _edit(self, result: Any, call: Call) -> None:
        """Remove from the returned sequences what the method does not keep. Each removed token counts as a change."""
        self.edits = edits_of(result, call.prompt_length, call.end_tokens, call.samples, self._keep)
        generation = self._latest()
        for edit in self.edits:
            for step in {*edit.dropped, *edit.again}:
                generation.tally.edited(step, edit.at[step])
        if not any(edit.dropped for edit in self.edits):
            return
        result.sequences = shortened(result.sequences, call.prompt_length, self.edits, call.pad_token)
        result.past_key_values = None  # it holds tokens that are not in the sequences
        generation.edited = True

    def _latest(self) -> Generation[Any]:
        assert self.latest is not None
        return self.latest

    def _explain(self, tallies: list[Tally]) -> None:
        """Store the reason if nothing was changed, and warn once."""
        if self.latest is None or not tallies or any(bool(s[0].sum() > 0) for t in tallies for s in t.steps):
            return
        if not self.latest.visual and self.runtime.needs_image:
            reason = "the prompt has no visual tokens, so this was the plain model"
        else:
            reason = self.runtime.why_unchanged(self.latest)
        tallies[-1].reason = reason
        if self.runtime.changes_output and not self._warned:
            self._warned = True
            warnings.warn(f"nothing was changed: {reason}", HealWarning, stacklevel=5)

    # ── one forward pass ──────────────────────────────────────────────────────────────────────────────

    def _mine(self) -> bool:
        """Whether the new pass belongs to the method. A pass of another thread waits until the method is detached."""
        if self._lock.calling:
            return True
        if self.shared:
            raise UnsupportedError("a method that is attached with shared=True needs generate(), not forward passes")
        if not self._lock.mine:
            with self._lock.session():
                return False
        if self._lock.called:
            raise AttachmentError("a stream is using this model: read it to its end or close it first")
        return True

    def _before_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # torch calls a hook without kwargs if it was removed while the pass waited
        if kwargs is None or not self._mine():
            return
        self._thread = get_ident()
        if args:
            names = list(inspect.signature(module.forward).parameters)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        self._pass = None
        cache = kwargs.get("past_key_values")
        if not isinstance(cache, Cache):
            return  # no cache, no generation: a plain forward pass stays plain
        ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        given = embeds if ids is None else ids
        if given is None:
            return
        generation = self._generation(cache)
        if given.shape[1] == 1 and generation.length > 0 and ids is not None:
            generation.read_token(self._groups.of_tokens(ids), ids)
            self._follow_search(generation, ids)
            prompt = None
        else:
            if generation.edited:
                raise UnsupportedError(
                    "sentences were left out of the answer, but this cache still holds them: start the next turn "
                    "with a new cache"
                )
            generation.read_prompt(
                self._groups.of_prompt(ids, embeds, kwargs.get("attention_mask"), later=generation.length > 0)
            )
            prompt = Prompt(self.layout, kwargs, self._encoder.taken())
            self._begin_state(generation)
            if self._beams > 1 and not self.runtime.overrides("search"):
                generation.beams = BeamScores(self._beams, given.shape[0], given.device)
        if not generation.visual and self.runtime.needs_image:
            return
        if prompt is not None:
            if self.runtime.repeats_last_position:
                self._recording = caches.prepare(cache, generation.length)
            past = generation.length - given.shape[1]
            generation.mask = valid_positions(kwargs.get("attention_mask"), given, past)
        self._pass = generation
        if self.runtime.branches:
            self._follow_branches(generation, kwargs, prompt)
        self._begin_pass(generation)
        self.runtime.before_pass(generation)

    def _begin_state(self, generation: Generation[Any]) -> None:
        """Create the method's state for a prompt, or an empty state if the method is idle."""
        active = generation.visual or not self.runtime.needs_image
        earlier = getattr(generation, "state", None)
        generation.state = self.runtime.begin(generation, earlier) if active else State()
        generation.state.tally = Tally(**self.runtime.neutral)
        self.tallies.append(generation.tally)
        self._called.append(generation.tally)

    def _follow_search(self, generation: Generation[Any], ids: Tensor) -> None:
        """Count the rows in which the search did not choose the most likely token."""
        if generation.beams is not None:
            generation.beams.read(ids)
        if generation.best is not None and len(generation.best) == len(ids):
            changes = Changes(len(ids), generation.groups.device)
            changes.rows(ids[:, 0] != generation.best)
            generation.tally.count(changes)

    def _follow_branches(self, generation: Generation[Any], kwargs: dict[str, Any], prompt: Prompt | None) -> None:
        """Align the branches with the model's new pass, and start them at a prompt."""
        if prompt is not None:
            generation.passes = BranchPasses(self.layout, self._groups, self._running)
        passes = generation.passes
        assert isinstance(passes, BranchPasses)
        passes.main = Main(kwargs)
        if prompt is not None:
            passes.start(generation, self.runtime.branches, prompt)

    @contextmanager
    def _running(self, own: Generation[Any]) -> Iterator[None]:
        """Run a pass of a branch, possibly during a pass of the model itself."""
        before = self._pass, self._attended, self._changes
        self._pass = own
        try:
            yield
        finally:
            self._pass, self._attended, self._changes = before

    def _generation(self, cache: Cache) -> Generation[Any]:
        known, length = self.generations.get(cache), int(cache.get_seq_length())
        if known is not None and length == known.length:
            self.latest = known
            return known
        if length > 0:
            raise UnsupportedError(
                "this cache was filled without the method, so heal does not know which of its positions "
                "are visual: start with an empty cache inside the `with` block"
            )
        caches.unfollow(cache)  # a static cache may have been reset and reused
        fresh = self.latest = self.generations[cache] = Generation(self.runtime.group_count, source=self.source)
        caches.follow(cache, fresh.select, fresh.crop)
        return fresh

    def _after_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None
    ) -> None:
        generation = self._current
        if generation is None:
            return
        others = generation.passes.logits(generation) if isinstance(generation.passes, BranchPasses) else {}
        old = output.logits[:, -1].float()
        new = self.runtime.logits(generation, old, others)
        if new is not old:  # in fp32 for every dtype: differences of rounded logits would be noise
            self._changes.rows(
                moved(new, old) > SHIFT if generation.beams is None else generation.beams.reranked(old, new)
            )
            output.logits = torch.cat([output.logits[:, :-1].float(), new.unsqueeze(1)], dim=1)
        if self._chooses_tokens:
            generation.best = new.argmax(-1)
            generation.tally.best.append(generation.best)
        else:
            generation.tally.count(self._changes)

    def _after_decoder(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None
    ) -> None:
        generation = self._current
        if generation is None:
            return
        if self._attended < len(self.layout.layers) and not generation.branch:
            raise AttachmentError(
                f"only {self._attended} of {len(self.layout.layers)} layers used the method's attention: something "
                "else has replaced or compiled parts of the model. Attach to the model as it was loaded"
            )
        hidden = output[0]
        self._finite.add(generation.step, hidden[:, -1])
        if not self._check_later or generation.phase != "decode" or self.runtime.waits(generation):
            self._finite.check()
        if self.runtime.overrides("final_hidden"):
            new = self.runtime.final_hidden(generation, hidden)
            if new is not None and new is not hidden:
                if not generation.branch:
                    self._changes.block(hidden[:, -1], new[:, -1])
                output.last_hidden_state = hidden = new
        phase = generation.phase
        self.runtime.after_pass(generation)
        if phase == "prompt" and self.runtime.repeats_last_position and not generation.branch:
            cache = kwargs["past_key_values"]
            caches.cut_back(cache, record=self._recording)
            generation.repeat_last()
            self._begin_pass(generation)
            self.runtime.before_pass(generation)
            again = decoder(**last_position(kwargs, cache, self.layout.kinds))
            hidden[:, -1:] = again[0]
