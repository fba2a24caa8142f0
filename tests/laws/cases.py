"""The methods of the test matrix: for each, options that change nothing and options that change the output."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from heal import Method
from heal.methods import PAI, SID, VAR, VCD, VHR, Beam, DoLa, Guard, MemVR
from tests.methods import slow, slow_attention


@dataclass(frozen=True)
class Case:
    neutral: Method
    active: Method
    oracle: Callable[..., Any] | None = None
    """Slow implementation: (model, inputs of one row, its tokens, method) -> logits of each token."""
    pictures: bool = True
    """Whether rows without an image are unchanged."""

    @property
    def open(self) -> Method:
        """The active method without cutoffs, so that a search has several candidates."""
        cutoffs = {"beta", "cutoff", "relative_top"} & {f.name for f in fields(self.active)}
        return replace(self.active, **dict.fromkeys(cutoffs, 0.0))


CASES = {
    "beam": Case(Beam(beams=1), Beam(beams=3), pictures=False),
    "dola": Case(
        DoLa(strength=0.0, relative_top=0.0, layers=(0, 1)), DoLa(layers=(0, 1, 2)), slow.dola, pictures=False
    ),
    # the models of the zoo have no detector
    "guard": Case(
        Guard(risk="logprob", threshold=1.0, words="world"), Guard(risk="random", threshold=0.5, words="world")
    ),
    "memvr": Case(MemVR(ratio=0.0), MemVR(ratio=0.3, threshold=0.0), slow.memvr),
    "pai": Case(PAI(alpha=0.0, gamma=1.0), PAI(start_layer=1, gamma=1.5), slow.pai),
    "sid": Case(SID(alpha=0.0, beta=0.0), SID(layer=1, keep=2), slow_attention.sid),
    # with a lower threshold every visual token of some row is a sink, and there is no token to move attention to
    "var": Case(VAR(strength=0.0), VAR(strength=0.9, rho=0.0, least=0.0, threshold=2.0), slow_attention.var),
    "vcd": Case(VCD(alpha=0.0, beta=0.0), VCD(), slow.vcd),
    "vhr": Case(VHR(alpha=1.0), VHR(layers=(0, 2)), slow.vhr),
}
