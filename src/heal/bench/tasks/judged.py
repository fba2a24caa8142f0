"""What benchmarks with a judge share: the answer goes into a prompt, the reply becomes a parse."""

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
    """What a judge is shown."""

    system: str
    text: str


@dataclass(frozen=True)
class Reply:
    """What the judge wrote, or why there is nothing."""

    text: str | None
    cached: bool = False
    error: str = ""
    """In full."""
    reason: str = ""
    """The kind of error in a few words, to be counted."""
    cut: bool = False
    """The judge ran out of tokens before it had finished."""
    judge: str = ""
    """Its name."""


Ask = Callable[[Prompt], Reply | str | None]
"""A judge. Text or None may stand for a reply."""


class JudgedTask(Task):
    """A task whose answers only a judge can rate. Without a reply an answer is unjudged, never rated."""

    judged: ClassVar[bool] = True

    @abstractmethod
    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        """What to ask the judge about one answer."""

    @abstractmethod
    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        """What the judge said: ratings, or None and `unparsable` or `unjudged`, and `why`."""

    @abstractmethod
    def unjudged(self) -> dict[str, Any]:
        """The parse of an answer that nobody has rated."""

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return self.unjudged() | {"why": NOBODY}

    def judge(self, sample: Sample, text: str, ask: Ask) -> dict[str, Any]:
        """The parse of an answer once the judge was asked; one that failed leaves it unjudged, with the reason."""
        found = ask(self.judge_prompt(sample, text))
        reply = found if isinstance(found, Reply) else Reply(found)
        if reply.text is None:
            why = reply.reason or reply.error or "no reply"
            return self.unjudged() | {"why": why, "error": reply.error, "judge": reply.judge}
        parse = self.read_reply(sample, reply.text)
        if reply.cut and parse.get("unparsable"):  # the rating may have been in the part that is missing
            parse = self.unjudged() | {"why": "reply cut off at max_tokens", "reply": reply.text}
        return parse | {"judge": reply.judge}

    def counted(self, parse: Mapping[str, Any]) -> bool:
        return not parse.get("unjudged") and not parse.get("unparsable")

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        """The judge, and how many answers it did not rate, by reason."""
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
        """What becomes of a reply without a clear rating."""
        return "without a clear rating and left out"
