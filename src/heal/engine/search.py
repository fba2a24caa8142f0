"""A search that is run by the method: read tokens, look ahead, take back, reorder, forbid and commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heal.analysis.uncertainty import FACTS, distribution_facts
from heal.engine.generation import Generation
from heal.engine.transformers_api import (
    GenerateBeamDecoderOnlyOutput,
    inputs_of_token,
    prefill,
    record_past,
    updated_arguments,
)
from heal.errors import UnsupportedError

GROWING = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
"""Arguments of the model that grow by one position per token."""


@dataclass(frozen=True)
class Mark:
    """The committed tokens of a search at one time."""

    ids: Tensor
    rows: tuple[Tensor, ...]
    """For each token, the row in which it was chosen, in the rows of its step."""
    logits: tuple[Tensor, ...]
    """For each token, the logits of its step. Empty unless generate() was asked for them."""
    values: tuple[Tensor, ...]
    """For each token, what `token_values` gives, in the present rows."""


@dataclass
class SearchOutput(GenerateBeamDecoderOnlyOutput):
    """What a search returns. It may read more than it commits, so it knows the values of its tokens best."""

    token_values: Tensor | None = None
    """What `token_values` gives for each token, [rows, tokens, 1 + facts]."""

    __no_type_check__ = True  # the annotations of transformers are no checks


@dataclass(frozen=True)
class SearchCall:
    """The arguments that generate() prepared for a search."""

    model: Any
    ids: Tensor
    processors: Any
    stopping: Any
    config: Any
    arguments: dict[str, Any]
    """The model's arguments besides the ids: the cache, the attention mask, the images …"""


