"""Word tokens as NLTK's `word_tokenize` makes them (Treebank rules), without its data files."""

from __future__ import annotations

import re

# in this order, as in the Treebank rules; a full stop inside a word (3.5, u.s) stays there
_SPLITS = (
    (re.compile(r"[“”\"]|``|''"), ' " '),
    (re.compile(r"\.\.\."), " ... "),
    (re.compile(r"([^.])(\.)([\])}>\"'»]*)(?=\s|$)"), r"\1 \2 \3 "),
    (re.compile(r"([:,])(?=\D|$)"), r" \1 "),
    (re.compile(r"[;@#$%&?!*()\[\]{}<>]"), r" \g<0> "),
    (re.compile(r"--"), " -- "),
    (re.compile(r"([^' ])('s|'m|'d|'ll|'re|'ve|')(?= |$)", re.I), r"\1 \2 "),
    (re.compile(r"([^' ])(n't)(?= |$)", re.I), r"\1 \2 "),
    (re.compile(r"\b(can)(not)\b", re.I), r"\1 \2"),
)


def tokens(text: str) -> list[str]:
    """Words and punctuation marks; `don't` is two of them, `black-and-white` one."""
    text = " ".join(text.replace("’", "'").split())
    for pattern, replacement in _SPLITS:
        text = pattern.sub(replacement, text)
    return text.split()
