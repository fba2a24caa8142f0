"""Methods that generate the samples of a batch one by one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from heal import VLM
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import PromptError
from heal.methods import Method
from tests.vlm.asking import NEW, PICTURES, PROMPTS, assert_alike

SEEN: list[Any] = []


class OneRow(Runtime):
    changes_output = False

    def begin(self, generation: Any, earlier: State | None) -> State:
        SEEN.append(generation.rows)
        return State()


@dataclass(frozen=True)
class OneByOne(Method):
    name: ClassVar[str] = "one-by-one"
    one_sample: ClassVar[bool] = True

    def runtime(self, layout: Any, trace: bool) -> Runtime:
        return OneRow()


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 3}], ids=["greedy", "sampled"])
def test_each_prompt_gets_the_same_answer_as_alone(vlm: VLM, options: dict[str, Any]) -> None:
    SEEN.clear()
    asked: dict[str, Any] = {"method": OneByOne(), "max_new_tokens": NEW} | options
    together = vlm.generate(PICTURES, PROMPTS, **asked)
    assert SEEN == [1, 1, 1]
    for answer, picture, prompt in zip(together, PICTURES, PROMPTS, strict=True):
        assert_alike(answer, vlm.generate(picture, prompt, **asked))


def test_all_prompts_are_checked_before_the_first_token(vlm: VLM) -> None:
    SEEN.clear()
    with pytest.raises(PromptError, match="prompt 1 is empty"):
        vlm.generate(PICTURES[:2], [PROMPTS[0], " "], method=OneByOne(), max_new_tokens=NEW)
    assert SEEN == []
