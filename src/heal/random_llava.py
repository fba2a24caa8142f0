"""A small LLaVA with random weights, and with a real tokenizer and processor.

It is untrained and generates random words. It is meant for offline tests of everything else.
"""

from __future__ import annotations

from typing import Any

import torch

WORDS = (
    "a an the is are in on of with and near this image shows there two three man woman dog cat car bus bicycle table "
    "chair fork knife spoon bowl pizza cake laptop phone book clock vase bed bench bird horse sheep cow bear kite "
    "ball bottle cup banana apple orange red blue green yellow black white small large left right under behind "
    "standing sitting street room kitchen beach describe what how many color yes no person people please "
    "answer question ?"
).split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<image>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }} "
    "{% if m['content'] is string %}{{ m['content'] }} {% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} assistant {% endif %}"
)


def build_llava(vision: dict[str, Any], text: dict[str, Any], seed: int = 0, **config: Any) -> Any:
    """A LLaVA with random weights from the options of its vision, text and overall configurations."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    configs = {"vision_config": CLIPVisionConfig(**vision), "text_config": LlamaConfig(**text)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlavaForConditionalGeneration(LlavaConfig(**configs, **config)).eval()


def random_llava(seed: int = 0, layers: int = 6, heads: int = 8, kv_heads: int = 4, hidden: int = 64) -> Any:
    """The model without its processor."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        "initializer_range": 0.2,
    }
    text = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": len(SPECIAL) + len(WORDS) + 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = build_llava(vision, text, seed, image_token_id=4, vision_feature_layer=-1)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL)] = 0.0  # words only, so that it does not stop at random
    model.generation_config.update(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return model


def random_processor() -> Any:
    """A word tokenizer with a chat template, and CLIP's image processing."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    words = [*SPECIAL, *WORDS, "user", "assistant"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        padding_side="left",
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=CHAT_TEMPLATE,
    )
