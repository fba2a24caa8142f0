"""Checkpoints with a mutated configuration."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import torch

from heal import VLM
from tests.fuzz import odd
from tests.fuzz.asking import picture
from tests.fuzz.oracle import Draw, check
from tests.fuzz.stored import lasting, tiny

WEIGHTS = "model.safetensors"


@cache
def saved() -> Path:
    folder = lasting() / "checkpoint"
    tiny().model.save_pretrained(folder)
    tiny().processor.save_pretrained(folder)
    return folder


def checkpoints(draw: Draw) -> None:
    """A loaded model has all its weights from the file and answers; everything else is refused."""
    folder = Path(shutil.copytree(saved(), draw.place / "checkpoint"))
    names = sorted(p.name for p in folder.glob("*.json"))
    name = draw.choice([*names, "config.json", "config.json", "config.json", WEIGHTS, "chat_template.jinja"])
    path = folder / name
    if not path.is_file():
        name, path = "config.json", folder / "config.json"
    content = path.read_bytes()
    if draw.often(0.1):
        path.unlink()
        how = "missing"
    elif name.endswith(".json"):
        mutated = odd.mutate_document(draw, json.loads(content), False)
        path.write_bytes(mutated.content)
        how = mutated.how
    else:
        mutated = odd.mutate_bytes(draw, content) if name == WEIGHTS else odd.mutate_text(draw, content)
        path.write_bytes(mutated.content)
        how = mutated.how
    draw.show(f"{name}: {how}")
    vlm = VLM.load(folder)
    again = VLM.load(folder)
    others = again.model.state_dict()
    for key, weight in vlm.model.state_dict().items():
        same = torch.equal(weight, others[key]) or bool(weight.isnan().any())
        check(same, "weights that are not in the file were initialised")
    answer = vlm.generate(picture(draw), "what is this ?", max_new_tokens=2, do_sample=False)
    check(len(answer.token_ids) > 0, "an answer without tokens")
