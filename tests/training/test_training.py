"""The training scripts of the embedded model, at a size that takes seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heal import VLM
from heal.world import World

SCRIPTS = Path(__file__).parents[2] / "training"
TINY = {
    "hidden": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "vision_hidden": 32,
    "pictures": 16,
    "language_steps": 3,
    "language_batch": 2,
    "language_length": 40,
    "vision_steps": 3,
    "vision_batch": 4,
    "align_steps": 3,
    "projector_steps": 2,
    "joint_steps": 4,
    "joint_batch": 6,
    "looking": 1,
    "guessing": 2,
}


@pytest.fixture(scope="module")
def train() -> Iterator[Any]:
    """The script as a module; it imports its neighbours as top-level modules."""
    sys.path.insert(0, str(SCRIPTS))
    before = set(sys.modules)
    import train

    yield train
    sys.path.remove(str(SCRIPTS))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(SCRIPTS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def tokenizer(train: Any) -> Any:
    return train.architecture.train_tokenizer(train.documents(1, 0))  # trained on little text, to be fast


def run(train: Any, tokenizer: Any, out: Path, **changes: Any) -> Path:
    """Run all stages with a shared tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "tiny.json").write_text(json.dumps(TINY | changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "tokenizer_of", lambda config: tokenizer)
        patch.setattr(sys, "argv", ["train.py", "--out", str(out), "--config", str(out / "tiny.json")])
        train.main()
    return out


@pytest.fixture(scope="module")
def made(train: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(train, tokenizer, tmp_path_factory.mktemp("made"))


def weights(run: Path) -> dict[str, Tensor]:
    return dict(VLM.load(str(run / "model"), dtype="float32").model.state_dict())


def test_every_stage_writes_a_log_and_a_working_model(train: Any, made: Path) -> None:
    for stage in train.STAGES:
        last = json.loads((made / f"{stage}.jsonl").read_text().splitlines()[-1])
        assert last["step"] == TINY[f"{stage}_steps"]
        assert last["loss"] > 0
    vlm = VLM.load(str(made / "model"), dtype="float32")
    answer = vlm.generate(World(0, "test").scene(0).image, "Describe this image.", max_new_tokens=5, do_sample=False)
    assert len(answer.token_ids) > 0


def test_resumed_run_ends_with_the_same_weights(
    train: Any, tokenizer: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception): ...

    def save(state: object, path: Path) -> None:
        kept(state, path)
        if path.name == "joint.state":
            raise Stopped

    stage = sys.modules["stage"]
    kept = stage.save
    monkeypatch.setattr(stage.optimise, "__defaults__", (2,))  # the state is saved every two steps
    with monkeypatch.context() as inner:
        inner.setattr(stage, "save", save)
        with pytest.raises(Stopped):
            run(train, tokenizer, tmp_path)
    assert torch.load(tmp_path / "joint.state")["step"] == 2
    run(train, tokenizer, tmp_path)
    one, other = weights(made), weights(tmp_path)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_gradients_of_parts_add_up_to_the_batch(
    train: Any, tokenizer: Any, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = train.Config(**TINY)
    found: list[list[Tensor]] = []

    def once(stage: Any, loss_at: Any) -> None:
        for parts in (1, 3, 6):
            monkeypatch.setattr(train, "PARTS", parts)
            loss, _ = loss_at(3)
            found.append([loss, *(p.grad.clone() for part in stage.parts for p in part.parameters())])

    monkeypatch.setattr(train, "optimise", once)
    torch.manual_seed(0)
    net = train.architecture.build(
        tokenizer, config.hidden, config.layers, config.heads, config.kv_heads, config.vision_hidden
    )
    stage = train.stage_of("joint", net, config, made)
    train.train_conversations(net, tokenizer, config, made / "data", stage)
    whole, *others = found
    assert any(float(g.abs().max()) > 0 for g in whole[1:])
    for other in others:
        for one, two in zip(whole, other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_details_are_asked_once(train: Any) -> None:
    """No answer about an object may reveal the answer to another question."""
    for i in range(60):
        view = World(0, "train").scene(i)
        found = train.data.detail_questions(view, np.random.default_rng(i))
        facts = [(q.about, "place") for q in found if q.text.endswith("of the image?") or q.text.startswith("Where")]
        facts += [(q.about, "colour") for q in found if q.topic == "colour" or q.text.startswith("What color")]
        facts += [(q.about, "count") for q in found if q.topic == "count" or q.text.startswith("How many")]
        assert len(facts) == len(set(facts))
        assert facts
