"""The demo of `heal run`: the embedded model describes an unlikely scene, plain and with a method."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from heal.cli.common import EMBEDDED, check_writable, load
from heal.cli.output import note, say
from heal.cli.run import describe
from heal.errors import ConfigError
from heal.escape import visible
from heal.extras import require

if TYPE_CHECKING:
    from heal.generate import Answer
    from heal.methods.base import Method
    from heal.plots.mix import Marked
    from heal.studies.objects import ObjectToken
    from heal.vlm import VLM
    from heal.world import View

SCENE = 0
"""Index in the validation split of the counter distribution."""
MANY = 32
"""Number of further scenes to count hallucinations in."""
ENLARGED = 4
TOKENS = 128


def announce(method: str, folder: Path) -> None:
    """Tell immediately, before slow imports, what the demo does and where it writes."""
    check_writable(folder, "the images", folder=True)
    note(
        f"demo: the small model of this package describes a drawn scene, plain and with {method}, "
        f"then {MANY} more.\nImages are written to {folder}. This takes about half a minute; loading …"
    )


def demo(method: Method | None, folder: Path) -> None:
    """Print both answers with hallucinated objects marked and the drift of the synergy heads, and write three images.

    The default method is HEAL with the settings chosen for this model on the validation split.
    """
    require("matplotlib", "scipy")
    import torch

    from heal.studies.comparison import EMBEDDED_HEAL
    from heal.studies.objects import PROMPT, label
    from heal.world import World

    torch.set_num_threads(1)  # more threads do not speed up so small a model
    method = method or EMBEDDED_HEAL
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    vlm = load(EMBEDDED, "auto", None)
    world = World(0, "validation", "counter")
    view = world.scene(SCENE)
    found: dict[str, tuple[Answer, list[ObjectToken]]] = {}
    for name, given in (("plain", None), (method.name, method)):
        answer = vlm.generate(view.image, PROMPT, method=given, trace=True, max_new_tokens=TOKENS, do_sample=False)
        assert answer.trace is not None
        found[name] = (answer, label(0, answer.trace, vlm.tokenizer, view.objects))
    with _writing(folder):
        image = _write(view, found, folder)
    say(f"image: {image}")
    say(f"it shows: {', '.join(sorted(view.objects))}")
    say(f"prompt: {PROMPT}\n")
    for name, (answer, tokens) in found.items():
        wrong = [t for t in tokens if not t.correct]
        print(f"{name}: {marked(answer, wrong)}")  # contains colour codes
        hallucinated = ", ".join(dict.fromkeys(t.category for t in wrong)) or "nothing"
        correct = len({t.category for t in tokens if t.correct})
        say(f"  hallucinated: {hallucinated}; correct: {correct} of {len(view.objects)} objects")
        shares = drift(tokens)
        say(f"  {shares}\n" if shares else "")
    say(describe(found[method.name][0], found["plain"][0]))
    views = [world.scene(i) for i in range(MANY)]
    say(f"one scene proves little; totals over the first {MANY} such scenes (docs/results.md has thousands):")
    for name, given in (("plain", None), (method.name, method)):
        say(f"  {name}: {count_objects(vlm, views, given)}")
    say(f"images: {', '.join(sorted(str(p) for p in folder.glob('*.png')))}")


def count_objects(vlm: VLM, views: list[View], method: Method | None) -> str:
    """Count hallucinated and correctly named objects over many scenes, in one line."""
    from heal.studies.objects import PROMPT
    from heal.world.mentions import mentions

    images, prompts = [view.image for view in views], [PROMPT] * len(views)
    answers = vlm.generate(images, prompts, method=method, max_new_tokens=TOKENS, do_sample=False)
    named = [{mention.category for mention in mentions(answer.text)} for answer in answers]
    wrong = [len(names - view.objects) for names, view in zip(named, views, strict=True)]
    right = sum(len(names & view.objects) for names, view in zip(named, views, strict=True))
    present = sum(len(view.objects) for view in views)
    return (
        f"{sum(wrong)} objects hallucinated in {sum(map(bool, wrong))} of {len(views)} descriptions; "
        f"{right} of {present} objects correct"
    )


def marked(answer: Answer, wrong: list[ObjectToken]) -> str:
    """The text with hallucinated names in red, or in [!…!] if the output has no colours."""
    from heal.world.mentions import mentions

    before, after = ("\x1b[1;31m", "\x1b[0m") if sys.stdout.isatty() else ("[!", "!]")
    names, text, end, parts = {t.category for t in wrong}, answer.text, 0, []
    for mention in mentions(text):
        if mention.category in names:
            parts += [visible(text[end : mention.start]), before, text[mention.start : mention.stop], after]
            end = mention.stop
    return "".join([*parts, visible(text[end:])])


def drift(tokens: list[ObjectToken]) -> str:
    """Mean visual share of the synergy heads at correct and at hallucinated names. Empty if it was not measured."""
    import numpy as np

    from heal.studies.drift import mean_alpha

    def mean(correct: bool) -> str:
        values = [x for t in tokens if t.correct == correct and not np.isnan(x := mean_alpha(t))]
        return f"{np.mean(values):.2f}" if values else "–"

    right, wrong = mean(True), mean(False)
    if right == wrong == "–":
        return ""
    return f"visual share of the synergy heads: {right} at correct names, {wrong} at hallucinated ones"


def _write(view: View, found: dict[str, tuple[Answer, list[ObjectToken]]], folder: Path) -> Path:
    """Write the scene, the map of head types and the plot of the visual share in both answers."""
    from heal.plots import head_map, mix_over_tokens, save

    size = (view.image.width * ENLARGED, view.image.height * ENLARGED)
    view.image.resize(size).save(image := folder / "scene.png")
    answers = {name: _marks(*pair) for name, pair in found.items()}
    trace = answers["plain"].trace
    save(head_map(trace.types[0], "Head types at the first token"), folder / "heads.png")
    save(mix_over_tokens(answers), folder / "mix.png")
    return image


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the images cannot be written to {folder}: {error.strerror}") from error


def _marks(answer: Answer, tokens: list[ObjectToken]) -> Marked:
    from heal.plots.mix import Marked

    assert answer.trace is not None
    steps = {kind: [t.step for t in tokens if t.correct == kind] for kind in (True, False)}
    return Marked(answer.trace, correct=steps[True], hallucinated=steps[False])
