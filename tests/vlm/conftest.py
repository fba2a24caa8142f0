"""Models of the tests of VLM."""

import pytest

from heal import VLM


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


@pytest.fixture
def own() -> VLM:
    """One that a test may spoil."""
    return VLM.random()
