"""A tiny model and a padded batch for it."""

import pytest
import transformers as hf
from torch import Tensor

from tests import zoo
from tests.engine.saying import ROWS


@pytest.fixture
def model() -> hf.PreTrainedModel:
    return zoo.build("llava")


@pytest.fixture
def batch(model: hf.PreTrainedModel) -> dict[str, Tensor]:
    return zoo.inputs(model, ROWS)
