"""Generate answers for a request, with log-probabilities, times, counted changes and traces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from heal.engine.answers import Sentence
from heal.engine.calls import token_ids
from heal.engine.decoding import check_values
from heal.engine.transformers_api import is_compiled
from heal.errors import ConfigError, HealError, first_line
from heal.measured import Measured, TokenValues
from heal.methods.base import Fired, Handle, Method
from heal.methods.observer import observer
from heal.patches import record_patches
from heal.recorder import Recorder
from heal.request import Request
from heal.trace import Trace
from heal.tracing import Generated, build_trace, measurements

if TYPE_CHECKING:
    from heal.detect.model import Detector
    from heal.detect.risk import Judged, ObjectRisk
    from heal.live import Live
    from heal.vlm import VLM

MAX_NEW_TOKENS = 512
Traced = bool | Literal["patches"]
"""Whether measurements are recorded, and also where each head looks in the image."""
Finish = Literal["stop", "length", "closed"]
"""The model ended its answer, the answer was cut at max_new_tokens, or its stream was closed."""


@dataclass(frozen=True)
class Answer:
    """A generated answer with log-probabilities, times, and what the method changed."""

    text: str
    token_ids: tuple[int, ...]
    """Includes the end-of-sequence token, if the model generated one."""
    logprobs: tuple[float, ...]
    """Log-probability of each token before temperature and other logits processors."""
    finish: Finish
    prompt_tokens: int
    seconds: float
    """Time of the whole batch."""
    first_token_seconds: float
    fired: Fired | None = None
    """None if no method was used."""
    trace: Trace | None = None
    sentences: tuple[Sentence, ...] = ()
    """The sentences that a method judged, also those that it left out of the text. Empty for methods that judge none.
    """
    judged: Judged | None = None
    """The risks of the answer, if they were asked for."""

    @property
    def risk(self) -> tuple[float, ...] | None:
        """For each token, the probability that an object word which starts there is hallucinated. NaN without an
        image. None if it was not asked for."""
        return None if self.judged is None else self.judged.risk

    @property
    def doubtful(self) -> tuple[ObjectRisk, ...]:
        """The object words that are probably hallucinated. Empty if risks were not asked for."""
        return () if self.judged is None else self.judged.doubtful

    @property
    def seconds_per_token(self) -> float:
        """Time per token after the first one. NaN for an answer of one token."""
        later = len(self.token_ids) - 1
        return (self.seconds - self.first_token_seconds) / later if later else float("nan")

    def _repr_html_(self) -> str:
        from heal.view.notebook import cell

        return cell(self)


def generate(
    vlm: VLM,
    request: Request,
    method: Method | None,
    trace: Traced,
    risk: Detector | None = None,
    live: Live | None = None,
    **options: Any,
) -> list[Answer]:
    """One answer for each row that model.generate() returns. The caller holds the model's lock.

    The log-probabilities are those of the search, if a method runs its own. If the output has `logits` (per token
    [rows, vocabulary]), they are taken from them, in the rows that `beam_indices` names; otherwise from the forward
    passes. `trace` and `risk` without a method measure the plain model. trace="patches" also records where each head
    looks in the image. `live` follows the answer while it grows.
    """
    check_values(options)
    if trace not in (True, False, "patches"):
        raise ConfigError(f"trace must be True, False or 'patches', not {trace!r}")
    if vlm.option("max_new_tokens", options) is None and "max_length" not in options:
        options["max_new_tokens"] = MAX_NEW_TOKENS
    if clash := sorted(set(options) & set(request.arguments)):
        raise ConfigError(f"{clash[0]} is computed from the images and prompts: leave it out")
    options |= method.generate_options() if method is not None else {}
    measure = bool(trace) or risk is not None
    attached = observer(risk.options if risk is not None else {}) if measure and method is None else method
    # beams move between rows, and a compiled model may not call hooks: store the logits of all steps
    if vlm.option("num_beams", options) not in (None, 1) or is_compiled(vlm.model):
        options["output_logits"] = True
    recorder = Recorder(vlm.model, uncertainty=measure)
    with _attached(vlm, request, attached, measure) as handle, recorder.watching(), _clear_refusals(recorder):
        if risk is not None and handle is not None:
            risk.check(len(handle.attachment.layout.layers), handle.attachment.layout.heads)
        if trace == "patches" and handle is not None:
            record_patches(vlm, request, handle, options)
        if live is not None and handle is not None and measure:
            live.follow(handle, recorder, risk)
        output = vlm.model.generate(**request.arguments, **options, return_dict_in_generate=True)
    finished = _Finished(
        vlm=vlm,
        request=request,
        output=output,
        recorder=recorder,
        seconds=time.perf_counter() - recorder.start,
        end_tokens=token_ids(vlm.option("eos_token_id", options)),
        handle=handle,
        method=method,
        traced=attached if trace else None,
        detector=risk,
    )
    return [finished.answer(row) for row in range(output.sequences.shape[0])]


def _attached(vlm: VLM, request: Request, method: Method | None, trace: bool) -> Any:
    """The context in which the method is attached, or a null context without a method."""
    if method is None:
        return nullcontext()
    special = vlm.tokenizer.all_special_ids
    return method.attach(vlm.model, trace=trace, special_ids=special, source=request.source)


@contextmanager
def _clear_refusals(recorder: Recorder) -> Iterator[None]:
    """Convert errors of transformers before the first token into a ConfigError, except RuntimeError."""
    try:
        yield
    except HealError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        if recorder.first:
            raise
        raise ConfigError(
            f"generate() failed before the first token: {first_line(error)}. Check the options, and that the "
            "processor matches the model"
        ) from error


@dataclass(frozen=True)
class _Finished:
    """A finished generation, with everything that is needed to build its answers."""

    vlm: VLM
    request: Request
    output: Any
    """What model.generate() returned."""
    recorder: Recorder
    seconds: float
    end_tokens: frozenset[int]
    handle: Handle | None
    method: Method | None
    """The requested method."""
    traced: Method | None
    """The method whose measurements are in the trace. None without a trace."""
    detector: Detector | None
    """What judges the answers. None if no risks were asked for."""

    def answer(self, row: int) -> Answer:
        """The answer in one row of the output."""
        given = self.request.arguments
        edit = None if self.handle is None or self.handle.edits is None else self.handle.edits[row]
        new = self.output.sequences[row, given["input_ids"].shape[1] :].tolist() if edit is None else list(edit.ids)
        every, finish = _until_end(new, self.end_tokens)
        at = self._rows_of_tokens(row, len(every))
        steps = tuple(range(len(every))) if edit is None else edit.steps
        every_logprob = self._logprobs(row, every, at)
        ids, logprobs = [every[step] for step in steps], tuple(every_logprob[step] for step in steps)
        prompt = row * given["input_ids"].shape[0] // self.output.sequences.shape[0]
        handle, trace, judged = self.handle, None, None
        text = self.vlm.tokenizer.decode(ids, skip_special_tokens=True).strip()
        if handle is not None and (self.traced or self.detector) is not None:
            values = self._values(row, every, at, prompt)
            found = measurements(handle, values)
            if self.traced is not None:
                generated = Generated(values.at_steps(steps), self.request, found.at_steps(steps), row, steps)
                trace = build_trace(self.vlm, handle, self.traced, generated)
            if self.detector is not None:
                judged = self._judged(found, values, steps, text)
        return Answer(
            text=text,
            token_ids=tuple(ids),
            logprobs=logprobs,
            finish=finish,
            prompt_tokens=int(given["attention_mask"][prompt].sum()),
            seconds=self.seconds,
            first_token_seconds=self.recorder.first - self.recorder.start,
            fired=handle.row(at, every) if handle is not None and self.method is not None else None,
            trace=trace,
            judged=judged,
            sentences=() if edit is None else edit.sentences,
        )

    def _judged(self, found: Measured, values: TokenValues, steps: Sequence[int], text: str) -> Judged:
        from heal.detect.risk import judge, unknown  # detection builds on this module

        assert self.detector is not None
        if not self.request.source.images[values.sample]:
            return unknown(self.detector, len(steps))
        return judge(self.detector, found, self.vlm.tokenizer, values.ids, text, steps)

    def _rows_of_tokens(self, row: int, count: int) -> list[int]:
        """The row of the batch in which each token was generated, because beams move between rows."""
        beams = getattr(self.output, "beam_indices", None)
        return beams[row, :count].tolist() if beams is not None else [row] * count

    def _values(self, row: int, ids: list[int], at: list[int], prompt: int) -> TokenValues:
        logits, own = getattr(self.output, "logits", None), getattr(self.output, "token_values", None)
        if own is not None:
            return TokenValues.of_search(own[row], ids, at, prompt)
        if logits is None:
            return self.recorder.values(row, ids, prompt)
        return TokenValues.of(logits, ids, at, prompt)

    def _logprobs(self, row: int, ids: list[int], at: list[int]) -> tuple[float, ...]:
        logits, own = getattr(self.output, "logits", None), getattr(self.output, "token_values", None)
        if own is not None:
            found = tuple(own[row, : len(ids), 0].tolist())
        elif logits is None:
            found = self.recorder.logprobs(row, ids)
        else:
            steps = zip(logits, at, ids, strict=False)
            found = tuple(float(step[r].float().log_softmax(-1)[token]) for step, r, token in steps)
        if len(found) != len(ids):
            raise HealError(
                f"{len(ids)} tokens, but {len(found)} log-probabilities: the model did not call its hooks"
            )
        return found


def _until_end(ids: list[int], end_tokens: frozenset[int]) -> tuple[list[int], Finish]:
    """The tokens up to the first end token, without the padding after it."""
    for at, token in enumerate(ids):
        if token in end_tokens:
            return ids[: at + 1], "stop"
    return ids, "length"
