"""The demonstration: the embedded model before a scene that defies its expectations, plain and with a method."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from heal.cli.common import EMBEDDED, load
from heal.cli.run import describe
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.experiments.objects import ObjectToken
    from heal.generate import Answer
    from heal.methods.base import Method
    from heal.plots.mix import Marked
    from heal.world import View

SCENE = 0
"""Of the validation split of the counter world."""
ENLARGED = 4


def demo(method: Method | None, folder: Path) -> None:
    """Both answers with every made-up object marked, the drift of the synergy heads, and three pictures.

    Without a method: HEAL with each head's own equilibrium, as it was measured for this model.
    """
    from heal.experiments.objects import PROMPT, label
    from heal.methods import HEAL
    from heal.world import World

    method = method or HEAL(alpha="profile")

    vlm = load(EMBEDDED, "auto", None)
    view = World(0, "validation", "counter").scene(SCENE)
    found: dict[str, tuple[Answer, list[ObjectToken]]] = {}
    for name, given in (("plain", None), (method.name, method)):
        answer = vlm.generate(view.image, PROMPT, method=given, trace=True, max_new_tokens=128, do_sample=False)
        assert answer.trace is not None
        found[name] = (answer, label(0, answer.trace, view.objects))
    picture = _write(view, found, folder)
    print(f"picture: {picture}")
    print(f"it shows: {', '.join(sorted(view.objects))}")
    print(f"asked: {PROMPT}\n")
    for name, (answer, tokens) in found.items():
        wrong = [t for t in tokens if not t.correct]
        print(f"{name}: {marked(answer, wrong)}")
        made_up = ", ".join(dict.fromkeys(t.category for t in wrong)) or "nothing"
        print(
            f"  made up: {made_up}; named rightly: {len({t.category for t in tokens if t.correct})} "
            f"of {len(view.objects)}"
        )
        print(f"  {drift(tokens)}\n")
    print(describe(found[method.name][0], found["plain"][0]))
    print("one scene proves nothing: `heal report embedded` measures many")
    print(f"pictures: {', '.join(sorted(str(p) for p in folder.glob('*.png')))}")


def marked(answer: Answer, wrong: list[ObjectToken]) -> str:
    """The text with made-up names in red, or between signs where there are no colours."""
    from heal.world.mentions import mentions

    before, after = ("\x1b[1;31m", "\x1b[0m") if sys.stdout.isatty() else ("[!", "!]")
    names, text, end, parts = {t.category for t in wrong}, answer.text, 0, []
    for mention in mentions(text):
        if mention.category in names:
            parts += [text[end : mention.start], before, text[mention.start : mention.stop], after]
            end = mention.stop
    return "".join([*parts, text[end:]])


def drift(tokens: list[ObjectToken]) -> str:
    """The visual share of the synergy heads at correct and at made-up names, in one line."""
    import numpy as np

    from heal.experiments.drift import mean_alpha

    def mean(correct: bool) -> str:
        values = [x for t in tokens if t.correct == correct and not np.isnan(x := mean_alpha(t))]
        return f"{np.mean(values):.2f}" if values else "–"

    return f"visual share of the synergy heads: {mean(True)} at correct names, {mean(False)} at made-up ones"


def _write(view: View, found: dict[str, tuple[Answer, list[ObjectToken]]], folder: Path) -> Path:
    """The picture, the map of head types, and the mix along both answers."""
    from heal.plots import head_map, mix_over_tokens, save

    try:
        folder.mkdir(parents=True, exist_ok=True)
        size = (view.image.width * ENLARGED, view.image.height * ENLARGED)
        view.image.resize(size).save(picture := folder / "scene.png")
        answers = {name: _marks(*pair) for name, pair in found.items()}
        trace = answers["plain"].trace
        save(head_map(trace.types[0], "Head types at the first token"), folder / "heads.png")
        save(mix_over_tokens(answers), folder / "mix.png")
    except OSError as error:
        raise ConfigError(f"the pictures cannot be written to {folder}: {error.strerror}") from error
    return picture


def _marks(answer: Answer, tokens: list[ObjectToken]) -> Marked:
    from heal.plots.mix import Marked

    assert answer.trace is not None
    steps = {kind: [t.step for t in tokens if t.correct == kind] for kind in (True, False)}
    return Marked(answer.trace, correct=steps[True], hallucinated=steps[False])
