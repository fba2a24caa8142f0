"""Prompts: text and messages, and the places and number of images."""

from typing import Any

import pytest

from heal import VLM
from heal.errors import ImageError, PromptError
from tests.vlm.asking import METHOD, NEW, PATCHES, PICTURES, PROMPTS, ask, same


def user(*content: str) -> dict[str, Any]:
    """A message. <image> stands for an image."""
    parts = [{"type": "image"} if c == "<image>" else {"type": "text", "text": c} for c in content]
    return {"role": "user", "content": parts}


def test_messages_give_the_same_as_text(vlm: VLM) -> None:
    text = vlm.inputs([PICTURES[0]], [PROMPTS[0]])
    assert same(text, vlm.inputs([PICTURES[0]], [[user("<image>", PROMPTS[0])]]))
    assert not same(text, vlm.inputs([PICTURES[0]], [[user(PROMPTS[0], "<image>")]]))
    assert (
        ask(vlm).token_ids == vlm.generate(PICTURES[0], [user("<image>", PROMPTS[0])], max_new_tokens=NEW).token_ids
    )


def test_placeholders_are_where_they_were_put(vlm: VLM) -> None:
    chat = [user("what", "<image>", "is"), {"role": "assistant", "content": "a dog"}, user("and", "<image>")]
    ids = vlm.inputs([PICTURES[:2]], [chat])["input_ids"][0].tolist()
    words = "<s> user what <image> is assistant a dog user and <image> assistant".split()
    expected = [i for word in words for i in vlm.tokenizer(word)["input_ids"] * (PATCHES if word == "<image>" else 1)]
    assert ids == expected


def test_several_images_in_one_prompt(vlm: VLM) -> None:
    one, two = (vlm.inputs([PICTURES[:n]], [PROMPTS[0]]) for n in (1, 2))
    assert [(i["input_ids"] == 4).sum().item() for i in (one, two)] == [PATCHES, 2 * PATCHES]
    assert two["pixel_values"].shape[0] == 2
    answer = vlm.generate(PICTURES[:2], PROMPTS[0], method=METHOD, max_new_tokens=2)
    assert answer.fired
    assert answer.prompt_tokens == two["input_ids"].shape[1]


@pytest.mark.parametrize("prompt", ["", "  \n", [{"role": "user", "content": ""}], [{"role": "user", "content": []}]])
def test_empty_prompt(vlm: VLM, prompt: Any) -> None:
    with pytest.raises(PromptError, match="prompt 0 is empty"):
        vlm.generate(None, prompt)


def test_no_prompt_at_all(vlm: VLM) -> None:
    with pytest.raises(PromptError, match="there is no prompt"):
        vlm.generate([], [])


@pytest.mark.parametrize(
    "prompt",
    [
        5,
        None,
        [{"role": "user"}],
        [{"content": "what"}],
        [user("what"), {"role": "assistant"}],
        [user("what"), "is"],
        [user("what"), {"role": "user", "content": None}],
        [{"role": "user", "content": ["what"]}],
        [{"role": "user", "content": 5}],
    ],
)
def test_malformed_prompt(vlm: VLM, without_type_checker: None, prompt: Any) -> None:
    with pytest.raises(PromptError, match="prompt 1"):
        vlm.generate([None, None], ["what", prompt], max_new_tokens=1)


def test_number_of_images_and_prompts(vlm: VLM) -> None:
    for images, count in ((PICTURES[:2], 2), (PICTURES[0], 1), ([], 0)):
        with pytest.raises(ImageError, match=f"3 prompts need a list of as many images .* but {count} were given"):
            vlm.generate(images, PROMPTS)


@pytest.mark.parametrize(("placeholders", "given"), [(1, 0), (0, 1), (2, 1), (1, 2)])
def test_number_of_images_and_placeholders(vlm: VLM, placeholders: int, given: int) -> None:
    chat = [user(*["<image>"] * placeholders, "what")]
    message = f"prompt 0 has placeholders for {placeholders} images, but {given} were given"
    with pytest.raises(ImageError, match=message):
        vlm.generate(PICTURES[:given], chat)


@pytest.mark.parametrize("given", [0, 1])
def test_a_placeholder_in_the_text_is_rejected(vlm: VLM, given: int) -> None:
    with pytest.raises((ImageError, PromptError), match=r"<image>|images and prompts do not fit"):
        vlm.generate(PICTURES[:given], "what is <image> ?", max_new_tokens=1)