class Search:
    """One call of generate(), run by the method.

    `ids` is the prompt with all committed tokens. The usual loop starts with `logits = search.start()` and repeats
    until `search.stopped()`: choose tokens, `search.commit(tokens, logits)`, `logits = search.read(tokens)`. A
    look-ahead is `read` followed by `take_back`; a rollback is `restore` with an earlier `mark`. The cache, the
    method's state, its tally and its branches follow.
    """

    def __init__(self, call: SearchCall, streamer: Any, latest: Callable[[], Generation[Any]]) -> None:
        """`latest` returns the generation that is in progress."""
        self.model, self.config = call.model, call.config
        self.ids = call.ids
        self.prompt_length = call.ids.shape[1]
        self.streamer = streamer
        self._processors, self._stopping = call.processors, call.stopping
        self._arguments = call.arguments
        self._latest = latest
        self._read = 0  # generated tokens in the cache
        self._logits: list[Tensor] = []  # logits per committed token, in the rows of its step
        self._rows: list[Tensor] = []  # for each later row, the row in which each committed token was chosen
        self._values: list[Tensor] = []  # for each later row, the `token_values` of each committed token

    @property
    def generation(self) -> Generation[Any]:
        """The generation with the method's state. Available after `start`."""
        return self._latest()

    @property
    def cache(self) -> Any:
        return self._arguments["past_key_values"]

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    @property
    def answer(self) -> Tensor:
        """The committed tokens, [rows, tokens]."""
        return self.ids[:, self.prompt_length :]

    # ── passes ────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Tensor:
        """Read the prompt. Returns the next-token logits [rows, vocabulary] in fp32, with the method's changes."""
        record_past(self.cache)
        if self.streamer is not None:
            self.streamer.put(self.ids[:: self.config.num_beams or 1].cpu())  # beams are copies of one prompt
        return self._after(prefill(self.model, self.ids, self.config, self._arguments))

    def read(self, tokens: Tensor) -> Tensor:
        """Read one token per row, [rows]. Returns the next-token logits."""
        ids = torch.cat([self.ids[:, : self.prompt_length + self._read], tokens.to(self.ids.device)[:, None]], dim=1)
        inputs = inputs_of_token(self.model, ids, self._arguments)
        self._read += 1
        return self._after(self.model(**inputs, return_dict=True))

    def _after(self, outputs: Any) -> Tensor:
        self._arguments = updated_arguments(self.model, outputs, self._arguments)
        return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.ids.device)

    def take_back(self, tokens: int = 1) -> None:
        """Remove the last tokens that were read."""
        if not 0 <= tokens <= self._read:
            raise UnsupportedError(f"{tokens} tokens cannot be taken back: {self._read} were read")
        if tokens == 0:
            return
        self.cache.crop(-tokens)
        record_past(self.cache)
        self._read -= tokens
        for name in GROWING:
            if isinstance(value := self._arguments.get(name), Tensor):
                self._arguments[name] = value[..., :-tokens]

    def select(self, rows: Tensor) -> None:
        """Reorder the rows: new row i is the old row `rows[i]`, in the cache and in all state."""
        self.ids = self.ids.index_select(0, rows)
        self._rows = [at.index_select(0, rows.to(at.device)) for at in self._rows]
        self._values = [own.index_select(0, rows.to(own.device)) for own in self._values]
        self._reorder(rows)

    def _reorder(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)
        for name in GROWING:
            value = self._arguments.get(name)
            if isinstance(value, Tensor):
                self._arguments[name] = value.index_select(value.dim() - 2, rows.to(value.device))

    # ── choice ────────────────────────────────────────────────────────────────────────────────────────

    def processed(self, logits: Tensor) -> Tensor:
        """The logits after the processors of generate(): repetition penalty, minimum length, forbidden tokens …"""
        return self._processors(self.ids, logits)

    def commit(self, tokens: Tensor, logits: Tensor, rows: Tensor | None = None) -> None:
        """Append these tokens [rows] to the answers. `logits` are the logits from which they were chosen.

        With `rows`, new row i continues old row `rows[i]`, and `tokens[i]` was chosen there.
        """
        places = torch.arange(self.rows) if rows is None else rows.cpu()
        if rows is not None and not torch.equal(places, torch.arange(self.rows)):
            self.select(rows)
        self.ids = torch.cat([self.ids, tokens.to(self.ids.device)[:, None]], dim=1)
        if self.config.output_logits:
            self._logits.append(logits)
        self._rows.append(places)
        self._values.append(token_values(logits, places, tokens))

    @property
    def values(self) -> Tensor:
        """What `token_values` gives for each committed token, [rows, tokens, 1 + facts]."""
        return torch.stack(self._values, 1) if self._values else torch.zeros(self.rows, 0, 1 + FACTS)

    def mark(self) -> Mark:
        """The committed tokens at this point, for `restore`."""
        return Mark(self.ids, tuple(self._rows), tuple(self._logits), tuple(self._values))

    def restore(self, mark: Mark) -> None:
        """Return to an earlier mark: its rows, its tokens, the cache, and the method's state.

        Afterwards all committed tokens except the last have been read. Rows that other beams have replaced since then
        are read again.
        """
        wanted = mark.ids[:, self.prompt_length :]
        count = max(wanted.shape[1] - 1, 0)
        sources = _sources(wanted[:, :count], self.answer[:, : min(count, self._read)])
        self._rows, self._logits, self.ids = list(mark.rows), list(mark.logits), mark.ids
        self._values = list(mark.values)
        if sources is not None:
            self.take_back(self._read - count)
            self._reorder(torch.tensor(sources, device=self.ids.device))
            return
        self.take_back(self._read)
        for index in range(count):
            self.read(wanted[:, index])

    def stopped(self) -> Tensor:
        """Whether a stopping criterion holds for each row: end token, length, or a criterion of the caller."""
        return self._stopping(self.ids, None)

    def conclude(self, mark: Mark, row: int) -> None:
        """Keep one answer: a row of a mark."""
        self.ids, self._rows = mark.ids[row : row + 1], [at[row : row + 1] for at in mark.rows]
        self._logits, self._values = list(mark.logits), [own[row : row + 1] for own in mark.values]

    def stream(self, tokens: Tensor) -> None:
        """Pass the final tokens [tokens] of a single answer to the streamer."""
        if self.streamer is not None:
            for token in tokens.cpu():
                self.streamer.put(token[None])

    def result(self) -> Any:
        """The return value of generate()."""
        if self.streamer is not None:
            self.streamer.end()
        if not self.config.return_dict_in_generate:
            return self.ids
        places = torch.stack(self._rows, 1) if self._rows else torch.zeros(self.rows, 0, dtype=torch.long)
        return SearchOutput(
            sequences=self.ids,
            logits=tuple(self._logits) or None,
            beam_indices=places,
            past_key_values=self.cache,
            token_values=self.values,
        )


def token_values(logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of a token in each of these rows of the logits, and the `distribution_facts` there."""
    own = logits.index_select(0, rows.to(logits.device)).log_softmax(-1)
    chosen = own.gather(1, tokens.to(logits.device)[:, None])
    return torch.cat([chosen, distribution_facts(own)], dim=1)


def _sources(wanted: Tensor, present: Tensor) -> list[int] | None:
    """For each wanted row, a present row with the same tokens. None if any of them is missing."""
    if wanted.shape[1] != present.shape[1]:
        return None
    known = {tuple(row): index for index, row in reversed(list(enumerate(present.tolist())))}
    found = [known.get(tuple(row)) for row in wanted.tolist()]
    return None if None in found else [row for row in found if row is not None]


def owned_search(
    run: Callable[[Search], None], streamer: Any, latest: Callable[[], Generation[Any]]
) -> Callable[..., Any]:
    """A callable for `custom_generate`. It passes the streamer on, which transformers does not do for callables."""

    def custom_generate(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **arguments: Any,
    ) -> Any:
        call = SearchCall(model, input_ids, logits_processor, stopping_criteria, generation_config, arguments)
        search = Search(call, streamer, latest)
        run(search)
        return search.result()

    return custom_generate
