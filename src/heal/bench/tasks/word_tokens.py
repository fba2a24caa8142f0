"""Word tokens of NLTK's `word_tokenize` (Treebank rules), without its data files."""

from __future__ import annotations

import re

# full stops that do not end a sentence: numbers and abbreviations followed by text (`395. the`, `a.m. it`)
_SHORT = r"\d+|[a-z]|(?!e\.g|i\.e)(?:[a-z]\.)+[a-z]|dr|jr|mr|mrs|ms|prof|sr|st|vs"
_KEPT = re.compile(rf"(?<!\S)({_SHORT})\.(?=\s+\S)", re.I)
_HELD = "\ue000"  # placeholder for such a full stop; no text contains this character

# in the order of the Treebank rules; a full stop inside a word (3.5, u.s) is kept
_SPLITS = (
    (re.compile(r"[«“‘„»”’]|`+"), r" \g<0> "),
    (re.compile(r"\"|''"), ' " '),
    (re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", re.I), "' "),
    (re.compile(r"\.{2,}"), r" \g<0> "),
    (re.compile(r"([^.])(\.)([\])}>\"'»]*)(?=\s|$)"), r"\1 \2 \3 "),
    (re.compile(r"([:,])(?=\D|$)"), r" \1 "),
    (re.compile(r"[;@#$%&?!*()\[\]{}<>\u2012-\u2015]"), r" \g<0> "),
    (re.compile(r"--"), " -- "),
    (re.compile(r"([^' ])('s|'m|'d|'ll|'re|'ve|')(?= |$)", re.I), r"\1 \2 "),
    (re.compile(r"([^' ])(n't)(?= |$)", re.I), r"\1 \2 "),
    (re.compile(r"\b(can)(not)\b|\b(gim|lem)(me)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b", re.I), r"\1\3\5\7 \2\4\6\8"),
)


def tokens(text: str) -> list[str]:
    """Words and punctuation marks; `don't` gives two tokens, `black-and-white` one."""
    text = _KEPT.sub(rf"\1{_HELD}", " ".join(text.split()))
    for pattern, replacement in _SPLITS:
        text = pattern.sub(replacement, text)
    return text.replace(_HELD, ".").split()
