"""What a method does during a generation: the callbacks that an attachment makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from heal.analysis.counterfactual import Attended
from heal.engine.branches import Branch
from heal.engine.generation import Generation


class Runtime:
    """A method at work. The defaults do nothing, so a method says only what it changes.

    `generation.branch` tells the model's own pass (empty) from the passes of the method's branches.
    """

    sets: int = 2
    """How many sets of positions are told apart: visual, language, and neutral if there are three."""

    repeats: bool = False
    """Whether the last position of the prompt is run again after it was observed."""

    whole_prompt: bool = False
    """Whether more than the last position of a prompt is changed or looked at."""

    needs_picture: bool = True
    """Whether the method rests while a prompt has no visual tokens."""

    changes_heads: bool = False
    """Whether `heads` is to be called."""

    changes_mlp: bool = False
    """Whether `fed` is to be called."""

    projects: bool = False
    """Whether `project` is to be called."""

    branches: tuple[Branch, ...] = ()
    """Passes beside the model's own."""

    generate_options: Mapping[str, Any] = {}
    """Options of generate() that the method sets."""

    neutral: ClassVar[Mapping[str, float]] = {}
    """The quantities that the method moves (see `Tally.add`), and the value of each that changes nothing."""

    changes_output: bool = True
    """Whether the method is meant to change anything: what only measures is not warned about."""

    searches: bool = False
    """Whether the method is a search, whose effect is the tokens it chooses against the likeliest ones."""

    def facts(self) -> dict[str, Any]:
        """What is only known once the model is: written into traces."""
        return {}

    def check_rows(self, copies: int) -> None:
        """Refuse a call in which one sample occupies several rows, if the method cannot have that."""

    def begin(self, generation: Generation) -> None:
        """A prompt arrives, with visual positions if the method needs them."""

    def before(self, generation: Generation) -> None:
        """A forward pass of this generation starts."""

    # ── attention ─────────────────────────────────────────────────────────────────────────────────────

    def takes_part(self, layer: int, branch: str = "") -> bool:
        """Whether `observe` and `attend` are to be called for this layer."""
        return False

    def observe(self, generation: Generation, layer: int, at: Attended) -> Tensor | None:
        """The last position of a prompt attends: its output [rows, heads, dim], or None for the plain one."""
        return None

    def attend(self, generation: Generation, layer: int, at: Attended, plain: Callable[[], Tensor]) -> Tensor:
        """The output [rows, 1, heads, dim] of one position in a layer."""
        return plain()

    def heads(self, generation: Generation, layer: int, outputs: Tensor) -> Tensor:
        """Head outputs [rows, positions, heads, dim] on their way to o_proj."""
        return outputs

    # ── the residual stream ───────────────────────────────────────────────────────────────────────────

    def wants_stream(self, generation: Generation, layer: int) -> bool:
        """Whether `residual` is to be called for this layer in this pass."""
        return False

    def residual(self, generation: Generation, layer: int, hidden: Tensor) -> None:
        """The residual stream that enters a layer, [rows, positions, hidden]."""

    def wants_projection(self, generation: Generation, layer: int) -> bool:
        """Whether `projected` is to be called for this layer in this pass."""
        return False

    def project(self, generation: Generation, layer: int, heads: Tensor, projection: nn.Module) -> Tensor | None:
        """What o_proj makes of the concatenated head outputs of one position, if the method makes it itself."""
        return None

    def projected(
        self, generation: Generation, layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        """The concatenated head outputs that entered o_proj and what came out, at the last position."""

    def fed(self, generation: Generation, layer: int, hidden: Tensor, output: Tensor) -> Tensor:
        """What goes into a layer's feed-forward block and what comes out, [rows, positions, hidden]."""
        return output

    # ── the end of a pass ─────────────────────────────────────────────────────────────────────────────

    def after(self, generation: Generation) -> None:
        """The decoder is through."""

    def logits(self, generation: Generation, logits: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        """Scores [rows, vocabulary] of the next token in fp32, and those of the branches by name."""
        return logits

    def why_unchanged(self, generation: Generation) -> str:
        """Why nothing was changed, in a generation in which the engine found no change."""
        return "the method gave back what the plain model has"
