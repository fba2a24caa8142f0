"""Guard: leave out, repeat or mark the sentences whose object words are probably hallucinated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register

if TYPE_CHECKING:
    from heal.methods.heal import HEAL

Action = Literal["drop", "retry", "mark"]
RiskOf = Literal["detector", "logprob", "random"]


@register
@dataclass(frozen=True)
class Guard(Method):
    """Mitigation by detection: sentences with an object word of high risk do not reach the answer."""

    name: ClassVar[str] = "guard"
    summary: ClassVar[str] = "leaves out sentences whose object words are probably hallucinated"
    paper: ClassVar[str] = "ours: mitigation by detection from the pass that generates the answer"
    wraps: ClassVar[tuple[str, ...]] = ("heal",)

    action: Action = "drop"
    """drop: leave the sentence out of the answer; the model has still read it. retry: generate it again from the
    point before the risky word, without that object, and drop it if it is still risky. mark: only report it."""

    threshold: float | None = None
    """A sentence is risky if an object word has a higher risk, from 0 to 1. 1: never. None: from the detector."""

    risk: RiskOf = "detector"
    """detector: the fitted detector of the model. logprob: 1 − the probability of the word's first token. random: a
    number drawn for each sentence, as a control."""

    detector: str | None = None
    """File written by `heal detect fit`. None: the detector of the checkpoint."""

    tries: int = 3
    """With action=retry: how often a sentence is generated again."""

    words: str | None = None
    """Which words are objects: coco (the words of CHAIR), world (the miniature world), or a file with one category
    per line: name, synonym, synonym … None: as the detector was fitted, and coco for other risks."""

    seed: int = 0
    """Seed of the random risk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, Action, "action")
        checks.one_of(self, RiskOf, "risk")
        checks.fraction(self, "threshold")
        checks.whole(self, 0, "tries", "seed")
        if self.risk != "detector" and self.threshold is None:
            raise ConfigError(f"risk={self.risk} has no threshold of its own: give threshold=…, from 0 to 1")
        if self.risk != "detector" and self.detector is not None:
            raise ConfigError(f"risk={self.risk} uses no detector: leave detector out")

    @property
    def one_sample(self) -> bool:  # type: ignore[override]
        """Answers are rolled back one by one."""
        return self.action == "retry"

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return self.around(None, layout, trace)

    def around(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        """The runtime for the plain model, or for one that HEAL calibrates."""
        from heal.methods.guard_risk import risk_source
        from heal.methods.guard_runtime import GuardRuntime

        source = risk_source(self, layout)
        return GuardRuntime(self, source, source.measurement(inner, layout, trace))
