"""The embedded model: it loads anywhere, uses the image, answers, and hallucinates likely objects."""

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaForConditionalGeneration

from heal import HEAL, VLM
from heal.bench.tasks.base import figures, unit_counts
from heal.bench.tasks.miniature import MiniChair, MiniPope
from heal.methods.equilibrium import FILE, Equilibrium
from heal.studies.drift import mean_alpha
from heal.studies.objects import describe
from heal.vlm import EMBEDDED
from heal.world import World

LIMIT = 12e6


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.embedded()


def scores(vlm: VLM, task, method=None) -> dict[str, float]:
    samples = task.samples()
    answers = vlm.generate(
        [s.image() for s in samples],
        [s.prompt for s in samples],
        method=method,
        max_new_tokens=task.max_new_tokens,
        do_sample=False,
    )
    parses = {s.id: task.parse(s, a.text) for s, a in zip(samples, answers, strict=True)}
    return figures(task, unit_counts(task, samples, parses).values())


def test_small_ordinary_checkpoint(vlm: VLM) -> None:
    assert sum(f.stat().st_size for f in EMBEDDED.iterdir()) < LIMIT
    model = AutoModelForImageTextToText.from_pretrained(EMBEDDED)
    assert type(model) is LlavaForConditionalGeneration
    text = model.config.get_text_config()
    assert text.num_hidden_layers >= 8
    assert text.num_attention_heads >= 8
    assert AutoProcessor.from_pretrained(EMBEDDED).tokenizer.is_fast
    assert (vlm.name, vlm.model.dtype.itemsize) == ("embedded", 4)


def test_card_describes_the_training() -> None:
    card = (EMBEDDED / "README.md").read_text()
    for word in ("language", "vision", "projector", "joint", "seed", "mini-pope", "mini-chair", "Noto", "COCO"):
        assert word in card


def test_equilibrium_is_stored_with_the_model(vlm: VLM) -> None:
    found = Equilibrium.load(EMBEDDED / FILE)
    text = vlm.model.config.get_text_config()
    assert found.logits.shape == (text.num_hidden_layers, text.num_attention_heads)
    assert 0.1 < found.mean < 0.9
    assert HEAL(alpha="auto").attach(vlm.model) is not None


def test_accuracy_is_above_chance(vlm: VLM) -> None:
    """A quick check on few images; the card has figures on many."""
    assert scores(vlm, MiniPope(count=15, split="validation"))["accuracy"] > 80
    found = scores(vlm, MiniChair(count=24, split="validation"))
    assert found["recall"] > 55
    assert found["precision"] > 70


def test_answers_depend_on_the_image(vlm: VLM) -> None:
    """The same question has different answers for different images."""
    world, question = World(0, "validation"), "Is there a person in the image?"
    views = list(map(world.scene, range(60)))
    for there, least in ((True, 8), (False, 7)):
        shown = [view.image for view in views if ("person" in view.objects) == there][:10]
        answers = vlm.generate(shown, [question] * len(shown), max_new_tokens=2)
        assert sum(a.text.startswith("Yes" if there else "No") for a in answers) >= least


def test_priors_cause_hallucinations(vlm: VLM) -> None:
    """Scenes with unlikely combinations of objects are described worse."""
    natural, counter = (
        scores(vlm, MiniChair(count=32, distribution=d, split="validation")) for d in ("natural", "counter")
    )
    assert counter["chair_i"] > natural["chair_i"]
    assert counter["recall"] < natural["recall"]


def test_heads_can_be_measured_and_calibrated(vlm: VLM) -> None:
    view = World(0, "validation", "counter").scene(0)
    tokens = next(describe(vlm, [view]))
    assert len(tokens) > 2
    assert all(0 < mean_alpha(token) < 1 for token in tokens)
    answer = vlm.generate(
        view.image, "Please describe this image in detail.", method=HEAL(alpha=0.7), max_new_tokens=64
    )
    assert answer.fired.changes > 0


def test_tokenizer_covers_the_benchmarks(vlm: VLM) -> None:
    for text in ("Is there a hot dog in the image?", "ünïcödé, too", "The people are near the top."):
        ids = vlm.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert vlm.tokenizer.decode(ids) == text
    assert vlm.model.config.image_token_id == vlm.tokenizer.convert_tokens_to_ids("<image>")
