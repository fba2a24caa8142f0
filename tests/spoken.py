"""A tokenizer for the tokens of the zoo, for methods that read the text of an answer."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from heal.engine.source import Source
from heal.world.mentions import names
from tests import zoo


@cache
def tokenizer() -> Any:
    """Every token is a sentence of one word. Most words are objects of the miniature world."""
    objects = [word for word in names() if " " not in word]
    plain = [f"w{index}" for index in range(zoo.VOCAB)]
    words = [f"{objects[i] if i % 5 and i < len(objects) else plain[i]}." for i in range(zoo.VOCAB)]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[1]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=words[zoo.PAD])


def source(prompts: int) -> Source:
    """A source whose questions name no objects."""
    return Source(SimpleNamespace(tokenizer=tokenizer()), ("What is this?",) * prompts, ((),) * prompts)
