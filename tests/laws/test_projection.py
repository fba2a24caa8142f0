"""At a refresh, o_proj and the contributions of the heads are computed in one read of the weights if possible."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from heal import HEAL
from heal.methods import heal_causal
from heal.methods.heal_runtime import HealRuntime
from tests.laws.conftest import EVERY, ROWS, build, generate, inputs_of

METHOD = HEAL(interval=2, sigma_causal=1.0)


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HealRuntime, "project", lambda *_: None)


@pytest.mark.parametrize("name", EVERY)
def test_one_read_equals_two_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build(name), inputs_of(name, ROWS)
    together = generate(model, batch, METHOD, new=5)
    apart(monkeypatch)
    other = generate(model, batch, METHOD, new=5)
    assert torch.equal(together.tokens, other.tokens)
    assert_close(together.logits, other.logits, rtol=0, atol=1e-4)
    assert_close(together.stacked("contribution"), other.stacked("contribution"), rtol=0, atol=1e-5, equal_nan=True)
    assert torch.equal(together.stacked("types"), other.stacked("types"))


def test_it_is_used_at_refreshes_only_and_never_when_only_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    real = HealRuntime.project

    def project(self, generation, layer, *rest):
        out = real(self, generation, layer, *rest)
        if out is not None:
            steps.append((generation.phase, generation.step, layer))
        return out

    monkeypatch.setattr(HealRuntime, "project", project)
    model, batch = build("llava"), inputs_of("llava", ROWS[:1])
    generate(model, batch, METHOD, new=6)
    assert steps == [("decode", step, layer) for step in (2, 4) for layer in range(3)]
    steps.clear()
    generate(model, batch, HEAL(interval=2, calibrate=False), new=6)
    assert not steps


def test_wrapped_projection_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like an offloaded or adapted module: its weights may be elsewhere, and it has its own forward."""
    model, batch = build("llava"), inputs_of("llava", ROWS)
    expected = generate(model, batch, METHOD, new=5)
    calls = []
    for module in model.modules():
        if hasattr(module, "o_proj"):
            linear = module.o_proj

            def own(x, linear=linear):
                calls.append(x.shape)
                return F.linear(x, linear.weight, linear.bias)

            linear.forward = own
    monkeypatch.setattr(heal_causal, "projection_and_sums", None)
    found = generate(model, batch, METHOD, new=5)
    assert calls
    assert all(vars(m.o_proj)["forward"].__name__ == "own" for m in model.modules() if hasattr(m, "o_proj"))
    assert_close(found.logits, expected.logits, rtol=0, atol=1e-4)
