"""The HTML of the app: all text is escaped, words are shaded by their values, hallucinated names are marked."""

import re

import pytest

pytest.importorskip("gradio")

from heal.app import markup
from heal.app.answering import Panel, Progress
from heal.app.sessions import Answered
from heal.detect.risk import Judged, ObjectRisk
from heal.live import SoFar
from heal.world.mentions import mentions
from tests.view.traces import HOSTILE

NAN = float("nan")
TOKENS = ("A", " blue", " k", "ite", " and", " a", " dog", ".")


def shades(text: str) -> dict[str, int | None]:
    found = re.findall(r"<span([^>]*)>([^<]*)</span>", text)
    return {word: int(m[1]) if (m := re.search(r"--v:(\d+)", own)) else None for own, word in found}


def test_words_have_their_highest_risk_or_mean_share() -> None:
    values = (0.0, 0.5, 0.2, 0.9, NAN, 0.254)
    assert shades(markup.words(("a", " dog", ""), (0.1, 0.2, 1.0), "risk", None, mentions))["dog"] == 20
    risk = markup.words(TOKENS, values, "risk", None, mentions)
    assert shades(risk) == {"A": 0, "blue": 50, "kite": 90, "and": None, "a": 25, "dog.": None}
    assert shades(markup.words(TOKENS, values, "share", None, mentions))["kite"] == 55
    assert re.sub("<[^>]*>", "", risk) == "A blue kite and a dog."


def test_only_object_words_have_a_risk() -> None:
    word = ObjectRisk("kite", "kite", (7, 11), (2, 4), 0.8, ())
    judged = Judged((0.9,) * len(TOKENS), (word,), 0.5)
    shown = markup.live(Progress("", panels=(Panel("plain", SoFar(TOKENS, judged)),)), mentions)
    assert {name: value for name, value in shades(shown).items() if value is not None} == {"kite": 80}
    assert "risk that an object word is hallucinated" in shown


def test_names_of_missing_objects_are_marked() -> None:
    marked = re.findall(r'heal-wrong"[^>]*>([^<]*)<', markup.words(TOKENS, (), "", {"dog"}, mentions))
    assert marked == ["kite"]
    assert "heal-wrong" not in markup.words(TOKENS, (), "", None, mentions)


@pytest.mark.parametrize("text", [HOSTILE, '"><script>alert(1)</script>', "&lt;b&gt;"])
def test_any_text_is_escaped(text: str) -> None:
    progress = Progress(text, failed=True, panels=(Panel(text, SoFar((text,), share=(0.5,))),), objects=frozenset())
    for found in (markup.status(progress), markup.live(progress, mentions), markup.links(Answered(text, {}, None))):
        tags = set(re.findall(r"<\s*/?\s*(\w+)", found))
        assert tags <= {"p", "section", "h3", "span", "i", "a"}
    assert 'role="alert"' in markup.status(progress)


def test_nothing_is_shown_without_an_answer() -> None:
    assert markup.live(Progress("Waiting"), mentions) == ""
    assert markup.status(Progress("")) == ""
