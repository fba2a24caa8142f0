"""Tokens that a method leaves out: sequences, streams, counters and caches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from heal import HEAL, Method
from heal.engine.answers import AnswerTokens, Edit, HeldStreamer, Kept, Sentence, edits_of, shortened
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import UnsupportedError
from tests.known import known
from tests.laws.conftest import ROWS, footprint, inputs_of, model_of
from tests.zoo import Row

NEW = 6


@dataclass(frozen=True)
class EveryOther(Method):
    """Keeps the tokens with an even index of rows with an even index."""

    rows: int = 2

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return EveryOtherRuntime(self.rows)


class EveryOtherRuntime(Runtime[State]):
    needs_image = False

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def keep(self, generation: Generation[State], answer: AnswerTokens) -> Kept:
        count = len(answer.ids)
        step = 1 if answer.sample % self.rows else 2
        return Kept(count, tuple(range(0, count, step)), (Sentence(0, count, "text"),))


@contextmanager
def generated(method: Method, rows: tuple[Row, ...] = ROWS, **options: Any) -> Iterator[tuple[Any, Any]]:
    options = {"max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True} | options
    with method.attach(model_of("llava")) as handle:
        yield model_of("llava").generate(**inputs_of("llava", rows), **options), handle


def plain(rows: tuple[Row, ...] = ROWS, **options: Any) -> Any:
    return model_of("llava").generate(**inputs_of("llava", rows), max_new_tokens=NEW, **options)


def test_sequences_without_the_tokens_that_were_left_out() -> None:
    expected, prompt = plain()[:, -NEW:], inputs_of("llava", ROWS)["input_ids"]
    with generated(EveryOther()) as (output, handle):
        assert torch.equal(output.sequences[:, : prompt.shape[1]], prompt)
        new = output.sequences[:, prompt.shape[1] :]
        pad = model_of("llava").generation_config.pad_token_id
        for row, tokens in enumerate(new.tolist()):
            kept = expected[row].tolist()[:: 2 - row % 2]
            assert tokens == kept + [pad] * (NEW - len(kept))
        assert [edit.steps for edit in handle.edits] == [(0, 2, 4), tuple(range(NEW))] * 2
        assert len(output.logits) == NEW  # of all steps
        assert output.past_key_values is None
        assert [edit.sentences[0].stop for edit in handle.edits] == [NEW] * 4


def test_the_width_is_that_of_the_longest_answer() -> None:
    with generated(EveryOther(rows=1)) as (output, _):
        assert output.sequences.shape[1] == inputs_of("llava", ROWS)["input_ids"].shape[1] + NEW // 2


def test_a_tensor_is_returned_unless_a_dictionary_was_asked_for() -> None:
    with generated(EveryOther(), return_dict_in_generate=False, output_logits=False) as (output, _):
        assert isinstance(output, torch.Tensor)


def test_each_token_that_was_left_out_is_a_change() -> None:
    with generated(EveryOther()) as (_, handle):
        assert handle.fired.changes == 2 * NEW / 2
        assert handle.fired.steps == NEW / 2
        rows = [handle.row([row] * NEW) for row in range(4)]
        assert [(fired.steps, fired.changes) for fired in rows] == [(3, 3), (0, 0)] * 2


def test_the_end_token_is_kept_and_not_judged() -> None:
    tokens = plain(ROWS[:1])[0, -NEW:].tolist()
    with generated(EveryOther(), ROWS[:1], eos_token_id=[tokens[3]]) as (output, handle):
        (edit,) = known(handle.edits)
        end = tokens.index(tokens[3])
        assert edit.ids == tuple(tokens[: end + 1])
        assert edit.steps == (*range(0, end, 2), end)
        assert output.sequences[0, -len(edit.steps) :].tolist() == [tokens[step] for step in edit.steps]


@pytest.mark.parametrize("copies", [1, 2])
def test_beams_know_the_row_of_each_token(copies: int) -> None:
    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": copies}
    expected = plain(ROWS[:2], **options)[:, -NEW:].tolist()
    with generated(EveryOther(), ROWS[:2], **options) as (output, handle):
        edits = known(handle.edits)
        assert [list(edit.ids) for edit in edits] == expected
        assert [edit.at for edit in edits] == [tuple(at) for at in output.beam_indices.tolist()]
        assert [len(edit.steps) for edit in edits] == [3] * copies + [NEW] * copies


def test_the_next_turn_needs_a_new_cache() -> None:
    from transformers import DynamicCache

    model, batch, cache = model_of("llava"), inputs_of("llava", ROWS[:1]), DynamicCache()
    with EveryOther().attach(model):
        out = model.generate(**batch, past_key_values=cache, max_new_tokens=NEW)
        ids = torch.cat([batch["input_ids"], plain(ROWS[:1])[:, -NEW:], out[:, -2:]], 1)
        with pytest.raises(UnsupportedError, match="start the next turn with a new cache"):
            model.generate(input_ids=ids, past_key_values=cache, max_new_tokens=2)


def test_nothing_remains() -> None:
    before = footprint(model_of("llava"))
    with generated(EveryOther()):
        pass
    assert footprint(model_of("llava")) == before


def test_a_method_that_keeps_everything_has_no_edits() -> None:
    with generated(HEAL(alpha=0.3)) as (output, handle):
        assert handle.edits is None
        assert output.past_key_values is not None


class Listener:
    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


def test_a_stream_gets_the_prompt_and_the_kept_tokens() -> None:
    listener = Listener()
    with generated(EveryOther(), ROWS[:1], streamer=listener) as (output, _):
        prompt = inputs_of("llava", ROWS[:1])["input_ids"]
        assert listener.got[0] == prompt[0].tolist()
        assert [token for tokens in listener.got[1:] for token in tokens] == output.sequences[
            0, prompt.shape[1] :
        ].tolist()
        assert listener.ended


def test_a_stream_holds_tokens_back_until_they_are_decided() -> None:
    def pairs(answer: AnswerTokens) -> Kept:
        until = len(answer.ids) if answer.finished else len(answer.ids) // 2 * 2
        return Kept(until, tuple(range(until)))

    listener = Listener()
    held = HeldStreamer(listener, frozenset({9}), pairs)
    held.put(torch.tensor([[1, 2]]))
    passed = []
    for token in (3, 4, 5, 9):
        held.put(torch.tensor([token]))
        passed.append(len(listener.got) - 1)
    held.end()
    assert passed == [0, 2, 2, 2]
    assert listener.got == [[1, 2], [3], [4], [5], [9]]


def test_edits_without_beams() -> None:
    class Output:
        sequences = torch.tensor([[7, 7, 1, 2, 3], [7, 7, 4, 0, 0]])

    edits = edits_of(Output(), 2, frozenset({0}), 2, lambda a: Kept(len(a.ids), tuple(range(1, len(a.ids)))))
    assert edits == [Edit((1, 2, 3), (0, 0, 0), (1, 2)), Edit((4, 0), (1, 1), (1,))]
    assert [edit.dropped for edit in edits] == [(0,), (0,)]
    assert shortened(Output.sequences, 2, edits, 9).tolist() == [[7, 7, 2, 3], [7, 7, 0, 9]]
