"""Tiny random-weight multimodal models of real architectures, and inputs for them.

`build` creates a model of some hundred thousand parameters from the architecture's configuration classes,
without files or network. `inputs` creates a left-padded batch from short descriptions of its rows, as
tensors, without a processor. Everything is determined by the seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Literal

import torch
import transformers as hf
from torch import Tensor

PAD, BOS, IMAGE, VIDEO, VISION_START, VISION_END, VOCAB = 0, 1, 150, 151, 152, 153, 160
FIRST_TEXT = 2  # text ids are FIRST_TEXT .. IMAGE - 1
BETWEEN = 2  # text tokens between two visual blocks of a row

_SALTS = 10**6  # salts of one seed
_GRID = (4, 6)  # Qwen: patches of one image or video step; not square, so that height and width differ
_PATCH = 3 * 2 * 4 * 4  # Qwen: channels, frames of a step, height, width


@dataclass(frozen=True)
class Row:
    """One row of a batch: its text and visual content, and a salt that varies both."""

    text_before: int = 3
    images: int = 1
    text_after: int = 5
    video_frames: int = 0
    salt: int = 0


@dataclass(frozen=True)
class Arch:
    """The configuration of an architecture, and the inputs for one image."""

    model: type[hf.PreTrainedModel]
    config: Callable[[dict[str, Any]], hf.PreTrainedConfig]
    pixels: tuple[int, ...]  # shape of one image
    tokens: int  # placeholders of one image
    # a video is refused, a run of images, one block of placeholders, or a block for every two frames
    video: Literal["no", "images", "block", "steps"] = "no"


def _text(cls: type[hf.PreTrainedConfig], overrides: dict[str, Any], **family: Any) -> hf.PreTrainedConfig:
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    return cls(**(common | family | overrides))


def _vit(cls: type[hf.PreTrainedConfig], image_size: int, **family: Any) -> hf.PreTrainedConfig:
    return cls(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=image_size,
        patch_size=4,
        **family,
    )


def _llava(text: dict[str, Any]) -> hf.PreTrainedConfig:
    return hf.LlavaConfig(
        vision_config=_vit(hf.CLIPVisionConfig, 12),
        text_config=_text(hf.LlamaConfig, text, num_key_value_heads=8),  # Vicuna has no grouped heads
        image_token_index=IMAGE,
        image_seq_length=9,
    )


def _llava_next(text: dict[str, Any]) -> hf.PreTrainedConfig:
    return hf.LlavaNextConfig(
        vision_config=_vit(hf.CLIPVisionConfig, 8),
        text_config=_text(hf.MistralConfig, text, sliding_window=None),
        image_token_index=IMAGE,
        image_seq_length=4,
        image_grid_pinpoints=[[8, 16], [16, 8], [16, 16]],
    )


_QWEN_IDS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def _set_sections(config: hf.PreTrainedConfig, head_dim: int, temporal: int, spatial: int) -> None:
    """Divide the rotary frequencies among time, height and width, similar to the real models."""
    side = head_dim // 2 * spatial // (temporal + 2 * spatial)
    config.rope_parameters["mrope_section"] = [head_dim // 2 - 2 * side, side, side]


def _qwen2_vl(text: dict[str, Any]) -> hf.PreTrainedConfig:
    text_config = _text(hf.Qwen2VLTextConfig, text)
    _set_sections(text_config, text_config.hidden_size // text_config.num_attention_heads, 2, 3)
    vision_config = hf.Qwen2VLVisionConfig(
        depth=2, embed_dim=32, hidden_size=text_config.hidden_size, num_heads=4, mlp_ratio=2, patch_size=4
    )
    return hf.Qwen2VLConfig(text_config=text_config, vision_config=vision_config, **_QWEN_IDS)


def _qwen2_5_vl(text: dict[str, Any]) -> hf.PreTrainedConfig:
    text_config = _text(hf.Qwen2_5_VLTextConfig, text)
    _set_sections(text_config, text_config.hidden_size // text_config.num_attention_heads, 2, 3)
    vision_config = hf.Qwen2_5_VLVisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=48,
        num_heads=4,
        patch_size=4,
        window_size=16,
        out_hidden_size=text_config.hidden_size,
        fullatt_block_indexes=[1],
    )
    return hf.Qwen2_5_VLConfig(text_config=text_config, vision_config=vision_config, **_QWEN_IDS)


def _qwen3_vision(cls: type[hf.PreTrainedConfig], text_config: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    return cls(
        depth=3,
        hidden_size=32,
        intermediate_size=48,
        num_heads=4,
        patch_size=4,
        num_position_embeddings=16,
        out_hidden_size=text_config.hidden_size,
        deepstack_visual_indexes=[0, 1],
    )


def _qwen3_vl(text: dict[str, Any]) -> hf.PreTrainedConfig:
    text_config = _text(hf.Qwen3VLTextConfig, text, head_dim=16)
    _set_sections(text_config, text_config.head_dim, 6, 5)
    vision_config = _qwen3_vision(hf.Qwen3VLVisionConfig, text_config)
    return hf.Qwen3VLConfig(text_config=text_config, vision_config=vision_config, **_QWEN_IDS)


def _qwen3_vl_moe(text: dict[str, Any]) -> hf.PreTrainedConfig:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    text_config = _text(hf.Qwen3VLMoeTextConfig, text, head_dim=16, **experts)
    _set_sections(text_config, text_config.head_dim, 6, 5)
    vision_config = _qwen3_vision(hf.Qwen3VLMoeVisionConfig, text_config)
    return hf.Qwen3VLMoeConfig(text_config=text_config, vision_config=vision_config, **_QWEN_IDS)


def _internvl(text_config: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    return hf.InternVLConfig(
        vision_config=_vit(hf.InternVLVisionConfig, 24),
        text_config=text_config,
        image_token_id=IMAGE,
        image_seq_length=9,
        tie_word_embeddings=False,
    )


def _internvl_qwen2(text: dict[str, Any]) -> hf.PreTrainedConfig:
    return _internvl(_text(hf.Qwen2Config, text))


def _internvl_qwen3(text: dict[str, Any]) -> hf.PreTrainedConfig:
    return _internvl(_text(hf.Qwen3Config, text, head_dim=16))


def _internvl_llama(text: dict[str, Any]) -> hf.PreTrainedConfig:
    """The first InternVL chat models (Vicuna, InternLM2) after conversion."""
    return _internvl(_text(hf.LlamaConfig, text))


def _idefics3(text: dict[str, Any]) -> hf.PreTrainedConfig:
    vision_config = _vit(hf.Idefics3VisionConfig, 24)
    text_config = _text(hf.LlamaConfig, text)
    return hf.Idefics3Config(vision_config=vision_config, text_config=text_config, image_token_id=IMAGE)


def _smolvlm(text: dict[str, Any]) -> hf.PreTrainedConfig:
    vision_config = _vit(hf.SmolVLMVisionConfig, 24)
    text_config = _text(hf.LlamaConfig, text)
    return hf.SmolVLMConfig(vision_config=vision_config, text_config=text_config, image_token_id=IMAGE)


def _paligemma(text: dict[str, Any]) -> hf.PreTrainedConfig:
    text_config = _text(hf.GemmaConfig, text, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True)
    return hf.PaliGemmaConfig(
        vision_config=_vit(hf.SiglipVisionConfig, 12, vision_use_head=False),
        text_config=text_config,
        image_token_index=IMAGE,
        projection_dim=text_config.hidden_size,
    )


def _paligemma2(text: dict[str, Any]) -> hf.PreTrainedConfig:
    """PaliGemma with a Gemma 2 backbone. The caps are low enough to have an effect at this size."""
    text_config = _text(
        hf.Gemma2Config,
        text,
        num_key_value_heads=4,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
        sliding_window=128,
        tie_word_embeddings=True,
    )
    return hf.PaliGemmaConfig(
        vision_config=_vit(hf.SiglipVisionConfig, 12, vision_use_head=False),
        text_config=text_config,
        image_token_index=IMAGE,
        projection_dim=text_config.hidden_size,
    )


def _llava_next_granite(text: dict[str, Any]) -> hf.PreTrainedConfig:
    """Granite Vision: the outputs of attention and feed-forward blocks are scaled down."""
    return hf.LlavaNextConfig(
        vision_config=_vit(hf.CLIPVisionConfig, 8),
        text_config=_text(hf.GraniteConfig, text, residual_multiplier=0.22, attention_multiplier=0.35),
        image_token_index=IMAGE,
        image_seq_length=4,
        image_grid_pinpoints=[[8, 16], [16, 8], [16, 16]],
    )


def _gemma3(text: dict[str, Any]) -> hf.PreTrainedConfig:
    text_config = _text(
        hf.Gemma3TextConfig,
        text,
        num_key_value_heads=4,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=128,
        sliding_window_pattern=2,
        tie_word_embeddings=True,
    )
    return hf.Gemma3Config(
        vision_config=_vit(hf.SiglipVisionConfig, 24, vision_use_head=False),
        text_config=text_config,
        mm_tokens_per_image=9,
        image_token_index=IMAGE,
        boi_token_index=VISION_START,
        eoi_token_index=VISION_END,
    )


_QWEN_IMAGE = ((_GRID[0] * _GRID[1], _PATCH), _GRID[0] * _GRID[1] // 4)

_ARCHS: dict[str, Arch] = {
    "llava": Arch(hf.LlavaForConditionalGeneration, _llava, (3, 12, 12), 9),
    # one row of two tiles: 4 base features, then 2 lines of 4 features and a newline
    "llava_next": Arch(hf.LlavaNextForConditionalGeneration, _llava_next, (3, 3, 8, 8), 14),
    "qwen2_vl": Arch(hf.Qwen2VLForConditionalGeneration, _qwen2_vl, *_QWEN_IMAGE, "block"),
    "qwen2_5_vl": Arch(hf.Qwen2_5_VLForConditionalGeneration, _qwen2_5_vl, *_QWEN_IMAGE, "block"),
    "qwen3_vl": Arch(hf.Qwen3VLForConditionalGeneration, _qwen3_vl, *_QWEN_IMAGE, "steps"),
    "qwen3_vl_moe": Arch(hf.Qwen3VLMoeForConditionalGeneration, _qwen3_vl_moe, *_QWEN_IMAGE, "steps"),
    "internvl_qwen2": Arch(hf.InternVLForConditionalGeneration, _internvl_qwen2, (3, 24, 24), 9, "images"),
    "internvl_qwen3": Arch(hf.InternVLForConditionalGeneration, _internvl_qwen3, (3, 24, 24), 9, "images"),
    "internvl_llama": Arch(hf.InternVLForConditionalGeneration, _internvl_llama, (3, 24, 24), 9, "images"),
    "idefics3": Arch(hf.Idefics3ForConditionalGeneration, _idefics3, (3, 24, 24), 9),
    "smolvlm": Arch(hf.SmolVLMForConditionalGeneration, _smolvlm, (3, 24, 24), 9, "images"),
    "paligemma": Arch(hf.PaliGemmaForConditionalGeneration, _paligemma, (3, 12, 12), 9),
    "gemma3": Arch(hf.Gemma3ForConditionalGeneration, _gemma3, (3, 24, 24), 9),
    "paligemma2": Arch(hf.PaliGemmaForConditionalGeneration, _paligemma2, (3, 12, 12), 9),
    "llava_next_granite": Arch(hf.LlavaNextForConditionalGeneration, _llava_next_granite, (3, 3, 8, 8), 14),
}

GRANITE = "llava_next_granite"
"""Models that are used only in the tests of their special factor."""
NAMES: tuple[str, ...] = tuple(name for name in _ARCHS if name != GRANITE)
CORE: tuple[str, ...] = NAMES[:9]
WITH_VIDEO: tuple[str, ...] = tuple(name for name, arch in _ARCHS.items() if arch.video != "no")


@torch.no_grad()
def _draw_weights(model: hf.PreTrainedModel) -> None:
    """Redraw the weights at unit scale. With the default weights, attention is uniform and images have no effect."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape)
        if weight.ndim == 1:
            # around the 0 of a bias, the 0 or 1 of a norm; larger norms of queries and keys sharpen attention
            weight.add_(0.2 * noise + (0.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 0))
        else:
            fan_in = weight.shape[-1] if weight.ndim <= 3 else weight[0].numel()
            weight.copy_(1.5 * noise / fan_in**0.5)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if table is not head:
        table.mul_(table.shape[-1] ** 0.5)
    else:
        # a large tied embedding would repeat each token: shrink it, and scale the logits back
        table.mul_(0.1)
        model.get_decoder().norm.weight.add_(8)
    for weight in {table, head}:
        weight[IMAGE:].mul_(0.01)  # so that greedy decoding never generates a placeholder


