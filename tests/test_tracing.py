import pytest

from heal import VLM
from heal.tracing import pieces, visual_spans


class Sentencepiece:
    """Decodes as LLaMA's tokenizer does: the space before the first word is dropped."""

    words = ("▁The", "▁dog", "s", "▁run", ".")

    def decode(self, ids, clean_up_tokenization_spaces):
        assert clean_up_tokenization_spaces is False
        return "".join(self.words[i] for i in ids).replace("▁", " ").removeprefix(" ")


class Bytes:
    """Two tokens make one character."""

    parts = (b"a ", "é".encode()[:1], "é".encode()[1:], b"!")

    def decode(self, ids, clean_up_tokenization_spaces):
        return b"".join(self.parts[i] for i in ids).decode(errors="replace")


def test_pieces_keep_the_spaces_between_words():
    assert pieces(Sentencepiece(), range(5)) == ("The", " dog", "s", " run", ".")


def test_an_incomplete_character_is_joined_with_the_next_token():
    assert pieces(Bytes(), range(4)) == ("a ", "", "é", "!")
    assert pieces(Bytes(), range(2)) == ("a ", "")
    assert pieces(Bytes(), []) == ()


def test_joined_pieces_are_the_text():
    tokenizer = VLM.random().tokenizer
    ids = tokenizer("describe this image in the kitchen")["input_ids"]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


ROW = [False, True, True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("placeholders", "sizes", "expected"),
    [
        ([1], [(4, 4)], [(1, 5, 0), (6, 8, 0)]),
        ([1, 1], [(4, 4), (8, 8)], [(1, 5, 0), (6, 8, 1)]),
        ([2, 1], [(4, 4), (4, 4), (8, 8)], [(1, 3, 0), (3, 5, 1), (6, 8, 2)]),
        ([2, 1], [(4, 4), (8, 4), (8, 8)], [(1, 5, None), (6, 8, 2)]),
        ([1, 1, 1], [(4, 4)] * 3, [(1, 5, None), (6, 8, None)]),
        ([], [(4, 4)] * 2, [(1, 5, None), (6, 8, None)]),
    ],
)
def test_visual_tokens_are_matched_with_images_if_possible(placeholders, sizes, expected):
    assert list(visual_spans(ROW, placeholders, sizes)) == expected
