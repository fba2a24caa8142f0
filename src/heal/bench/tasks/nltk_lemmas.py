"""Lemmas from NLTK's tokenizer, POS tagger and WordNet, as used for published CHAIR figures.

NLTK and its data are optional. If they are missing, the error message says how to install them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from zipfile import BadZipFile

from heal.errors import ConfigError, MissingPackageError

DATA = ("punkt_tab", "averaged_perceptron_tagger_eng", "wordnet")
# first letter of a Penn Treebank tag: part of speech in WordNet; all others are treated as nouns
PARTS = {"J": "a", "V": "v", "N": "n", "R": "r"}


def bases(text: str) -> list[str]:
    """The lemmas of all tokens of the lower-cased text."""
    return _reader()(text.lower())


def version() -> str:
    """The version of NLTK. Raises an error if NLTK or its data is missing."""
    _reader()
    import nltk

    return str(nltk.__version__)


@lru_cache(maxsize=1)
def _reader() -> Callable[[str], list[str]]:
    try:
        import nltk
        from nltk.stem import WordNetLemmatizer
    except ImportError:
        raise MissingPackageError(
            'the lemmatizer nltk needs NLTK: run `pip install ".[chair]"` in the folder of heal (or choose the '
            "lemmatizer rules)"
        ) from None
    wordnet = WordNetLemmatizer()

    def read(text: str) -> list[str]:
        tagged = nltk.pos_tag(nltk.word_tokenize(text))
        return [wordnet.lemmatize(word, PARTS.get(tag[:1], "n")) for word, tag in tagged]

    try:
        read("two dogs")
    except (LookupError, OSError, BadZipFile):  # NLTK's own message has twenty lines
        raise ConfigError(
            f"NLTK's data is missing or broken: run `python -m nltk.downloader {' '.join(DATA)}`, or set NLTK_DATA "
            "to the folder that has it (or choose the lemmatizer rules)"
        ) from None
    return read
