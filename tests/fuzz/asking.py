"""Prompts, chat messages and options of generate(), given to the tiny random model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image

from heal.methods import Method, parse
from tests.fuzz import odd
from tests.fuzz.oracle import Draw, check
from tests.fuzz.stored import tiny
from tests.fuzz.strings import generate_text

PATCHES = 16
METHODS = (
    "heal",
    "heal:interval=1",
    "heal:masking=zero",
    "beam:beams=2",
    "dola",
    "vcd",
    "pai",
    "vhr",
    "memvr",
    "heal:layers=0-99",
)
TOKENS = 3


def picture(draw: Draw) -> Image.Image:
    size = draw.choice(((56, 56), (8, 200), (1, 1), (200, 9)))
    pixels = np.random.default_rng(draw.randrange(99)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def content(draw: Draw, depth: int = 0) -> Any:
    """The content of a message, valid or almost valid."""
    part = draw.choice((
        {"type": "image"}, {"type": "image"}, {"type": "text", "text": "what is this ?"},
        {"type": "text", "text": odd.text(draw)}, {"type": "text"}, {"type": "video"},
        {"type": "image", "url": "http://x"}, {"type": "text", "text": None}, {}, "text", None,
        {"type": "text", "text": 5}, {"type": ["image"]},
    ))  # fmt: skip
    good = [{"type": "image"}, {"type": "text", "text": "what is this ?"}]
    return draw.choice(
        ("what is this ?", odd.text(draw), good, good, [*good, part], [part], [], None, 5, (good[0], good[1]))
    )


def message(draw: Draw) -> Any:
    role = draw.choice(("user", "user", "user", "assistant", "system", "", odd.text(draw), None, 5))
    made: Any = {"role": role, "content": content(draw)}
    if draw.often(0.1):
        made.pop(draw.choice(("role", "content")))
    return draw.choice((made, made, made, made, None, "user", []))


def prompt(draw: Draw) -> Any:
    if draw.often(0.5):
        return draw.choice(("what is this ?", odd.text(draw), odd.text(draw), "dog " * draw.choice((10, 300))))
    return draw.choice(
        ([message(draw) for _ in range(draw.randint(0, 3))], (message(draw),), {}, 5, None, [[]], b"x", [None])
    )


def images(draw: Draw) -> Any:
    one = picture(draw)
    return draw.choice(
        (one, one, one, None, [one], [one, one], [], [None], 5, "", "missing.png", {}, [[one]], odd.value(draw))
    )


def prompts(draw: Draw) -> None:
    """The inputs contain all words and image placeholders without truncation."""
    vlm = tiny()
    given, asked = images(draw), prompt(draw)
    single = isinstance(asked, str) or (
        isinstance(asked, (list, tuple)) and len(asked) > 0 and isinstance(asked[0], dict)
    )
    draw.show(f"inputs({given!r}, {asked!r})")
    if not single or draw.often(0.3):
        vlm.generate(given, asked, max_new_tokens=1, do_sample=False)
        return
    found = vlm.inputs([given], [asked])
    number = 0 if given is None else len(given) if isinstance(given, (list, tuple)) else 1
    ids = found["input_ids"]
    check(int((ids == 4).sum()) == PATCHES * number, "the number of placeholders differs from the number of images")
    check(ids.shape[0] == 1 and bool(found["attention_mask"].all()), "padding in a single prompt")
    check(("pixel_values" in found) == (number > 0), "pixels without an image, or an image without pixels")
    if number:
        check(bool(found["pixel_values"].isfinite().all()), "pixels that are not finite")


def answers(draw: Draw) -> None:
    """A few tokens with unusual options give a consistent answer or a refusal."""
    vlm = tiny()
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}
    for _ in range(draw.randint(0, 2)):
        key, _, value = generate_text(draw).partition("=")
        if key in ("images", "prompts"):
            continue  # parameters of VLM.generate, which Python itself refuses
        options[key] = odd.value(draw) if draw.often(0.4) else _typed(value)
    if not isinstance(options["max_new_tokens"], int) or options["max_new_tokens"] > 20:
        options["max_new_tokens"] = TOKENS  # long generation is not a hang
    method: Method | None = parse(draw.choice(METHODS)) if draw.often(0.6) else None
    count = draw.choice((1, 1, 2))
    seed: Any = draw.choice((0, 2**70, "x", 1.5)) if draw.often(0.1) else draw.choice((None, 7))
    draw.show(f"generate(…×{count}, method={method}, seed={seed!r}, **{options!r})")
    pictures, asked = [picture(draw) for _ in range(count)], ["what is this ?"] * count
    found = vlm.generate(pictures, asked, method=method, trace=draw.often(0.2), seed=seed, **options)
    for answer in found:
        check(len(answer.logprobs) == len(answer.token_ids) > 0, "tokens and probabilities differ in number")
        check(all(x <= 1e-4 for x in answer.logprobs), "a probability above 1 or undefined")
        check(answer.finish in ("stop", "length"), f"finish {answer.finish!r}")
        check((answer.fired is None) == (method is None), "activity without a method, or a method without activity")
        if answer.fired is not None:
            check(bool(answer.fired) or answer.fired.reason, "the method was inactive without a reason")
            check(all(math.isfinite(x) for x in answer.fired.sizes.values()), "a size that is not finite")
        if answer.trace is not None:
            check(answer.trace.steps == len(answer.token_ids), "a trace of the wrong length")


def _typed(value: str) -> Any:
    words: dict[str, Any] = {
        "true": True,
        "false": False,
        "null": None,
        "[1]": [1],
        "[[1]]": [[1]],
        "{}": {},
        "[]": [],
    }
    try:
        return words[value] if value in words else int(value)
    except ValueError:
        return value
