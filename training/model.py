"""The embedded model's architecture, tokenizer and processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}USER: {% elif m['role'] == 'assistant' %}"
    "ASSISTANT: {% else %}{% endif %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>\n{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% if m['role'] == 'assistant' %}{{ eos_token }}{% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def train_tokenizer(texts: Iterator[str]) -> Any:
    """Train a byte-level BPE: few tokens for text of the world, more for other text."""
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=["<image>"],
        padding_side="left",
        model_max_length=1024,
    )


def processor(tokenizer: Any) -> Any:
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    side = {"height": 96, "width": 96}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=side, crop_size=side, do_center_crop=False),
        tokenizer=tokenizer,
        patch_size=12,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=CHAT_TEMPLATE,
    )


def build(tokenizer: Any, hidden: int, layers: int, heads: int, kv_heads: int, vision_hidden: int) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=vision_hidden,
        intermediate_size=3 * vision_hidden,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=96,
        patch_size=12,
        hidden_act="gelu",
    )
    text = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=(hidden * 27 // 10) // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        initializer_range=hidden**-0.5,  # 0.02 suits wide models: narrow ones learn attention much later with it
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=64,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    for name, parameter in model.model.language_model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):  # residual outputs, two per layer
            parameter.data /= (2 * layers) ** 0.5
    model.generation_config.update(
        pad_token_id=text.pad_token_id, bos_token_id=text.bos_token_id, eos_token_id=text.eos_token_id
    )
    return model
