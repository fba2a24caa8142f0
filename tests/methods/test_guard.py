"""The guard: dropping, retrying and marking, streams, combinations, and questions with short answers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from heal import HEAL, VLM, Answer
from heal.engine.search import Mark, Search
from heal.errors import ConfigError, HealWarning, UnsupportedError
from heal.methods import OPERA, VCD, Beam, Combined, Guard, parse
from heal.methods.guard_words import object_words
from heal.vlm import EMBEDDED
from heal.world import World
from tests import spoken
from tests.known import known
from tests.laws.conftest import ROWS, WINDOW, Run, generate, inputs_of, model_of, run
from tests.laws.test_methods import DISTINCT
from tests.zoo import Row

PROMPT = "Please describe this image in detail."
LOGPROB = Guard(risk="logprob", threshold=0.5, words="world")
RANDOM = Guard(risk="random", threshold=0.5, words="world")
RETRY = replace(LOGPROB, action="retry")
NEW = 44
pytestmark = pytest.mark.filterwarnings("ignore:nothing was changed")


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.embedded()


@pytest.fixture(scope="module")
def images() -> list[Any]:
    world = World(0, "validation", "counter")
    return [world.scene(index).image for index in (0, 1, 6)]


@pytest.fixture(scope="module")
def plain(vlm: VLM, images: list[Any]) -> list[Answer]:
    return ask(vlm, images, None)


answered: dict[str, list[Answer]] = {}


def ask(vlm: VLM, images: Sequence[Any], method: Any, **options: Any) -> list[Answer]:
    """The descriptions of these images. They are generated once for all tests."""
    key = repr(([id(image) for image in images], method, sorted(options.items())))
    if key not in answered:
        options = {"max_new_tokens": NEW} | options
        answered[key] = vlm.generate(list(images), [PROMPT] * len(images), method=method, **options)
    return answered[key]


def assert_parts(answer: Answer, whole: Answer) -> None:
    """The answer has the tokens and log-probabilities of the kept sentences of the whole one, and its end token."""
    end = [] if whole.finish == "length" else [len(whole.token_ids) - 1]
    steps = [step for s in answer.sentences if s.kept for step in range(s.start, s.stop)] + end
    assert answer.token_ids == tuple(whole.token_ids[step] for step in steps)
    assert answer.logprobs == pytest.approx([whole.logprobs[step] for step in steps], abs=1e-4)
    assert answer.finish == whole.finish
    assert answer.sentences[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(answer.sentences))
    assert answer.sentences[-1].stop == len(whole.token_ids) - len(end)


# ── drop and mark ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", [LOGPROB, RANDOM], ids=lambda m: m.risk)
def test_dropping_removes_risky_sentences_and_nothing_else(
    vlm: VLM, images: list, plain: list, method: Guard
) -> None:
    answers = ask(vlm, images, method, trace=True)
    assert any(not s.kept for answer in answers for s in answer.sentences)
    for answer, whole in zip(answers, plain, strict=True):
        assert_parts(answer, whole)
        kept = [s for s in answer.sentences if s.kept]
        assert answer.text == " ".join(s.text for s in kept)
        assert all(s.risk is None or s.risk <= 0.5 for s in kept) or len(kept) == 1
        assert all(known(s.risk) > 0.5 for s in answer.sentences if not s.kept)
        dropped = len(whole.token_ids) - len(answer.token_ids)
        assert known(answer.fired).changes == known(answer.fired).steps == dropped
        trace = known(answer.trace)
        assert trace.text == answer.text
        assert tuple(trace.token_ids) == answer.token_ids
        assert trace.logprobs.tolist() == pytest.approx(list(answer.logprobs))


def test_the_risk_is_that_of_the_first_token_of_the_riskiest_word(vlm: VLM, images: list, plain: list) -> None:
    (answer,), (whole,) = ask(vlm, images[:1], replace(LOGPROB, action="mark")), plain[:1]
    text = [vlm.tokenizer.decode([token]).strip() for token in whole.token_ids]
    for sentence in answer.sentences:
        if sentence.word is not None:
            first = text.index(sentence.word.split()[0], sentence.start)
            assert sentence.risk == pytest.approx(1 - torch.tensor(whole.logprobs[first]).exp().item(), abs=1e-5)


def test_marking_changes_nothing_and_reports(vlm: VLM, images: list, plain: list) -> None:
    marked = ask(vlm, images, replace(LOGPROB, action="mark"))
    dropped = ask(vlm, images, LOGPROB)
    for answer, whole, other in zip(marked, plain, dropped, strict=True):
        assert (answer.text, answer.token_ids, answer.logprobs) == (whole.text, whole.token_ids, whole.logprobs)
        assert [s.marked for s in answer.sentences] == [s.marked for s in other.sentences]
        assert not answer.fired
    assert any(s.marked for answer in marked for s in answer.sentences)


def test_a_finished_answer_keeps_a_sentence(vlm: VLM, images: list, plain: list) -> None:
    for answer in ask(vlm, images, replace(LOGPROB, threshold=0.0)):
        kept = [s for s in answer.sentences if s.kept]
        assert answer.text == " ".join(s.text for s in kept)
        if any(s.risk is None for s in answer.sentences):
            assert all(s.risk is None for s in kept)
        else:
            assert [s.risk for s in kept] == [min(known(s.risk) for s in answer.sentences)]


def test_a_row_alone_is_the_row_in_a_batch(vlm: VLM, images: list) -> None:
    batch = ask(vlm, images, LOGPROB)
    for image, row in zip(images[1:], batch[1:], strict=True):
        (alone,) = ask(vlm, [image], LOGPROB)
        assert (alone.text, alone.token_ids) == (row.text, row.token_ids)
        assert alone.logprobs == pytest.approx(row.logprobs, abs=1e-4)
        assert known(alone.fired).changes == known(row.fired).changes


def test_the_rows_of_the_zoo_are_those_alone() -> None:
    """In padded batches of every kind of row. Rows without an image are not changed."""
    for name in ("llava", "qwen2_5_vl", WINDOW):
        batch, whole = run(name, RANDOM, new=4), run(name, new=4)
        prompt = inputs_of(name, ROWS)["input_ids"].shape[1]
        for index, row in enumerate(ROWS):
            alone = run(name, RANDOM, (row,), new=4)
            own = inputs_of(name, (row,))["input_ids"].shape[1]
            new = alone.output.sequences[0, own:].tolist()
            assert batch.output.sequences[index, prompt : prompt + len(new)].tolist() == new
            if not row.images:
                assert new == whole.tokens[index].tolist()


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"do_sample": True, "temperature": 1.5}], ids=["beams", "sample"]
)
def test_every_decoding_mode(vlm: VLM, images: list, options: dict[str, Any]) -> None:
    whole = ask(vlm, images, None, seed=3, **options)
    for answer, own in zip(ask(vlm, images, LOGPROB, seed=3, **options), whole, strict=True):
        assert_parts(answer, own)


def test_log_probabilities_follow_the_beams(vlm: VLM, images: list) -> None:
    """The risk of a word is known although beams move between rows."""
    for answer in ask(vlm, images, Combined((replace(LOGPROB, action="mark"), Beam(3)))):
        for sentence in answer.sentences:
            if sentence.word is not None:
                own = answer.logprobs[sentence.start : sentence.stop]
                assert min(abs(1 - torch.tensor(p).exp().item() - known(sentence.risk)) for p in own) < 1e-4


def test_dropped_tokens_count_towards_the_length(vlm: VLM, images: list) -> None:
    short = {"max_new_tokens": 30}
    for answer, whole in zip(ask(vlm, images, LOGPROB, **short), ask(vlm, images, None, **short), strict=True):
        assert_parts(answer, whole)


@pytest.mark.parametrize("method", [LOGPROB, RETRY, Guard()], ids=["drop", "retry", "detector"])
def test_a_stream_is_the_answer(vlm: VLM, images: list, method: Any) -> None:
    (answer,) = ask(vlm, images[1:2], method)
    stream = vlm.stream(images[1], PROMPT, method=method, max_new_tokens=NEW)
    assert "".join(stream).strip() == answer.text
    assert stream.answer.token_ids == answer.token_ids
    assert stream.answer.sentences == answer.sentences


@pytest.mark.slow
def test_a_stream_of_what_heal_calibrates(vlm: VLM, images: list) -> None:
    test_a_stream_is_the_answer(vlm, images, Combined((HEAL(alpha=0.5), LOGPROB)))


def test_a_stream_holds_one_sentence_back(vlm: VLM, images: list) -> None:
    seen: list[tuple[int, str]] = []

    class Watch:
        def __init__(self) -> None:
            self.tokens, self.passed = 0, 0

    model, request, watch = vlm.model, vlm.request([images[0]], [PROMPT]), Watch()

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            watch.passed += value.numel()
            seen.append((watch.tokens, vlm.tokenizer.decode(value.flatten())))

        def end(self) -> None:
            pass

    def count(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        watch.tokens += 1
        return torch.zeros(len(ids), dtype=torch.bool)

    with replace(LOGPROB, threshold=1.0).attach(model, source=request.source):
        model.generate(**request.arguments, streamer=Streamer(), stopping_criteria=[count], max_new_tokens=NEW)
    at = [tokens for tokens, _ in seen[1:]]
    assert at == sorted(at)
    assert len(set(at)) < len(at)  # sentences come at once
    stops = [index for index, (_, text) in enumerate(seen[1:], 1) if text == "."]
    assert seen[stops[0]][0] == stops[0] + 1  # with the first token of the next sentence


# ── the detector ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_risks_are_those_of_the_detector(vlm: VLM, images: list, plain: list) -> None:
    """Computed while the answer is generated, they are those of the finished plain answer."""
    judged = ask(vlm, images, None, risk=True)
    for answer, whole, own in zip(ask(vlm, images, Guard(threshold=0.6)), plain, judged, strict=True):
        assert_parts(answer, whole)
        for sentence in answer.sentences:
            risks = [o.risk for o in known(own.judged).objects if sentence.start <= o.tokens[0] < sentence.stop]
            assert (sentence.risk or 0.0) == pytest.approx(max(risks, default=0.0), abs=1e-3)
            assert sentence.kept == ((sentence.risk or 0.0) <= 0.6)
    assert any(
        s.risk is not None and s.risk > 0.6 for a in ask(vlm, images, Guard(threshold=0.6)) for s in a.sentences
    )


def test_the_risks_of_an_answer_without_some_sentences(vlm: VLM, images: list) -> None:
    """They are those of the same words in the whole answer, at the places that they have now."""
    whole = ask(vlm, images, None, risk=True)
    for answer, own in zip(ask(vlm, images, Guard(threshold=0.6), risk=True), whole, strict=True):
        kept = [step for s in answer.sentences if s.kept for step in range(s.start, s.stop)]
        assert known(answer.risk)[: len(kept)] == pytest.approx([known(own.risk)[step] for step in kept], abs=1e-3)
        for word in known(answer.judged).objects:
            assert answer.text[slice(*word.span)] == word.text
            said = vlm.tokenizer.decode(answer.token_ids[slice(*word.tokens)]).strip()
            assert said == word.text


def test_the_threshold_is_that_of_the_detector_unless_given(vlm: VLM, images: list) -> None:
    from heal.detect import Detector

    stored = Detector.of_model(vlm.model).threshold
    for method, expected in ((Guard(action="mark"), stored), (Guard(action="mark", threshold=0.25), 0.25)):
        for answer in ask(vlm, images, method):
            assert [s.marked for s in answer.sentences] == [
                s.risk is not None and s.risk > expected for s in answer.sentences
            ]


def test_a_model_without_detector_is_refused_before_the_first_token() -> None:
    with pytest.raises(ConfigError, match="has no detector"):
        VLM.random().generate(None, "What is this?", method="guard", max_new_tokens=2)
    detector = str(EMBEDDED / "detector.json")
    with pytest.raises(ConfigError, match="8 layers of 8 heads, but this model has 6 of 8"):
        VLM.random().generate(None, "What is this?", method=Guard(detector=detector), max_new_tokens=2)


# ── retry ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_retry_names_other_objects_or_drops(vlm: VLM, images: list, plain: list) -> None:
    tried = 0
    for answer, whole in zip(ask(vlm, images, RETRY, trace=True), plain, strict=True):
        for sentence in answer.sentences:
            tried += sentence.tries
            if sentence.risk is not None and sentence.risk > 0.5:
                assert sentence.tries == 3 or not sentence.kept
                assert not sentence.kept or sum(s.kept for s in answer.sentences) == 1
        first = next((s for s in answer.sentences if s.tries), None)
        if first is None:
            assert answer.token_ids == whole.token_ids
            assert not answer.fired
        else:
            assert whole.token_ids[: first.start] == answer.token_ids[: first.start]
            assert known(answer.fired).changes > 0
        assert known(answer.trace).steps == len(answer.token_ids) == len(answer.logprobs)
    assert tried > 0


def test_a_retry_without_tries_is_a_drop(vlm: VLM, images: list) -> None:
    for one, other in zip(ask(vlm, images, replace(RETRY, tries=0)), ask(vlm, images, LOGPROB), strict=True):
        assert (one.text, one.token_ids) == (other.text, other.token_ids)
        assert [s.kept for s in one.sentences] == [s.kept for s in other.sentences]
        assert known(one.fired).changes == known(other.fired).changes


def test_log_probabilities_after_a_roll_back_are_those_of_the_text(vlm: VLM, images: list) -> None:
    """The same tokens in one pass over prompt and answer."""
    answers = ask(vlm, images, RETRY)
    answer = next(a for a in answers if any(s.tries for s in a.sentences) and all(s.kept for s in a.sentences))
    request = vlm.request([images[answers.index(answer)]], [PROMPT])
    ids = torch.cat([request.arguments["input_ids"], torch.tensor([answer.token_ids])], 1)
    arguments = {**request.arguments, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        logits = vlm.model(**arguments).logits[0, request.arguments["input_ids"].shape[1] - 1 : -1]
    expected = logits.float().log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_roll_back_forbids_the_object_in_its_sentence(
    vlm: VLM, images: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled: list[tuple[list[int], int]] = []
    original = Search.restore

    def restore(self: Search, mark: Mark) -> None:
        rolled.append((self.answer[0].tolist(), mark.ids.shape[1] - self.prompt_length))
        original(self, mark)

    monkeypatch.setattr(Search, "restore", restore)
    for image in images[1:]:
        rolled.clear()
        answer = vlm.generate(image, PROMPT, method=RETRY, max_new_tokens=NEW)
        assert len(rolled) == sum(s.tries for s in answer.sentences)
        for (before, point), (after, _) in pairwise(rolled):
            assert before[:point] == after[:point]
            assert before[point] != after[point]


@pytest.mark.parametrize("name", [*DISTINCT, WINDOW])
def test_a_retry_that_finds_no_risk_is_the_plain_model(name: str) -> None:
    method = replace(RETRY, threshold=1.0)
    out, expected = run(name, method, (Row(),), new=3), run(name, None, (Row(),), new=3)
    assert torch.equal(out.logits, expected.logits)
    assert torch.equal(out.tokens, expected.tokens)
    assert not out.fired


def test_sampling_without_risk_is_the_plain_model() -> None:
    options: dict[str, Any] = {"do_sample": True, "temperature": 3.0, "new": 5, "seed": 1}
    out = run("llava", replace(RETRY, threshold=1.0), (Row(),), **options)
    expected = run("llava", None, (Row(),), **options)
    assert torch.equal(out.tokens, expected.tokens)
    assert not out.fired


def tokens_of(out: Run, rows: Sequence[Row], name: str) -> list[int]:
    return out.output.sequences[0, inputs_of(name, tuple(rows))["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("name", [*DISTINCT, WINDOW])
def test_a_retry_from_the_first_token(name: str) -> None:
    """Every token of the zoo is a sentence, so it is chosen again at once."""
    method = replace(RETRY, threshold=0.0, tries=2)
    batch = inputs_of(name, (Row(),))
    with torch.no_grad():
        out = generate(model_of(name), batch, method, new=1)
        logits = run(name, None, (Row(),), new=1).logits[0, 0]
    words, at = object_words("world"), list(logits.argsort(descending=True))
    text = spoken.tokenizer()
    objects = {t: [m.category for m in words.find(text.decode([t]))] for t in range(len(text))}
    expected, forbidden = int(at[0]), set()
    for _ in range(2):
        if not objects[expected]:
            break
        forbidden |= {expected} | {t for c in objects[expected] for t in words.single_tokens(text, c)}
        expected = next(int(token) for token in at if int(token) not in forbidden)
    assert tokens_of(out, [Row()], name) == [expected]


def test_retry_refuses_what_it_cannot_roll_back() -> None:
    model = model_of("llava")
    with pytest.raises(UnsupportedError, match="one prompt instead of 4"):
        generate(model, inputs_of("llava", ROWS), RETRY)
    with pytest.raises(UnsupportedError, match="leave out num_beams"):
        generate(model, inputs_of("llava", ROWS[:1]), RETRY, num_beams=2)
    with pytest.raises(ConfigError, match="cannot be combined with a search"):
        Combined((RETRY, Beam(2)))


# ── questions with short answers, words, combinations ────────────────────────────────────────────────────


def test_yes_and_no_are_never_changed(vlm: VLM, images: list) -> None:
    questions = [f"Is there a {name} in the image?" for name in ("person", "car", "kite")]
    expected = vlm.generate(images, questions, max_new_tokens=10)
    for method in (LOGPROB, RANDOM, RETRY):
        answers = vlm.generate(images, questions, method=replace(method, threshold=0.0), max_new_tokens=10)
        for answer, plain in zip(answers, expected, strict=True):
            assert (answer.text, answer.token_ids) == (plain.text, plain.token_ids)
            assert answer.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
            assert not answer.fired


def test_an_answer_may_speak_of_what_was_asked_for(vlm: VLM, images: list) -> None:
    asked = "Please describe the kites and the motorcycle and the person in detail."
    answer = vlm.generate(images[0], asked, method=replace(RETRY, threshold=0.0), max_new_tokens=NEW)
    named = {m.category for s in answer.sentences for m in object_words("world").find(s.text) if s.tries == 0}
    assert named <= {"kite", "motorcycle", "person"}
    risks = [s.risk for s in answer.sentences if {m.category for m in object_words("world").find(s.text)} <= named]
    assert any(risk is None for risk in risks)


def test_it_guards_what_heal_calibrates(vlm: VLM, images: list) -> None:
    heal = HEAL(alpha=0.5, drift="language")
    whole = ask(vlm, images, heal)
    for answer, own in zip(ask(vlm, images, Combined((heal, LOGPROB)), trace=True), whole, strict=True):
        assert_parts(answer, own)
        fired, alone = known(answer.fired), known(own.fired)
        assert fired.changes == alone.changes + len(own.token_ids) - len(answer.token_ids)
        assert fired.sizes.keys() == alone.sizes.keys()
        trace = known(answer.trace)
        assert trace.types.max() > 0
        assert trace.config["method"] == "heal+guard"
        assert trace.config["threshold"] == 0.5


def test_combinations() -> None:
    text = "guard:risk=logprob,threshold=0.5,words=world"
    assert parse(f"heal:alpha=0.5+{text}+beam:beams=3") == Combined((HEAL(alpha=0.5), LOGPROB, Beam(3)))
    assert parse(f"{text},action=retry+heal").one_sample
    assert not parse(f"{text}+heal").one_sample
    for other in (VCD(), OPERA()):
        with pytest.raises(ConfigError, match=r"guard cannot be combined with .*: combine it with heal, with beam"):
            Combined((other, LOGPROB))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.5}, "threshold must lie between 0 and 1"),
        ({"tries": -1}, "tries must be a whole number of 0 or more"),
        ({"risk": "random"}, "give threshold="),
        ({"risk": "logprob", "threshold": 0.5, "detector": "a.json"}, "uses no detector"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Guard(**options)


def test_it_needs_a_tokenizer() -> None:
    model = model_of("llava")
    with LOGPROB.attach(model), pytest.raises(UnsupportedError, match="reads the text of the answer"):
        model.generate(**inputs_of("llava", ROWS), max_new_tokens=2)


def test_a_warning_says_why_nothing_was_changed(vlm: VLM, images: list) -> None:
    with pytest.warns(HealWarning, match="no sentence had a risk above 1"):
        ask(vlm, images[:1], replace(LOGPROB, threshold=1.0))


def test_single_tokens_of_an_object(vlm: VLM) -> None:
    words = object_words("world")
    names = {vlm.tokenizer.decode([token]) for token in words.single_tokens(vlm.tokenizer, "horse")}
    assert " horse" in names
    assert " horses" in names
    assert {m.category for name in names for m in words.find(name)} == {"horse"}
