"""Load: eight threads with mixed requests on one model get the same results as sequential requests."""

import random
import threading
import warnings
from typing import Any

import pytest

from heal import VLM
from heal.errors import HealWarning
from heal.methods import parse
from heal.streams import Stream
from tests.vlm.asking import PICTURES, PROMPTS

METHODS = (
    "plain",
    "plain",
    "heal",
    "heal:drift=language,interval=2",
    "vcd",
    "pai",
    "beam:beams=2",
    "dola",
    "vhr",
    "memvr",
)
KINDS = ("one", "batch", "sampled", "stream", "raw")
THREADS = 8


def request(vlm: VLM, number: int) -> Any:
    """Everything about an answer except its time."""
    chance = random.Random(number)
    name, kind, picture = chance.choice(METHODS), KINDS[number % len(KINDS)], chance.choice(PICTURES)
    options: dict[str, Any] = {"method": None if name == "plain" else parse(name)}
    new = chance.randrange(2, 6)
    if kind == "raw":  # generate() of transformers, outside this package's lock
        return vlm.model.generate(**vlm.inputs([picture], ["describe"]), max_new_tokens=new).tolist()
    if kind == "sampled":
        options |= {"do_sample": True, "seed": number}
    if kind == "batch":
        answers = vlm.generate(PICTURES, PROMPTS, max_new_tokens=new, **options)
    elif kind == "stream" and not name.startswith("beam"):
        stream = vlm.generate(picture, "describe", stream=True, max_new_tokens=new, **options)
        assert isinstance(stream, Stream)
        answers = [stream.answer]
    else:
        answers = [vlm.generate(picture, "describe", max_new_tokens=new, **options)]
    return [(a.text, a.token_ids, a.logprobs, a.finish, a.fired) for a in answers]


@pytest.mark.parametrize(("requests", "distinct"), [(48, 16), pytest.param(200, 40, marks=pytest.mark.slow)])
def test_mixed_load_is_exact(vlm: VLM, requests: int, distinct: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)
        expected = [request(vlm, number) for number in range(distinct)]
        waiting = [number % distinct for number in range(requests)]
        random.Random(0).shuffle(waiting)
        found: list[tuple[int, Any]] = []

        def work() -> None:
            while waiting:
                try:
                    number = waiting.pop()
                except IndexError:
                    return
                try:
                    found.append((number, request(vlm, number)))
                except Exception as error:
                    found.append((number, error))

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert len(found) == requests
    assert [(number, got) for number, got in found if got != expected[number]] == []
