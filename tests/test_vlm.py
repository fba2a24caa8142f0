"""VLM: loading, images, prompts, batches, log-probabilities, closing tokens, traces and streams."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from torch import Tensor

import heal
from heal import HEAL, VLM, Answer, Trace
from heal.errors import (
    CheckpointError,
    ConfigError,
    HealError,
    HealWarning,
    ImageError,
    ModelError,
    NonFiniteError,
    PromptError,
)
from heal.vlm import open_image

NEW = 4
METHOD = HEAL(interval=2)
PICTURES = [np.random.default_rng(i).integers(0, 256, (48 + 8 * i, 64, 3), dtype=np.uint8) for i in range(3)]
PROMPTS = ["describe this image", "what color is the ball ?", "how many"]
PATCHES = 16  # placeholders of one image

ignore_silence = pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


@pytest.fixture
def own() -> VLM:
    """One that a test may spoil."""
    return VLM.random()


def ask(vlm: VLM, **options: Any) -> Answer:
    return vlm.generate(PICTURES[0], PROMPTS[0], **({"max_new_tokens": NEW} | options))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def saved(vlm: VLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_load_gives_back_what_was_saved(vlm: VLM, saved: Path) -> None:
    loaded = VLM.load(saved)
    assert (loaded.name, loaded.model.dtype, loaded.model.training) == (str(saved), torch.float32, False)
    assert loaded.device == torch.device("cpu")
    assert all(torch.equal(w, loaded.model.state_dict()[name]) for name, w in vlm.model.state_dict().items())
    assert same(loaded.inputs([PICTURES[0]], [PROMPTS[0]]), vlm.inputs([PICTURES[0]], [PROMPTS[0]]))
    assert_alike(ask(loaded), ask(vlm))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        (torch.float16, torch.float16),
    ],
)
def test_load_in_a_dtype(saved: Path, dtype: str | torch.dtype, expected: torch.dtype) -> None:
    loaded = VLM.load(saved, dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {expected}
    assert loaded.inputs([PICTURES[0]], [PROMPTS[0]])["pixel_values"].dtype == expected


@pytest.mark.parametrize("dtype", ["int8", "float7", "", "nn"])
def test_wrong_dtype(saved: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype cannot be '{dtype}': choose auto, float32, bfloat16 or float16"):
        VLM.load(saved, dtype=dtype)


@pytest.mark.parametrize("place", [{"device": "cpu"}, {"device": torch.device("cpu")}, {"device_map": "cpu"}])
def test_load_to_a_device(vlm: VLM, saved: Path, place: dict[str, Any]) -> None:
    loaded = VLM.load(saved, **place)
    assert loaded.device == torch.device("cpu")
    assert ask(loaded).token_ids == ask(vlm).token_ids


def test_device_and_device_map_are_too_much(saved: Path) -> None:
    with pytest.raises(ConfigError, match="either device or device_map"):
        VLM.load(saved, device="cpu", device_map="auto")


@pytest.mark.parametrize("place", [{"device": "nonsense"}, {"device_map": "nonsense"}, {"device": "cuda:63"}])
def test_device_that_does_not_exist(saved: Path, place: dict[str, Any]) -> None:
    with pytest.raises(HealError, match=r"nonsense|there is no device"):
        VLM.load(saved, **place)


def test_missing_folder(tmp_path: Path) -> None:
    for name in (tmp_path / "missing", "./missing", "../missing"):
        with pytest.raises(CheckpointError, match="there is no checkpoint at "):
            VLM.load(name)


def test_file_is_no_folder(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a folder with a config\.json"):
        VLM.load(saved / "config.json")


BREAKAGES: dict[str, tuple[Callable[[Path], Any], type[HealError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), CheckpointError, r"with a config\.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), CheckpointError, "."),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), CheckpointError, r"no \*\.safetensors weights"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        CheckpointError,
        "convert older formats",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), CheckpointError, "no processor could be loaded"),
    "no image processor": (
        lambda f: (f / "processor_config.json").unlink(),
        CheckpointError,
        r"needs its processor_config\.json, tokenizer\.json and chat_template\.jinja",
    ),
    "cut weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1000]),
        ModelError,
        "could not be loaded",
    ),
    "other weights": (lambda f: reshape(f), ModelError, "could not be loaded"),
}


def reshape(folder: Path) -> None:
    """A configuration that belongs to other weights."""
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] //= 2
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", BREAKAGES)
def test_incomplete_checkpoint(copied: Path, name: str) -> None:
    damage, error, message = BREAKAGES[name]
    damage(copied)
    with pytest.raises(error, match=message) as caught:
        VLM.load(copied)
    assert str(copied) in str(caught.value)


def test_text_checkpoint(own: VLM, tmp_path: Path) -> None:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=99, **size)).save_pretrained(tmp_path)
    own.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="it is not a multimodal checkpoint"):
        VLM.load(tmp_path)
    own.processor.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="could not be loaded"):
        VLM.load(tmp_path)


def record(monkeypatch: pytest.MonkeyPatch, auto: type) -> list[dict[str, Any]]:
    original, calls = auto.from_pretrained, []

    def spy(name: str, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return original(name, **kwargs)

    monkeypatch.setattr(auto, "from_pretrained", spy)
    return calls


@pytest.mark.parametrize("trust", [False, True])
def test_code_and_pickles_are_not_trusted(saved: Path, monkeypatch: pytest.MonkeyPatch, trust: bool) -> None:
    models = record(monkeypatch, hf.AutoModelForImageTextToText)
    processors = record(monkeypatch, hf.AutoProcessor)
    VLM.load(saved, **({"trust_remote_code": True, "revision": "main"} if trust else {}))
    (model,), (processor,) = models, processors
    assert model["use_safetensors"] is True
    assert model["trust_remote_code"] is processor["trust_remote_code"] is trust
    assert model["revision"] == processor["revision"] == ("main" if trust else None)


def test_code_of_a_checkpoint_does_not_run(copied: Path) -> None:
    marker = copied / "it_ran"
    (copied / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    autos = ("AutoConfig", "AutoModelForImageTextToText", "AutoProcessor")
    for name in ("config.json", "processor_config.json"):
        found = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps(found | {"auto_map": dict.fromkeys(autos, "own.Own")}))
    assert ask(VLM.load(copied)).finish == "length"
    assert not marker.exists()


def test_tokenizer_without_padding_gets_some(vlm: VLM) -> None:
    processor = VLM.random().processor
    processor.tokenizer.pad_token = None
    other = VLM(vlm.model, processor)
    assert other.tokenizer.pad_token_id == other.tokenizer.eos_token_id == 2
    assert other.name == "LlavaForConditionalGeneration"


def test_checkpoint_without_a_chat_template(vlm: VLM, copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    loaded = VLM.load(copied)
    ids = loaded.inputs([PICTURES[0]], [PROMPTS[0]])["input_ids"][0].tolist()
    words = vlm.tokenizer(PROMPTS[0])["input_ids"]
    assert ids == [4] * PATCHES + words


# ── images ────────────────────────────────────────────────────────────────────────────────────────────


def ways(array: np.ndarray, folder: Path) -> dict[str, Any]:
    """One picture in every form that it may have."""
    picture = Image.fromarray(array)
    picture.save(folder / "it.png")
    picture.convert("RGBA").save(folder / "with_alpha.png")
    return {
        "path": folder / "it.png",
        "string": str(folder / "it.png"),
        "picture": picture,
        "array": array,
        "alpha": picture.convert("RGBA"),
        "alpha array": np.asarray(picture.convert("RGBA")),
        "alpha path": folder / "with_alpha.png",
        "list": [array],
    }


def test_every_form_of_a_picture_gives_the_same(vlm: VLM, tmp_path: Path) -> None:
    found = {name: vlm.inputs([p], [PROMPTS[0]]) for name, p in ways(PICTURES[0], tmp_path).items()}
    assert [name for name, inputs in found.items() if not same(inputs, found["array"])] == []
    assert not same(found["array"], vlm.inputs([PICTURES[1]], [PROMPTS[0]]))


def test_every_form_of_a_grey_picture_gives_the_same(vlm: VLM, tmp_path: Path) -> None:
    grey = PICTURES[0][..., 0]
    forms = ways(grey, tmp_path) | {"channel": grey[..., None], "three": np.stack([grey] * 3, axis=-1)}
    found = {name: vlm.inputs([p], [PROMPTS[0]]) for name, p in forms.items()}
    assert [name for name, inputs in found.items() if not same(inputs, found["three"])] == []


@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3), (1, 1, 3), (1, 5), (1, 5, 1), (5, 1, 4)])
def test_thin_array_keeps_its_shape(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    picture = open_image(array)
    assert picture.size == (shape[1], shape[0])
    colours = array[..., :3] if array.ndim == 3 else array[..., None]
    assert np.array_equal(np.asarray(picture), np.broadcast_to(colours, (*shape[:2], 3)))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), "uint8 from 0 to 255, not float32"),
        (np.zeros((4, 4, 3), np.int64), "uint8 from 0 to 255, not int64"),
        (np.zeros((4, 4, 2), np.uint8), r"\[height, width, 3\], not \(4, 4, 2\)"),
        (np.zeros((3, 4, 4, 3), np.uint8), r"not \(3, 4, 4, 3\)"),
        (np.zeros(4, np.uint8), r"not \(4,\)"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
    ],
)
def test_wrong_array(vlm: VLM, array: np.ndarray, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        vlm.inputs([array], [PROMPTS[0]])


def test_missing_file(vlm: VLM, tmp_path: Path) -> None:
    for path in (tmp_path / "no.png", tmp_path):
        with pytest.raises(ImageError, match=f"there is no image at {path}"):
            vlm.generate(str(path), PROMPTS[0])


@pytest.mark.parametrize("kind", ["empty", "text", "cut"])
def test_unreadable_file(vlm: VLM, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it.png"
    Image.fromarray(PICTURES[0]).save(path)
    path.write_bytes({"empty": b"", "text": b"no picture", "cut": path.read_bytes()[:-2000]}[kind])
    with pytest.raises(ImageError, match=r"it\.png cannot be read as an image: "):
        vlm.generate(path, PROMPTS[0])


def test_what_is_no_picture(vlm: VLM, without_type_checker: None) -> None:
    with pytest.raises(ImageError, match="a path, a PIL image or an array, not int"):
        vlm.generate([7], PROMPTS[0])


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────────


def user(*content: str) -> dict[str, Any]:
    """A message; <image> stands for one."""
    parts = [{"type": "image"} if c == "<image>" else {"type": "text", "text": c} for c in content]
    return {"role": "user", "content": parts}


def test_messages_say_the_same_as_text(vlm: VLM) -> None:
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
    message = f"prompt 0 has places for {placeholders} images, but {given} were given"
    with pytest.raises(ImageError, match=message):
        vlm.generate(PICTURES[:given], chat)


@pytest.mark.parametrize("given", [0, 1])
def test_placeholder_written_as_text_is_no_image(vlm: VLM, given: int) -> None:
    with pytest.raises((ImageError, PromptError), match=r"<image>|images and prompts do not fit"):
        vlm.generate(PICTURES[:given], "what is <image> ?", max_new_tokens=1)


# ── one answer, many answers ──────────────────────────────────────────────────────────────────────────


def assert_alike(one: Answer, other: Answer) -> None:
    assert (one.text, one.token_ids, one.finish) == (other.text, other.token_ids, other.finish)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert one.prompt_tokens == other.prompt_tokens


def assert_traces_alike(one: Trace, other: Trace) -> None:
    assert (one.tokens, one.config, one.text) == (other.tokens, other.config, other.text)
    for name in ("types", "refreshed", "token_ids"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    for name in ("visual", "language", "synergy", "total", "contribution", "beta", "gamma"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-3, rtol=1e-3)


@ignore_silence
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_batch_is_each_alone(vlm: VLM, options: dict[str, Any]) -> None:
    images = [PICTURES[0], [PICTURES[1], PICTURES[2]], PICTURES[2], None]
    prompts = [*PROMPTS, "the red ball"]
    settings = {"method": METHOD, "trace": True, "max_new_tokens": NEW - 1} | options
    together = vlm.generate(images, prompts, **settings)
    assert len(together) == 4
    for image, prompt, row in zip(images, prompts, together, strict=True):
        alone = vlm.generate(image, prompt, **settings)
        assert_alike(row, alone)
        assert (row.fired.steps, row.fired.changes) == (alone.fired.steps, alone.fired.changes)
        assert dict(row.fired.sizes) == pytest.approx(dict(alone.fired.sizes), abs=1e-3)
        assert bool(row.fired) == (image is not None)
        if image is not None:
            assert_traces_alike(row.trace, alone.trace)


def teacher(vlm: VLM, image: Any, prompt: str, tokens: tuple[int, ...]) -> list[float]:
    """Log-probabilities of an answer in one pass over the whole of it, without a cache."""
    inputs = vlm.inputs([image], [prompt])
    ids = torch.cat([inputs["input_ids"], torch.tensor([tokens])], dim=1)
    with torch.no_grad():
        out = vlm.model(input_ids=ids, pixel_values=inputs["pixel_values"], use_cache=False)
    steps = out.logits[0, -len(tokens) - 1 : -1].log_softmax(-1)
    return steps.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


WORDS_ONLY = {"do_sample": True, "seed": 1, "suppress_tokens": [0, 1, 2, 3, 4]}
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": WORDS_ONLY | {"temperature": 0.7, "top_k": 5},
    "sampling several": WORDS_ONLY | {"num_return_sequences": 2},
    "penalty": {"repetition_penalty": 1.5},
    "beams": {"num_beams": 3},
    "beams several": {"num_beams": 3, "num_return_sequences": 2},
    "one token": {"max_new_tokens": 1},
}


@pytest.mark.parametrize("name", DECODING)
def test_logprobs_are_the_models_own(vlm: VLM, name: str) -> None:
    options = {"max_new_tokens": NEW} | DECODING[name]
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], **options)
    copies = options.get("num_return_sequences", 1)
    assert len(answers) == 2 * copies
    for index, answer in enumerate(answers):
        assert len(answer.logprobs) == len(answer.token_ids) == options["max_new_tokens"]
        row = index // copies
        expected = teacher(vlm, PICTURES[row], PROMPTS[row], answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("where", ["model", "argument"])
def test_beams_may_come_from_a_configuration(own: VLM, where: str) -> None:
    expected = ask(own, num_beams=3)
    if where == "model":
        own.model.generation_config.num_beams = 3
        found = ask(own)
    else:
        config = hf.GenerationConfig(num_beams=3, max_new_tokens=NEW, pad_token_id=0, eos_token_id=2)
        found = own.generate(PICTURES[0], PROMPTS[0], generation_config=config)
    assert_alike(found, expected)


def closing(answer: Answer, others: tuple[int, ...] = ()) -> tuple[int, int]:
    """A token that the model says before the last, and not among others; and where it says it first."""
    ids = answer.token_ids
    at = max(i for i, token in enumerate(ids[:-1]) if token not in ids[:i] + others)
    return ids[at], at


@pytest.mark.parametrize("where", ["model", "argument"])
@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_finish(own: VLM, where: str, method: HEAL | None) -> None:
    options: dict[str, Any] = {"max_new_tokens": NEW, "method": method}
    free = own.generate(PICTURES[:2], PROMPTS[:2], **options)
    assert [a.finish for a in free] == ["length", "length"]
    token, at = closing(free[0], free[1].token_ids)
    if where == "model":
        own.model.generation_config.eos_token_id = [2, token]
    else:
        options["eos_token_id"] = token
    stopped, other = own.generate(PICTURES[:2], PROMPTS[:2], **options)
    assert (stopped.finish, stopped.token_ids) == ("stop", free[0].token_ids[: at + 1])
    assert stopped.logprobs == pytest.approx(free[0].logprobs[: at + 1], abs=1e-4)
    assert_alike(other, free[1])


def test_closing_token_at_the_last_step(own: VLM) -> None:
    free = ask(own)
    token, at = closing(free)
    own.model.generation_config.eos_token_id = token
    answer = ask(own, max_new_tokens=at + 1)
    assert (answer.finish, answer.token_ids) == ("stop", free.token_ids[: at + 1])
    assert ask(own, max_new_tokens=at).finish == "length"


def test_traces_end_with_their_answer(own: VLM) -> None:
    free = own.generate(PICTURES[:2], PROMPTS[:2], method=METHOD, trace=True, max_new_tokens=NEW)
    token, at = closing(free[0])
    own.model.generation_config.eos_token_id = token
    stopped = own.generate(PICTURES[:2], PROMPTS[:2], method=METHOD, trace=True, max_new_tokens=NEW)[0]
    assert stopped.trace.steps == at + 1
    np.testing.assert_allclose(stopped.trace.visual, free[0].trace.visual[: at + 1], atol=1e-5)
    changed = np.nan_to_num(stopped.trace.beta, nan=1.0) != 1
    changed |= np.nan_to_num(stopped.trace.gamma, nan=1.0) != 1
    assert stopped.fired.changes == changed.sum() > 0


def test_several_answers_to_each_prompt(vlm: VLM) -> None:
    options = {"do_sample": True, "seed": 0, "num_return_sequences": 3, "max_new_tokens": NEW}
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], method=METHOD, trace=True, **options)
    lengths = [ask(vlm, max_new_tokens=1).prompt_tokens]
    lengths.append(vlm.generate(PICTURES[1], PROMPTS[1], max_new_tokens=1).prompt_tokens)
    assert [a.prompt_tokens for a in answers] == [n for n in lengths for _ in range(3)]
    assert lengths[0] != lengths[1]
    assert len({a.token_ids for a in answers}) == 6
    assert all(a.trace.token_ids.tolist() == list(a.token_ids) and a.fired for a in answers)
    (single,) = (vlm.generate(PICTURES[0], PROMPTS[0], **options | {"num_return_sequences": n}) for n in (1,))
    assert isinstance(single, Answer)
    assert len(vlm.generate(PICTURES[0], PROMPTS[0], **options)) == 3


@ignore_silence
def test_one_prompt_in_a_list_is_a_list(vlm: VLM) -> None:
    (answer,) = vlm.generate([PICTURES[0]], [PROMPTS[0]], max_new_tokens=NEW)
    assert_alike(answer, ask(vlm))
    (without,) = vlm.generate(None, [PROMPTS[0]], max_new_tokens=NEW)
    assert without.prompt_tokens == answer.prompt_tokens - PATCHES


def test_seed(vlm: VLM) -> None:
    def sampled(seed: int | None) -> tuple[int, ...]:
        return ask(vlm, do_sample=True, seed=seed).token_ids

    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = sampled(5), sampled(5), sampled(6)
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other
    free = sampled(None)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(11)
    assert sampled(None) == free


def test_noise_has_a_generator_of_its_own(vlm: VLM) -> None:
    before = torch.get_rng_state()
    first, again = (ask(vlm, method=METHOD, do_sample=True, seed=2, max_new_tokens=2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (first.token_ids, first.fired) == (again.token_ids, again.fired)


def test_times(vlm: VLM) -> None:
    answer = ask(vlm)
    assert 0 < answer.first_token_seconds < answer.seconds
    expected = (answer.seconds - answer.first_token_seconds) / (NEW - 1)
    assert answer.seconds_per_token == pytest.approx(expected)
    assert np.isnan(ask(vlm, max_new_tokens=1).seconds_per_token)


def test_answer_has_a_length_of_its_own(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heal.generate.MAX_NEW_TOKENS", 3)
    assert len(vlm.generate(PICTURES[0], PROMPTS[0]).token_ids) == 3


def test_model_is_left_clean(own: VLM) -> None:
    ask(own)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.model.modules()]
    ask(own, method=METHOD, trace=True)
    with pytest.raises(ValueError, match="model_kwargs"):
        ask(own, method=METHOD, nonsense=1)
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.model.modules()] == hooks
    assert "generate" not in vars(own.model)


# ── traces ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_measuring_changes_nothing(vlm: VLM, options: dict[str, Any]) -> None:
    plain, measured = ask(vlm, **options), ask(vlm, trace=True, **options)
    assert_alike(measured, plain)
    assert plain.trace is None
    assert plain.fired is None
    assert measured.fired is None
    assert np.isnan(measured.trace.beta).all()
    assert (measured.trace.total > 0).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_trace_holds_what_was_measured(vlm: VLM, beams: int) -> None:
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], method=METHOD, trace=True, max_new_tokens=NEW, num_beams=beams)
    inputs = vlm.inputs(PICTURES[:2], PROMPTS[:2])
    with METHOD.attach(vlm.model, trace=True, special_ids=vlm.tokenizer.all_special_ids) as handle:
        out = vlm.model.generate(**inputs, max_new_tokens=NEW, num_beams=beams, return_dict_in_generate=True)
    records = handle.attachment.latest.data.records
    for row, answer in enumerate(answers):
        trace = answer.trace
        at = out.beam_indices[row].tolist() if beams > 1 else [row] * NEW
        assert list(answer.token_ids) == out.sequences[row, -NEW:].tolist() == trace.token_ids.tolist()
        assert (trace.steps, trace.layers, trace.heads) == (NEW, 6, 8)
        for name in ("visual", "language", "total", "contribution", "beta", "gamma", "types"):
            expected = np.stack([getattr(records[t], name)[at[t]].numpy() for t in range(NEW)])
            assert np.array_equal(getattr(trace, name), expected, equal_nan=name != "types")
    if beams > 1:
        assert {r for row in out.beam_indices.tolist() for r in row} - {0, 3}


def test_trace_says_where_it_comes_from(vlm: VLM) -> None:
    method = replace(METHOD, alpha=0.6, seed=9, layers=(1, 4))
    answer = ask(vlm, method=method, trace=True)
    trace = answer.trace
    assert trace.text == answer.text
    assert "".join(trace.tokens) == vlm.tokenizer.decode(list(answer.token_ids))
    assert trace.refreshed.tolist() == [step % METHOD.interval == 0 for step in range(NEW)]
    assert trace.config == {"method": "heal", "model": "random", "equilibrium": 0.6, **method.options()}
    assert trace.seed == 9
    assert trace.versions["heal-mllm"] == heal.__version__
    assert trace.versions["torch"] == torch.__version__
    part = np.isin(np.arange(6), [1, 4])
    assert np.isnan(trace.visual[:, ~part]).all()
    assert not np.isnan(trace.visual[:, part]).any()
    np.testing.assert_allclose(trace.synergy, trace.total - trace.visual - trace.language, atol=1e-6)


def test_preset_is_written_into_the_trace(vlm: VLM) -> None:
    assert ask(vlm, method=HEAL(), trace=True, max_new_tokens=1).trace.config["equilibrium"] == 0.5


def test_fired_and_trace_agree(vlm: VLM) -> None:
    answer = ask(vlm, method=METHOD, trace=True)
    beta, gamma = (np.nan_to_num(getattr(answer.trace, name), nan=1.0) for name in ("beta", "gamma"))
    changed = (beta != 1) | (gamma != 1)
    assert answer.fired.steps == changed.any((1, 2)).sum()
    assert answer.fired.changes == changed.sum()
    assert answer.fired.sizes["beta"] == pytest.approx(np.abs(beta - 1).sum() / changed.sum(), rel=1e-5)
    assert answer.fired.sizes["gamma"] == pytest.approx(np.abs(gamma - 1).sum() / changed.sum(), rel=1e-5)


def test_trace_survives_a_file(vlm: VLM, tmp_path: Path) -> None:
    for beams in (1, 2):
        trace = ask(vlm, method=METHOD, trace=True, num_beams=beams).trace
        trace.save(tmp_path / "runs" / f"{beams}.safetensors")
        assert Trace.load(tmp_path / "runs" / f"{beams}.safetensors") == trace


def test_trace_of_text_alone_is_empty_but_whole(vlm: VLM) -> None:
    with pytest.warns(HealWarning, match="no visual tokens"):
        answer = vlm.generate(None, PROMPTS[0], method=METHOD, trace=True, max_new_tokens=NEW)
    assert not answer.fired
    assert answer.fired.reason == "the prompt has no visual tokens, so this was the plain model"
    assert answer.token_ids == vlm.generate(None, PROMPTS[0], max_new_tokens=NEW).token_ids
    assert np.isnan(answer.trace.visual).all()
    assert (answer.trace.types == heal.HeadType.UNKNOWN).all()
    assert "".join(answer.trace.tokens) == vlm.tokenizer.decode(list(answer.token_ids))


# ── streams ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_stream(vlm: VLM, method: HEAL | None) -> None:
    whole = ask(vlm, method=method, trace=True)
    stream = ask(vlm, method=method, trace=True, stream=True)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert len([piece for piece in pieces if piece]) == NEW
    assert_alike(stream.answer, whole)
    assert stream.answer.fired == whole.fired
    assert stream.answer.trace == whole.trace


def test_answer_of_a_stream_needs_no_reading(vlm: VLM) -> None:
    assert_alike(ask(vlm, stream=True).answer, ask(vlm))


class Fails(hf.LogitsProcessor):
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyError("on purpose")
        return scores


@pytest.mark.parametrize("after", [0, 3])
def test_error_reaches_the_reader_of_a_stream(vlm: VLM, after: int) -> None:
    stream = ask(vlm, stream=True, method=METHOD, logits_processor=[Fails(after)])
    pieces = []
    with pytest.raises(KeyError, match="on purpose"):
        pieces.extend(iter(stream))
    with pytest.raises(KeyError, match="on purpose"):
        _ = stream.answer
    assert ask(vlm, method=METHOD).fired


def test_what_a_stream_cannot_do(vlm: VLM) -> None:
    with pytest.raises(ConfigError, match="a stream is for one prompt"):
        vlm.generate(PICTURES[:2], PROMPTS[:2], stream=True)
    with pytest.raises(ConfigError, match="use seed with stream=False"):
        ask(vlm, stream=True, seed=1)
    with pytest.raises(ValueError, match="beam"):
        list(ask(vlm, stream=True, num_beams=2))


# ── what is not a number ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", [None, METHOD, HEAL(calibrate=False)], ids=["plain", "heal", "measure"])
@pytest.mark.parametrize("where", ["output", "decoder", "vision"])
def test_nan_is_an_error(own: VLM, method: HEAL | None, where: str) -> None:
    decoder = own.model.get_decoder()
    weight = {
        "output": own.model.lm_head.weight,
        "decoder": decoder.layers[2].mlp.down_proj.weight,
        "vision": own.model.model.multi_modal_projector.linear_1.weight,
    }[where]
    with torch.no_grad():
        weight[5] = torch.nan
    with pytest.raises(NonFiniteError, match="at step 0: load it in bfloat16 or float32"):
        ask(own, method=method, do_sample=True, seed=0)
    assert "generate" not in vars(own.model)


@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_infinity_is_an_error(own: VLM, method: HEAL | None) -> None:
    own.model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor(7), torch.inf))
    with pytest.raises(NonFiniteError, match="step 0"):
        ask(own, method=method)


def test_token_that_is_ruled_out_is_no_error(own: VLM) -> None:
    """Minus infinity is how models say never."""
    own.model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor(7), -torch.inf))
    answer = ask(own, method=METHOD)
    assert 7 not in answer.token_ids
    assert np.isfinite(answer.logprobs).all()
