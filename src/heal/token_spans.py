"""Map the tokens of an answer to characters of its text, and words of the text to tokens.

A token decoded alone may lose its leading space or be a part of a character, so lengths of pieces do not add up to
positions. Here every prefix of the answer is decoded and compared with the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Span = tuple[int, int]
REPLACEMENT = "\ufffd"
"""What bytes are decoded as that are no character, or only a part of one."""


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text that spans refer to: all tokens with special ones, and spaces as the model wrote them.

    This is `tokenizer.decode(ids)`, except for the few tokenizers that remove spaces before punctuation afterwards.
    """
    return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)


def token_spans(tokenizer: Any, ids: Sequence[int]) -> list[Span]:
    """The characters [start, stop) of `decoded(tokenizer, ids)` that each token wrote.

    Tokens that write parts of one character all have this character in their span. A token that writes nothing has
    an empty span. The cost is quadratic in the number of tokens: about 20 ms for 512.
    """
    text = decoded(tokenizer, ids)
    found: list[Span] = []
    written = 0
    for count in range(1, len(ids) + 1):
        prefix = decoded(tokenizer, ids[:count])
        known = written
        while known < min(len(prefix), len(text)) and prefix[known] == text[known]:
            known += 1
        # what is beyond the known text will be replaced: the first bytes of a character, decoded as "�"
        unfinished = known < len(text) and len(prefix) > known
        # a token that adds nothing to "�" has written a part of it
        broken = known == written and text[:known].endswith(REPLACEMENT) and not unfinished
        found.append((written - broken, known + unfinished))
        written = known
    return found


def tokens_between(spans: Sequence[Span], start: int, stop: int) -> range:
    """The indices of the tokens that write any of the characters [start, stop), from the first to the last."""
    within = [i for i, (first, last) in enumerate(spans) if first < last and first < stop and last > start]
    return range(within[0], within[-1] + 1) if within else range(0)
