"""Table 2 and Table 12: models with and without HEAL, judged answers, and several runs in one table."""

import json
from dataclasses import replace

import pytest

from heal import VLM
from heal.bench.tasks.judged import Reply
from heal.bench.tasks.stored_replies import FOLDER, StoredReplies, most_used
from heal.errors import RunError
from heal.methods import HEAL, VCD
from heal.studies import recent, table2
from heal.studies.model_rows import forms, merged
from heal.studies.output import json_text, markdown_table
from heal.studies.paper_table import MORE, Column, family, for_benchmark, papers_name
from heal.studies.parts import Evaluation
from heal.studies.running import StudyRunner
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.bench import official
from tests.studies import made
from tests.studies.made_answers import evaluated, value
from tests.studies.test_table1 import answers, described

SETUP = Setup(samples=20)
WRONG = {"plain": 12, "heal": 2, "heal one-sided": 12}


def found(tmp_path, model: str = "embedded") -> Found:
    parts = {}
    for part in table2.parts(SETUP):
        assert isinstance(part, Evaluation)
        texts = {}
        for name, task in part.tasks.items():
            write = described if name.startswith("chair") else answers
            texts[name] = {method: write(task, WRONG[method]) for method in part.methods}
        parts[part.name] = evaluated(tmp_path / part.name, part.tasks, texts)
    return Found(SETUP, parts, {"name": model})


def test_the_model_of_the_run_is_beside_those_of_the_paper(tmp_path):
    report = table2.report(found(tmp_path))
    rows = made.cells(report, "model", "method")
    assert value(rows["embedded", "heal"], "CHAIR_s ↓").value == pytest.approx(10)
    assert value(rows["embedded", "heal − plain"], "CHAIR_s ↓").value == pytest.approx(-50)
    assert value(rows["embedded", "heal − plain"], "CHAIR_s ↓").expected == "↓"
    assert rows["embedded", "heal"]["chair: changed answers"] == "10 of 20"
    assert value(rows["LLaVA-1.5-7B", "heal"], "POPE recall").paper == 89.1
    assert value(rows["InternVL-7B", "LocoRE"], "CHAIR_i ↓").paper == 10.5
    assert "LLaVA-Bench" not in rows["embedded", "heal"]
    assert any(
        note.startswith("llava-bench is left out: the miniature world has no llava-bench") for note in report.notes
    )
    said = {verdict.claim: verdict for verdict in report.verdicts}
    lower = said["heal: lower CHAIR_i than plain (natural)"]
    assert lower.outcome == Outcome.CONFIRMED
    assert lower.text.endswith("paper -4.5 to -0.5 over its models")
    assert said["heal one-sided: lower CHAIR_i than plain (natural)"].outcome == Outcome.NOT_CONFIRMED


def test_a_model_of_the_paper_has_its_own_figures(tmp_path):
    report = table2.report(found(tmp_path, "llava-hf/llava-1.5-7b-hf"))
    rows = made.cells(report, "model", "method")
    assert value(rows["llava-hf/llava-1.5-7b-hf", "heal"], "CHAIR_s ↓").paper == 36.9
    assert value(rows["llava-hf/llava-1.5-7b-hf", "heal − plain"], "CHAIR_s ↓").paper == pytest.approx(-14.1)
    assert not any(model == "LLaVA-1.5-7B" for model, _ in rows)


def test_runs_of_several_models_are_merged(tmp_path):
    names = ("llava-hf/llava-1.5-7b-hf", "embedded")
    for place, name in enumerate(names):
        one = found(tmp_path / str(place), name)
        folder = tmp_path / f"out{place}" / "table2"
        folder.mkdir(parents=True)
        text = json_text(table2.STUDY, SETUP, {"name": name}, table2.report(one))
        (folder / "table.json").write_text(text)
    table = merged([tmp_path / "out0", tmp_path / "out1"])
    models = list(dict.fromkeys(row.labels["model"] for row in table.rows))
    assert models == [*names, "LLaVA-NeXT-7B", "Qwen2.5-VL-7B", "Qwen2-VL-7B", "InternVL-7B"]
    assert "10.0 (0.0 to 25.0) | 36.9" in markdown_table(table)
    with pytest.raises(RunError, match=r"table2/table\.json is missing"):
        merged([tmp_path])
    (tmp_path / "out0" / "table2" / "table.json").write_text("{}")
    with pytest.raises(RunError, match="is not a table of `heal study`"):
        merged([tmp_path / "out0"])


# ── the paper's models and α ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("llava-hf/llava-1.5-7b-hf", "LLaVA-1.5-7B"),
        ("/models/llava-v1.5-7b", "LLaVA-1.5-7B"),
        ("llava-hf/llava-v1.6-vicuna-7b-hf", "LLaVA-NeXT-7B"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-7B"),
        ("Qwen/Qwen2-VL-7B-Instruct", "Qwen2-VL-7B"),
        ("OpenGVLab/InternVL3_5-8B-HF", "InternVL3.5-8B"),
        ("llava-hf/llava-1.5-13b-hf", ""),
        ("embedded", ""),
    ],
)
def test_names_of_the_papers_models(checkpoint, name):
    assert papers_name(checkpoint) == name


