"""Hallucination detection: the risk of each object word, from the pass that generates it."""

from __future__ import annotations

from heal.detect.features import Features, features
from heal.detect.model import Detector
from heal.detect.risk import Judged, ObjectRisk, Reason, judge
from heal.detect.words import ObjectWord, object_words

__all__ = [
    "Detector",
    "Features",
    "Judged",
    "ObjectRisk",
    "ObjectWord",
    "Reason",
    "features",
    "judge",
    "object_words",
]
