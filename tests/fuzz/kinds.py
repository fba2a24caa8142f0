"""All kinds of input with their weights."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # names that are not folders must not be looked up on the Hub
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tests.fuzz import asking, benchmarks, checkpoints, commands, detecting, judges, pictures, stored, strings, views
from tests.fuzz.oracle import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("command", commands.command_lines, 26, 60, 30),
        Kind("evaluation", commands.evaluations, 1.5, 3, 30),
        Kind("comparison", commands.comparisons, 0.2, 1, 60),
        Kind("study", detecting.studies, 0.3, 2, 60),
        Kind("detect", detecting.detect_commands, 0.3, 3, 60),
        Kind("detector", detecting.detectors, 3, 20),
        Kind("method", strings.methods, 9, 60),
        Kind("methods", strings.several_methods, 3, 20),
        Kind("task", strings.tasks, 5, 30),
        Kind("constructor", strings.constructors, 6, 40),
        Kind("generate-text", strings.generating, 3, 20),
        Kind("data-folder", strings.data_folders, 1, 5),
        Kind("data", benchmarks.data, 12, 50),
        Kind("scored", benchmarks.scored_files, 5, 25),
        Kind("labelled", benchmarks.labelled, 2, 10),
        Kind("run", stored.runs, 5, 12),
        Kind("trace", stored.traces, 6, 30),
        Kind("view", views.pages, 4, 20),
        Kind("equilibrium", stored.equilibria, 2, 15),
        Kind("picture", pictures.odd_pictures, 4, 30),
        Kind("given-picture", pictures.given_pictures, 2, 15),
        Kind("damaged-picture", pictures.damaged_pictures, 7, 30),
        Kind("picture-path", pictures.places, 1, 8),
        Kind("array", pictures.arrays, 3, 20),
        Kind("prompt", asking.prompts, 5, 20, 30),
        Kind("answer", asking.answers, 2.5, 6, 30),
        Kind("reply", judges.replies, 3, 30),
        Kind("judge-options", judges.options, 1, 8),
        Kind("response", judges.responses, 1.5, 10),
        Kind("stored-reply", judges.stored_replies, 1, 8),
        Kind("checkpoint", checkpoints.checkpoints, 0.8, 4, 60),
    )
}
