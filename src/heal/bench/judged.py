"""What benchmarks with a judge share: the answer goes into a prompt, the reply becomes a parse."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from heal.bench.task import Sample, Task


@dataclass(frozen=True)
class Prompt:
    """What a judge is shown."""

    system: str
    text: str


class JudgedTask(Task):
    """A task whose answers only a judge can rate. Without a reply an answer is unjudged, never rated."""

    judged: ClassVar[bool] = True

    @abstractmethod
    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        """What to ask the judge about one answer."""

    @abstractmethod
    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        """What the judge said: ratings, or None and `unparsable`."""

    @abstractmethod
    def unjudged(self) -> dict[str, Any]:
        """The parse of an answer that nobody has rated."""

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return self.unjudged()

    def judge(self, sample: Sample, text: str, ask: Callable[[Prompt], str | None]) -> dict[str, Any]:
        """The parse of an answer once the judge was asked; a judge that failed leaves it unjudged."""
        reply = ask(self.judge_prompt(sample, text))
        return self.unjudged() if reply is None else self.read_reply(sample, reply)
