"""The decoder's arguments to run the last prompt position again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heal.engine.transformers_api import Cache


def last_position(kwargs: dict[str, Any], cache: Cache, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The decoder's arguments for the last position only."""
    out = dict(kwargs)
    for name in ("inputs_embeds", "input_ids"):
        if out.get(name) is not None:
            out[name] = out[name][:, -1:]
    if out.get("position_ids") is not None:
        out["position_ids"] = out["position_ids"][..., -1:]
    if out.get("visual_pos_masks") is not None:
        visual = out["visual_pos_masks"]
        last = torch.zeros_like(visual)
        last[:, -1] = True
        out["visual_pos_masks"] = visual[:, -1:]
        out["deepstack_visual_embeds"] = [features[last[visual]] for features in out["deepstack_visual_embeds"]]
    mask = out.get("attention_mask")
    if isinstance(mask, dict):
        out["attention_mask"] = {
            kind: _last_row(m, cache, kinds.index(kind)) if kind in kinds else m for kind, m in mask.items()
        }
    else:
        out["attention_mask"] = _last_row(mask, cache, 0)
    return out


def _last_row(mask: Tensor | None, cache: Cache, layer: int) -> Tensor | None:
    if mask is None or mask.dim() != 4:
        return mask
    length, _ = cache.get_mask_sizes(1, layer)  # a sliding layer has fewer keys than in the prompt pass
    return mask[:, :, -1:, -length:]
