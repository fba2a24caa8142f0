"""Two models, two threads: side by side, in any order, and never two threads on one model."""

import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
import transformers as hf
from torch import Tensor

from heal.errors import AttachmentError
from heal.methods import HEAL
from tests import zoo
from tests.engine.clean import left_clean
from tests.engine.saying import METHOD, ROWS, At, Said, healed, say


def test_two_models_in_one_thread(model, batch) -> None:
    other, settings = zoo.build("qwen2_vl"), HEAL(alpha=0.3, masking="zero")
    others = zoo.inputs(other, ROWS)
    expected = healed(model, batch), healed(other, others, settings)
    with left_clean(model, batch), left_clean(other, others), METHOD.attach(model), settings.attach(other):
        assert (say(model, batch), say(other, others)) == expected


def overlapping(one: hf.PreTrainedModel, two: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Said:
    """What `two` says when the method leaves `one` first."""
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


def test_two_threads_on_one_model_are_refused(model, batch) -> None:
    expected = healed(model, batch)
    busy, go_on, said = threading.Event(), threading.Event(), []

    def wait() -> None:
        busy.set()
        assert go_on.wait(60)

    with METHOD.attach(model):
        slow = threading.Thread(target=lambda: said.append(say(model, batch, logits_processor=[At(2, wait)])))
        slow.start()
        assert busy.wait(60)
        with pytest.raises(AttachmentError, match="give each thread its own model"):
            say(model, batch)
        go_on.set()
        slow.join(60)
        assert said == [expected]
        assert say(model, batch) == expected
