"""Threads: two models side by side, and threads on one model that take turns."""

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from heal.engine import locks
from heal.errors import AttachmentError, BusyError, UnsupportedError
from heal.methods import HEAL
from tests import zoo
from tests.engine.clean import left_clean
from tests.engine.saying import METHOD, NEW, ROWS, At, Said, forward, healed, say


def test_two_models_in_one_thread(model, batch) -> None:
    other, settings = zoo.build("qwen2_vl"), HEAL(alpha=0.3, masking="zero")
    others = zoo.inputs(other, ROWS)
    expected = healed(model, batch), healed(other, others, settings)
    with left_clean(model, batch), left_clean(other, others), METHOD.attach(model), settings.attach(other):
        assert (say(model, batch), say(other, others)) == expected


def overlapping(one: hf.PreTrainedModel, two: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Said:
    """The output of `two` if the method is detached from `one` first."""
    first, second = ExitStack(), ExitStack()
    with second:
        with first:
            first.enter_context(METHOD.attach(one))
            handle = second.enter_context(METHOD.attach(two))
        said = say(two, batch)
    assert handle.fired
    return said


def test_attachments_may_end_in_any_order(model, batch) -> None:
    other = zoo.build("llava", seed=1)
    expected = healed(other, batch)
    with left_clean(model, batch), left_clean(other, batch):
        assert overlapping(model, other, batch) == expected


def test_models_may_share_a_configuration(model, batch) -> None:
    other = type(model)(model.config).eval()
    other.load_state_dict(zoo.build("llava", seed=1).state_dict())
    other.generation_config = model.generation_config
    expected = healed(other, batch)
    with left_clean(model, batch), left_clean(other, batch):
        assert overlapping(model, other, batch) == expected


def test_two_threads_on_two_models(model) -> None:
    other = zoo.build("llava", seed=1)
    prompts = [zoo.inputs(model, [replace(row, salt=salt) for row in ROWS]) for salt in range(2)]
    expected = {m: [healed(m, prompt) for prompt in prompts] for m in (model, other)}
    found: dict[hf.PreTrainedModel, list[Said]] = {}
    together = threading.Barrier(2, timeout=60)

    def work(own: hf.PreTrainedModel) -> None:
        said = []
        with METHOD.attach(own):
            for prompt in prompts:
                together.wait()
                said.append(say(own, prompt))
        found[own] = said

    with left_clean(model, prompts[0]), left_clean(other, prompts[0]):
        threads = [threading.Thread(target=work, args=(m,)) for m in (model, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == expected


class Slow:
    """A generation in another thread that pauses at its second step until it is released."""

    def __init__(self, model: hf.PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> None:
        self.busy, self._on, self.said = threading.Event(), threading.Event(), list[Said]()
        options |= {"logits_processor": [At(2, self._wait)]}
        self.thread = threading.Thread(target=lambda: self.said.append(say(model, batch, **options)))
        self.thread.start()
        assert self.busy.wait(60)

    def _wait(self) -> None:
        self.busy.set()
        assert self._on.wait(60)

    def finish(self) -> Said:
        self._on.set()
        self.thread.join(60)
        return self.said[0]


def test_a_shared_method_serves_all_threads_one_after_the_other(model, batch) -> None:
    expected = healed(model, batch)
    with left_clean(model, batch), METHOD.attach(model, shared=True, timeout=0.2) as handle:
        slow = Slow(model, batch)
        with pytest.raises(BusyError, match="still in use by another thread"):
            say(model, batch)
        assert slow.finish() == expected
        assert say(model, batch) == expected
        with pytest.raises(AttachmentError, match="attached to this model already"), METHOD.attach(model):
            pass
        with pytest.raises(UnsupportedError, match="needs generate"):
            forward(model, batch)
    assert handle.fired.steps == 2 * NEW


def test_other_threads_wait_until_a_method_is_gone(model, batch) -> None:
    plain, expected = say(model, batch), healed(model, batch)
    found: list[Said] = []
    with left_clean(model, batch):
        with METHOD.attach(model):
            other = threading.Thread(target=lambda: found.append(say(model, batch)))
            other.start()
            assert say(model, batch) == expected
            other.join(0.5)
            assert other.is_alive()
            assert found == []
        other.join(60)
    assert found == [plain]


def test_a_method_in_the_midst_of_a_plain_generation_disturbs_neither(model, batch) -> None:
    """A raw generate() that started before the method was attached continues after it is detached."""
    plain, expected = say(model, batch), healed(model, batch)
    with left_clean(model, batch):
        slow = Slow(model, batch)
        with METHOD.attach(model):
            slow._on.set()
            assert say(model, batch) == expected
            assert slow.said == []
        assert slow.finish() == plain


def test_a_pass_under_way_stays_plain(model, batch) -> None:
    """The method is attached between two layers of another thread's forward pass."""
    logits = forward(model, batch)
    between, go_on, found = threading.Event(), threading.Event(), list[Tensor]()

    def pause(*_: object) -> None:
        if threading.current_thread() is other:
            between.set()
            assert go_on.wait(60)

    other = threading.Thread(target=lambda: found.append(forward(model, batch)))
    hook = model.get_decoder().layers[1].register_forward_pre_hook(pause)
    other.start()
    assert between.wait(60)
    with METHOD.attach(model):
        said = say(model, batch)
        go_on.set()
        other.join(60)
    hook.remove()
    assert torch.equal(found[0], logits)
    assert said == healed(model, batch)


def test_attaching_can_time_out(model, batch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with METHOD.attach(model):
            entered.set()
            assert leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(60)
    with pytest.raises(BusyError, match="wait longer"), METHOD.attach(model, timeout=0.1):
        pass
    leave.set()
    holder.join(60)
    assert healed(model, batch)


def test_a_context_may_end_in_another_thread(model, batch) -> None:
    with left_clean(model, batch):
        stack = ExitStack()
        stack.enter_context(METHOD.attach(model))
        closer = threading.Thread(target=stack.close)
        closer.start()
        closer.join(60)
        assert not closer.is_alive()


def test_waiting_long_is_said(model, batch, monkeypatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    heard: list[str] = []
    with METHOD.attach(model):
        other = threading.Thread(target=lambda: heard.extend(_warnings(lambda: say(model, batch))))
        other.start()
        other.join(0.5)
    other.join(60)
    assert any("attach the method with shared=True" in text for text in heard)


def _warnings(act: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught]


def test_a_generation_cannot_begin_inside_of_another(model, batch) -> None:
    with METHOD.attach(model):
        with pytest.raises(AttachmentError, match="inside a generation"):
            say(model, batch, logits_processor=[At(2, lambda: say(model, batch))])
        expected = say(model, batch)
    assert expected == healed(model, batch)
