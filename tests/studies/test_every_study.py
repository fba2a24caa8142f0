"""Every study runs on two images of the embedded model, and its report can be drawn and written."""

import csv
import json
import re

import pytest

from heal import VLM
from heal.errors import ConfigError
from heal.methods import HEAL, OPERA, VCD
from heal.studies import cost, launch_counts, table1_methods, timing
from heal.studies.running import StudyRunner
from heal.studies.setup import Setup
from heal.studies.study import Outcome, Report, available, named


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return StudyRunner(VLM.embedded(), tmp_path_factory.mktemp("studies"))


def offline():
    """The studies that the miniature world has the benchmarks for."""
    setup = Setup(samples=2)
    return [name for name, study in available().items() if not study.missing(setup)]


def few_methods():
    """One of each kind: plain, a rival, a slow one, and HEAL."""
    return {"plain": None, "vcd": VCD(), "opera": OPERA(beams=2, candidates=2), "heal": HEAL()}


@pytest.mark.slow
@pytest.mark.parametrize("name", offline())
def test_two_images_are_enough_to_run(runner, name, monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP", 2)
    monkeypatch.setattr(timing, "STEPS", 4)
    monkeypatch.setattr(cost, "STEPS", 4)
    monkeypatch.setattr(launch_counts, "TOKENS", 2)
    monkeypatch.setattr(table1_methods, "published", few_methods)
    study = available()[name]
    report = runner.study(study, Setup(samples=2, distributions=("natural", "counter"), max_new_tokens=40))
    assert isinstance(report, Report)
    assert report.verdicts
    for verdict in report.verdicts:  # two images have fewer than 20 hallucinated names, and fewer than 20 errors
        if re.search(r"CHAIR|F1|drift|hallucinat|recall|names|α of ", verdict.claim):
            assert verdict.outcome in (Outcome.TOO_FEW, Outcome.MEASURED), verdict.text
    folder = runner.out / name
    stored = json.loads((folder / "table.json").read_text())
    assert [table["name"] for table in stored["tables"]] == [table.name for table in report.tables]
    for place, table in enumerate(report.tables):
        path = folder / ("table.csv" if place == 0 else f"table-{table.name}.csv")
        assert len(list(csv.DictReader(path.open()))) == len(table.rows)
    for place, figure in enumerate(report.figures):
        stem = "figure" if place == 0 else f"figure-{figure}"
        assert (folder / f"{stem}.png").stat().st_size > 1000
        assert (folder / f"{stem}.svg").read_text().lstrip().startswith("<?xml")
    assert (folder / "verdict.txt").read_text().splitlines() == [verdict.text for verdict in report.verdicts]


def test_names_are_those_of_the_modules_and_unique():
    for name, study in available().items():
        assert study.name == name
        assert study.report.__module__.removeprefix("heal.studies.").replace("_", "-").startswith(name)
        assert "\n" not in study.summary


def test_unknown_study():
    with pytest.raises(ConfigError, match=r"no study 'head-by-token': choose from .*heads-by-token"):
        named(["head-by-token"])


def test_all_is_every_study_in_order():
    assert [study.name for study in named(["all"])] == list(available())
    assert [study.name for study in named(["heads-by-token", "heads-by-token"])] == ["heads-by-token"]
