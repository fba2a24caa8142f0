"""CHAIR with NLTK: clear errors if it is missing, WordNet's tags, and the real NLTK if available."""

import json
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heal.bench import create
from heal.bench.tasks import nltk_lemmas, synonyms
from heal.bench.tasks.chair import score_files
from heal.bench.tasks.lemmas import UNKNOWN, noun_base
from heal.cli.app import app
from heal.errors import ConfigError, MissingPackageError

TAGS = {"seated": "VBN", "dogs": "NNS", "faster": "RBR", "older": "JJR", "of": "IN"}
OBJECTS = {"1": ["dog"]}
CAPTIONS = [{"image_id": 1, "caption": "Dogs seated."}]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    nltk_lemmas._reader.cache_clear()
    yield
    nltk_lemmas._reader.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[tuple[str, str]]:
    """A fake NLTK that splits at spaces, tags by a list and records requests to WordNet."""
    asked: list[tuple[str, str]] = []
    nltk, stem = types.ModuleType("nltk"), types.ModuleType("nltk.stem")

    class WordNetLemmatizer:
        def lemmatize(self, word: str, pos: str) -> str:
            asked.append((word, pos))
            return {("seated", "v"): "seat", ("dogs", "n"): "dog"}.get((word, pos), word)

    def word_tokenize(text: str) -> list[str]:
        if error is not None:
            raise error
        return text.replace(".", " .").split()

    values: dict[str, Any] = {
        "__version__": "3.9.9",
        "word_tokenize": word_tokenize,
        "pos_tag": lambda words: [(word, TAGS.get(word, "NN")) for word in words],
    }
    for name, value in values.items():
        setattr(nltk, name, value)
    stem.WordNetLemmatizer = WordNetLemmatizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    monkeypatch.setitem(sys.modules, "nltk.stem", stem)
    return asked


def test_tags_become_parts_of_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch)
    assert nltk_lemmas.bases("Dogs seated faster of older") == ["dog", "seat", "faster", "of", "older"]
    assert asked[-5:] == [("dogs", "n"), ("seated", "v"), ("faster", "r"), ("of", "n"), ("older", "a")]


def test_figures_name_the_lemmatizer(monkeypatch: pytest.MonkeyPatch, write, tmp_path: Path) -> None:
    pretend(monkeypatch)
    captions, objects = write("c.jsonl", CAPTIONS), write("objects.json", json.dumps(OBJECTS))
    found = score_files(captions, objects, lemmatizer="nltk")
    assert (found["chair_i"], found["lemmatizer"]) == (50, "nltk 3.9.9")
    task = create("chair", tmp_path, lemmatizer="nltk")
    assert task.note([]) == "lemmatizer nltk 3.9.9, synonyms own"
    assert task.parse(task.samples()[0], "Dogs seated.")["mentions"] == ["dog", "chair"]
    options = ["score", "chair", "--captions", str(captions), "--objects", str(objects)]
    assert "lemmatizer nltk 3.9.9" in CliRunner().invoke(app, [*options, "--lemmatizer", "nltk"]).stdout
    assert "lemmatizer rules" in CliRunner().invoke(app, options).stdout


def test_names_are_ignored_as_in_the_published_scripts(monkeypatch: pytest.MonkeyPatch, write) -> None:
    pretend(monkeypatch)
    table = write("s.txt", "TV, television\ncake,  cheesecake, cupcake\ncell phone, phone, iPhone\n")
    exact, own = synonyms.load(table, "nltk"), synonyms.load(table)
    assert set(own.category) - set(exact.category) == {"cheesecake", "iphone"}
    assert exact.category["television"] == "tv"


@pytest.mark.parametrize("error", [LookupError("Resource punkt_tab not found\n" * 20), OSError("no file")])
def test_missing_data_gives_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    pretend(monkeypatch, error)
    with pytest.raises(ConfigError, match="punkt_tab averaged_perceptron_tagger_eng wordnet") as told:
        create("chair", tmp_path, lemmatizer="nltk")
    assert "\n" not in str(told.value)


