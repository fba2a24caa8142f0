from heal.studies.token_kinds import FUNCTION_WORDS, TokenKind, token_kinds
from heal.world.mentions import mentions

N, C, F, R = TokenKind.OBJECT, TokenKind.CONTENT, TokenKind.FUNCTION, TokenKind.REST


def kinds_of(tokens, special=()):
    text, spans, at = "".join(tokens), [], 0
    for token in tokens:
        spans.append((at, at + len(token)))
        at += len(token)
    return token_kinds(text, spans, mentions(text), special)


def test_kinds_of_the_tokens_of_a_caption():
    tokens = ["There", " are", " two", " small", " te", "ddy", " bear", "s", " on", " the", " left", ".", "</s>"]
    assert kinds_of(tokens, [12]) == [F, F, C, C, N, N, N, N, F, F, C, R, R]


def test_contractions_are_one_word_in_any_apostrophe():
    assert kinds_of(["It", "'", "s", " shiny", "."]) == [F, F, F, C, R]
    assert kinds_of(["Don", "’t", " run"]) == [F, F, C]


def test_a_token_of_two_words_counts_for_the_first():
    assert kinds_of(["the blue", " sky"]) == [F, C]


def test_object_names_are_no_function_words():
    assert not [word for word in FUNCTION_WORDS if mentions(word)]
