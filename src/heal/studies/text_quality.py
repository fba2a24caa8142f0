"""Quality of texts as texts: BLEU against reference captions, repeated n-grams, answers that were cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heal.bench.tasks.base import Number, ratio
from heal.bench.tasks.chair import Chair
from heal.bench.tasks.data_files import need_id, need_list, need_text, read_object
from heal.bench.tasks.image_files import image_key
from heal.bench.tasks.miniature import SceneImage
from heal.bench.tasks.word_tokens import tokens
from heal.extras import optional
from heal.studies.setup import Setup

ORDER = 4
"""Longest n-grams of BLEU, and the length of the n-grams whose repetition is counted."""
DESCRIPTIONS = 5
"""Reference descriptions of a scene; COCO has as many captions of an image."""
CAPTIONS = "captions_val2014.json"


def fluency_counts(text: str, cut: bool) -> dict[str, float]:
    """The n-grams of words, how many of them repeat an earlier one of the text, and whether the text was cut."""
    words = [word.lower() for word in tokens(text)]
    grams = [tuple(words[at : at + ORDER]) for at in range(len(words) - ORDER + 1)]
    return {
        "answers": 1.0,
        "cut": float(cut),
        "grams": float(len(grams)),
        "repeated": float(len(grams) - len(set(grams))),
    }


def fluency_score(totals: Mapping[str, Number]) -> dict[str, Number]:
    return {
        "repeated": ratio(totals["repeated"], totals["grams"], 100),
        "cut": ratio(totals["cut"], totals["answers"], 100),
    }


# ── BLEU ──────────────────────────────────────────────────────────────────────────────────────────────────


def bleu_counts(text: str, references: Sequence[str]) -> dict[str, float]:
    """What BLEU sums over texts: lengths, and matching and all n-grams, by sacrebleu's tokenisation."""
    with optional():
        from sacrebleu.metrics.bleu import BLEU

    found = BLEU(effective_order=True).sentence_score(text, list(references))
    own = {"length": found.sys_len, "reference": found.ref_len}
    own |= {f"match {n}": count for n, count in enumerate(found.counts, 1)}
    own |= {f"all {n}": count for n, count in enumerate(found.totals, 1)}
    return {name: float(value) for name, value in own.items()}


def bleu_score(totals: Mapping[str, Number]) -> dict[str, Number]:
    """BLEU of the summed texts, in percent, without smoothing: 0 if they share no n-gram of some order."""
    shares = [np.asarray(ratio(totals[f"match {n}"], totals[f"all {n}"])) for n in range(1, ORDER + 1)]
    with np.errstate(divide="ignore"):
        precision = np.exp(np.mean([np.log(share) for share in shares], axis=0))
    brevity = np.exp(np.minimum(0, 1 - np.asarray(ratio(totals["reference"], totals["length"]))))
    return {"bleu": 100 * brevity * precision}


def references(setup: Setup, distribution: str) -> Mapping[str, Sequence[str]] | str:
    """The reference texts of each image by sample, or why there are none."""
    if setup.data is None:
        return {s.id: _descriptions(s.image_source) for s in setup.captions(distribution)}
    task = setup.task("chair", distribution)
    chair = getattr(task, "task", task)  # the whole benchmark, or its first images
    assert isinstance(chair, Chair)
    for folder in (chair.folder / "annotations", chair.data / "annotations"):
        if (folder / CAPTIONS).is_file():
            every = coco_captions(read_object(folder / CAPTIONS), str(folder / CAPTIONS))
            return {s.id: every[s.id] for s in setup.captions(distribution) if s.id in every}
    return f"no reference captions: put {CAPTIONS} of COCO 2014 into {chair.folder / 'annotations'}"


def _descriptions(source: Any) -> list[str]:
    assert isinstance(source, SceneImage)
    view = source.world.scene(source.index)
    return [view.description(variant) for variant in range(DESCRIPTIONS)]


def coco_captions(record: Mapping[str, Any], path: str) -> dict[str, list[str]]:
    """The captions of each image in a COCO annotation file."""
    found: dict[str, list[str]] = {}
    for number, note in enumerate(need_list(record, "annotations", path), 1):
        where = f"{path}, annotation {number}"
        found.setdefault(image_key(need_id(note, "image_id", where)), []).append(need_text(note, "caption", where))
    return found
