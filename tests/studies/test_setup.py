from pathlib import Path

import pytest

from heal.bench.tasks.pope import SPLITS
from heal.bench.tasks.task_views import FirstUnits
from heal.errors import ConfigError, DataError
from heal.methods import HEAL
from heal.studies.setup import Setup
from tests.bench import official


def write(folder: Path, files: official.Files) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_miniature_world():
    setup = Setup(samples=3, split="validation", distributions=("natural", "counter"), seed=4)
    assert list(setup.tasks("pope", "chair")) == ["pope natural", "pope counter", "chair natural", "chair counter"]
    assert [s.id for s in setup.captions("counter")] == [f"counter-validation-4-{i}" for i in range(3)]
    assert [m.category for m in setup.find("Two puppies and a cat.")] != []
    assert len({s.unit for s in setup.task("mme", "natural").samples()}) >= 1
    assert not setup.has("mmhal")
    with pytest.raises(ConfigError, match="the miniature world has no mmhal: give a folder"):
        setup.task("mmhal", "natural")


def test_official_data(tmp_path):
    setup = Setup.on(write(tmp_path, official.chair()), samples=1)
    assert setup.distributions == ("official",)
    task = setup.task("chair", "official")
    assert isinstance(task, FirstUnits)
    assert [s.id for s in setup.captions("official")] == ["3"]
    assert [m.category for m in setup.find("Two puppies near a motorbike.")] == ["dog", "motorcycle"]
    everything = Setup.on(tmp_path)
    assert [s.id for s in everything.captions("official")] == ["3", "1"]
    assert everything.has("mmhal")
    assert everything.caption_tokens == 512


def test_missing_data_says_which_file_and_where_it_is_from(tmp_path):
    with pytest.raises(DataError, match=r"objects\.json is missing; .*COCO 2014 annotations"):
        Setup.on(tmp_path).captions("official")


def test_the_first_images_have_all_their_questions(tmp_path):
    (text,) = official.pope().values()
    setup = Setup.on(write(tmp_path, {f"coco_pope_{s}.json": text for s in SPLITS}), samples=1)
    task = setup.task("pope", "official")
    units = {s.unit for s in task.samples()}
    assert len(units) == 1
    every = Setup.on(tmp_path).task("pope", "official").samples()
    assert list(task.samples()) == [s for s in every if s.unit in units]
    assert (task.name, task.headline, task.max_new_tokens) == ("pope", "f1", 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples must be 1 or more"),
        ({"distributions": ("official",)}, "distributions must be some of natural, counter"),
        ({"distributions": ()}, "not nothing"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ConfigError, match=message):
        Setup(**options)


def test_the_form_of_heal_is_the_first_that_the_user_gave():
    assert Setup().heal == HEAL()
    given = HEAL(alpha=0.6, preset="paper")
    setup = Setup(methods={"plain": None, "heal": given})
    assert setup.heal == given


def test_all_evaluations_share_one_decoding_configuration():
    settings = Setup(seed=3, batch_size=64, max_new_tokens=20).settings
    assert (settings.seed, settings.batch_size, settings.max_new_tokens) == (3, 64, 20)
    assert settings.prefix_cache
    assert not settings.sampled
