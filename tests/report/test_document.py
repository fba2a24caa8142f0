import json
import math

import pytest

from heal.bench.run.environment import weights_fingerprint
from heal.bench.run.runner import run
from heal.bench.tasks.miniature import MiniChair, MiniPope
from heal.errors import DataError
from heal.methods import HEAL, VCD, Beam
from heal.report.document import RUNS, Premise, document, gather, premise_file, write_premise
from heal.report.stored_results import load_finished, load_stored, store
from heal.studies.drift import Separation
from heal.vlm import VLM
from tests.known import known

DRIFT = Separation("α_vis of synergy heads", 30, 12, 0.5, 0.4, 0.66, 0.6, 0.7, math.nan)


@pytest.fixture(scope="module")
def vlm():
    return VLM.random()


@pytest.fixture(scope="module")
def weights(vlm):
    return weights_fingerprint(vlm.model)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, vlm, weights, figures):
    """Two finished runs, an unfinished one, and the premise on natural scenes."""
    out = tmp_path_factory.mktemp("report")
    tasks = {
        "mini-pope": MiniPope(count=1, split="validation"),
        "mini-chair": MiniChair(count=1, split="validation"),
    }
    run(vlm, tasks, {"plain": None, "heal α=0.6": HEAL(alpha=0.6), "heal auto": HEAL(alpha=0.5)}, out / "choice")
    run(vlm, tasks, {"plain": None, "vcd": VCD(), "heal": HEAL(alpha=0.7, layers=(0, 1))}, out / "tuned-natural")
    run(vlm, tasks, {"plain": None, "beam": Beam(2)}, out / "tuning")
    records = out / "tuning" / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:-1]))
    write_premise(Premise(weights, 20, [DRIFT], [("fork", 7, 0.31, 0.05)]), premise_file(figures, "natural"))
    return out


@pytest.fixture(autouse=True)
def form(monkeypatch):
    """These runs only have some of the forms to choose from."""
    monkeypatch.setattr("heal.report.document.chosen_form", lambda summary: "heal α=0.6")


def test_finished_runs_are_reported_and_others_listed(folder, figures, weights):
    found = gather(folder, figures, weights)
    assert set(found.runs) == {"choice", "tuned-natural"}
    text = document(found)
    missing = next(line for line in text.splitlines() if line.startswith("Not measured yet: "))
    assert set(missing[18:-1].split(", ")) == set(RUNS) - {"choice", "tuned-natural"}
    assert "| heal α=0.6 |" in text
    assert "1 natural images; the best by POPE F1 plus object F1 is **heal α=0.6**." in text
    assert "- vcd: `vcd`\n- heal: `heal:alpha=0.7,layers=0+1`\n" in text
    assert "| α_vis of synergy heads | 0.500 (30) | 0.400 (12) | 0.660 (0.600–0.700) | nan |" in text
    assert "| fork | 7 | 0.31 | 0.05 |" in text
    assert "### counter" not in text


def test_premise_round_trip(folder, figures, weights):
    (there,) = gather(folder, figures, weights).drifts.values()
    assert there.made_up == [("fork", 7, 0.31, 0.05)]
    assert there.separations[0].auc == 0.66
    assert math.isnan(there.separations[0].within)
    assert json.loads(premise_file(figures, "natural").read_text())["separations"][0]["within"] is None


def test_stored_figures_do_not_need_the_runs(folder, figures, weights, tmp_path):
    before = gather(folder, figures, weights)
    after = gather(tmp_path, figures, weights)
    assert set(after.runs) == set(before.runs)
    assert document(after) == document(before)


def test_figures_of_another_model_are_ignored(folder, figures, weights, tmp_path):
    gather(folder, figures, weights)
    found = gather(tmp_path, figures, "of another model")
    assert not found.runs
    assert not found.drifts
    assert gather(tmp_path, figures, weights).runs


def test_stored_results_round_trip(folder, tmp_path):
    found = known(load_finished(folder / "choice"))
    store(found, tmp_path / "choice.json")
    again = known(load_stored(tmp_path / "choice.json"))
    assert again.configuration == found.configuration
    for old, new in zip(found.summary.rows, again.summary.rows, strict=True):
        assert (new.task, new.method, new.answered, new.fired) == (old.task, old.method, old.answered, old.fired)
        assert new.time_ratio == pytest.approx(old.time_ratio, abs=1e-4, nan_ok=True)
        assert set(new.figures) == set(old.figures)
        for name, interval in old.figures.items():
            assert new.figures[name].value == pytest.approx(interval.value, abs=1e-4, nan_ok=True)
            assert new.figures[name].low == pytest.approx(interval.low, abs=1e-4, nan_ok=True)


def test_stored_results_match_only_the_same_plan(folder, tmp_path):
    store(known(load_finished(folder / "choice")), tmp_path / "choice.json")
    there = known(load_stored(tmp_path / "choice.json"))
    pope, chair = MiniPope(count=1, split="validation"), MiniChair(count=1, split="validation")
    tasks = {"mini-pope": pope, "mini-chair": chair}
    methods = {"plain": None, "heal α=0.6": HEAL(alpha=0.6), "heal auto": HEAL(alpha=0.5)}
    assert there.matches(tasks, methods)
    assert not there.matches({"mini-pope": pope}, methods)
    assert not there.matches(tasks | {"mini-pope": MiniPope(count=2, split="validation")}, methods)
    assert not there.matches(tasks, methods | {"heal auto": HEAL(alpha=0.7)})
    assert not there.matches(tasks, {"plain": None})


def test_unfinished_runs_are_not_stored(folder, tmp_path):
    assert load_finished(folder / "tuning") is None
    assert load_finished(tmp_path / "nothing") is None
    assert load_stored(tmp_path / "nothing.json") is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '[{"configuration": {}}]', "[{}, 3]"])
def test_invalid_files_are_refused(tmp_path, content):
    (tmp_path / "choice.json").write_text(content)
    with pytest.raises(DataError, match="delete it and measure again"):
        load_stored(tmp_path / "choice.json")
