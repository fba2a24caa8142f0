"""Pages of damaged traces, answers and runs: a page whose data can be read, or a refusal."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

from heal.view import page, run_data
from heal.view.load import answers_from
from tests.fuzz import odd
from tests.fuzz.oracle import Draw, check
from tests.fuzz.stored import finished_run, trace_bytes

ANSWER: dict[str, Any] = {
    "model": "embedded",
    "method": "heal",
    "options": {"alpha": 0.5},
    "image": "gone.png",
    "prompt": "what is this?",
    "answer": {"text": "a kite", "tokens": ["a", " kite"], "logprobs": [-0.1, -2.0], "fired": None, "trace": None},
    "plain": {"text": "a dog", "tokens": ["a", " dog"], "logprobs": [-0.1, -2.0], "fired": None, "trace": None},
}


def pages(draw: Draw) -> None:
    """A page of damaged input is refused, or its data is complete and its text cannot leave its element."""
    kind = draw.choice(("trace", "answer", "answer", "run"))
    if kind == "run":
        folder = Path(shutil.copytree(finished_run(), draw.place / "run"))
        path = folder / draw.choice(("run.json", "samples.jsonl", "records.jsonl"))
        lines = path.suffix == ".jsonl"
        content = path.read_text()
        value = [json.loads(line) for line in content.splitlines()] if lines else json.loads(content)
        mutated = odd.mutate_document(draw, value, lines)
    elif kind == "trace":
        path = draw.place / "t.safetensors"
        mutated = odd.mutate_bytes(draw, trace_bytes())
    else:
        path = draw.place / "a.json"
        mutated = odd.mutate_document(draw, ANSWER, False)
    path.write_bytes(mutated.content)
    draw.show(f"{kind}: {mutated.how}")
    data = run_data(folder) if kind == "run" else answers_from([path], objects=["kite"])
    text = page(data)
    found = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    check(len(found) == 2, "the page has other scripts")
    check(json.loads(found[0]) == [data], "the page has other data")
    for answer in data.get("answers", ()):
        _check_answer(answer)


def _check_answer(answer: dict[str, Any]) -> None:
    steps = len(answer["tokens"] or ())
    for name in ("logprobs", "risk", "share", "entropy", "margin"):
        check(answer[name] is None or len(answer[name]) == steps, f"{name} and tokens have different lengths")
    text = "".join(answer["tokens"] or ()) or answer["text"]
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    for mark in answer["mentions"]:
        check(0 <= mark["start"] < mark["stop"] <= units, "a mark outside the text")
    heads = answer["heads"]
    if heads is not None:
        types = heads["types"]
        size = heads["layers"] * heads["heads"] * len(types["steps"])
        check(len(base64.b64decode(types["data"])) == size, "types of the wrong size")