def build(name: str, seed: int = 0, **text_overrides: Any) -> hf.PreTrainedModel:
    """The model `name` with the weights of `seed`. Overrides such as `sliding_window=8` go to its text config."""
    arch = _ARCHS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = arch.model(arch.config(text_overrides))
        _draw_weights(model)
    generation = model.generation_config
    generation.eos_token_id, generation.pad_token_id, generation.do_sample = None, PAD, False
    return model.eval()


def _steps(frames: int) -> int:
    return (frames + 1) // 2  # Qwen merges two frames


def _ids(arch: Arch, row: Row, seed: int) -> Tensor:
    blocks = [(IMAGE, arch.tokens)] * row.images
    if row.video_frames and arch.video == "no":
        raise ValueError(f"{arch.model.__name__} takes no video")
    if row.video_frames:
        steps = _steps(row.video_frames)
        blocks += {
            "images": [(IMAGE, arch.tokens)] * row.video_frames,
            "block": [(VIDEO, arch.tokens * steps)],
            "steps": [(VIDEO, arch.tokens)] * steps,
        }[arch.video]
    lengths = [row.text_before, *[BETWEEN] * (len(blocks) - 1), row.text_after]
    rng = torch.Generator().manual_seed(2 * (_SALTS * seed + row.salt))
    text = torch.randint(FIRST_TEXT, IMAGE, (sum(lengths),), generator=rng)
    text[:1] = BOS
    visual = [torch.full((count,), token) for token, count in blocks]
    return torch.cat([*chain.from_iterable(zip_longest(text.split(lengths), visual, fillvalue=text[:0]))])


