"""Generations of tiny models, plain and with a method, shared by all laws."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from heal import Fired, Method
from heal.engine.source import Source
from heal.errors import HealWarning
from tests import spoken, zoo
from tests.known import known
from tests.zoo import Row

WINDOW = "gemma3_window"
"""Gemma 3 with a sliding window of 8 positions, shorter than every prompt."""
EVERY = (*zoo.NAMES, WINDOW)
NEW = 4
LAYERS, HEADS = 3, 8  # of every model of the zoo

ROWS = (
    Row(),
    Row(text_before=6, text_after=9, salt=1),
    Row(images=2, salt=7),
    Row(images=0, salt=3),
)
WITH_VIDEO = Row(images=1, video_frames=3, salt=6)


def rows_of(name: str) -> tuple[Row, ...]:
    """Includes a row with a video if the model supports videos."""
    return (*ROWS, WITH_VIDEO) if name in zoo.WITH_VIDEO else ROWS


@dataclass(frozen=True, eq=False)
class Run:
    """One generation: the new tokens, the raw logits of each step, and the counted changes."""

    tokens: Tensor
    logits: Tensor
    output: Any
    records: tuple[Any, ...] = ()
    fired: Fired | None = None
    rows: tuple[Fired, ...] = ()

    def stacked(self, name: str) -> Tensor:
        """A field of the records [rows, steps, layers, heads]."""
        return torch.stack([record.values[name] for record in self.records], 1)


def build(name: str) -> PreTrainedModel:
    return zoo.build("gemma3", sliding_window=8) if name == WINDOW else zoo.build(name)


model_of = cache(build)


def inputs_of(name: str, rows: tuple[Row, ...], causal: bool = False) -> dict[str, Tensor]:
    """`causal` makes the last prompt position of PaliGemma causal."""
    batch = zoo.inputs(model_of(name), list(rows))
    if causal and name.startswith("paligemma"):
        batch["token_type_ids"][:, -1] = 1
    return batch


def source_of(method: Method, batch: dict[str, Tensor]) -> Source | None:
    """A tokenizer for methods that read the answer."""
    return spoken.source(len(batch["input_ids"])) if method.wraps else None


def generate(
    model: PreTrainedModel,
    batch: dict[str, Tensor],
    method: Method | None = None,
    trace: bool = True,
    new: int = NEW,
    **options: Any,
) -> Run:
    options = {"max_new_tokens": new, "output_logits": True, "return_dict_in_generate": True} | options
    if method is None:
        return _run(model.generate(**batch, **options), new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)  # text-only rows are often among those compared
        with method.attach(model, trace=trace, source=source_of(method, batch)) as handle:
            output = model.generate(**batch, **options)
    state = known(handle.attachment.latest).state
    rows = tuple(handle.row([row] * new) for row in range(output.logits[0].shape[0]))
    return _run(output, new, tuple(state.records), handle.fired, rows)


def _run(output: Any, new: int, *told: Any) -> Run:
    return Run(output.sequences[:, -new:], torch.stack(output.logits, 1), output, *told)


@cache
def run(
    name: str,
    method: Method | None = None,
    rows: tuple[Row, ...] = ROWS,
    causal: bool = False,
    seed: int | None = None,
    **options: Any,
) -> Run:
    """A generation that is cached for all tests. `seed` is the seed of torch, for sampling."""
    if seed is not None:
        torch.manual_seed(seed)
    return generate(model_of(name), inputs_of(name, rows, causal), method, **options)


def footprint(model: PreTrainedModel) -> Any:
    """Hooks, attributes and settings that attaching could leave changed."""
    hooks = {
        name: [len(vars(module)[kind]) for kind in vars(module) if kind.endswith("_hooks")]
        for name, module in model.named_modules()
    }
    configs = {
        name: module.config._attn_implementation
        for name, module in model.named_modules()
        if hasattr(module, "config")
    }
    return hooks, configs, {name: set(vars(module)) for name, module in model.named_modules()}
