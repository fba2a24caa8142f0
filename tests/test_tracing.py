from heal import VLM
from heal.tracing import pieces


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


def test_half_a_character_comes_with_its_other_half():
    assert pieces(Bytes(), range(4)) == ("a ", "", "é", "!")
    assert pieces(Bytes(), range(2)) == ("a ", "")
    assert pieces(Bytes(), []) == ()


def test_together_they_are_the_text():
    tokenizer = VLM.random().tokenizer
    ids = tokenizer("describe this image in the kitchen")["input_ids"]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)
