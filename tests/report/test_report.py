import json
import math

import pytest

from heal.bench.miniature import MiniChair, MiniPope
from heal.bench.runner import run
from heal.experiments.drift import Separation
from heal.methods import HEAL, VCD, Beam
from heal.report.embedded import RUNS, Premise, document, gather, write_premise
from heal.vlm import VLM

DRIFT = Separation("α_vis of synergy heads", 30, 12, 0.5, 0.4, 0.66, 0.6, 0.7, math.nan)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs that ended, one that did not, and the premise on natural scenes."""
    out, vlm = tmp_path_factory.mktemp("report"), VLM.random()
    tasks = {
        "mini-pope": MiniPope(images=1, split="validation"),
        "mini-chair": MiniChair(images=1, split="validation"),
    }
    run(vlm, tasks, {"plain": None, "heal α=0.6": HEAL(alpha=0.6), "heal auto": HEAL(alpha=0.5)}, out / "choice")
    run(vlm, tasks, {"plain": None, "vcd": VCD(), "heal": HEAL(alpha=0.7, layers=(0, 1))}, out / "tuned-natural")
    run(vlm, tasks, {"plain": None, "beam": Beam(2)}, out / "tuning")
    records = out / "tuning" / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:-1]))
    write_premise(Premise(20, [DRIFT], [("fork", 7, 0.31, 0.05)]), out / "premise-natural.json")
    return out


def test_only_what_ended_is_told_and_the_rest_is_named(folder, monkeypatch):
    monkeypatch.setattr("heal.report.embedded.chosen_form", lambda summary: "heal α=0.6")
    found = gather(folder)
    assert set(found.runs) == {"choice", "tuned-natural"}
    text = document(found)
    missing = next(line for line in text.splitlines() if line.startswith("Not measured yet: "))
    assert set(missing[18:-1].split(", ")) == set(RUNS) - {"choice", "tuned-natural"}
    assert "| heal α=0.6 |" in text
    assert "1 natural pictures; by POPE F1 plus object F1: **heal α=0.6**." in text
    assert "- vcd: `vcd`\n- heal: `heal:alpha=0.7,layers=0+1`\n" in text
    assert "| α_vis of synergy heads | 0.500 (30) | 0.400 (12) | 0.660 (0.600–0.700) | nan |" in text
    assert "| fork | 7 | 0.31 | 0.05 |" in text
    assert "### counter" not in text


def test_a_premise_is_kept_as_it_was(folder):
    (kept,) = gather(folder).drifts.values()
    assert kept.made_up == [("fork", 7, 0.31, 0.05)]
    assert kept.separations[0].auc == 0.66
    assert math.isnan(kept.separations[0].within)
    assert json.loads((folder / "premise-natural.json").read_text())["separations"][0]["within"] is None
