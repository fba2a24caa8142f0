"""Load a checkpoint, and reject it if weights, token ids or configuration do not match."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from heal import strict_json
from heal.errors import CheckpointError, HealWarning, ModelError, first_line, shortened

SHOWN = 3
"""Number of tensors of a kind that a message names."""
MOST_LAYERS = 10_000
"""Building more layers would take hours."""
POSITIVE = (
    "hidden_size embed_dim num_hidden_layers depth num_attention_heads num_heads "
    "num_key_value_heads head_dim vocab_size patch_size image_size max_position_embeddings"
).split()
"""Entries of a configuration that cannot be zero or negative."""
BUFFERS = re.compile(r"(position_ids|inv_freq|num_batches_tracked|masked_bias|attn\.bias)$")
"""Constants that older versions of transformers stored in the file. Current versions compute them."""
FLOATS = ("F16", "BF16", "F32", "F64")
"""Names of unpacked weight types in safetensors."""
OWN_IMAGE_ROW = ("paligemma", "gemma3", "gemma4", "gemma4_unified")
"""Families whose image token may be outside the embedding table, because their code never looks it up."""


def load_processor(name: str, **options: Any) -> Any:
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(name, **options)
    except Exception as error:  # malformed files raise many kinds of errors
        raise CheckpointError(
            f"no processor could be loaded from {name}: {first_line(error)}. A checkpoint needs its "
            "processor_config.json, tokenizer.json and chat_template.jinja beside the weights"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise CheckpointError(f"{name} has a tokenizer but no image processor: it is not a multimodal checkpoint")
    return processor


def load_config(name: str, **options: Any) -> Any:
    """The configuration, if it is valid."""
    from transformers import AutoConfig, PreTrainedConfig

    try:
        check_numbers(name, PreTrainedConfig.get_config_dict(name, **options)[0])
        config = AutoConfig.from_pretrained(name, **options)
    except CheckpointError:
        raise
    except Exception as error:  # configuration classes raise ZeroDivisionError, AttributeError …
        raise CheckpointError(f"the config.json of {name} cannot be used: {_said(error)}") from error
    check_vision_layer(name, config)
    return config


def load_model(name: str, config: Any, allow_incomplete: bool, **options: Any) -> Any:
    """The model, if the files contain exactly its tensors. safetensors only."""
    from transformers import AutoModelForImageTextToText

    try:
        check_beside(Path(name))
        if not allow_incomplete:
            check_size(name, config, options.get("trust_remote_code", False))
        model, info = AutoModelForImageTextToText.from_pretrained(
            name,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that the error message can name them
            **options,
        )
    except ModelError:
        raise
    except Exception as error:  # model classes raise AssertionError, KeyError …
        raise ModelError(f"{name} could not be loaded: {_said(error)}") from error
    check_tensors(name, info, allow_incomplete)
    return model


def _said(error: BaseException) -> str:
    """The error in one line. Validators of transformers put the reason into the second line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else first_line(error)
    return text if isinstance(error, (OSError, ValueError, RuntimeError)) else f"{type(error).__name__}: {text}"


# ── the configuration ─────────────────────────────────────────────────────────────────────────────────────────


def check_numbers(name: str, config: Mapping[str, Any]) -> None:
    """Reject zero heads, negative sizes and the like before they raise a ZeroDivisionError elsewhere."""
    for entry, value in config.items():
        if isinstance(value, Mapping):
            check_numbers(name, value)
        elif entry in POSITIVE and isinstance(value, (int, float)) and value < 1:
            raise CheckpointError(f"{entry} is {value} in the config.json of {name}: it must be 1 or more")
        elif entry in ("num_hidden_layers", "depth") and isinstance(value, int) and value > MOST_LAYERS:
            raise CheckpointError(
                f"{entry} is {value} in the config.json of {name}: at most {MOST_LAYERS} are allowed"
            )


def check_vision_layer(name: str, config: Any) -> None:
    """Check that the layer whose features the model reads exists."""
    depth = getattr(getattr(config, "vision_config", None), "num_hidden_layers", None)
    chosen = getattr(config, "vision_feature_layer", None)
    for layer in chosen if isinstance(chosen, (list, tuple)) else [chosen]:
        if isinstance(layer, int) and isinstance(depth, int) and not -depth - 1 <= layer <= depth:
            raise CheckpointError(
                f"vision_feature_layer is {layer} in the config.json of {name}, but the vision tower has {depth} "
                "layers"
            )


