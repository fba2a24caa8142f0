"""Base class of benchmarks with a judge: build its prompt, parse its reply."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from heal.bench.tasks.base import Sample, Task

NOBODY = "no judge was asked (heal score RUN --judge NAME)"


@dataclass(frozen=True)
class Prompt:
    """A prompt for the judge."""

    system: str
    text: str


@dataclass(frozen=True)
class Reply:
    """The judge's reply, or the reason why there is none."""

    text: str | None
    cached: bool = False
    error: str = ""
    """Full error message."""
    reason: str = ""
    """Short description of the error, for counting."""
    cut: bool = False
    """Whether the reply was cut off at max_tokens."""
    judge: str = ""
    """Name of the judge."""


Ask = Callable[[Prompt], Reply | str | None]
"""A judge. It may also return the text alone, or None for no reply."""


class JudgedTask(Task):
    """A task whose answers are rated by a judge. Answers without a reply are unjudged and not counted."""

    judged: ClassVar[bool] = True

    @abstractmethod
    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        """The judge prompt for one answer."""

    @abstractmethod
    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        """Parse a reply: ratings, or None with `unparsable` or `unjudged` and `why`."""

    @abstractmethod
    def unjudged(self) -> dict[str, Any]:
        """The parse of an answer without a rating."""

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return self.unjudged() | {"why": NOBODY}

    def judge(self, sample: Sample, text: str, ask: Ask) -> dict[str, Any]:
        """Ask the judge and parse its reply. If it fails, the answer stays unjudged, with the reason."""
        found = ask(self.judge_prompt(sample, text))
        reply = found if isinstance(found, Reply) else Reply(found)
        if reply.text is None:
            why = reply.reason or reply.error or "no reply"
            return self.unjudged() | {"why": why, "error": reply.error, "judge": reply.judge}
        parse = self.read_reply(sample, reply.text)
        if reply.cut and parse.get("unparsable"):  # the rating may be in the missing part
            parse = self.unjudged() | {"why": "reply cut off at max_tokens", "reply": reply.text}
        return parse | {"judge": reply.judge}

    def counted(self, parse: Mapping[str, Any]) -> bool:
        return not parse.get("unjudged") and not parse.get("unparsable")

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        """The judge's name and the number of answers it did not rate, by reason."""
        parses = list(parses)
        judges = sorted({str(parse["judge"]) for parse in parses if parse.get("judge")})
        found = [f"judge {', '.join(judges)}"] if judges else []
        for kind, what in (("unjudged", "not judged"), ("unparsable", self.unclear)):
            reasons = Counter(str(parse.get("why") or "no reason") for parse in parses if parse.get(kind))
            if reasons:
                told = ", ".join(f"{count} × {why}" for why, count in reasons.most_common())
                found.append(f"{reasons.total()} of {len(parses)} {what}: {told}")
        return "; ".join(found)

    @property
    def unclear(self) -> str:
        """How replies without a clear rating are counted."""
        return "without a clear rating and left out"
