"""MMHal-Bench, LLaVA-Bench and BLINK-Twice: prompts, ratings and unrated answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal.bench import create
from heal.bench.tasks.base import Task, figures, unit_counts
from heal.bench.tasks.judged import Reply
from heal.bench.tasks.llava_bench import scores
from heal.bench.tasks.mmhal import TYPES, rating
from heal.errors import DataError


def figures_of(task: Task, parses: dict[str, dict[str, Any]]) -> dict[str, float]:
    return figures(task, unit_counts(task, task.samples(), parses).values())


# ── MMHal-Bench ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Explanation … \n- Rating: 4, somewhat informative", 4),
        ("RATING: 0", 0),
        ("Rating: 5. Again, rating: 5", 5),
        ("Rating: 5 or Rating: 2", None),
        ("Rating 5", None),
        ("rating: 7", None),
        ("rating: 3.0", 3),
        ("rating: 4/6", 4),
        ("**Rating:** 5", None),
        ("", None),
    ],
)
def test_ratings(reply: str, expected: int | None) -> None:
    assert rating(reply) == expected


@pytest.fixture
def mmhal(write, tmp_path: Path) -> Path:
    items = [
        {
            "question_type": TYPES[i % 8],
            "image_id": f"id{i}",
            "image_src": f"there/{i}_o.jpg",
            "image_content": ["Cat", "Dog"],
            "question": f"What {{}} {i}?",
            "gt_answer": "It is.",
            "model_answer": "",
        }
        for i in range(16)
    ]
    write("mmhal/response_template.json", json.dumps(items))
    write("mmhal/judge_template.txt", "C: {}\nQ: {}\nA: {}\nR: {}\n")
    return tmp_path


def test_mmhal_prompt(mmhal: Path) -> None:
    task: Any = create("mmhal", mmhal)
    sample = task.samples()[1]
    assert (sample.id, sample.prompt, sample.truth["type"]) == ("1", "What {} 1?", "adversarial")
    assert task.judge_prompt(sample, "So {}.").text == "C: Cat, Dog\nQ: What {} 1?\nA: It is.\nR: So {}.\n"
    assert task.judge(sample, "x", lambda prompt: "Rating: 6" if "R: x" in prompt.text else None)["rating"] == 6
    assert task.judge(sample, "x", lambda _: None) == task.unjudged() | {"why": "no reply", "error": "", "judge": ""}


@pytest.mark.parametrize("number", ["7", "10", "-1", "3.5", "60", "nan", "inf", "1e9"])
def test_impossible_ratings_are_not_counted(mmhal: Path, number: str) -> None:
    """The official script reads `rating: 10` as 1 and `rating: 3.5` as 3."""
    task: Any = create("mmhal", mmhal)
    parse = task.read_reply(task.samples()[0], f"Rating: {number}, well done")
    assert (parse["rating"], parse["unjudged"], parse["why"]) == (None, True, "rating that is not 0 to 6")
    assert np.isnan(figures_of(task, {"0": parse})["score"])


def test_reasons_are_reported(mmhal: Path) -> None:
    task: Any = create("mmhal", mmhal)
    strict = create("mmhal", mmhal, parser="strict")
    busy, cut = (
        Reply(None, reason="HTTP 429", error="HTTP 429: slow down", judge="j"),
        Reply("So", cut=True, judge="j"),
    )
    replies = [busy] * 3 + [cut, Reply("Well.", judge="j"), Reply("Rating: 1, rating: 2", judge="j")]
    replies += [Reply("Rating: 9", judge="j")] + [Reply("Rating: 4", judge="j", cut=True)] * 9
    parses = [task.judge(s, "x", lambda _, r=r: r) for s, r in zip(task.samples(), replies, strict=True)]
    assert parses[0]["error"] == "HTTP 429: slow down"
    assert task.note(parses) == (
        "judge j; 5 of 16 not judged: 3 × HTTP 429, 1 × reply cut off at max_tokens, 1 × rating that is not 0 to 6; "
        "2 of 16 without a clear rating and rated 0, as in the official script: 1 × reply without a rating, "
        "1 × reply with several ratings"
    )
    assert "left out: 1 × reply without" in strict.note(parses)
    counted = [(task.counted(parses[i]), strict.counted(parses[i])) for i in (0, 3, 4, 6, 7)]
    assert counted == [(False, False), (False, False), (True, False), (False, False), (True, True)]
    assert task.note([task.parse(s, "x") for s in task.samples()]) == (
        "16 of 16 not judged: 16 × no judge was asked (heal score RUN --judge NAME)"
    )
    assert task.note([parses[-1]]) == "judge j"


def test_mmhal_figures(mmhal: Path) -> None:
    """Ratings alternate between 6 and 2; one reply has no rating, one answer was not judged."""
    official: Any = create("mmhal", mmhal)
    strict = create("mmhal", mmhal, parser="strict")
    replies = {s.id: "Rating: 6" if int(s.id) < 8 else "Rating: 2" for s in official.samples()} | {"0": "Well."}
    parses = {s.id: official.read_reply(s, replies[s.id]) for s in official.samples()}
    parses["9"] = official.parse(official.samples()[9], "an answer")
    found = figures_of(official, parses)
    assert (found["unparsable"], found["unjudged"], found["rated"]) == (1, 1, 15)
    assert found["score"] == pytest.approx((0 + 7 * 6 + 7 * 2) / 15)
    assert found["hallucination_rate"] == pytest.approx(100 * 8 / 15)
    assert (found["attribute/score"], found["adversarial/score"], found["other/score"]) == (1, 6, 4)
    honest = figures_of(strict, parses)
    assert (honest["unparsable"], honest["rated"]) == (1, 14)
    assert honest["score"] == pytest.approx(4)
    assert honest["attribute/score"] == 2


def test_unjudged_answers(mmhal: Path) -> None:
    task: Any = create("mmhal", mmhal)
    found = figures_of(task, {s.id: task.parse(s, "x") for s in task.samples()})
    assert np.isnan(found["score"])
    assert np.isnan(found["hallucination_rate"])
    assert (found["rated"], found["unjudged"]) == (0, 16)


def test_mmhal_without_template(mmhal: Path) -> None:
    path = mmhal / "mmhal" / "judge_template.txt"
    task: Any = create("mmhal", mmhal)
    path.write_text("{} only")
    with pytest.raises(DataError, match="must have four placeholders"):
        task.template  # noqa: B018
    path.unlink()
    with pytest.raises(DataError, match=r"judge_template.txt is missing; it comes from .*MMHal-Bench"):
        task.template  # noqa: B018
    assert len(create("mmhal", mmhal).samples()) == 16


def test_mmhal_contents_are_a_list(mmhal: Path) -> None:
    path = mmhal / "mmhal" / "response_template.json"
    items = json.loads(path.read_text())
    path.write_text(json.dumps([items[0] | {"image_content": "Cat"}]))
    with pytest.raises(DataError, match="item 1: `image_content` must be a list"):
        create("mmhal", mmhal).samples()


def test_mmhal_official(official) -> None:
    task: Any = create("mmhal", official("mmhal"))
    assert len(task.samples()) == 96
    assert all(s.truth["type"] == TYPES[int(s.id) % 8] for s in task.samples())
    prompt = task.judge_prompt(task.samples()[0], "A yellow cap.").text
    assert "### Image Contents\nFire hydrant\n" in prompt
    assert "### LMM Response to Evaluate\nA yellow cap.\n" in prompt


# ── LLaVA-Bench ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("8 7\nBecause", (8, 7)),
        ("8, 7.5", (8, 7.5)),
        ("8  7 ", (8, 7)),
        ("Assistant 1: 8", "without two scores"),
        ("8", "without two scores"),
        ("8 7 6", "without two scores"),
        ("\n8 7", "without two scores"),
        ("nan 7", "without two scores"),
        ("inf 7", "without two scores"),
        ("1_0 7", "without two scores"),
        ("80 70", "not 0 to 10"),
        ("-1 -1", "not 0 to 10"),
    ],
)
def test_scores_of_a_reply(reply: str, expected: tuple[float, float] | str) -> None:
    found = scores(reply)
    if isinstance(found, str):
        assert str(expected) in found
    else:
        assert found == expected


@pytest.fixture
def llava(write, tmp_path: Path) -> Path:
    kinds = ("conv", "detail", "complex", "conv")
    write(
        "questions.jsonl",
        [{"question_id": i, "image": f"{i // 2}.jpg", "text": f"Q{i}", "category": k} for i, k in enumerate(kinds)],
    )
    write("context.jsonl", [{"image": f"{i}.jpg", "caption": [f"C{i}", "more"]} for i in range(2)])
    write("answers_gpt4.jsonl", [{"question_id": i, "text": f"R{i}"} for i in range(4)])
    rules = {f"llava_bench_{k}": {"role": "Assistant", "prompt": f"Rate {k}."} for k in set(kinds)}
    write("rule.json", json.dumps(rules))
    return tmp_path


def test_llava_prompt(llava: Path) -> None:
    task: Any = create("llava-bench", llava)
    assert task.judge_prompt(task.samples()[1], "Mine").text == (
        "[Context]\nC0\nmore\n\n[Question]\nQ1\n\n[Assistant 1]\nR1\n\n[End of Assistant 1]\n\n"
        "[Assistant 2]\nMine\n\n[End of Assistant 2]\n\n[System]\nRate detail.\n\n"
    )


def test_llava_figures(llava: Path) -> None:
    task: Any = create("llava-bench", llava)
    replies = ("8 4\n", "10 9", "no idea", None)
    parses = {s.id: task.judge(s, "x", lambda _, r=r: r) for s, r in zip(task.samples(), replies, strict=True)}
    found = figures_of(task, parses)
    assert found["score"] == pytest.approx(100 * 13 / 18)
    assert (found["model"], found["reference"], found["conv/score"], found["detail/score"]) == (6.5, 9, 50, 90)
    assert np.isnan(found["complex/score"])
    assert (found["rated"], found["unparsable"], found["unjudged"]) == (2, 1, 1)
    assert task.note(parses.values()) == (
        "1 of 4 not judged: 1 × no reply; 1 of 4 without a clear rating and left out: "
        "1 × reply without two scores in its first line"
    )


def test_llava_gaps(llava: Path) -> None:
    (llava / "answers_gpt4.jsonl").write_text('{"question_id": 0, "text": "R0"}\n')
    with pytest.raises(DataError, match=r"answers_gpt4.jsonl has no `1`"):
        create("llava-bench", llava).samples()
    (llava / "answers_gpt4.jsonl").write_text(
        '{"question_id": 0, "text": "R0"}\n{"question_id": 0, "text": "other"}\n'
    )
    with pytest.raises(DataError, match="the question_id 0 occurs twice"):
        create("llava-bench", llava).samples()
    (llava / "context.jsonl").unlink()
    with pytest.raises(DataError, match=r"context.jsonl is missing; it comes from .*llava-bench-in-the-wild"):
        create("llava-bench", llava).samples()


def test_llava_official(official) -> None:
    task: Any = create("llava-bench", official("llava_bench"))
    assert len(task.samples()) == 60
    assert len({s.unit for s in task.samples()}) == 24
    assert task.judge_prompt(task.samples()[0], "x").text.startswith("[Context]\nAn aerial view of Diamond Head")


# ── BLINK-Twice ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def blink(write, tmp_path: Path) -> Path:
    """Two groups with a twin and one without, two questions per image."""
    rows = [
        {
            "group": group,
            "image": f"{group}{'t' * twin}.jpg",
            "twin": twin,
            "question": f"Is it {answer}?",
            "answer": answer,
        }
        for group, twins in (("1", (False, True)), ("2", (False, True)), ("3", (False,)))
        for twin in twins
        for answer in ("no", "yes")
    ]
    write("blink_twice.jsonl", rows)
    return tmp_path


def test_blink_figures(blink: Path) -> None:
    task: Any = create("blink-twice", blink)
    assert len(task.samples()) == 10
    said = {s.id: s.truth["label"] for s in task.samples()} | {"2.jpg/0": "yes", "3.jpg/1": "hard to say"}
    parses = {s.id: task.parse(s, said[s.id]) for s in task.samples()}
    found = figures_of(task, parses)
    assert (found["q_acc"], found["no_acc"], found["yes_acc"]) == (80, 80, 80)
    assert (found["i_acc"], found["g_acc"], found["unparsable"]) == (60, 50, 1)
    del parses["1.jpg/0"]
    found = figures_of(task, parses)
    assert (found["i_acc"], found["g_acc"]) == (50, 0)  # out of the four images and the one group with all answers


def test_blink_bad_manifests(write, tmp_path: Path) -> None:
    row = {"group": 1, "image": "1.jpg", "twin": False, "question": "?", "answer": "no"}
    for change, message in (
        ({"twin": "no"}, "`twin` must be true or false"),
        ({"answer": "B"}, "must be yes or no"),
    ):
        write("blink_twice.jsonl", [row | change])
        with pytest.raises(DataError, match=message):
            create("blink-twice", tmp_path).samples()
    write("blink_twice.jsonl", [row | {"id": "same"}, row | {"id": "same", "question": "!"}])
    with pytest.raises(DataError, match="the id same occurs twice"):
        create("blink-twice", tmp_path).samples()
