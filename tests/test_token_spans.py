"""Spans of tokens with the kinds of tokenizers that models have: bytes, byte fallback, word pieces, words."""

from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from heal import VLM
from heal.token_spans import decoded, token_spans, tokens_between

TEXTS = (
    "A dog.",
    "Ein Käfer – süß!",
    "I see a 🐕‍🦺 and a 👩‍👩‍👧 in 日本 , no cat.",
    "🐕",
    "naïve\n\n  façade",
    "",
)


def byte_level(merges=()):
    """Every byte is a token, as in GPT-2 and Qwen, with some pairs merged across characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + ["".join(pair) for pair in merges]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def byte_fallback():
    """A character that is not in the vocabulary is written as its bytes, as in LLaMA: ▁ is a space."""
    letters = [*"▁ADEIabcdefgiklmnoprstuvü.,–!", "▁a", "▁dog"]
    words = [f"<0x{byte:02X}>" for byte in range(256)] + letters
    core = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("▁", "a")], byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def word_pieces():
    words = ["[UNK]", "A", "dog", "##gy", "cat", ".", "no", "##t"]
    core = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=core)


# the last byte of an emoji merged with the space after it, and two bytes of the same character
CROSSING = (("ķ", "Ġ"), ("ð", "Ł"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [byte_level(), byte_level(CROSSING), byte_fallback()], ids=str)
def test_spans_are_in_order_cover_the_text_and_overlap_only_within_a_character(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    spans, whole = token_spans(tokenizer, ids), decoded(tokenizer, ids)
    assert whole == text == tokenizer.decode(ids)
    assert len(spans) == len(ids)
    assert {at for start, stop in spans for at in range(start, stop)} == set(range(len(text)))
    for (start, stop), (next_start, next_stop) in pairwise(spans):
        assert start <= next_start <= stop <= next_stop
        assert stop - next_start <= 1  # one shared character


def test_all_bytes_of_an_emoji_have_its_span():
    tokenizer = byte_level()
    ids = tokenizer("a🐕b")["input_ids"]
    assert token_spans(tokenizer, ids) == [(0, 1), *[(1, 2)] * 4, (2, 3)]


def test_a_token_may_end_one_character_and_write_another():
    tokenizer = byte_level((("ķ", "b"),))  # ķ is the byte 0x95, the last of 🐕
    ids = tokenizer("a🐕b")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == "ķb"
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 2), (1, 2), (1, 2), (1, 3)]


def test_a_token_may_write_a_character_and_begin_another():
    tokenizer = byte_level((("a", "ð"),))
    assert token_spans(tokenizer, tokenizer("a🐕")["input_ids"]) == [(0, 2), (1, 2), (1, 2), (1, 2)]


def test_an_answer_that_was_cut_within_a_character():
    tokenizer = byte_level()
    ids = tokenizer("a🐕")["input_ids"][:3]
    assert decoded(tokenizer, ids) == "a�"
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 2), (1, 2)]


def test_bytes_that_are_no_character_stay_where_they_are():
    tokenizer = byte_level()
    broken = tokenizer("é")["input_ids"][:1]
    ids = tokenizer("a")["input_ids"] + broken + tokenizer("b")["input_ids"]
    assert decoded(tokenizer, ids) == "a�b"
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 2), (2, 3)]


def test_the_first_space_of_sentencepiece_is_not_in_the_text():
    tokenizer = byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["▁a", "▁dog", "▁", "c", "a", "t", "<0xF0>", "<0x9F>", "<0x90>", "<0x95>"])
    assert decoded(tokenizer, ids) == "a dog cat🐕"
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 5), (5, 6), (6, 7), (7, 8), (8, 9), *[(9, 10)] * 4]
    alone = tokenizer.convert_tokens_to_ids(["▁", "c", "a", "t"])
    assert token_spans(tokenizer, alone) == [(0, 0), (0, 1), (1, 2), (2, 3)]


def test_word_pieces():
    tokenizer = word_pieces()
    ids = tokenizer("A doggy not cat.", add_special_tokens=False)["input_ids"]
    assert decoded(tokenizer, ids) == "A doggy not cat ."
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 5), (5, 7), (7, 10), (10, 11), (11, 15), (15, 17)]


def test_special_tokens_are_part_of_the_text():
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    ids = [*tokenizer("Hi")["input_ids"], tokenizer.eos_token_id]
    assert token_spans(tokenizer, ids) == [(0, 1), (1, 2), (2, 6)]


def test_the_tokens_of_a_word():
    spans = [(0, 1), (1, 5), (5, 5), (5, 7), (7, 8), (7, 8), (8, 9)]
    assert tokens_between(spans, 2, 7) == range(1, 4)
    assert tokens_between(spans, 5, 7) == range(3, 4)
    assert tokens_between(spans, 7, 8) == range(4, 6)
    assert tokens_between(spans, 9, 12) == range(0)
    assert tokens_between([], 0, 1) == range(0)


def test_the_embedded_model():
    tokenizer = VLM.embedded().tokenizer
    text = "There is a teddy bear on the left. It is brown."
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = text.index("teddy")
    words = [
        decoded(tokenizer, [ids[i]]).strip() for i in tokens_between(token_spans(tokenizer, ids), start, start + 10)
    ]
    assert "".join(words) == "teddybear"
