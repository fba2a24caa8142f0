"""What a method does during a generation: the callbacks that an attachment makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from heal.analysis.counterfactual import Attended
from heal.engine.generation import Generation


class Runtime:
    """A method at work. The defaults do nothing, so a method says only what it changes."""

    sets: int = 2
    """How many sets of positions are told apart: visual, language, and neutral if there are three."""

    repeats: bool = False
    """Whether the last position of the prompt is run again after it was observed."""

    tallies: list[Any]
    """What was changed, one `heal.methods.base.Tally` a generation."""

    def facts(self) -> dict[str, Any]:
        """What is only known once the model is: written into traces."""
        return {}

    def check_rows(self, copies: int) -> None:
        """Refuse a call in which one sample occupies several rows, if the method cannot have that."""

    def takes_part(self, layer: int) -> bool:
        return True

    def begin(self, generation: Generation) -> None:
        """A prompt with visual positions arrives."""

    def before(self, generation: Generation) -> None:
        """A forward pass of this generation starts."""

    def observe(self, generation: Generation, layer: int, at: Attended) -> None:
        """The last position of a prompt attends in a layer; its output is the plain one."""

    def attend(self, generation: Generation, layer: int, at: Attended, plain: Callable[[], Tensor]) -> Tensor:
        """The output [rows, 1, heads, dim] of one position in a layer."""
        return plain()

    def wants_stream(self, generation: Generation, layer: int) -> bool:
        """Whether `residual` and `projected` are to be called for this layer in this pass."""
        return False

    def residual(self, generation: Generation, layer: int, hidden: Tensor) -> None:
        """The residual stream that enters a layer, at the last position [rows, hidden]."""

    def projected(
        self, generation: Generation, layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        """The concatenated head outputs that entered o_proj and what came out, at the last position."""

    def after(self, generation: Generation) -> None:
        """The forward pass is over."""

    def silence(self, generation: Generation) -> str | None:
        """Why the method changed nothing in this generation, if it should have and did not."""
        return None