def test_missing_nltk_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch, write, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingPackageError, match=r'pip install "\.\[chair\]"'):
        create("chair", tmp_path, lemmatizer="nltk")
    with pytest.raises(MissingPackageError, match=r'pip install "\.\[chair\]"'):
        score_files(write("c", CAPTIONS), write("o", json.dumps(OBJECTS)), lemmatizer="nltk")
    with pytest.raises(ConfigError, match="lemmatizer cannot be 'spacy': choose one of rules, nltk"):
        create("chair", tmp_path, lemmatizer="spacy")


@pytest.fixture
def real() -> None:
    """Skips the test without NLTK and its data."""
    pytest.importorskip("nltk")
    try:
        nltk_lemmas.version()
    except ConfigError:
        pytest.skip("no NLTK data")


@pytest.mark.usefixtures("real")
def test_real_nltk(official) -> None:
    """Other versions of its tagger change the figures slightly."""
    assert nltk_lemmas.bases("The men have vases.") == ["the", "men", "have", "vas", "."]
    folder = official("chair")
    files = (folder / "llava-1.5_greedy.jsonl", folder / "coco2014_objects.json", folder / "synonyms.txt")
    golden = {"chair_s": 44.8, "chair_i": 12.7, "recall": 80.0, "len": 96.9}
    found = score_files(*files, lemmatizer="nltk")
    assert {name: found[name] for name in golden} == pytest.approx(golden, abs=0.3)


WORDNET = Path("/usr/share/wordnet")
"""WordNet 3.0 from Debian's package wordnet-base."""
SUFFIXES = (
    ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"),
)  # fmt: skip


class Morphology:
    """Noun lemmas as NLTK finds them in WordNet: exceptions, then suffixes, then the word itself."""

    def __init__(self, folder: Path) -> None:
        lines = [line.split() for line in (folder / "noun.exc").read_text().splitlines()]
        self.exceptions = {word: bases for word, *bases in lines}
        index = (folder / "index.noun").read_text().splitlines()
        self.nouns = {line.split(" ", 1)[0] for line in index if not line.startswith(" ")}

    def base(self, word: str) -> str:
        forms = self.exceptions.get(word)
        if forms is not None:
            found = [form for form in (word, *forms) if form in self.nouns]
            return min(found, key=len) if found else word
        forms = [word]
        while forms:
            found = [form for form in (word, *self._shorter(forms)) if form in self.nouns]
            if found:
                return min(found, key=len)
            forms = self._shorter(forms)
        return word

    def _shorter(self, forms: list[str]) -> list[str]:
        return [f.removesuffix(old) + new for f in forms for old, new in SUFFIXES if f.endswith(old)]


def plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    changed = (("y", "ies"), ("f", "ves"), ("man", "men"))
    return next((word.removesuffix(old) + new for old, new in changed if word.endswith(old)), word + "s")


def disagreements(base: Callable[[str], str], nouns: Container[str], irregular: Iterable[str]) -> set[str]:
    """Words of the table, their plurals, and WordNet's irregular plurals that map to other words of the table."""
    vocabulary = synonyms.load().vocabulary
    known = {word for word in vocabulary if word in UNKNOWN or word in nouns}
    words = vocabulary | {plural(word) for word in known} | {word + "s" for word in known} | set(irregular)
    assert len(words) > 2000
    pairs = {word: {noun_base(word, vocabulary), base(word)} for word in words}
    return {word for word, bases in pairs.items() if len(bases) > 1 and bases & vocabulary}


@pytest.mark.skipif(not (WORDNET / "noun.exc").is_file(), reason="needs Debian's package wordnet-base")
def test_rules_agree_with_wordnet_word_by_word() -> None:
    own = Morphology(WORDNET)
    irregular = {word for word in own.exceptions if "_" not in word}
    assert disagreements(own.base, own.nouns, irregular) == {"vas", "vasa"}  # does not occur in captions


@pytest.mark.usefixtures("real")
def test_rules_agree_with_nltk_word_by_word() -> None:
    from nltk.corpus import wordnet
    from nltk.stem import WordNetLemmatizer

    nouns = {word for word in synonyms.load().vocabulary if wordnet.lemmas(word, "n")}
    irregular = {word for word in wordnet._exception_map["n"] if "_" not in word}
    found = disagreements(lambda word: WordNetLemmatizer().lemmatize(word, "n"), nouns, irregular)
    assert found == {"vas", "vasa"}
