"""Answer a question step by step: what the page shows while the model generates, and at the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heal.app.asking import PLAIN, Asked, method_names
from heal.app.examples import Examples
from heal.app.sessions import Answered, Session, Ticket
from heal.detect.model import Detector, as_detector
from heal.errors import ClosedError, ConfigError, HealError, first_line
from heal.generate import Answer
from heal.live import SoFar
from heal.methods.base import Method
from heal.studies.comparison import EMBEDDED_HEAL
from heal.vlm import VLM
from heal.world.likeness import unlike_scenes

REDRAW = 0.08
"""Seconds between two versions of the text."""
STOPPED = "Stopped."


@dataclass(frozen=True)
class Panel:
    """One answer, complete or not."""

    name: str
    so_far: SoFar
    answer: Answer | None = None


@dataclass(frozen=True)
class Progress:
    """What the page shows now."""

    message: str
    failed: bool = False
    panels: tuple[Panel, ...] = ()
    objects: frozenset[str] | None = None
    answered: Answered | None = None
    """The complete answers. None before the end."""


class Answerer:
    """A model with its detector and the examples, shared by all users."""

    def __init__(self, vlm: VLM, folder: Path) -> None:
        self.vlm, self.folder = vlm, folder
        self.detector = _detector(vlm)
        self.examples = Examples.of_world() if vlm.knows == "scenes" or vlm.name == "random" else Examples()
        self.names = method_names(vlm, self.detector is not None)

    @property
    def suggested(self) -> tuple[float, bool]:
        """α and the one-sided switch: those found on the validation split, or the paper's for this family."""
        from heal.methods.heal import preset

        if self.vlm.knows == "scenes":
            assert isinstance(EMBEDDED_HEAL.alpha, float)
            return EMBEDDED_HEAL.alpha, EMBEDDED_HEAL.drift == "language"
        return preset(str(getattr(self.vlm.model.config, "model_type", ""))), False

    def warm(self) -> None:
        """Generate two tokens, so that what is compiled at the first use is compiled before the first question."""
        from PIL import Image

        image = self.examples.all[0].image if self.examples.all else Image.new("RGB", (64, 64), "gray")
        stream = self._stream(Asked(image, "What is this?", None, PLAIN, 2), None)
        list(stream)

    def answers(self, session: Session, values: tuple[Any, ...], compare: bool) -> Iterator[Progress]:
        """Everything from the question to its answers. Errors are messages of the page."""
        ticket = session.begin()
        session.answered = None
        try:
            if ticket.cancelled:
                yield Progress(STOPPED)
                return
            asked = Asked.of(self.folder, values, self.names)
            yield from self._generated(session, ticket, asked, compare)
        except ClosedError:
            yield Progress(STOPPED)
        except HealError as error:
            yield Progress(str(error), failed=True)
        except Exception as error:
            traceback.print_exc()
            yield Progress(f"{type(error).__name__}: {first_line(error)}", failed=True)

    def _generated(self, session: Session, ticket: Ticket, asked: Asked, compare: bool) -> Iterator[Progress]:
        objects = self.examples.objects(asked.image)
        progress = Progress("", objects=objects)
        runs: list[tuple[str, Method | None]] = [(asked.name, asked.method)]
        if compare and asked.method is not None:
            runs.insert(0, (PLAIN, None))
        for name, method in runs:
            done = progress.panels
            with ticket.using(self._stream(asked, method)) as stream:
                progress = replace(progress, message=f"Generating: {name} …", panels=(*done, Panel(name, SoFar())))
                yield progress
                drawn = 0.0
                for _ in stream:
                    if time.monotonic() - drawn >= REDRAW:
                        yield replace(progress, panels=(*done, Panel(name, stream.so_far)))
                        drawn = time.monotonic()
                answer = stream.answer
            progress = replace(progress, panels=(*done, Panel(name, self._complete(answer), answer)))
            if ticket.cancelled:
                break
        answers = {panel.name: panel.answer for panel in progress.panels if panel.answer is not None}
        notes = tuple(self._notes(asked))
        session.answered = Answered(asked.question, answers, objects, notes)
        message = STOPPED if ticket.cancelled else "Done."
        yield replace(progress, message=" ".join([message, *notes]), answered=session.answered)

    def _stream(self, asked: Asked, method: Method | None) -> Any:
        return self.vlm.stream(
            asked.image,
            asked.question,
            method=method,
            trace=True,
            risk=self.detector,
            live=True,
            max_new_tokens=asked.tokens,
            do_sample=False,
        )

    def _complete(self, answer: Answer) -> SoFar:
        """A complete answer with its risks or visual shares, in the form of a growing one."""
        assert answer.trace is not None
        special = set(self.vlm.tokenizer.all_special_ids)
        pairs = zip(answer.token_ids, answer.trace.tokens, strict=True)
        tokens = tuple("" if token in special else text for token, text in pairs)
        if answer.judged is not None:
            return SoFar(tokens, answer.judged)
        return SoFar(tokens, share=tuple(answer.trace.mean_alpha().tolist()))

    def _notes(self, asked: Asked) -> Iterator[str]:
        if self.vlm.knows == "scenes" and unlike_scenes(asked.image):
            yield (
                "The picture does not look like a scene of the miniature world. The embedded model knows only such "
                "scenes, so its answer is meaningless: start the app with --model for photos."
            )
        if self.vlm.name == "random":
            yield "The model is untrained: its answers are meaningless."


def _detector(vlm: VLM) -> Detector | None:
    """The detector of the checkpoint, if it has one."""
    try:
        return as_detector(True, vlm.model)
    except ConfigError:
        return None
