"""Small but complete data of every benchmark in the official layout."""

import json
from pathlib import Path
from typing import Any

from PIL import Image

Files = dict[str, str]


def jsonl(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def pope() -> Files:
    rows = [
        {
            "question_id": i,
            "image": f"COCO_val2014_{i // 2:012d}.jpg",
            "text": f"Is there a {n} in the image?",
            "label": a,
        }
        for i, (n, a) in enumerate((("dog", "yes"), ("cat", "no"), ("car", "yes"), ("cup", "no")), 1)
    ]
    return {"coco_pope_random.json": jsonl(rows)}


def chair() -> Files:
    return {
        "objects.json": json.dumps({"1": ["dog", "person"], "2": ["cat"], "3": []}),
        "image_ids.json": "[3, 1]",
    }


def coco() -> Files:
    instances = {
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [{"image_id": 5, "category_id": 1}, {"image_id": 6, "category_id": 2}],
    }
    captions = {
        "images": [{"id": 5}, {"id": 6}],
        "annotations": [{"image_id": 5, "caption": "A man on a sofa."}, {"image_id": 6, "caption": "Dogs."}],
    }
    return {
        "annotations/instances_val2014.json": json.dumps(instances),
        "annotations/captions_val2014.json": json.dumps(captions),
    }


def mme() -> Files:
    return {"count.txt": "".join(f"{i}.jpg\tIs it {i}?\tYes\n{i}.jpg\tIs it not {i}?\tNo\n" for i in range(3))}


def mmhal() -> Files:
    items = [
        {
            "question_type": kind,
            "question_topic": "indoor",
            "image_id": f"{number}a",
            "image_src": f"https://example.org/{number}.jpg",
            "image_content": ["Cup", "Dog"],
            "question": "What is it?",
            "gt_answer": "A cup.",
            "model_answer": "",
        }
        for number, kind in enumerate(("attribute", "other"))
    ]
    return {"response_template.json": json.dumps(items), "judge_template.txt": "{} {} {} {}"}


def llava() -> Files:
    kinds = ("conv", "detail", "complex")
    rows = [{"question_id": i, "image": "001.jpg", "text": f"What {i}?", "category": k} for i, k in enumerate(kinds)]
    return {
        "questions.jsonl": jsonl(rows),
        "context.jsonl": jsonl([{"id": "001", "image": "001.jpg", "caption": "A cup."}]),
        "answers_gpt4.jsonl": jsonl([{"question_id": i, "text": f"A cup {i}."} for i in range(3)]),
        "rule.json": json.dumps({f"llava_bench_{k}": {"role": "Assistant", "prompt": "Rate."} for k in kinds}),
    }


def blink() -> Files:
    rows = [
        {"group": 1, "image": f"1{'t' * twin}.jpg", "twin": twin, "question": f"Is it {a}?", "answer": a}
        for twin in (False, True)
        for a in ("no", "yes")
    ]
    return {"blink_twice.jsonl": jsonl(rows)}


EVERY = {
    "pope": ("pope", {"splits": "random"}, pope),
    "chair": ("chair", {}, chair),
    "coco": ("chair", {}, coco),
    "mme": ("mme", {"subtasks": "count"}, mme),
    "mmhal": ("mmhal", {}, mmhal),
    "llava-bench": ("llava-bench", {}, llava),
    "blink-twice": ("blink-twice", {}, blink),
}
"""Task name, options and files."""


def put(folder: Path, files: Files | dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def pictures(folder: Path, *names: str) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", (56, 56), (40 * number, 90, 200)).save(folder / "images" / name)
