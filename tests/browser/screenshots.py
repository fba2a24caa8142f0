"""The pictures of docs/images: the embedded model describes a scene of the validation split, plain and with HEAL.

python -m tests.browser.screenshots [answer|run]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from heal import VLM
from heal.atomic_write import atomic_write
from heal.bench import create
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.methods import parse
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.objects import PROMPT
from heal.view import answer_data, page, run_data
from heal.world import World
from tests.browser.browser import Browser, started

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCENE, SCENES = 4, 60
MOST_BYTES = 200_000


def main(only: str = "") -> None:
    """`only`: answer or run."""
    vlm = VLM.embedded()
    with TemporaryDirectory() as name, started() as browser:
        if only in ("", "answer"):
            shoot_answers(vlm, browser, Path(name) / "answers.html")
        if only in ("", "run"):
            results = Path(name) / "results.html"
            results.write_text(page(run_page(vlm, Path(name) / "run")))
            shoot(browser, results, "run.png", 1280, 1000, "document.querySelector('[name=hallucinated]').click()")


def shoot_answers(vlm: VLM, browser: Browser, path: Path) -> None:
    path.write_text(page(answer_page(vlm)))
    shoot(browser, path, "answer.png", 1280, 1000)
    browser.media(scheme="dark")
    shoot(browser, path, "answer-narrow.png", 390, 844)
    browser.media()


def answer_page(vlm: VLM) -> dict[str, object]:
    view = World(0, "validation", "counter").scene(SCENE)
    found = {
        name: vlm.generate(
            view.image, PROMPT, method=method, trace=True, risk=True, max_new_tokens=128, do_sample=False
        )
        for name, method in (("plain", None), ("heal", EMBEDDED_HEAL))
    }
    return answer_data(found, objects=view.objects)


def run_page(vlm: VLM, folder: Path) -> dict[str, object]:
    methods = {"plain": None, "heal": EMBEDDED_HEAL, "vcd": parse("vcd"), "beam": parse("beam"), "pai": parse("pai")}
    task = create("mini-chair", count=SCENES, split="validation")
    run(vlm, {"captions": task}, methods, folder, Settings(batch_size=30))
    return run_data(folder, title=f"{SCENES} validation scenes")


def shoot(browser: Browser, path: Path, name: str, width: int, height: int, before: str = "") -> None:
    browser.resize(width, height)
    browser.open(path)
    browser.run(before)
    store(browser, name)


def store(browser: Browser, name: str) -> None:
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    for colours in (256, 128, 64, 32):
        buffer = io.BytesIO()
        picture.quantize(colours).save(buffer, format="PNG", optimize=True)
        if buffer.tell() < MOST_BYTES:
            break
    atomic_write(IMAGES / name, buffer.getvalue())
    print(f"{IMAGES / name}: {buffer.tell():,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:2])
