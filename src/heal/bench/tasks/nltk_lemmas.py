"""Base forms of words from NLTK: its tokens, its POS tags and WordNet, as published CHAIR figures are made.

NLTK and its data are optional. Without them there is one line that says how to get them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from zipfile import BadZipFile

from heal.errors import ConfigError

DATA = ("punkt_tab", "averaged_perceptron_tagger_eng", "wordnet")
# first letter of a Penn Treebank tag: part of speech in WordNet; all others are read as nouns
PARTS = {"J": "a", "V": "v", "N": "n", "R": "r"}


def bases(text: str) -> list[str]:
    """The base form of every token of the text in lower case."""
    return _reader()(text.lower())


def version() -> str:
    """Of NLTK. Asking for it finds out whether NLTK and its data are there."""
    _reader()
    import nltk

    return str(nltk.__version__)


@lru_cache(maxsize=1)
def _reader() -> Callable[[str], list[str]]:
    try:
        import nltk
        from nltk.stem import WordNetLemmatizer
    except ImportError:
        raise ConfigError(
            'the lemmatizer nltk needs NLTK: pip install "nltk>=3.9.1" (or choose the lemmatizer rules)'
        ) from None
    wordnet = WordNetLemmatizer()

    def read(text: str) -> list[str]:
        tagged = nltk.pos_tag(nltk.word_tokenize(text))
        return [wordnet.lemmatize(word, PARTS.get(tag[:1], "n")) for word, tag in tagged]

    try:
        read("two dogs")
    except (LookupError, OSError, BadZipFile):  # its own message has twenty lines
        raise ConfigError(
            f"NLTK's data is missing or broken: run `python -m nltk.downloader {' '.join(DATA)}`, or set NLTK_DATA "
            "to the folder that has it (or choose the lemmatizer rules)"
        ) from None
    return read
