"""Streams that are followed: tokens so far with the values that the complete answer has."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import heal.live
from heal import VLM
from heal.errors import ConfigError
from heal.live import SoFar
from heal.studies.objects import PROMPT
from heal.world import World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def embedded() -> VLM:
    return VLM.embedded()


@pytest.fixture
def every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal.live, "PAUSE", 0.0)
    monkeypatch.setattr(heal.live, "SHARE_OF_TIME", 1.0)


def followed(stream: object) -> Iterator[SoFar]:
    for _ in stream:  # type: ignore[attr-defined]
        yield stream.so_far  # type: ignore[attr-defined]


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("method", [None, "heal", "heal:alpha=0.5+guard:threshold=0.3", "vcd"])
@pytest.mark.parametrize("risk", [True, False])
def test_values_are_those_of_the_complete_answer(embedded: VLM, method: str | None, risk: bool) -> None:
    view = World(0, "validation", "counter").scene(0)
    options: dict[str, Any] = {"method": method, "trace": True, "risk": risk, "max_new_tokens": 48}
    with embedded.stream(view.image, PROMPT, live=True, do_sample=False, **options) as stream:
        seen = list(followed(stream))
        answer = stream.answer
    last, count = stream.so_far, len(stream.so_far.tokens)
    assert len({len(one.tokens) for one in seen}) > 2
    assert answer.text.startswith("".join(last.tokens).strip())
    assert answer.trace is not None
    expected = answer.risk if risk else answer.trace.mean_alpha()
    found, other = (last.risk, last.share) if risk else (last.share, last.risk)
    assert other == ()
    np.testing.assert_allclose(found, np.array(expected)[:count], rtol=1e-5)
    if risk:
        assert np.isfinite(found).all()


def test_a_search_of_its_own_has_no_values(embedded: VLM) -> None:
    view = World(0, "validation").scene(0)
    with embedded.stream(
        view.image, PROMPT, method="opera:beams=2", risk=True, live=True, max_new_tokens=6
    ) as stream:
        list(stream)
    assert stream.so_far.tokens
    assert (stream.so_far.risk, stream.so_far.share) == ((), ())


def test_measuring_is_bounded(embedded: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal.live, "PAUSE", 1000.0)
    view = World(0, "validation").scene(0)
    with embedded.stream(view.image, PROMPT, risk=True, live=True, max_new_tokens=8) as stream:
        list(stream)
    assert len(stream.so_far.tokens) == 1


def test_other_streams_are_not_followed(embedded: VLM) -> None:
    stream = embedded.stream(World(0, "validation").scene(0).image, PROMPT, max_new_tokens=2)
    list(stream)
    with pytest.raises(ConfigError, match="live=True"):
        _ = stream.so_far
