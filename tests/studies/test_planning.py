"""Plans: parts, hours by method, and what is missing."""

import pytest

from heal import VLM
from heal.methods import HEAL, OPERA, PAI, SID, VCD, Beam, Combined
from heal.studies import planning, recent
from heal.studies.setup import Setup
from heal.studies.study import named
from tests.bench import official

TINY = Setup(model="random", samples=2, batch_size=2, max_new_tokens=4)


def test_every_part_once_and_what_is_missing():
    wanted = planning.wanted(named(["table1", "table2", "recent"]), TINY)
    assert [w.study.name for w in wanted if w.problem] == ["table2", "recent"]
    texts = [str(w.part.content()) for w in wanted if w.part is not None]
    assert len(texts) == len(set(texts))
    speed = planning.Speed(lambda method: 1.0 if method is None else 2.0, "made")
    parts = planning.planned(wanted, speed)
    chair = next(part for part in parts if (part.study, part.part) == ("table2", "chair"))
    assert (chair.samples, chair.answers, chair.tokens) == (2, 4, 16)
    assert chair.hours * 3600 == pytest.approx(2 * 4 * (1 + 2))
    assert "MMHal-Bench: response_template.json" in parts[-1].problem
    assert (parts[-1].samples, parts[-1].hours) == (0, 0.0)
    assert planning.total_hours(parts) == pytest.approx(sum(p.hours for p in parts))


def test_forms_of_heal_that_cost_the_same_are_timed_once():
    assert planning.cost_name(HEAL(alpha=0.7, mad=1.0)) == planning.cost_name(HEAL())
    assert planning.cost_name(HEAL(preset="paper")) != planning.cost_name(HEAL())
    assert planning.cost_name(VCD(alpha=0.5)) != planning.cost_name(VCD())
    methods = planning.methods_of(planning.wanted(named(["table1", "alpha"]), TINY))
    assert sum(isinstance(method, HEAL) for method in methods) == 1
    assert any(isinstance(method, OPERA) for method in methods)


def test_each_method_is_timed_on_the_loaded_model():
    speed = planning.measured_speed(VLM.random(), TINY, [VCD(), OPERA(beams=2, candidates=2)])
    plain, vcd, opera = (speed.seconds(m) for m in (None, VCD(), OPERA(beams=2, candidates=2)))
    assert 0 < plain < vcd < opera
    assert speed.seconds(HEAL(alpha=0.3)) == speed.seconds(HEAL()) > 0


def test_predicted_costs_follow_passes_and_beams():
    setup = Setup(model="llava-1.5-7b", batch_size=16)
    speed = planning.predicted_speed(setup.model, setup)
    plain = speed.seconds(None)
    assert speed.seconds(VCD()) == pytest.approx(2 * plain)
    assert speed.seconds(SID()) == pytest.approx(2 * plain)
    assert speed.seconds(PAI(gamma=1.0)) == pytest.approx(plain)
    assert plain < speed.seconds(HEAL()) < 2 * plain
    assert plain < speed.seconds(Beam(5)) < 5 * plain
    assert speed.seconds(OPERA()) > 6 * plain * 8  # one prompt at a time
    assert Combined((HEAL(), Beam(3))).rows_per_prompt == 3
    assert str(planning.predicted_speed("unknown", setup).seconds(None)) == "nan"


def test_a_plan_needs_no_images(tmp_path):
    official.put(tmp_path / "mmhal", official.mmhal())
    setup = Setup.on(tmp_path, model="random")
    assert recent.STUDY.missing(setup)
    speed = planning.Speed(lambda method: 3.6, "made")
    blink, part = planning.planned(planning.wanted([recent.STUDY], setup), speed)
    assert "blink_twice.jsonl is missing" in blink.problem
    assert (part.part, part.samples, part.answers) == ("mmhal", 2, 4)
    assert part.problem.startswith("2 of 2 images are missing")
    assert planning.total_hours([part]) == pytest.approx(2 * 2 * 512 * 3.6 / 3600)
