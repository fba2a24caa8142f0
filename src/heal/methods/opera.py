"""OPERA: beam search with look-ahead that penalises over-trust in summary tokens, and rolls back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from heal.analysis.split import TINY, VISUAL
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.search import Mark, Search, token_values
from heal.engine.state import State
from heal.errors import UnsupportedError
from heal.methods import checks
from heal.methods.base import Method, register

SCALE = 1e-7
"""Factor of the column products in the released code."""
LARGEST = 50.0
"""Upper bound of the logarithm of the penalty, to keep it finite."""


@register
@dataclass(frozen=True)
class OPERA(Method):
    """Beam search with an over-trust penalty on candidates, and roll-back to the summary token (retrospection)."""

    name: ClassVar[str] = "opera"
    summary: ClassVar[str] = "beam search with a penalty on over-trusted summary tokens, and roll-back"
    paper: ClassVar[str] = (
        "OPERA: Alleviating Hallucination in Multi-Modal Large Language Models via Over-Trust Penalty and "
        "Retrospection-Allocation (CVPR 2024)"
    )
    one_sample: ClassVar[bool] = True

    beams: int = 5
    """Number of hypotheses. 1: greedy search with the penalty."""

    candidates: int = 5
    """Candidate tokens per beam. Each needs one look-ahead pass."""

    alpha: float = 1.0
    """Weight of the penalty. 0: none."""

    sigma: float = 50.0
    """Factor of the attention weights before the column products."""

    rollback: int | None = 15
    """Roll back if every beam had the same summary token more than this many times. None: never."""

    start: int = 10
    """The first N tokens are rewarded for attention to the image instead, and are never rolled back to."""

    layer: int | None = None
    """Layer whose attention is used, counted from 0. None: the last."""

    length_penalty: float = 1.0
    """Exponent of the length by which the scores of finished answers are divided."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(self, 1, "beams", "candidates")
        checks.whole(self, 0, "rollback", "start", "layer")
        checks.at_least(self, 0, "alpha", "sigma")
        checks.finite(self, "length_penalty")

    @property
    def passes_per_token(self) -> float:
        """The pass itself and a look-ahead per candidate. Rollbacks come on top."""
        return 1.0 + self.candidates

    @property
    def rows_per_prompt(self) -> int:
        return self.beams

    def generate_options(self) -> dict[str, Any]:
        return {"num_beams": self.beams, "do_sample": False}

    def runtime(self, layout: Layout, trace: bool) -> Runtime[OperaState]:
        checks.layers_exist(self, len(layout.layers), "layer")
        return _OPERARuntime(self, len(layout.layers) - 1 if self.layer is None else self.layer)


def column_scores(attention: Float[Tensor, "rows tokens tokens"], sigma: float) -> Float[Tensor, "rows tokens"]:
    """Logarithm of 1e-7 · Π_{i ≥ j} σ·A_ij for each column j, in double precision."""
    logs = (sigma * attention.double()).clamp(min=TINY).log().tril()
    return logs.sum(1) + torch.log(torch.tensor(SCALE, dtype=torch.double))


def penalty(
    attention: Float[Tensor, "rows tokens tokens"], on_image: Float[Tensor, " rows"], config: OPERA
) -> tuple[Float[Tensor, " rows"], list[int]]:
    """The penalty of the newest token of each row, and the column of its summary token."""
    largest, column = column_scores(attention, config.sigma).max(1)
    if attention.shape[1] <= config.start:
        return -on_image.double(), column.tolist()
    return largest.clamp(max=LARGEST).exp(), column.tolist()


def mode(values: list[int]) -> int:
    """The most frequent value. Ties go to the smallest."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


class OperaState(State):
    """The attention of the generated tokens to each other and to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: list[Tensor] = []
        """Per generated token, its attention to the tokens up to it: [rows, tokens]."""
        self.on_image: list[Tensor] = []

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.attention = [row.index_select(0, torch.tensor(rows, device=row.device)) for row in self.attention]
        self.on_image = [mass.index_select(0, torch.tensor(rows, device=mass.device)) for mass in self.on_image]

    def crop(self, tokens: int) -> None:
        super().crop(tokens)
        if tokens > 0:
            del self.attention[-tokens:], self.on_image[-tokens:]

    def matrix(self) -> Float[Tensor, "rows tokens tokens"]:
        """Attention of token i to token j ≤ i, as a lower triangle."""
        count = len(self.attention)
        return torch.stack([torch.nn.functional.pad(row, (0, count - row.shape[1])) for row in self.attention], 1)


