"""Supported architectures. Each is tested on a tiny model built from its real configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    family: str
    """`model_type` of the configuration."""
    title: str
    examples: str
    core: bool = True
    """False: not one of the model families of the paper."""


ARCHITECTURES = (
    Architecture("llava", "LLaVA-1.5", "llava-hf/llava-1.5-7b-hf"),
    Architecture("llava_next", "LLaVA-NeXT", "llava-hf/llava-v1.6-mistral-7b-hf"),
    Architecture("qwen2_vl", "Qwen2-VL", "Qwen/Qwen2-VL-7B-Instruct"),
    Architecture("qwen2_5_vl", "Qwen2.5-VL", "Qwen/Qwen2.5-VL-7B-Instruct"),
    Architecture("qwen3_vl", "Qwen3-VL", "Qwen/Qwen3-VL-8B-Instruct"),
    Architecture("qwen3_vl_moe", "Qwen3-VL MoE", "Qwen/Qwen3-VL-30B-A3B-Instruct"),
    Architecture("internvl", "InternVL3 and 3.5", "OpenGVLab/InternVL3-8B-hf, OpenGVLab/InternVL3_5-8B-HF"),
    Architecture("idefics3", "Idefics3", "HuggingFaceM4/Idefics3-8B-Llama3", core=False),
    Architecture("smolvlm", "SmolVLM", "HuggingFaceTB/SmolVLM2-2.2B-Instruct", core=False),
    Architecture(
        "paligemma", "PaliGemma, 2", "google/paligemma-3b-mix-224, google/paligemma2-3b-mix-224", core=False
    ),
    Architecture("gemma3", "Gemma 3", "google/gemma-3-4b-it", core=False),
)
