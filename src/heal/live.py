"""Follow an answer while it is generated: its tokens so far, with their risks or visual shares."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heal.analysis.visual_share import mean_share, visual_share
from heal.measured import TokenValues
from heal.tracing import measurements, pieces

if TYPE_CHECKING:
    from heal.detect.model import Detector
    from heal.detect.risk import Judged
    from heal.methods.base import Handle
    from heal.recorder import Recorder

PAUSE = 0.08
"""Least number of seconds between two measurements."""
SHARE_OF_TIME = 0.15
"""Measurements take at most this share of the time of a generation."""


@dataclass(frozen=True)
class SoFar:
    """The first tokens of an answer. What was not measured is empty."""

    tokens: tuple[str, ...] = ()
    """The text that each token adds."""
    judged: Judged | None = None
    """The risks of the tokens and of the object words."""
    share: tuple[float, ...] = ()
    """For each token, the mean visual share of the synergy heads."""

    @property
    def risk(self) -> tuple[float, ...]:
        """For each token, the probability that an object word which starts there is hallucinated."""
        return () if self.judged is None else self.judged.risk


class Live:
    """Passes the tokens of one answer on to another streamer, and looks at them in the generating thread.

    A method with a search of its own measures at other passes than those of the tokens: there are no values then.
    """

    def __init__(self, tokenizer: Any, streamer: Any) -> None:
        self.tokenizer, self.streamer = tokenizer, streamer
        self.so_far = SoFar()
        self.steps: list[int] = []
        """The step at which each token was generated."""
        self._ids: list[int] = []
        self._prompt = True
        self._source: tuple[Handle, Recorder, Detector | None] | None = None
        self._next = 0.0

    def follow(self, handle: Handle, recorder: Recorder, detector: Detector | None) -> None:
        """Read the measurements of this generation. Without a detector, the visual share is shown."""
        if not handle.runtime.overrides("search"):
            self._source = (handle, recorder, detector)

    def put(self, value: Tensor) -> None:
        if self._prompt:
            self._prompt = False
        else:
            self._ids += value.flatten().tolist()
            self.steps += range(len(self.steps), len(self._ids))
            self._look()
        self.streamer.put(value)

    def end(self) -> None:
        self.streamer.end()

    def _look(self) -> None:
        began = time.perf_counter()
        if began < self._next:
            return
        self.so_far = SoFar(self._texts(), *self._values())
        now = time.perf_counter()
        self._next = now + max(PAUSE, (now - began) * (1 / SHARE_OF_TIME - 1))

    def _texts(self) -> tuple[str, ...]:
        special = set(self.tokenizer.all_special_ids)
        texts = pieces(self.tokenizer, self._ids)
        return tuple("" if token in special else text for token, text in zip(self._ids, texts, strict=True))

    def _values(self) -> tuple[Judged | None, tuple[float, ...]]:
        """Risks or visual shares."""
        if self._source is None:
            return None, ()
        handle, recorder, detector = self._source
        values = self._generated(handle, recorder)
        found = measurements(handle, values)
        if detector is None:
            share = mean_share(visual_share(found.visual, found.language), found.types)
            return None, tuple(share[self.steps].tolist())
        from heal.detect.risk import judge  # detection builds on the generation

        text = self.tokenizer.decode(self._ids, skip_special_tokens=True)
        return judge(detector, found, self.tokenizer, values.ids, text, self.steps), ()

    def _generated(self, handle: Handle, recorder: Recorder) -> TokenValues:
        """All generated tokens, with those that the method holds back or leaves out."""
        generation = handle.attachment.latest
        assert generation is not None
        read = generation.answer[0].tolist()
        ids = read if len(read) > self.steps[-1] else [*read, self._ids[-1]]
        return recorder.values(0, ids, 0)
