"""A run is resumed only with the same model: all weights and everything else that affects answers."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heal import HEAL, VLM
from heal.bench import create
from heal.bench.run import environment
from heal.bench.run.environment import files_fingerprint, settings_fingerprint, weights_fingerprint
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.bench.score.summary import summarise
from heal.errors import ModelError, RunError
from tests.known import known
from tests.vlm.asking import PICTURES, PROMPTS

SMALL = Settings(limit=2, max_new_tokens=2)


@pytest.fixture
def own() -> VLM:
    return VLM.random()


@pytest.mark.parametrize("at", [0, 20, -1])
def test_every_weight_changes_the_fingerprint(own: VLM, at: int) -> None:
    before = weights_fingerprint(own.model)
    assert before == weights_fingerprint(VLM.random().model)
    assert before.startswith("xxh3:")
    with torch.no_grad():
        for parameter in own.model.parameters():
            flat = parameter.view(-1)
            if len(flat) <= 20:
                continue
            was = flat[at].clone()
            flat[at] = torch.nextafter(was, was + 1)
            assert weights_fingerprint(own.model) != before
            flat[at] = was
    assert weights_fingerprint(own.model) == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_has_its_own_fingerprint(own: VLM, dtype: torch.dtype) -> None:
    before = weights_fingerprint(own.model)
    assert weights_fingerprint(own.model.to(dtype)) != before


def test_buffers_count_and_strides_do_not() -> None:
    layer = torch.nn.BatchNorm1d(4)
    before = weights_fingerprint(layer)
    known(layer.running_mean)[2] = 1
    assert weights_fingerprint(layer) != before
    one, other = torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(3, 4, bias=False)
    other.weight = torch.nn.Parameter(one.weight.detach().t().contiguous().t())
    assert not other.weight.is_contiguous()
    assert weights_fingerprint(one) == weights_fingerprint(other)


def test_offloaded_weights(own: VLM, tmp_path: Path) -> None:
    """Their files are hashed, and hashed again only after a change."""
    own.model.save_pretrained(tmp_path)
    model = VLM.random().model.to("meta")
    with pytest.raises(ModelError, match="neither in memory nor in a local folder"):
        weights_fingerprint(model)
    model.config._name_or_path = str(tmp_path)
    before, files = weights_fingerprint(model), files_fingerprint(model)
    path, hits = tmp_path / "model.safetensors", environment._file_hash.cache_info().hits
    assert (weights_fingerprint(model), environment._file_hash.cache_info().hits) == (before, hits + 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert files_fingerprint(model) != files
    assert weights_fingerprint(model) != before


CHANGES: dict[str, Callable[[VLM], Any]] = {
    "configuration": lambda vlm: setattr(vlm.model.config.text_config, "rms_norm_eps", 1e-3),
    "generation": lambda vlm: setattr(vlm.model.generation_config, "repetition_penalty", 1.5),
    "template": lambda vlm: setattr(vlm.processor, "chat_template", vlm.processor.chat_template + " "),
    "images": lambda vlm: setattr(vlm.processor.image_processor, "image_mean", [0, 0, 0]),
    "tokenizer": lambda vlm: vlm.tokenizer.add_tokens(["surplus"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_change_the_fingerprint(own: VLM, name: str) -> None:
    before = settings_fingerprint(own)
    CHANGES[name](own)
    assert settings_fingerprint(own) != before


def test_use_and_location_do_not_change_the_fingerprint(own: VLM, tmp_path: Path) -> None:
    before = settings_fingerprint(own)
    own.generate(PICTURES[:2], PROMPTS[:2], method=HEAL(), max_new_tokens=1)
    assert settings_fingerprint(own) == before
    for name in ("one", "two"):
        own.model.save_pretrained(tmp_path / name)
        own.processor.save_pretrained(tmp_path / name)
    one, two = (VLM.load(tmp_path / name) for name in ("one", "two"))
    assert settings_fingerprint(one) == settings_fingerprint(two)
    assert settings_fingerprint(one) == settings_fingerprint(VLM.load(tmp_path / "one", dtype="float16"))


def test_run_is_not_resumed_with_another_model(own: VLM, tmp_path: Path) -> None:
    task = create("mini-pope", count=1)
    run(own, [task], [None], tmp_path / "run", SMALL)
    run(own, [task], [None], tmp_path / "run", SMALL, resume=True)
    with torch.no_grad():
        own.model.get_decoder().layers[2].mlp.up_proj.weight[50, 50] += 1
    with pytest.raises(RunError, match=r"different configuration: model\.weights was .*, now "):
        run(own, [task], [None], tmp_path / "run", SMALL, resume=True)
    other = VLM.random()
    other.processor.chat_template += " "
    with pytest.raises(RunError, match=r"different configuration: model\.settings was .*, now "):
        run(other, [task], [None], tmp_path / "run", SMALL, resume=True)


def test_run_of_an_older_version_can_be_scored_but_not_resumed(own: VLM, tmp_path: Path) -> None:
    task, path = create("mini-pope", count=1), tmp_path / "run"
    run(own, [task], [None], path, SMALL)
    described = json.loads((path / "run.json").read_text())
    described["configuration"]["model"] |= {"weights": "6d0855a958e43640"}
    (path / "run.json").write_text(json.dumps(described))
    with pytest.raises(RunError, match=r"older version, which hashed only part of the weights.*start a new run"):
        run(own, [task], [None], path, SMALL, resume=True)
    from heal.bench.run.folder import Folder

    assert summarise(Folder(path), tasks={"mini-pope:count=1": task}).missing == 0
