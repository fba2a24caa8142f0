"""Stage 1 for layers that scale or normalise the output of attention."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.laws.conftest import ROWS, build, generate, inputs_of, run
from tests.laws.heal_cases import ZERO
from tests.laws.test_oracle_agreement import assert_oracle
from tests.zoo import GRANITE


def test_granite_equals_the_oracle() -> None:
    out = assert_oracle(GRANITE, ZERO, ROWS[1:3])
    assert (out.records[2].values["contribution"].isfinite()).all()  # a refresh, where o_proj is fused


class _OwnLinear(nn.Linear):
    """Like a quantised module: its weights are not accessible."""


@pytest.mark.parametrize("name", [GRANITE, "gemma3", "paligemma2"])
def test_a_projection_of_another_kind_gives_the_same_contributions(name: str) -> None:
    model, batch = build(name), inputs_of(name, ROWS)
    for layer in model.get_decoder().layers:
        layer.self_attn.o_proj.__class__ = _OwnLinear
    found, expected = generate(model, batch, ZERO), run(name, ZERO)
    assert torch.equal(found.stacked("types"), expected.stacked("types"))
    for step in (0, 2):
        assert_close(
            found.records[step].values["contribution"],
            expected.records[step].values["contribution"],
            rtol=1e-3,
            atol=1e-6,
        )