def check_beside(folder: Path) -> None:
    """Check other files of the folder that transformers would ignore silently."""
    adapter, generation = folder / "adapter_config.json", folder / "generation_config.json"
    if adapter.is_file() and find_spec("peft") is None:
        raise CheckpointError(
            f"{folder} has an adapter ({adapter.name}), which would not be applied: install peft, or merge it "
            "into the weights"
        )
    if not generation.is_file():
        return
    try:
        found = strict_json.parse(generation.read_text(encoding="utf-8"))
        tokens = found.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{generation} cannot be read: {first_line(error)}") from error
    if not all(isinstance(token, int | None) for token in (tokens if isinstance(tokens, list) else [tokens])):
        raise CheckpointError(f"eos_token_id is {shortened(tokens, 40)!r} in {generation}: it must be a number")


def check_size(name: str, config: Any, trust_remote_code: bool) -> None:
    """Check that the configuration does not describe a much larger model, which would get random weights."""
    from transformers import AutoModelForImageTextToText

    path = Path(name)
    if not path.is_dir() or getattr(config, "quantization_config", None) is not None:  # packed weights are fewer
        return
    there = sum(map(_elements, path.glob("*.safetensors")))
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, trust_remote_code=trust_remote_code)
    wanted = sum(p.numel() for p in model.parameters())
    if wanted > 2 * there + 10**6:
        raise CheckpointError(
            f"{name}: config.json describes a model of {wanted:,} weights, but its files have {there:,}: they do not "
            "match, or files are missing"
        )


def _elements(path: Path) -> int:
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            packed = [
                key for key, t in tensors.items() if not t.get_dtype().startswith(FLOATS) and not BUFFERS.search(key)
            ]
            shapes = [tensor.get_shape() for tensor in tensors.values()]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} could not be loaded: {first_line(error)}. Download it again") from error
    if packed:
        raise CheckpointError(
            f"{path} has packed weights ({_some(packed)}), but config.json has no quantization_config to read them"
        )
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


# ── the tensors ───────────────────────────────────────────────────────────────────────────────────────────────


def check_tensors(name: str, info: Mapping[str, Any], allow_incomplete: bool) -> None:
    """Check that model and files have the same tensors."""
    missing = [key for key in info["missing_keys"] if not BUFFERS.search(key)]
    unexpected = [key for key in info["unexpected_keys"] if not BUFFERS.search(key)]
    shapes = [f"{key} {list(file)} instead of {list(model)}" for key, file, model in info["mismatched_keys"]]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    found = [f"{len(keys)} {kind} ({_some(keys)})" for kind, keys in kinds.items() if keys]
    found += [shortened(text) for text in info.get("error_msgs", [])[:1]]
    if not found:
        return
    text = f"the weights of {name} do not fit its config.json: tensors " + ", ".join(found)
    if not allow_incomplete:
        raise CheckpointError(
            f"{text}. Missing tensors would be random. Download the complete checkpoint, or allow it with "
            "allow_incomplete=True (--allow-incomplete)"
        )
    warnings.warn(f"{text}. Missing tensors are random, so answers are unreliable", HealWarning, stacklevel=4)


def _some(keys: Collection[str]) -> str:
    """The first few names, in natural order."""
    ordered = sorted(
        keys,
        key=lambda key: [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", key)],
    )
    return ", ".join(shortened(key, 120) for key in ordered[:SHOWN]) + (", …" if len(keys) > SHOWN else "")


# ── model and tokenizer ───────────────────────────────────────────────────────────────────────────────────────


def check_tokens(name: str, model: Any, processor: Any) -> None:
    """Check that the model has an embedding for every id of the tokenizer, and that both use the same image token."""
    tokenizer = getattr(processor, "tokenizer", processor)
    rows = model.get_input_embeddings().weight.shape[0]
    vocabulary = tokenizer.get_vocab()
    own = model.config.model_type in OWN_IMAGE_ROW
    exempt = {getattr(model.config, key, None) for key in ("image_token_id", "video_token_id")} if own else set()
    beyond = sorted((i, word) for word, i in vocabulary.items() if i >= rows and i not in exempt)
    if beyond:
        number, word = beyond[-1]
        raise CheckpointError(
            f"the tokenizer of {name} has ids up to {number} ({shortened(word, 40)!r}), but the model has embeddings "
            f"for {rows} ids: they do not match, or the embeddings were not resized"
        )
    theirs, ours = getattr(processor, "image_token_id", None), getattr(model.config, "image_token_id", None)
    if isinstance(theirs, int) and isinstance(ours, int) and theirs != ours:
        raise CheckpointError(
            f"the image token of {name} is {theirs} in its processor, but {ours} in config.json: the model would not "
            "see its images"
        )
