"""Base forms of words as WordNet gives them, without its data, for the words that matter: those of a vocabulary.

Nouns: WordNet's own suffix rules, with the vocabulary in place of its index, and the words for which this goes wrong.
The tables hold for the official synonyms and for the package's own; both were compared with WordNet 3.0 word by word
(docs/benchmarks.md). Some of what WordNet does is odd, and kept, because published figures rest on it: `men` stays
`men`, and `vases` becomes `vas`.

Verbs: whether `seated` is a verb (its base form is `seat`, a chair) is for a tagger to say. A look at the words
beside it stands in for the tagger.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

# endings of plurals and what replaces them
RULES = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"), ("ves", "f"), ("ves", "fe"),
)  # fmt: skip
# nouns that the rules would get wrong: WordNet's exceptions, and its shortest base form where it has several
NOUNS = {
    "brethren": "brother", "buffaloes": "buffalo", "businessmen": "businessmen", "busses": "bus", "children": "child",
    "feet": "foot", "flamingoes": "flamingo", "geese": "goose", "grandchildren": "grandchild", "men": "men",
    "mice": "mouse", "oxen": "ox", "sports": "sport", "taxies": "taxi", "teeth": "tooth", "vases": "vas",
}  # fmt: skip
# words of the synonyms that WordNet 3.0 does not have: it leaves their plurals as they are
UNKNOWN = frozenset(
    "barstool biker bluejay brindle coworker firetruck glas hairdryer iphone knive lenovo longboard macbook netbook "
    "paddleboard paddleboat pitbull riverboat sailboard shortboard skimboard smartphone solider stovetop teddybear "
    "televison".split()
)
# words of the synonyms that are also verbs; not those with a shorter verb (kited: kit, planed: plan)
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
# what follows a noun rather than a verb with an object or a place
ENDS = frozenset(". , ; : ! ? ) and or but is was are were".split()) | {""}
# nouns wherever they are
THINGS = frozenset("bedding building clothing dining housing lighting parking seating shipping training".split())


def lemma(word: str, before: str, after: str, vocabulary: Set[str]) -> str:
    """The base form of a lower-case word between two others, if it is in the vocabulary; else a form of no use."""
    verb = verb_base(word)
    if verb in vocabulary and word not in vocabulary:
        return verb if is_verb(word, before, after) else word
    return noun_base(word, vocabulary)


@lru_cache(maxsize=65536)
def noun_base(word: str, vocabulary: Set[str]) -> str:
    """The shortest of the word and what the rules make of it that is in the vocabulary; else the word."""
    if word in NOUNS:
        return NOUNS[word]
    stems = {word[: len(word) - len(end)] + new for end, new in RULES if word.endswith(end)} - UNKNOWN
    return min((stem for stem in (word, *sorted(stems)) if stem in vocabulary), key=len, default=word)


@lru_cache(maxsize=65536)
def verb_base(word: str) -> str:
    """The base form of a participle or a past tense of VERBS; else the word."""
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
    """`is seated` and `a man skiing down` are verbs; `a seated man`, `the skiing` and `fond of skiing.` are not."""
    if word.endswith("ed"):
        return before not in DETERMINERS and before not in PREPOSITIONS
    if word.endswith("ing"):
        return before in BE or not (word in THINGS or before in DETERMINERS or after in ENDS)
    return True
