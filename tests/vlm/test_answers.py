"""Answers: one and many, log-probabilities, end tokens, seeds, times, and NaN."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from heal import HEAL, VLM, Answer, Trace
from heal.errors import BusyError, ConfigError, NonFiniteError
from tests.vlm.asking import METHOD, NEW, PATCHES, PICTURES, PROMPTS, ask, assert_alike

ignore_silence = pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")


# ── one answer, many answers ──────────────────────────────────────────────────────────────────────────


def assert_traces_alike(one: Trace, other: Trace) -> None:
    assert (one.tokens, one.config, one.text) == (other.tokens, other.config, other.text)
    for name in ("types", "refreshed", "token_ids"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    for name in ("visual", "language", "synergy", "total", "contribution", "beta", "gamma"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-3, rtol=1e-3)


@ignore_silence
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_a_batch_equals_single_prompts(vlm: VLM, options: dict[str, Any]) -> None:
    images = [PICTURES[0], [PICTURES[1], PICTURES[2]], PICTURES[2], None]
    prompts = [*PROMPTS, "the red ball"]
    settings: dict[str, Any] = {"method": METHOD, "trace": True, "max_new_tokens": NEW - 1} | options
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
    """Log-probabilities of an answer from one pass over the whole sequence, without a cache."""
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
def test_beams_can_come_from_a_configuration(own: VLM, where: str) -> None:
    expected = ask(own, num_beams=3)
    if where == "model":
        own.model.generation_config.num_beams = 3
        found = ask(own)
    else:
        config = hf.GenerationConfig(num_beams=3, max_new_tokens=NEW, pad_token_id=0, eos_token_id=2)
        found = own.generate(PICTURES[0], PROMPTS[0], generation_config=config)
    assert_alike(found, expected)


def closing(answer: Answer, others: tuple[int, ...] = ()) -> tuple[int, int]:
    """A token that the model generates before the last one, and its first position."""
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


def test_end_token_at_the_last_step(own: VLM) -> None:
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
    options: dict[str, Any] = {"do_sample": True, "seed": 0, "num_return_sequences": 3, "max_new_tokens": NEW}
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


def test_noise_has_its_own_generator(vlm: VLM) -> None:
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


def test_answers_can_have_different_lengths(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heal.generate.MAX_NEW_TOKENS", 3)
    assert len(vlm.generate(PICTURES[0], PROMPTS[0]).token_ids) == 3


def test_the_model_is_restored(own: VLM) -> None:
    ask(own)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.model.modules()]
    ask(own, method=METHOD, trace=True)
    with pytest.raises(ValueError, match="model_kwargs"):
        ask(own, method=METHOD, nonsense=1)
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.model.modules()] == hooks
    assert "generate" not in vars(own.model)


# ── NaN and infinity ──────────────────────────────────────────────────────────────────────────────────


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


def test_a_forbidden_token_is_not_an_error(own: VLM) -> None:
    """Models forbid tokens with minus infinity."""
    own.model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor(7), -torch.inf))
    answer = ask(own, method=METHOD)
    assert 7 not in answer.token_ids
    assert np.isfinite(answer.logprobs).all()


@pytest.mark.parametrize("picture", [True, False])
def test_the_answer_is_the_same_without_a_cache(vlm: VLM, picture: bool) -> None:
    given = PICTURES[0] if picture else None
    cached, whole = (vlm.generate(given, PROMPTS[0], max_new_tokens=NEW, use_cache=cache) for cache in (True, False))
    assert len(whole.logprobs) == len(whole.token_ids)
    assert_alike(whole, cached)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_cache": []}, "use_cache cannot be"),
        ({"eos_token_id": [[1]]}, "eos_token_id cannot be"),
        ({"guidance_scale": 10**30}, "guidance_scale cannot be"),
        ({"max_time": "x"}, "max_time cannot be"),
        ({"temperature": -1.0, "do_sample": True}, "temperature cannot be"),
        ({"max_new_tokens": 0}, "max_new_tokens cannot be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"input_ids": None}, "input_ids is computed from the images and prompts"),
        ({"no_such_option": 1}, "failed before the first token"),
        ({"cache_implementation": True}, "failed before the first token"),
    ],
)
def test_odd_options_are_refused(vlm: VLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(vlm, **options)


@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_a_callback_cannot_start_another_generation(vlm: VLM, method: HEAL | None) -> None:
    """It would overwrite the state, and its tokens would be counted for the answer."""

    class Asks(hf.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            ask(vlm)
            return scores

    with pytest.raises(BusyError, match="inside a generation"):
        ask(vlm, method=method, logits_processor=[Asks()])
    assert ask(vlm, method=method).text
