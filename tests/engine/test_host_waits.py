"""Between refreshes, HEAL never waits for the device. The model's own waits are those of the plain model."""

from collections.abc import Mapping
from contextlib import nullcontext

import pytest
from PIL import Image
from torch import Tensor

from heal.engine.finite import FiniteCheck
from heal.launch_counter import Counts, LaunchCounter
from heal.methods import HEAL, Method, create
from heal.vlm import VLM
from tests import zoo

INTERVAL = 4
STEPS = 3 * INTERVAL
REFRESHES = range(INTERVAL, STEPS, INTERVAL)
MOST_BOOKKEEPING = 2
BOOKKEEPING = [f"engine/{name}.py" for name in ("tally", "comparison", "generation", "growing", "finite")]


def steps_of(model, batch: Mapping[str, Tensor], method: Method | None, steps: int = STEPS) -> list[Counts]:
    """The counts of each decoding step, from the choice of a token to the logits of the next."""

    def mark(ids: Tensor, scores: Tensor) -> Tensor:
        counter.mark()
        return scores

    counter = LaunchCounter()
    with method.attach(model) if method else nullcontext(), counter:
        model.generate(**batch, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, logits_processor=[mark])
    return counter.steps


def waits(steps: list[Counts]) -> list[Counts]:
    return [step for at, step in enumerate(steps) if at > 0 and at not in REFRESHES]


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
@pytest.mark.parametrize("rows", [1, 3])
def test_heal_never_waits_between_refreshes(name: str, rows: int) -> None:
    model = zoo.build(name)
    batch = zoo.inputs(model, [zoo.Row(salt=salt) for salt in range(rows)])
    plain, healed = (waits(steps_of(model, batch, method)) for method in (None, HEAL(interval=INTERVAL)))
    assert [step.syncs for step in healed] == [step.syncs for step in plain]
    assert all(sync.place.startswith("transformers") for step in healed for sync in step.syncs)


def test_heal_never_waits_on_the_embedded_model() -> None:
    """In an answer that is longer than the steps after which the engine looks for NaN by itself."""
    vlm, interval, steps = VLM.embedded(), 10, FiniteCheck.PENDING + 10
    batch = vlm.inputs([Image.new("RGB", (48, 48), "red")], ["Describe the image."])
    plain, healed = (steps_of(vlm.model, batch, method, steps) for method in (None, HEAL(interval=interval)))
    between = [at for at in range(1, steps) if at % interval]
    assert [healed[at].syncs for at in between] == [plain[at].syncs for at in between]


@pytest.mark.parametrize("method", [HEAL(masking="zero"), create("vhr")], ids=["heal", "vhr"])
def test_the_engine_launches_little_itself(method: Method) -> None:
    model = zoo.build("llava")
    steps = steps_of(model, zoo.inputs(model, [zoo.Row()]), method, steps=34)[1:]
    own = sum(Counts.total(steps).files[file] for file in BOOKKEEPING)
    assert 0 < own / len(steps) / len(model.get_decoder().layers) <= MOST_BOOKKEEPING
