"""Loading: dtypes, devices, damaged checkpoints, and remote code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from heal import VLM
from heal.errors import CheckpointError, ConfigError, HealError, ModelError
from tests.vlm.asking import PATCHES, PICTURES, PROMPTS, ask, assert_alike, same


def test_a_loaded_model_equals_the_saved_one(vlm: VLM, saved: Path) -> None:
    loaded = VLM.load(saved)
    assert (loaded.name, loaded.model.dtype, loaded.model.training) == (str(saved), torch.float32, False)
    assert loaded.device == torch.device("cpu")
    assert all(torch.equal(w, loaded.model.state_dict()[name]) for name, w in vlm.model.state_dict().items())
    assert same(loaded.inputs([PICTURES[0]], [PROMPTS[0]]), vlm.inputs([PICTURES[0]], [PROMPTS[0]]))
    assert_alike(ask(loaded), ask(vlm))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        (torch.float16, torch.float16),
    ],
)
def test_load_in_a_dtype(saved: Path, dtype: str | torch.dtype, expected: torch.dtype) -> None:
    loaded = VLM.load(saved, dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {expected}
    assert loaded.inputs([PICTURES[0]], [PROMPTS[0]])["pixel_values"].dtype == expected


@pytest.mark.parametrize("dtype", ["int8", "float7", "", "nn"])
def test_wrong_dtype(saved: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype cannot be '{dtype}': choose auto, float32, bfloat16 or float16"):
        VLM.load(saved, dtype=dtype)


@pytest.mark.parametrize("place", [{"device": "cpu"}, {"device": torch.device("cpu")}, {"device_map": "cpu"}])
def test_load_to_a_device(vlm: VLM, saved: Path, place: dict[str, Any]) -> None:
    loaded = VLM.load(saved, **place)
    assert loaded.device == torch.device("cpu")
    assert ask(loaded).token_ids == ask(vlm).token_ids


def test_device_and_device_map_are_exclusive(saved: Path) -> None:
    with pytest.raises(ConfigError, match="either device or device_map"):
        VLM.load(saved, device="cpu", device_map="auto")


@pytest.mark.parametrize("place", [{"device": "nonsense"}, {"device_map": "nonsense"}, {"device": "cuda:63"}])
def test_device_that_does_not_exist(saved: Path, place: dict[str, Any]) -> None:
    with pytest.raises(HealError, match=r"nonsense|there is no device"):
        VLM.load(saved, **place)


def test_missing_folder(tmp_path: Path) -> None:
    for name in (tmp_path / "missing", "./missing", "../missing"):
        with pytest.raises(CheckpointError, match="there is no checkpoint at "):
            VLM.load(name)


def test_a_file_is_not_a_checkpoint(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a folder with a config\.json"):
        VLM.load(saved / "config.json")


BREAKAGES: dict[str, tuple[Callable[[Path], Any], type[HealError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), CheckpointError, r"with a config\.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), CheckpointError, "."),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), CheckpointError, r"no \*\.safetensors weights"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        CheckpointError,
        "convert older formats",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), CheckpointError, "no processor could be loaded"),
    "no image processor": (
        lambda f: (f / "processor_config.json").unlink(),
        CheckpointError,
        r"needs its processor_config\.json, tokenizer\.json and chat_template\.jinja",
    ),
    "cut weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1000]),
        ModelError,
        "could not be loaded",
    ),
    "other weights": (
        lambda f: reshape(f),
        CheckpointError,
        r"18 of another shape \(model.* \[64, 128\] instead of \[64, 64\]",
    ),
}


def reshape(folder: Path) -> None:
    """A configuration of other weights."""
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] //= 2
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", BREAKAGES)
def test_incomplete_checkpoint(copied: Path, name: str) -> None:
    damage, error, message = BREAKAGES[name]
    damage(copied)
    with pytest.raises(error, match=message) as caught:
        VLM.load(copied)
    assert str(copied) in str(caught.value)


def test_text_checkpoint(own: VLM, tmp_path: Path) -> None:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=99, **size)).save_pretrained(tmp_path)
    own.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="it is not a multimodal checkpoint"):
        VLM.load(tmp_path)
    own.processor.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="could not be loaded"):
        VLM.load(tmp_path)


def record(monkeypatch: pytest.MonkeyPatch, auto: Any) -> list[dict[str, Any]]:
    original, calls = auto.from_pretrained, []

    def spy(name: str, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return original(name, **kwargs)

    monkeypatch.setattr(auto, "from_pretrained", spy)
    return calls


@pytest.mark.parametrize("trust", [False, True])
def test_code_and_pickles_are_not_trusted(saved: Path, monkeypatch: pytest.MonkeyPatch, trust: bool) -> None:
    models = record(monkeypatch, hf.AutoModelForImageTextToText)
    processors = record(monkeypatch, hf.AutoProcessor)
    options: dict[str, Any] = {"trust_remote_code": True, "revision": "main"} if trust else {}
    VLM.load(saved, **options)
    (model,), (processor,) = models, processors
    assert model["use_safetensors"] is True
    assert model["trust_remote_code"] is processor["trust_remote_code"] is trust
    assert model["revision"] == processor["revision"] == ("main" if trust else None)


def test_code_of_a_checkpoint_does_not_run(copied: Path) -> None:
    marker = copied / "it_ran"
    (copied / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    autos = ("AutoConfig", "AutoModelForImageTextToText", "AutoProcessor")
    for name in ("config.json", "processor_config.json"):
        found = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps(found | {"auto_map": dict.fromkeys(autos, "own.Own")}))
    assert ask(VLM.load(copied)).finish == "length"
    assert not marker.exists()


def test_a_tokenizer_without_a_padding_token_gets_one(vlm: VLM) -> None:
    processor = VLM.random().processor
    processor.tokenizer.pad_token = None
    other = VLM(vlm.model, processor)
    assert other.tokenizer.pad_token_id == other.tokenizer.eos_token_id == 2
    assert other.name == "LlavaForConditionalGeneration"


def test_checkpoint_without_a_chat_template(vlm: VLM, copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    loaded = VLM.load(copied)
    ids = loaded.inputs([PICTURES[0]], [PROMPTS[0]])["input_ids"][0].tolist()
    words = vlm.tokenizer(PROMPTS[0])["input_ids"]
    assert ids == [4] * PATCHES + words
