"""Kinds of tokens of an English caption: object words, other content words, function words, and the rest."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import IntEnum

from heal.token_spans import Span, tokens_between
from heal.world.mentions import Mention


class TokenKind(IntEnum):
    """What a token is a part of."""

    OBJECT = 0
    """A word that names an object."""
    CONTENT = 1
    """Another word with a meaning of its own: nouns, verbs, adjectives, adverbs, numbers."""
    FUNCTION = 2
    """Articles, prepositions, pronouns, conjunctions, auxiliary verbs, particles."""
    REST = 3
    """Punctuation, line breaks and special tokens."""

    @property
    def label(self) -> str:
        return {0: "object", 1: "other content word", 2: "function word", 3: "rest"}[int(self)]


FUNCTION_WORDS = frozenset(
    # articles and determiners
    "a an the this that these those each every either neither some any no all both such another other others much "
    "many more most few fewer less least several enough "
    # pronouns
    "i you he she it we they me him her us them my your his its our their mine yours hers ours theirs myself "
    "yourself himself herself itself ourselves yourselves themselves who whom whose which what someone somebody "
    "something anyone anybody anything everyone everybody everything nobody nothing none one ones "
    # prepositions
    "about above across after against along amid among amongst around as at atop before behind below beneath beside "
    "besides between beyond by despite down during except for from in inside into like near next of off on onto "
    "opposite out outside over past per since through throughout till to toward towards under underneath until up "
    "upon via with within without "
    # conjunctions and particles
    "and or but nor so yet if because although though while whereas when where why how than whether unless once not "
    "too very also only just even still again there here then thus however therefore meanwhile rather quite "
    # auxiliary verbs
    "am is are was were be been being have has had having do does did doing done will would shall should can could "
    "may might must ought let "
    # contractions, split or whole
    "s t re ve ll d m n't isn't aren't wasn't weren't don't doesn't didn't can't cannot couldn't won't wouldn't "
    "it's there's that's they're he's she's i'm you're we're".split()
)
"""Closed word classes of English. Numbers are content words, because they say how many objects there are."""

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def token_kinds(
    text: str, spans: Sequence[Span], mentions: Sequence[Mention], special: Collection[int] = ()
) -> list[TokenKind]:
    """The kind of every token. `special` are the indices of special tokens.

    A token that writes parts of two words counts for the one that it writes first, except that names of objects
    come before everything else.
    """
    found = [TokenKind.REST] * len(spans)
    for match in reversed(list(WORD.finditer(text))):
        function = match.group().lower().replace("’", "'") in FUNCTION_WORDS
        for index in tokens_between(spans, *match.span()):
            found[index] = TokenKind.FUNCTION if function else TokenKind.CONTENT
    for mention in mentions:
        for index in tokens_between(spans, mention.start, mention.stop):
            found[index] = TokenKind.OBJECT
    for index in special:
        found[index] = TokenKind.REST
    return found
