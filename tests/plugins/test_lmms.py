"""The model `heal` in lmms-eval. Needs lmms-eval: `make test-lmms` installs it in a separate environment."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmms_eval", reason="run by make test-lmms")

from lmms_eval.evaluator import simple_evaluate
from lmms_eval.models import get_model
from lmms_eval.tasks import TaskManager

from heal import HEAL, VLM
from heal.errors import ConfigError, UnsupportedError
from heal.plugins.lmms import Heal, conversation, cut, decoding, method_from
from heal.world import World

QUESTIONS = ("Is there a dog in the image?", "Is there a car in the image?", "Describe this image.")
FUNCTIONS = """
from PIL import Image

def visual(doc):
    return [Image.open(doc["image"]).convert("RGB")]

def text(doc):
    return doc["question"]

def result(doc, results):
    return {"long": float(len(results[0].split()))}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of six questions about two scenes."""
    path = tmp_path_factory.mktemp("tasks")
    lines = []
    for index in range(2):
        World(0, "test", "natural").scene(index).image.save(path / f"{index}.png")
        lines += [{"image": str(path / f"{index}.png"), "question": q, "answer": "yes"} for q in QUESTIONS]
    (path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "functions.py").write_text(FUNCTIONS)
    (path / "scenes.yaml").write_text(
        "task: scenes\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {path / 'data.jsonl'}}}}}\n"
        "test_split: test\noutput_type: generate_until\n"
        "doc_to_visual: !function functions.visual\ndoc_to_text: !function functions.text\n"
        'doc_to_target: "answer"\nprocess_results: !function functions.result\n'
        "generation_kwargs: {max_new_tokens: 6, temperature: 0}\n"
        "metric_list: [{metric: long, aggregation: mean, higher_is_better: true}]\n"
    )
    return path


def answers(folder: Path, arguments: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Any]:
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    found = simple_evaluate(
        model="heal",
        model_args=arguments,
        tasks=["scenes"],
        batch_size=4,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    rows = sorted(found["samples"]["scenes"], key=lambda row: row["doc_id"])
    return [row["filtered_resps"][0] for row in rows], found["results"]["scenes"]


HEALED = ("method=heal,alpha=0.6,interval=2,layers=1-4", HEAL(alpha=0.6, interval=2, layers=(1, 2, 3, 4)))


@pytest.mark.parametrize(("arguments", "method"), [("method=plain", None), HEALED])
def test_task_of_lmms_eval(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, method: HEAL | None
) -> None:
    found, scores = answers(folder, f"pretrained=embedded,{arguments}", monkeypatch)
    vlm = VLM.embedded()
    expected = [
        vlm.generate(str(folder / f"{index}.png"), question, method=method, max_new_tokens=6, do_sample=False).text
        for index in range(2)
        for question in QUESTIONS
    ]
    assert found == expected
    assert scores["long,none"] == sum(len(text.split()) for text in expected) / 6


def test_model_is_registered() -> None:
    assert get_model("heal") is Heal


def test_arguments() -> None:
    assert method_from("plain", {}) is None
    assert method_from("heal:alpha=0.5", {}) == HEAL(alpha=0.5)
    given = {"alpha": 0.5, "interval": 5, "calibrate": False, "layers": "8-10", "factor_limit": "none"}
    assert method_from("heal", given) == HEAL(
        alpha=0.5, interval=5, calibrate=False, layers=(8, 9, 10), factor_limit=None
    )
    for name, options, message in (
        ("heal", {"beta": 1}, "'beta=1' is not an option of heal"),
        ("hael", {}, "unknown method 'hael'"),
        ("plain", {"alpha": 0.5}, "plain model has no option alpha"),
    ):
        with pytest.raises(ConfigError, match=message):
            method_from(name, options)


def test_decoding() -> None:
    assert decoding({"until": ["\n\n"]}) == {"max_new_tokens": 1024, "do_sample": False}
    greedy = {"temperature": 0, "top_p": None, "num_beams": 3, "max_new_tokens": 5, "do_sample": True}
    assert decoding(greedy) == {"num_beams": 3, "max_new_tokens": 5, "do_sample": False}
    sampled = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 5}
    assert decoding(sampled) == {**sampled, "do_sample": True}
    assert decoding({**sampled, "do_sample": False}) == {"max_new_tokens": 5, "do_sample": False}
    assert cut("a\n\nb###c", ["\n\n", "###"]) == "a\n\nb"
    assert cut("abc", "b") == "a"
    assert cut("abc", None) == "abc"


def test_only_text_and_images() -> None:
    parts = [{"type": "image", "url": "a.png"}, {"type": "text", "text": "?"}]
    assert conversation([{"role": "user", "content": parts}]) == (
        ["a.png"],
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}],
    )
    with pytest.raises(UnsupportedError, match="not video"):
        conversation([{"role": "user", "content": [{"type": "video", "url": "a.mp4"}]}])
