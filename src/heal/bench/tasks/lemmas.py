"""WordNet lemmas for the words of a vocabulary, without WordNet's data.

Nouns: WordNet's suffix rules with the vocabulary as the index, plus a table of exceptions. The tables cover the
official synonyms and those of this package; both were compared with WordNet 3.0 word by word (docs/benchmarks.md).
WordNet's oddities are kept, because published figures depend on them: `men` stays `men`, and `vases` becomes `vas`.

Verbs: a tagger would decide whether `seated` is a verb with the lemma `seat` (a chair). Here the neighbouring words
decide.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

# plural endings and their replacements
RULES = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"), ("ves", "f"), ("ves", "fe"),
)  # fmt: skip
# nouns with irregular plurals: WordNet's exceptions, and its shortest lemma where it has several
NOUNS = {
    "brethren": "brother", "buffaloes": "buffalo", "businessmen": "businessmen", "busses": "bus", "children": "child",
    "feet": "foot", "flamingoes": "flamingo", "geese": "goose", "grandchildren": "grandchild", "men": "men",
    "mice": "mouse", "oxen": "ox", "sports": "sport", "taxies": "taxi", "teeth": "tooth", "vases": "vas",
}  # fmt: skip
# synonyms that are not in WordNet 3.0, which leaves their plurals unchanged
UNKNOWN = frozenset(
    "barstool biker bluejay brindle coworker firetruck glas hairdryer iphone knive lenovo longboard macbook netbook "
    "paddleboard paddleboat pitbull riverboat sailboard shortboard skimboard smartphone solider stovetop teddybear "
    "televison".split()
)
# synonyms that are also verbs, except those with a shorter verb (kited: kit, planed: plan)
VERBS = frozenset(
    "air automobile baby backpack ball barge bat batter bear bed bench bicycle bike bird boat book bottle bow bowl "
    "buffalo bull bulldog bus cab cake canoe case cat chair clock cocker cop couch cow crow cub cup cycle doctor dog "
    "duck eagle falcon father ferry fire foal fork fowl glass goose groom gull guy hawk home horse hound jet jockey "
    "kayak kid kitten knife lamb light man meter microwave monitor mother motor motorbike motorboat motorcycle mouse "
    "mug officer parent parrot people phone plant pup purse quail racket raft ram raven referee sandwich seaplane "
    "seat ship sign signal sink skateboard ski snowboard soldier spoon stool stop sub suit surfboard swan table taxi "
    "telephone tie top track traffic train tram truck umpire unicycle waitress yacht".split()
)
IRREGULAR = {
    "born": "bear", "borne": "bear", "bussed": "buss", "bussing": "buss", "lit": "light", "sank": "sink",
    "sunk": "sink", "taxying": "taxi", "tied": "tie", "tying": "tie",
}  # fmt: skip

DETERMINERS = frozenset(
    "a an the this that these those its his her their my your our one another each every some any no 's".split()
)
PREPOSITIONS = frozenset(
    "of in on at by for from with without about into onto over under between during through to as like after before "
    "while near".split()
)
BE = frozenset("am is are was were be been being 're 'm".split())
# words that follow a noun rather than a verb with an object or a place
ENDS = frozenset(". , ; : ! ? ) and or but is was are were".split()) | {""}
# always nouns
THINGS = frozenset("bedding building clothing dining housing lighting parking seating shipping training".split())


def lemma(word: str, before: str, after: str, vocabulary: Set[str]) -> str:
    """The lemma of a lower-case word, given its neighbours. Exact only if it is in the vocabulary."""
    verb = verb_base(word)
    if verb in vocabulary and word not in vocabulary:
        return verb if is_verb(word, before, after) else word
    return noun_base(word, vocabulary)


@lru_cache(maxsize=65536)
def noun_base(word: str, vocabulary: Set[str]) -> str:
    """The shortest form in the vocabulary among the word and its singulars, otherwise the word."""
    if word in NOUNS:
        return NOUNS[word]
    stems = {word[: len(word) - len(end)] + new for end, new in RULES if word.endswith(end)} - UNKNOWN
    return min((stem for stem in (word, *sorted(stems)) if stem in vocabulary), key=len, default=word)


@lru_cache(maxsize=65536)
def verb_base(word: str) -> str:
    """The base form of a participle or past tense of VERBS, otherwise the word."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    end = next((end for end in ("ed", "ing") if word.endswith(end)), None)
    if end is None or len(word) < len(end) + 2:
        return word
    stem = word[: -len(end)]
    stems = [stem, stem + "e"]
    if stem[-1] == stem[-2]:
        stems.append(stem[:-1])
    if stem[-1] == "i":
        stems.append(stem[:-1] + "y")
    return min((found for found in stems if found in VERBS), key=len, default=word)


def is_verb(word: str, before: str, after: str) -> bool:
    """Whether it is a verb: `is seated`, `a man skiing down`, but not `a seated man`, `the skiing`, `like skiing`."""
    if word.endswith("ed"):
        return before not in DETERMINERS and before not in PREPOSITIONS
    if word.endswith("ing"):
        return before in BE or not (word in THINGS or before in DETERMINERS or after in ENDS)
    return True
