"""The demo of `heal run`: what the embedded model names in many scenes, plain and with methods, and one example."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heal.cli.common import EMBEDDED, check_writable, load
from heal.cli.demo_figures import HEADINGS, Figures, Named, corrected, figures
from heal.cli.output import Table, note, say, show
from heal.errors import ConfigError
from heal.escape import visible
from heal.extras import require

if TYPE_CHECKING:
    from heal.generate import Answer
    from heal.methods.base import Method
    from heal.vlm import VLM
    from heal.world import View

    Methods = Mapping[str, Method | None]

SCENES = 128
"""Scenes of each kind that are counted."""
FIRST = 10_000
"""The first scene of the validation split that is used. No setting and no detector was fitted on it or on later ones.
"""
EXAMPLE = 10_039
"""The first unlikely scene from FIRST on in which only the plain answer hallucinates, and both methods name every
true object that it names."""
TOKENS = 128
BATCH = 64
PAGE = "index.html"
BELOW = (
    "Hallucinated: named, but not in the scene. Each object counts once per scene.",
    "In brackets: 95 % bootstrap interval. If it contains 0, the difference may be chance.",
)
CHOSEN = "chosen because it shows the effect: only the plain answer hallucinates, and no true object is lost"
OTHERWISE = "chosen because HEAL and the guard help there"
"""If the rule does not hold, because another method is shown."""


def announce(method: str, folder: Path) -> None:
    """Tell immediately, before slow imports, what the demo does and where it writes."""
    check_writable(folder, "the page", folder=True)
    named = "HEAL and with guard" if method == "heal" else method
    note(
        f"demo: the small model of this package describes drawn scenes, plain, with {named}.\n"
        f"The page is written to {folder / PAGE}. This takes about a minute; loading …"
    )


def demo(method: Method | None, folder: Path, scenes: int = SCENES) -> None:
    """Print how many objects are hallucinated in many scenes and one example, and write both to a page.

    The default methods are HEAL, with the settings chosen for this model, and the guard.
    """
    require("xxhash")  # of the studies, whose setting of HEAL is used
    import torch

    from heal.atomic_write import atomic_write
    from heal.methods import Guard
    from heal.studies.comparison import EMBEDDED_HEAL
    from heal.view import page

    torch.set_num_threads(1)  # more threads do not speed up so small a model
    compared = {"HEAL": EMBEDDED_HEAL, "guard": Guard()} if method is None else {method.name: method}
    methods: Methods = {"plain": None, **compared}
    vlm = load(EMBEDDED, "auto", None)
    answers = example(vlm, methods, patches=method is None)
    found = figures(count(vlm, methods, scenes))
    title = f"{2 * scenes} drawn scenes described by the small model of this package"
    kinds = f"{scenes} with usual and {scenes} with unlikely combinations of objects; nothing was fitted on them"
    say(f"{title}\n({kinds})")
    show(Table(HEADINGS, found.rows))
    say("\n".join(BELOW) + "\n")
    print_example(answers, found)
    html = page(*page_data(answers, found, title, kinds), title="heal: demo")
    try:
        written = atomic_write(folder / PAGE, html)
    except OSError as error:
        raise ConfigError(f"the page cannot be written to {folder}: {error.strerror}") from error
    say(f"open {written} in a browser: every word of the example, its risk, and the heads behind it")


def example_scene() -> View:
    from heal.world import World

    return World(0, "validation", "counter").scene(EXAMPLE)


def example(vlm: VLM, methods: Methods, patches: bool) -> dict[str, Answer]:
    """The answers to the example, with traces and risks. `patches`: also where heads look."""
    from heal.studies.objects import PROMPT

    image = example_scene().image
    options: dict[str, Any] = {"trace": "patches" if patches else True, "risk": True}
    options |= {"max_new_tokens": TOKENS, "do_sample": False}
    return {name: vlm.generate(image, PROMPT, method=method, **options) for name, method in methods.items()}


def count(vlm: VLM, methods: Methods, scenes: int) -> dict[str, list[Named]]:
    """What each method names in the scenes of both kinds, in the same order."""
    from heal.cli.progress import progress
    from heal.studies.objects import PROMPT
    from heal.world import World

    worlds = [World(0, "validation", kind) for kind in ("natural", "counter")]
    views = [world.scene(FIRST + i) for world in worlds for i in range(scenes)]
    named: dict[str, list[Named]] = {name: [] for name in methods}
    done = 0
    with progress("answers") as report:
        for start in range(0, len(views), BATCH):
            part = views[start : start + BATCH]
            images, prompts = [view.image for view in part], [PROMPT] * len(part)
            for name, method in methods.items():
                report(name, done, len(views) * len(methods))
                answers = vlm.generate(images, prompts, method=method, max_new_tokens=TOKENS, do_sample=False)
                pairs = zip(answers, part, strict=True)
                named[name] += [Named.of(answer.text, view.objects) for answer, view in pairs]
                done += len(part)
        report("all", done, len(views) * len(methods))
    return named


def print_example(answers: Mapping[str, Answer], found: Figures) -> None:
    objects = example_scene().objects
    say(f"One scene, {reason(answers)}.\n{found.corrected}\nThe scene shows: {', '.join(sorted(objects))}\n")
    for name, answer in answers.items():
        print(f"{name}: {marked(answer.text, objects)}")  # contains colour codes
        for line in left_out(answer):
            say(f"  {line}")
    say()


def reason(answers: Mapping[str, Answer]) -> str:
    """Why this scene is shown."""
    objects = example_scene().objects
    named = {name: Named.of(answer.text, objects) for name, answer in answers.items()}
    plain, *others = named.values()
    return CHOSEN if all(corrected(plain, other) for other in others) else OTHERWISE


def left_out(answer: Answer) -> list[str]:
    """The sentences that a guard left out, with the reason."""
    return [
        f"left out (risk {sentence.risk:.2f}: {sentence.word}): {sentence.text.strip()}"
        for sentence in answer.sentences
        if not sentence.kept and sentence.risk is not None
    ]


def marked(text: str, objects: frozenset[str]) -> str:
    """The text with hallucinated names in red, or in [!…!] if the output has no colours."""
    from heal.world.mentions import mentions

    before, after = ("\x1b[1;31m", "\x1b[0m") if sys.stdout.isatty() else ("[!", "!]")
    end, parts = 0, []
    for mention in mentions(text):
        if mention.category not in objects:
            parts += [visible(text[end : mention.start]), before, text[mention.start : mention.stop], after]
            end = mention.stop
    return "".join([*parts, visible(text[end:])])


def page_data(answers: Mapping[str, Answer], found: Figures, title: str, kinds: str) -> list[dict[str, Any]]:
    """The figures, and below them the view of the example."""
    from heal.view import answer_data, summary_data

    notes = [f"One scene, {reason(answers)}. {found.corrected}"]
    notes += [f"{name} {line}" for name, answer in answers.items() for line in left_out(answer)]
    return [
        summary_data(title, HEADINGS, found.rows, notes=[f"{kinds.capitalize()}."], below=BELOW),
        answer_data(answers, objects=example_scene().objects, title="One example", notes=notes),
    ]