@dataclass
class _Step:
    """The state of the search before a token was chosen."""

    mark: Mark
    scores: Tensor
    history: list[list[int]]
    forbidden: list[set[int]]


@dataclass
class _Beams:
    """Running scores, summary tokens of each beam, steps to roll back to, and finished answers."""

    scores: Tensor
    history: list[list[int]]
    steps: list[_Step] = field(default_factory=list)
    visits: Counter[int] = field(default_factory=Counter)
    """How often the search was rolled back to each length."""
    finished: list[tuple[float, Mark]] = field(default_factory=list)
    """Scores and answers, best first."""


class _OPERARuntime(Runtime[OperaState]):
    needs_image = False

    def __init__(self, config: OPERA, layer: int) -> None:
        self.config, self.layer = config, layer

    def check_rows(self, samples: int, copies: int) -> None:
        if samples > 1:
            raise UnsupportedError(
                f"OPERA rolls back each answer separately: give generate() one prompt instead of {samples}, or use "
                "VLM.generate, which runs a batch row by row"
            )
        if copies > self.config.beams:
            raise UnsupportedError("OPERA returns one answer per prompt: leave out num_return_sequences")

    def begin(self, generation: Generation[OperaState], earlier: OperaState | None) -> OperaState:
        return OperaState()

    def attention(
        self, generation: Generation[OperaState], call: AttentionCall, plain: Callable[[], Tensor]
    ) -> Tensor:
        if call.layer == self.layer and call.phase == "decode":
            row = call.weights(slice(-1, None))[:, :, 0].amax(1)
            row = row / row.sum(1, keepdim=True)
            count = generation.step
            own = torch.nn.functional.pad(row, (max(0, count - call.positions), 0))[:, -count:]
            generation.state.attention.append(own)
            generation.state.on_image.append((row * call.regions.masks[:, VISUAL]).sum(1))
        return plain()

    def why_unchanged(self, generation: Generation[OperaState]) -> str:
        return "the search chose the likeliest token each time"

    # ── the search ────────────────────────────────────────────────────────────────────────────────────

    def search(self, search: Search) -> None:
        logits = search.start()
        rows = search.rows
        scores = torch.full((rows,), -1e9, dtype=torch.double, device=logits.device)
        scores[0] = 0.0  # all beams are equal at the start
        beams = _Beams(scores, [[] for _ in range(rows)])
        while True:
            step = len(search.answer[0])
            if step == len(beams.steps):
                beams.steps.append(_Step(search.mark(), beams.scores, beams.history, [set() for _ in range(rows)]))
            here = beams.steps[step]
            new, columns = self._candidate_scores(search, logits, here)
            self._advance(search, beams, logits, new, columns)
            if self._over(search, beams):
                break
            if (target := self._rollback_target(beams)) is not None:
                logits = self._roll_back(search, beams, target)
            else:
                logits = search.read(search.ids[:, -1])
        self._finish(search, beams)

    def _candidate_scores(self, search: Search, logits: Tensor, step: _Step) -> tuple[Tensor, list[list[int]]]:
        """Log-probabilities [rows, vocabulary] of the next token, and the columns of each beam's candidates."""
        config = self.config
        processed = search.processed(logits).double()
        if any(step.forbidden):  # after a roll-back: the whole vocabulary except the tokens chosen before
            for row, forbidden in enumerate(step.forbidden):
                processed[row, list(forbidden)] = -torch.inf
            return processed.log_softmax(-1), [[] for _ in range(search.rows)]
        values, tokens = processed.topk(min(config.candidates, processed.shape[1]), dim=-1)
        # the released code gives other tokens −999, so one of them would win once all penalties exceed that
        scores, columns = torch.full_like(processed, -torch.inf), [list[int]() for _ in range(search.rows)]
        for index in range(tokens.shape[1]):
            search.read(tokens[:, index])
            state = search.generation.state
            penalties, summary = penalty(state.matrix(), state.on_image[-1], config)
            search.take_back()
            new = values[:, index] - config.alpha * penalties.to(values.device)
            scores.scatter_(1, tokens[:, index, None], new[:, None])
            for own, column in zip(columns, summary, strict=True):
                own.append(column)
        return scores.log_softmax(-1), columns

    def _advance(self, search: Search, beams: _Beams, logits: Tensor, new: Tensor, columns: list[list[int]]) -> None:
        """One step of beam search: keep the best continuations, and store those that end."""
        rows, vocabulary = new.shape
        total = (beams.scores[:, None] + new).flatten()
        values, places = total.topk(min(2 * rows, len(total)))
        mark, going = search.mark(), list[tuple[float, int, int]]()
        for score, place in zip(values.tolist(), places.tolist(), strict=True):
            row, token = divmod(place, vocabulary)
            if score == -torch.inf:
                break
            if token in self._closing(search):
                self._finished(search, beams, mark, logits, row, token, score)
            elif len(going) < rows:
                going.append((score, row, token))
        while len(going) < rows:  # there are fewer continuations than beams
            going.append((-1e9, *going[-1][1:])) if going else going.append((-1e9, 0, int(new[0].argmax())))
        device = search.ids.device
        origin = torch.tensor([row for _, row, _ in going], device=device)
        beams.history = [
            [*beams.history[row], *([mode(columns[row])] if columns[row] else [])] for _, row, _ in going
        ]
        beams.scores = torch.tensor([score for score, _, _ in going], dtype=torch.double, device=beams.scores.device)
        search.commit(torch.tensor([token for _, _, token in going], device=device), logits, origin)

    def _closing(self, search: Search) -> set[int]:
        given = search.config.eos_token_id
        return set() if given is None else set(given) if isinstance(given, (list, tuple)) else {int(given)}

    def _finished(
        self, search: Search, beams: _Beams, mark: Mark, logits: Tensor, row: int, token: int, score: float
    ) -> None:
        ids = torch.cat([mark.ids[row], mark.ids.new_tensor([token])])[None]
        rows = (*(at[row : row + 1] for at in mark.rows), torch.tensor([row]))
        kept = (*mark.logits, logits) if search.config.output_logits else ()
        last = token_values(logits, torch.tensor([row]), ids[:, -1])
        values = (*(own[row : row + 1] for own in mark.values), last)
        length = ids.shape[1] - search.prompt_length
        beams.finished.append((score / length**self.config.length_penalty, Mark(ids, rows, kept, values)))
        beams.finished = sorted(beams.finished, key=lambda found: -found[0])[: self.config.beams]

    def _over(self, search: Search, beams: _Beams) -> bool:
        if bool(search.stopped().all()):
            return True
        length = search.answer.shape[1]
        best = float(beams.scores.max()) / length**self.config.length_penalty
        return len(beams.finished) >= self.config.beams and best <= beams.finished[-1][0]

    def _rollback_target(self, beams: _Beams) -> int | None:
        """The number of tokens to keep, if all beams over-trust the same summary token."""
        if self.config.rollback is None or not all(beams.history):
            return None
        summary = mode([own[-1] for own in beams.history])
        often = all(own.count(summary) > self.config.rollback for own in beams.history)
        if not often or summary < self.config.start:
            return None
        for keep in (summary + 1, summary):  # at most `candidates` roll-backs to each length
            if 0 < keep < len(beams.steps) and beams.visits[keep] < self.config.candidates:
                return keep
        return None

    def _roll_back(self, search: Search, beams: _Beams, keep: int) -> Tensor:
        """Return to the step with `keep` tokens, and forbid the tokens that were chosen there."""
        step = beams.steps[keep]
        chosen = set(search.ids[:, search.prompt_length + keep].tolist())
        step.forbidden = [tokens | chosen for tokens in step.forbidden]
        beams.visits[keep] += 1
        del beams.steps[keep + 1 :]
        beams.scores, beams.history = step.scores, step.history
        search.restore(step.mark)
        return search.read(search.ids[:, -1])

    def _finish(self, search: Search, beams: _Beams) -> None:
        length = search.answer.shape[1]
        running = beams.scores / length**self.config.length_penalty
        best = int(running.argmax())
        if beams.finished and (beams.finished[0][0] >= float(running[best]) or not bool(search.stopped().all())):
            search.conclude(beams.finished[0][1], 0)
        else:
            search.conclude(search.mark(), best)
        search.stream(search.answer[0])
