"""A VLM around each tiny model of the zoo. Its processor makes the zoo's own tensors for a prompt with images."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from heal import VLM
from tests import zoo
from tests.laws.conftest import model_of
from tests.zoo import Row

IMAGE = "<image>"


class ZooProcessor:
    """Image tokens and pixels as the zoo draws them: the text decides how many, and varies the other tokens."""

    image_token = IMAGE
    chat_template = None

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        words = {f"w{index}": index for index in range(zoo.VOCAB)}
        core = Tokenizer(models.WordLevel(words, unk_token="w1"))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, pad_token=f"w{zoo.PAD}", bos_token=f"w{zoo.BOS}", unk_token="w1"
        )

    def __call__(self, text: Sequence[str], **_: Any) -> dict[str, Tensor]:
        rows = [Row(images=t.count(IMAGE), text_after=len(t.split()) + 3, salt=len(t)) for t in text]
        return zoo.inputs(self.model, rows)


@cache
def zoo_vlm(name: str) -> VLM:
    model = model_of(name)
    return VLM(model, ZooProcessor(model), name)
