"""MemVR: the uncertainty trigger, the formula, and the options."""

import math

import pytest
import torch
from torch.testing import assert_close

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import MemVR, parse
from heal.methods.memvr import retraced, uncertainty
from tests import zoo
from tests.methods import slow
from tests.methods.agreement import NAMES, ROWS, assert_agrees, model_of, said

ALWAYS = MemVR(ratio=0.3, threshold=0.0)


@pytest.mark.parametrize("name", [*NAMES, "qwen3_vl_moe", "gemma3"])
def test_entropy_trigger_and_formula(name: str) -> None:
    assert_agrees(slow.memvr, name, ALWAYS)


@pytest.mark.parametrize("method", [MemVR(ratio=1.0, threshold=0.0), MemVR(threshold=0.0, activation="silu")])
def test_options_against_the_formula(method: MemVR) -> None:
    assert_agrees(slow.memvr, "llava", method)


def test_the_first_uncertain_layer_of_each_pass_and_row() -> None:
    """In a deep model, with a threshold that some layers exceed."""
    model = zoo.build("llava", num_hidden_layers=8)
    fired = set()
    for threshold in (0.75, 0.9, 0.93, 0.96):
        method = MemVR(ratio=0.3, threshold=threshold, start=0, end=7)
        options = {"max_new_tokens": 4, "output_logits": True, "return_dict_in_generate": True}
        with method.attach(model) as handle:
            out = model.generate(**zoo.inputs(model, list(ROWS)), **options)
        tokens, logits = out.sequences[:, -4:], torch.stack(out.logits, 1).double()
        for index, row in enumerate(ROWS):
            expected = slow.memvr(model, zoo.inputs(model, [row]), tokens[index].tolist(), method)
            assert_close(logits[index], torch.from_numpy(expected), atol=1e-3, rtol=0)
            fired.add(handle.row([index] * 4).steps)
    assert len(fired) > 1  # some passes fired and others did not


def test_without_uncertain_layers_the_output_is_that_of_the_plain_model() -> None:
    with pytest.warns(UserWarning, match="no checked layer was uncertain"):
        _, logits = said("llava", MemVR(ratio=0.9, threshold=1.0))
    model = model_of("llava")
    options = {"max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    plain = torch.stack(model.generate(**zoo.inputs(model, list(ROWS)), **options).logits, 1)
    assert torch.equal(torch.from_numpy(logits), plain.double())


def test_uncertainty() -> None:
    spread = torch.cat([torch.zeros(10), torch.full((90,), -50.0)])
    pair = torch.cat([torch.zeros(2), torch.full((98,), -50.0)])
    one = torch.cat([torch.zeros(1), torch.full((99,), -80.0)])
    flat = torch.zeros(100)  # only ten of them count
    found = uncertainty(torch.stack([spread, pair, one, flat]))
    assert_close(found, torch.tensor([1.0, math.log(2) / math.log(10), 0.0, 1.0]), atol=1e-6, rtol=0)


def test_padding_does_not_count_in_the_scale() -> None:
    rng = torch.Generator().manual_seed(0)
    hidden, output = (torch.randn(1, 5, 4, generator=rng) for _ in range(2))
    memory = torch.randn(1, 3, 4, generator=rng)
    valid = torch.tensor([[False, False, True, True, True]])
    padded = retraced(hidden, output, memory, valid, 0.3, "none")
    alone = retraced(hidden[:, 2:], output[:, 2:], memory, valid[:, 2:], 0.3, "none")
    assert_close(padded[:, 2:], alone)
    # a shorter memory is padded with zeros
    longer = torch.cat([memory, torch.zeros(1, 2, 4)], 1)
    for activation in ("none", "silu"):
        assert_close(*(retraced(hidden, output, m, valid, 0.3, activation) for m in (memory, longer)))


def test_scale_of_the_memory_does_not_matter() -> None:
    rng = torch.Generator().manual_seed(0)
    hidden, output = (torch.randn(1, 5, 4, generator=rng) for _ in range(2))
    memory, valid = torch.randn(1, 3, 4, generator=rng), torch.ones(1, 5, dtype=torch.bool)
    one, other = (retraced(hidden, output, k * memory, valid, 0.3, "none") for k in (1, 20))
    assert_close(one, other)
    nothing = retraced(hidden, output, 0 * memory, valid, 0.25, "none")
    assert_close(nothing, 0.75 * output)


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "count", "expected"),
    [
        (MemVR(), 32, range(6, 16)),
        (MemVR(), 40, range(7, 20)),
        (MemVR(), 3, range(1, 2)),
        (MemVR(start=9), 32, range(10, 16)),
        (MemVR(start=9, end=99), 32, range(10, 31)),
    ],
)
def test_checked_layers(method: MemVR, count: int, expected: range) -> None:
    assert method.watched(count) == expected


@pytest.mark.parametrize("method", [MemVR(start=2), MemVR(start=1, end=2), MemVR(start=30)])
def test_an_empty_range_of_layers_is_rejected(method: MemVR) -> None:
    with pytest.raises(ConfigError, match=r"there is no layer between .* in a model with 3 layers"):
        method.runtime(Layout.of(model_of("llava")), trace=False)


def test_parse() -> None:
    assert parse("memvr:ratio=0.28,start=9,activation=silu") == MemVR(ratio=0.28, start=9, activation="silu")


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [
        {"ratio": -0.1},
        {"ratio": 1.1},
        {"ratio": math.nan},
        {"threshold": -0.1},
        {"threshold": math.nan},
        {"start": -1},
        {"start": 1.5},
        {"end": -3},
        {"activation": "relu"},
    ],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        MemVR(**options)
