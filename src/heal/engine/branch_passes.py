"""The forward passes of a method's branches: prompts, tokens, and restarts in the middle of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from heal.engine.branches import Branch, BranchState, Main, Prompt
from heal.engine.caches import is_recording
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.masks import valid_positions
from heal.engine.position_groups import PositionGroups
from heal.engine.transformers_api import prompt_positions
from heal.errors import ConfigError, UnsupportedError


class BranchPasses:
    """Runs the branches of one generation alongside the model's own passes."""

    def __init__(
        self,
        layout: Layout,
        groups: PositionGroups,
        running: Callable[[Generation[Any]], AbstractContextManager[None]],
    ) -> None:
        """`running` is a context in which the generation of a branch is the current one."""
        self.layout, self.groups, self.running = layout, groups, running
        self.main = Main({})
        self.states: dict[str, BranchState] = {}
        self._record = False

    # ── rows and crops ────────────────────────────────────────────────────────────────────────────────

    def select(self, rows: list[int]) -> None:
        self.main.select(rows)
        for state in self.states.values():
            state.select(rows)

    def crop(self, tokens: int) -> None:
        self.main.crop(tokens)
        for state in self.states.values():
            state.crop(tokens)

    # ── passes ────────────────────────────────────────────────────────────────────────────────────────

    def start(self, generation: Generation[Any], branches: tuple[Branch, ...], prompt: Prompt) -> None:
        """Prepare the branches when the model is about to read a prompt."""
        if generation.length > prompt.width:
            raise UnsupportedError("a second turn on one cache has no second branch yet: start with a new cache")
        config = self.layout.model.config.get_text_config()
        self._record = is_recording(prompt.arguments["past_key_values"])
        for branch in branches:
            state = BranchState(branch.name, config, self.groups.count)
            if branch.inputs is not None:
                state.begin(branch.inputs(prompt), self._record)
            if branch.first:
                self._read(generation, state)
            if not branch.once:
                self.states[branch.name] = state

    def logits(self, generation: Generation[Any]) -> dict[str, Tensor]:
        """The next-token logits of every branch that has a prompt."""
        return {name: self.read(generation, name) for name, state in self.states.items() if not state.idle}

    def read(self, generation: Generation[Any], name: str) -> Tensor:
        """The next-token logits [rows, vocabulary] of one branch in fp32, after the current answer."""
        state = self._state(name)
        if state.idle:
            raise ConfigError(f"the branch {name!r} has no prompt yet: call generation.restart first")
        if state.step == generation.step and state.logits is None and not state.waiting:
            raise UnsupportedError(f"a crop removed the logits of the branch {name!r}: read another token first")
        if state.logits is None or state.step != generation.step:
            self._read(generation, state)
        assert state.logits is not None
        return state.logits

    def restart(self, generation: Generation[Any], name: str, arguments: Mapping[str, Any]) -> None:
        """Give a branch another prompt, followed by the current answer."""
        state, given = self._state(name), self._placed(arguments)
        ids = given["input_ids"]
        if ids.shape[0] != generation.rows:
            raise ConfigError(f"the branch {name!r} needs {generation.rows} rows, but got {ids.shape[0]}")
        given["attention_mask"] = valid_positions(given.get("attention_mask"), ids).long()
        if self.main.position is not None and given.get("position_ids") is None:
            given["position_ids"] = prompt_positions(self.layout.model, given)
        state.begin(given | {"logits_to_keep": 1}, self._record)
        self._read(generation, state)

    def _state(self, name: str) -> BranchState:
        if name not in self.states:
            raise ConfigError(f"there is no branch {name!r}: the method has {', '.join(self.states) or 'none'}")
        return self.states[name]

    def _read(self, generation: Generation[Any], state: BranchState) -> None:
        """Read all tokens that the model has read and the branch has not."""
        own, step = state.generation, generation.step
        if state.waiting:
            arguments = state.prompt(self.main, step)
            ids, mask = arguments["input_ids"], arguments["attention_mask"]
            own.read_prompt(self.groups.of_prompt(ids, None, mask, later=False))
            state.logits = self._forward(own, arguments)
            if step > 0:
                answer = generation.answer.to(ids.device)
                own.read_answer(self.groups.of_answer(answer), step)
                state.logits = self._forward(own, state.tokens(self.main, answer))
        else:
            ids = self.main.arguments["input_ids"]
            own.read_token(self.groups.of_tokens(ids))
            state.logits = self._forward(own, state.tokens(self.main, ids))
        state.step = step

    def _forward(self, own: Generation[Any], arguments: dict[str, Any]) -> Tensor:
        with self.running(own):
            # call forward directly: the model's hooks are for its own passes
            return self.layout.model.forward(**arguments).logits[:, -1].float()

    def _placed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Move tensors to the model's device, and floating-point tensors to its type."""
        model = self.layout.model
        return {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            if isinstance(value, Tensor)
            else value
            for name, value in arguments.items()
        }
