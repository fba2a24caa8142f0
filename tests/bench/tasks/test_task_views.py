from itertools import pairwise

from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.bench.score.summary import rescore
from heal.bench.tasks import catalogue
from heal.bench.tasks.judged import JudgedTask
from heal.bench.tasks.mmhal import MmHal
from heal.bench.tasks.task_views import AcrossUnits, FirstUnits, LaterUnits
from heal.vlm import VLM


def pope(count=3):
    return catalogue.create("mini-pope", count=count)


def test_neighbours_are_of_different_units():
    task = AcrossUnits(pope())
    units = [sample.unit for sample in task.samples()]
    assert sorted(s.id for s in task.samples()) == sorted(s.id for s in pope().samples())
    assert len(set(units[:3])) == 3
    assert all(a != b for a, b in pairwise(units[:9]))


def test_first_units():
    first = FirstUnits(pope(), 2)
    assert list(first.samples()) == [s for s in pope().samples() if s.unit in {x.unit for x in first.samples()}]
    assert len({s.unit for s in first.samples()}) == 2


def test_later_units_are_the_others():
    first, later = FirstUnits(pope(), 2), LaterUnits(pope(), 2)
    assert [*first.samples(), *later.samples()] == list(pope().samples())
    assert len({s.unit for s in later.samples()}) == 1


def test_a_run_of_a_part_can_be_scored_again(tmp_path):
    tasks = {"pope": FirstUnits(pope(), 1)}
    done = run(VLM.random(), tasks, [None], tmp_path / "run", Settings(batch_size=4, max_new_tokens=2))
    again = rescore(tmp_path / "run")
    assert again.rows[0].figures == done.rows[0].figures
    assert again.rows[0].answered == len(tasks["pope"].samples())


def test_a_part_of_a_judged_task_asks_the_judge(tmp_path):
    from tests.bench import official

    for name, text in official.mmhal().items():
        (tmp_path / name).write_text(text)
    whole = MmHal(tmp_path)
    part = FirstUnits(whole, 1)
    assert part.judged
    assert isinstance(whole, JudgedTask)
    (sample, *_) = part.samples()
    reply = "rating: 5"
    assert part.judge(sample, "Two.", lambda prompt: reply) == whole.judge(sample, "Two.", lambda prompt: reply)
    assert part.judge(sample, "Two.", lambda prompt: reply)["rating"] == 5
