"""Python overhead of hooks and bookkeeping: µs per token and layer on the embedded model, by cProfile."""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import heal
from heal.atomic_write import atomic_write
from heal.errors import HealWarning
from heal.launches import PLAIN, Subject, embedded_subject, variants
from heal.methods import HEAL, Method

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.launches import DOCUMENT, replaced

OURS = str(Path(heal.__file__).parent)
TORCH = str(Path(torch.__file__).parent)
TOKENS = 80
ROUNDS = 3
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Overhead:
    """µs per token and layer."""

    own: float
    """tottime of functions in heal's files."""
    called: float
    """tottime of Python functions of torch that heal called, directly or through others, by their callers' share."""
    kernels: float
    """tottime of built-in functions: torch's operations of heal and of the model."""
    total: float


def profile(subject: Subject, method: Method | None, tokens: int) -> Mapping[Key, Any]:
    """The profile of one greedy answer, prompt included."""
    profiler = cProfile.Profile()
    with warnings.catch_warnings(), method.attach(subject.model) if method else nullcontext():
        warnings.simplefilter("ignore", HealWarning)
        profiler.enable()
        subject.model.generate(**subject.inputs, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)
        profiler.disable()
    found: Mapping[Key, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return found


def shares(stats: Mapping[Key, Any]) -> dict[Key, float]:
    """For each Python function of torch, the share of its calls that come from heal. Some call each other."""
    found = {key: float(key[0].startswith(OURS)) for key in stats}
    for _ in range(8):  # deeper chains of calls are rare
        for key, (*_numbers, callers) in stats.items():
            calls = sum(numbers[1] for numbers in callers.values())
            if key[0].startswith(TORCH) and calls:
                found[key] = sum(numbers[1] * found.get(caller, 0.0) for caller, numbers in callers.items()) / calls
    return found


def overhead(stats: Mapping[Key, Any], tokens: int, layers: int) -> Overhead:
    share = shares(stats)
    scale = 1e6 / tokens / layers
    own = sum(row[2] for key, row in stats.items() if key[0].startswith(OURS))
    called = sum(row[2] * share[key] for key, row in stats.items() if key[0].startswith(TORCH))
    kernels = sum(row[2] for key, row in stats.items() if key[0] == "~")
    return Overhead(own * scale, called * scale, kernels * scale, sum(row[2] for row in stats.values()) * scale)


def main() -> None:
    torch.set_num_threads(1)
    subject = embedded_subject()
    methods, _ = variants(HEAL())
    found: dict[str, Overhead] = {}
    for name, method in methods.items():
        if name != PLAIN and name not in ("heal:fast", "vhr") and not name.startswith("heal:fused"):
            continue
        profile(subject, method, 2)  # warm-up
        rounds = [overhead(profile(subject, method, TOKENS), TOKENS, subject.layers) for _ in range(ROUNDS)]
        found[name] = min(rounds, key=lambda one: one.total)  # other jobs only add time
    record = {name: vars(one) for name, one in found.items()}
    atomic_write(DOCUMENT.parent / "results" / "overhead.json", (json.dumps(record, indent=1) + "\n").encode())
    atomic_write(DOCUMENT, replaced(DOCUMENT.read_text(), "overhead", table(found)).encode())


def table(found: Mapping[str, Overhead]) -> str:
    lines = [
        "| µs per token and layer | heal's Python | torch's, called from it | torch's operations | everything |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {one.own:.0f} | {one.called:.0f} | {one.kernels:.0f} | {one.total:.0f} |"
        for name, one in found.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
