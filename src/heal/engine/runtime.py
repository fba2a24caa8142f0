"""The callbacks of an attached method during a generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from heal.engine.answers import AnswerTokens, Kept
from heal.engine.attention_call import AttentionCall
from heal.engine.branches import Branch
from heal.engine.generation import Generation
from heal.engine.search import Search
from heal.engine.state import State

S = TypeVar("S", bound=State)

LAYER_CALLBACKS = ("attention", "head_outputs", "residual", "project", "projected", "mlp_output", "final_hidden")
CHANGING = ("attention", "head_outputs", "residual", "project", "mlp_output", "final_hidden", "logits")
"""Callbacks that can change what the model computes."""


class Runtime(Generic[S]):
    """A method attached to a model. Override the callbacks that the method needs: an overridden callback is called.

    `generation.branch` is the name of the current branch, or empty in the model's own pass.
    """

    group_count: int = 2
    """Position groups: visual and language, and neutral if there are three."""

    repeats_last_position: bool = False
    """Whether the last prompt position is run again before the first token is chosen."""

    last_position_only: bool = False
    """Whether the layer callbacks use only the last prompt position, so that the prefix cache can be used."""

    needs_image: bool = True
    """Whether the method does nothing while a prompt has no visual tokens."""

    branches: tuple[Branch, ...] = ()
    """Additional passes besides the model's own."""

    neutral: ClassVar[Mapping[str, float]] = {}
    """The quantities that the method changes (see `Tally.add`), each with the value that has no effect."""

    changes_output: bool = True
    """Whether the method is meant to change anything. There is no warning for a method that only measures."""

    counts_choices: bool = True
    """For a method with its own search: whether each token that is not the most likely one counts as a change."""

    def overrides(self, name: str) -> bool:
        """Whether this method has its own version of a callback."""
        return getattr(type(self), name) is not getattr(Runtime, name) or name in vars(self)

    @property
    def whole_prompt(self) -> bool:
        """Whether prompt positions before the last one may be read or changed."""
        return not self.last_position_only and any(map(self.overrides, LAYER_CALLBACKS))

    def facts(self) -> dict[str, Any]:
        """Facts that depend on the model, for traces."""
        return {}

    def check_rows(self, samples: int, copies: int) -> None:
        """Raise an error if the method does not support this number of samples, or of rows per sample."""

    def begin(self, generation: Generation[S], earlier: S | None) -> S:
        """Create the state for a new prompt. `earlier` is the state of the conversation's previous turn."""
        return State()  # type: ignore[return-value]

    def before_pass(self, generation: Generation[S]) -> None:
        """Called before each forward pass."""

    def waits(self, generation: Generation[S]) -> bool:
        """Whether the host waits for the device in this pass anyway, so that the engine may do so too."""
        return False

    # ── attention ─────────────────────────────────────────────────────────────────────────────────────

    def attention(self, generation: Generation[S], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        """The attention output [rows, queries, heads, dim] of one layer."""
        return plain()

    def head_outputs(self, generation: Generation[S], layer: int, outputs: Tensor) -> Tensor:
        """The head outputs [rows, positions, heads, dim] before o_proj."""
        return outputs

    # ── the residual stream ───────────────────────────────────────────────────────────────────────────

    def residual(self, generation: Generation[S], layer: int, hidden: Tensor) -> Tensor | None:
        """The residual stream [rows, positions, hidden] that enters a layer. Return a tensor to replace it."""
        return None

    def project(self, generation: Generation[S], layer: int, heads: Tensor, projection: nn.Module) -> Tensor | None:
        """The output of o_proj for one position, if the method computes it itself. `heads` is [rows, heads·dim]."""
        return None

    def projected(
        self, generation: Generation[S], layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        """Called with the input and the output of o_proj, [rows, positions, …]."""

    def mlp_output(self, generation: Generation[S], layer: int, hidden: Tensor, output: Tensor) -> Tensor:
        """The output of a layer's feed-forward block to use, from its input and output [rows, positions, hidden]."""
        return output

    # ── the end of a pass, and the search ─────────────────────────────────────────────────────────────

    def final_hidden(self, generation: Generation[S], hidden: Tensor) -> Tensor | None:
        """The output of the decoder after its final norm. Return a tensor to replace it."""
        return None

    def after_pass(self, generation: Generation[S]) -> None:
        """Called after each pass of the decoder."""

    def logits(self, generation: Generation[S], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        """The next-token logits [rows, vocabulary] to use, from those of the model in fp32 and of the branches by
        name.
        """
        return logits

    def search(self, search: Search) -> None:
        """Run the search: read, look ahead, take back and commit tokens until `search.stopped()` holds."""
        raise NotImplementedError

    def keep(self, generation: Generation[S], answer: AnswerTokens) -> Kept:
        """Decide which tokens of an answer to keep. The model has read the others all the same.

        It is called for each finished answer and, in a stream, after each token. A decision about a token must not
        change when more tokens follow, except that a finished answer may keep tokens if none were kept before.
        """
        return Kept(len(answer.ids), tuple(range(len(answer.ids))))

    def why_unchanged(self, generation: Generation[S]) -> str:
        """The reason why nothing was changed, for a generation in which the engine counted no change."""
        return "the method returned what the plain model computes"
