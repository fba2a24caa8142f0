"""Checkpoints whose weights, token ids or templates do not match are rejected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heal import VLM
from heal.checkpoints import check_tensors, load_config, load_model
from heal.errors import CheckpointError, HealError, HealWarning, ModelError, PromptError
from tests import zoo
from tests.vlm.asking import PICTURES, PROMPTS, ask

Weights = dict[str, torch.Tensor]


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def change_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", zoo.NAMES)
def test_every_architecture_can_be_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = zoo.build(name)
    model.save_pretrained(tmp_path)
    config = load_config(str(tmp_path))
    found = load_model(str(tmp_path), config, False, dtype="auto").state_dict()
    assert all(torch.equal(weight, found[key]) for key, weight in model.state_dict().items())


def without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {key: value for key, value in weights.items() if part not in key}


def more_layers(folder: Path, by: int) -> None:
    def change(config: dict[str, Any]) -> None:
        config["text_config"]["num_hidden_layers"] += by

    change_json(folder / "config.json", change)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a layer is missing": (
        lambda f: change_weights(f, without("layers.3.")),
        r"tensors 9 missing \(model\.language_model\.layers\.3\.input_layernorm\.weight, .*, …\)",
    ),
    "one tensor is missing": (
        lambda f: change_weights(f, without("layers.3.self_attn.q_proj")),
        r"tensors 1 missing \(model\.language_model\.layers\.3\.self_attn\.q_proj\.weight\)\.",
    ),
    "two layers more": (lambda f: more_layers(f, 2), r"18 missing \(model\.language_model\.layers\.6\."),
    "two layers fewer": (lambda f: more_layers(f, -2), r"18 unexpected \(model\.language_model\.layers\.4\."),
    "no tensor fits": (
        lambda f: change_weights(f, lambda weights: {f"odd.{key}": value for key, value in weights.items()}),
        r"missing \(.*unexpected \(odd\.",
    ),
    "another shape": (
        lambda f: change_weights(
            f, lambda w: {k: v[:, :-1].contiguous() if "layers.0.mlp.up" in k else v for k, v in w.items()}
        ),
        r"1 of another shape \(.*up_proj\.weight \[128, 63\] instead of \[128, 64\]\)",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_weights_that_do_not_match_are_rejected(copied: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(copied)
    with pytest.raises(CheckpointError, match=message) as caught:
        VLM.load(copied)
    assert "allow_incomplete=True (--allow-incomplete)" in str(caught.value)
    with pytest.warns(HealWarning, match=message):
        assert VLM.load(copied, allow_incomplete=True).name == str(copied)


def test_constants_of_old_versions_are_ignored(copied: Path) -> None:
    extra = {
        "model.language_model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.vision_tower.vision_model.embeddings.position_ids": torch.arange(17)[None],
    }
    change_weights(copied, lambda weights: weights | extra)
    assert ask(VLM.load(copied)).finish == "length"
    empty: dict[str, Any] = {"missing_keys": ["a.inv_freq"], "unexpected_keys": [], "mismatched_keys": []}
    check_tensors("it", empty, allow_incomplete=False)


def test_a_model_much_larger_than_its_file_is_not_built(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers as hf

    change_json(copied / "config.json", lambda c: c["text_config"].update(vocab_size=10**9))
    monkeypatch.setattr(hf.AutoModelForImageTextToText, "from_pretrained", None)
    with pytest.raises(CheckpointError, match=r"a model of 128,000,264,896 weights, but its files have 276,288"):
        VLM.load(copied)


BESIDE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "broken generation": (
        lambda f: (f / "generation_config.json").write_text("{"),
        r"generation_config\.json cannot be read",
    ),
    "no generation": (
        lambda f: (f / "generation_config.json").write_text("[]"),
        r"generation_config\.json cannot be",
    ),
    "closing token": (
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
        "eos_token_id is '</s>' in .*: it must be a number",
    ),
    "packed weights": (
        lambda f: change_weights(f, lambda w: {k: v.to(torch.int8) if "up_proj" in k else v for k, v in w.items()}),
        r"packed weights \(.*layers\.0\.mlp\.up_proj.*no quantization_config",
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_files_that_transformers_ignores(copied: Path, name: str) -> None:
    damage, message = BESIDE[name]
    damage(copied)
    with pytest.raises(CheckpointError, match=message):
        VLM.load(copied)


def test_adapter_that_would_not_be_applied(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    monkeypatch.setattr("heal.checkpoints.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json\), which would not be applied: install peft"):
        VLM.load(copied)


# ── configurations ────────────────────────────────────────────────────────────────────────────────────────────

ABSURD: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": (
        {"num_attention_heads": 0},
        "num_attention_heads is 0 in the config.json of .*: it must be 1 or more",
    ),
    "no key heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    "negative": ({"num_attention_heads": -8}, "num_attention_heads is -8"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "endless layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 .* at most 10000 are allowed"),
    "odd heads": ({"num_attention_heads": 7}, "cannot be used: .*hidden size .* not a multiple"),
    "text for a number": ({"hidden_size": "x"}, "cannot be used: .*'hidden_size' expected int"),
    "no positions": ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    "unknown function": ({"hidden_act": "nonsense"}, "could not be loaded: .*nonsense"),
    "padding": ({"pad_token_id": 10**6}, "could not be loaded: AssertionError: Padding_idx"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_configurations(copied: Path, name: str) -> None:
    change, message = ABSURD[name]
    change_json(copied / "config.json", lambda config: config["text_config"].update(change))
    with pytest.raises(ModelError, match=message) as caught:
        VLM.load(copied)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image_token_index": 99, "image_token_id": 99},
            "image token of .* is 4 in its processor, but 99 in config",
        ),
        ({"vision_feature_layer": 99}, "vision_feature_layer is 99 .* vision tower has 2"),
        ({"text_config": 5}, "cannot be used"),
        ({"dtype": "float99"}, "cannot be used: .*float99"),
        ({"model_type": "nonsense"}, "cannot be used: .*nonsense"),
    ],
)
def test_absurd_multimodal_configurations(copied: Path, change: dict[str, Any], message: str) -> None:
    change_json(copied / "config.json", lambda config: config.update(change))
    with pytest.raises(HealError, match=message):
        VLM.load(copied)


def test_tokenizer_with_more_ids_than_the_model(copied: Path) -> None:
    processor = VLM.random().processor
    processor.tokenizer.add_tokens(["surplus"])
    processor.save_pretrained(copied)
    rows = VLM.random().model.get_input_embeddings().num_embeddings
    with pytest.raises(
        CheckpointError, match=rf"ids up to {rows} \('surplus'\), but the model has embeddings for {rows}"
    ):
        VLM.load(copied)


# ── chat templates ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}",
            "cannot be used: the chat template is broken at line 1: Unexpected end of template",
        ),
        ("{{ messages[0].no.where }}", "rejected by the model's chat template: 'dict object' has no attribute 'no'"),
        ("{{ 1 / 0 }}", "rejected by the model's chat template: division by zero"),
        ("{{ raise_exception('never') }}", "rejected by the model's chat template: never"),
    ],
)
def test_broken_chat_template(copied: Path, template: str, message: str) -> None:
    (copied / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=message):
        VLM.load(copied)


def test_template_that_rejects_one_prompt(own: VLM) -> None:
    own.processor.chat_template = (
        "{% if messages | length > 1 %}{{ raise_exception('one turn only ' + 'x' * 5000) }}{% endif %}"
        + own.processor.chat_template
    )
    assert ask(own).finish == "length"
    talk = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "a dog"}]
    with pytest.raises(
        PromptError, match="prompt 0 is rejected by the model's chat template: one turn only"
    ) as caught:
        own.generate(None, talk)
    assert len(str(caught.value)) < 400


def test_template_that_drops_the_image(own: VLM) -> None:
    own.processor.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(CheckpointError, match="the image of prompt 1 has no tokens in the model input"):
        own.inputs([None, PICTURES[0]], PROMPTS[:2])