def _pixels(arch: Arch, row: Row, seed: int) -> tuple[Tensor, Tensor]:
    """The images (n, ...) and the video (patches, ...) of a row."""
    rng = torch.Generator().manual_seed(2 * (_SALTS * seed + row.salt) + 1)
    as_images = arch.video == "images"
    images = row.images + (row.video_frames if as_images else 0)
    steps = 0 if as_images else _steps(row.video_frames)
    image_pixels = torch.randn(images, *arch.pixels, generator=rng)
    return image_pixels, torch.randn(steps * arch.pixels[0], *arch.pixels[1:], generator=rng)


def inputs(model: hf.PreTrainedModel, rows: list[Row], seed: int = 0) -> dict[str, Tensor]:
    """A left-padded batch of `rows` for `model`. A row has the same tokens and pixels in any batch."""
    arch = next(arch for arch in _ARCHS.values() if isinstance(model, arch.model))
    kind = model.config.model_type

    ids = [_ids(arch, row, seed) for row in rows]
    width = max(len(row_ids) for row_ids in ids)
    batch = {
        "input_ids": torch.stack([torch.nn.functional.pad(r, (width - len(r), 0), value=PAD) for r in ids]),
        "attention_mask": torch.stack([(torch.arange(width) >= width - len(r)).long() for r in ids]),
    }
    is_image, is_video = batch["input_ids"] == IMAGE, batch["input_ids"] == VIDEO
    if kind.startswith("qwen"):
        batch["mm_token_type_ids"] = is_image.long() + 2 * is_video.long()
    elif kind == "gemma3":
        batch["token_type_ids"] = is_image.long()
    elif kind == "paligemma":
        # 0 is the bidirectional prompt; without it, the library uses it only in a batch without padding
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])

    per_row = [_pixels(arch, row, seed) for row in rows]
    images = torch.cat([image for image, _ in per_row])
    videos = torch.cat([video for _, video in per_row])
    if len(images) and kind in ("idefics3", "smolvlm"):
        stacked = torch.nn.utils.rnn.pad_sequence([image for image, _ in per_row], batch_first=True)
        batch["pixel_values"] = stacked  # rows with fewer images are padded with zeros, which the model drops
        batch["pixel_attention_mask"] = stacked.ne(0).any(2).long()
    elif len(images) and kind.startswith("qwen"):
        batch["pixel_values"] = images.flatten(0, 1)
        batch["image_grid_thw"] = torch.tensor([[1, *_GRID]] * len(images))
    elif len(images):
        batch["pixel_values"] = images
    if len(images) and kind == "llava_next":
        batch["image_sizes"] = torch.tensor([[8, 16]] * len(images))
    if len(videos):
        steps = [_steps(row.video_frames) for row in rows if row.video_frames]
        batch["pixel_values_videos"] = videos
        batch["video_grid_thw"] = torch.tensor([[n, *_GRID] for n in steps])
        if kind == "qwen2_5_vl":
            batch["second_per_grid_ts"] = torch.full((len(steps),), 0.5)
    return batch


def visual_mask(model: hf.PreTrainedModel, input_ids: Tensor) -> Tensor:
    """True at the placeholders of images and videos."""
    config = model.config
    placeholders = [config.image_token_id, getattr(config, "video_token_id", config.image_token_id)]
    return torch.isin(input_ids, torch.tensor(placeholders, device=input_ids.device))
