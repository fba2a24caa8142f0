"""A compiled step equals the plain one."""

import subprocess
import sys

import pytest

from heal import HEAL
from heal.errors import ConfigError

SCRIPT = """
import torch
from torch.testing import assert_close
from heal import HEAL
from tests.laws.conftest import ROWS, generate, inputs_of, model_of

for name, rows, drift in (("llava", ROWS[:1], "both"), ("qwen2_5_vl", ROWS, "language")):
    model, batch = model_of(name), inputs_of(name, rows)
    plain = generate(model, batch, HEAL(interval=2, drift=drift, preset="gaussian"))
    fused = generate(model, batch, HEAL(interval=2, drift=drift, preset="gaussian", compile=True))
    assert torch.equal(plain.tokens, fused.tokens)
    assert_close(plain.logits, fused.logits, rtol=0, atol=1e-4)
    for field in ("visual", "language", "beta", "gamma"):
        assert_close(plain.stacked(field), fused.stacked(field), rtol=1e-3, atol=1e-4, equal_nan=True)
    assert torch.equal(plain.stacked("types"), fused.stacked("types"))
    assert fused.fired.changes == plain.fired.changes > 0
from heal.analysis.step import _compiled
assert _compiled.cache_info().currsize == 1, "nothing was compiled"
print("the same")
"""


@pytest.mark.slow  # torch.compile takes most of a minute
def test_compiled_equals_plain() -> None:
    """In a separate process, because runtime type checks cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the same", done.stderr[-2000:]


@pytest.mark.parametrize(
    "options",
    [{"masking": "zero"}, {"covariance": "full"}, {"draws": 2}, {"path": "reference"}, {"preset": "expected"}],
    ids=str,
)
def test_options_that_cannot_be_compiled_are_rejected(options: dict) -> None:
    with pytest.raises(ConfigError, match="compile needs"):
        HEAL(compile=True, **({"preset": "gaussian"} | options))