def test_alpha_is_larger_on_other_benchmarks_as_in_the_paper(tmp_path):
    def alpha(benchmark, **setup):
        (found,) = for_benchmark({"heal": HEAL(drift="language")}, benchmark, Setup(**setup)).values()
        assert isinstance(found, HEAL)
        assert found.drift == "language"
        return found.alpha

    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    assert alpha("pope", model="llava") is None
    assert alpha("mme", model="llava-hf/llava-1.5-7b-hf") == pytest.approx(0.5 + MORE)
    assert alpha("mmhal", model="Qwen/Qwen3-VL-8B-Instruct") == pytest.approx(0.4 + MORE)
    assert alpha("mmhal", model=str(tmp_path)) == pytest.approx(0.4 + MORE)
    assert alpha("mme", model="embedded") is None
    assert alpha("mme", model="llava", methods={"heal": HEAL()}) is None
    assert family(str(tmp_path)) == "qwen3_vl"
    assert for_benchmark({"vcd": VCD(), "plain": None}, "mme", Setup(model="llava")) == {"vcd": VCD(), "plain": None}


def test_forms():
    assert list(forms(Setup())) == ["plain", "heal", "heal one-sided"]
    assert list(forms(Setup(model="llava"))) == ["plain", "heal"]
    assert forms(Setup(methods={"plain": None, "x": VCD()})) == {"plain": None, "x": VCD()}


def test_a_figure_that_the_paper_prints_in_another_unit():
    assert Column("Q", "blink-twice", "q_acc", "q", scale=100).printed({"q": 0.536}) == 53.6
    assert Column("Q", "blink-twice", "q_acc", "q").printed({"q": None}) is None


# ── judged answers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def data(tmp_path):
    """MMHal-Bench and BLINK-Twice in the official layout, with images."""
    folder = tmp_path / "data"
    official.put(folder / "mmhal", official.mmhal())
    official.put(folder / "blink_twice", official.blink())
    official.pictures(folder / "mmhal", "0.jpg", "1.jpg")
    official.pictures(folder / "blink_twice", "1.jpg", "1t.jpg")
    return folder


def test_answers_are_rated_by_the_replies_that_heal_score_stored(tmp_path, data):
    setup = Setup.on(data, model="random", max_new_tokens=5, batch_size=4)
    runner = StudyRunner(VLM.random(), tmp_path / "out")
    first = runner.study(recent.STUDY, setup)
    rows = made.cells(first, "model", "method")
    own = rows[next(model for model, method in rows if method == "heal − plain"), "heal"]
    assert str(value(own, "MMHal score")) == "–"
    assert value(own, "BLINK Q-Acc").value >= 0
    (verdict,) = [v for v in first.verdicts if v.claim == "heal: higher MMHal score than plain (official)"]
    assert verdict.outcome == Outcome.TOO_FEW
    assert "no judge has rated the answers (heal score " in verdict.text
    assert any("2 of 2 not judged" in note and "--judge NAME" in note for note in first.notes)

    evaluation = runner.measured(recent.parts(setup), model_facts_of(runner))["mmhal"]
    run, task = evaluation.summary.folder, setup.task("mmhal", "official")  # type: ignore[union-attr]
    judge = StoredReplies("a-judge", run / FOLDER)
    for method, rating in (("plain", 1), ("heal", 5)):
        texts = evaluation.texts("mmhal official", method)  # type: ignore[union-attr]
        for sample in task.samples():
            judge.write(task.judge_prompt(sample, texts[sample.id]), Reply(f"Rating: {rating}"))  # type: ignore[attr-defined]
    second = runner.study(recent.STUDY, setup)
    rows = made.cells(second, "model", "method")
    scores = {method: cells["MMHal score"] for (model, method), cells in rows.items() if "8B" not in model}
    assert value(scores, "heal").value >= value(scores, "plain").value >= 1
    assert any("judge a-judge" in note for note in second.notes)
    assert json.loads((tmp_path / "out" / "recent" / "table.json").read_text())["study"] == "recent"


def model_facts_of(runner):
    from heal.studies.running import model_facts

    return model_facts(runner.vlm)


def test_only_the_benchmark_that_is_there_is_measured(data):
    (data / "blink_twice" / "images" / "1t.jpg").unlink()
    setup = Setup.on(data)
    assert [part.name for part in recent.parts(setup)] == ["mmhal"]
    assert not recent.STUDY.missing(setup)
    assert "1 of 2 images are missing" in setup.missing("blink-twice")
    (data / "mmhal" / "response_template.json").unlink()
    message = recent.STUDY.missing(replace(setup))
    assert "response_template.json" in message
    assert "MMHal-Bench" in message
    assert "1t.jpg" in message


def test_the_judge_with_the_most_replies_is_used(tmp_path):
    from heal.bench.tasks.judged import Prompt

    assert most_used(tmp_path) is None
    for judge, count in (("a", 1), ("b", 2)):
        for number in range(count):
            StoredReplies(judge, tmp_path).write(Prompt("", str(number)), Reply("Rating: 3"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "broken.json").write_text("{")
    chosen = most_used(tmp_path)
    assert chosen is not None
    assert chosen.model == "b"
    assert chosen(Prompt("", "1")).text == "Rating: 3"
    unknown = chosen(Prompt("", "9"))
    assert (unknown.text, unknown.reason) == (None, "no stored reply")
