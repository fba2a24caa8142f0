import json

import numpy as np
import pytest
import torch

from heal import HEAL, VLM
from heal.analysis.taxonomy import HeadType
from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import parse
from heal.methods.equilibrium import FEWEST, FILE, Equilibrium

SYNERGY, VISUAL = int(HeadType.SYNERGY), int(HeadType.VISUAL)


def measured() -> Equilibrium:
    """Two layers of three heads: two always mixed, one of them visual; one rarely mixed; the others never."""
    share = np.full((41, 2, 3), np.nan, np.float32)
    types = np.full((41, 2, 3), VISUAL, np.uint8)
    share[:, 0, 0] = np.linspace(0.2, 0.6, 41)
    types[:, 0, 0] = SYNERGY
    share[:, 0, 1] = 0.9
    share[: FEWEST - 1, 1, 2] = 0.1
    types[: FEWEST - 1, 1, 2] = SYNERGY
    return Equilibrium.of(share, types, {"data": "by hand"})


def test_medians_by_head_and_the_mean_of_synergy_heads():
    found = measured()
    seldom = FEWEST - 1
    assert found.mean == pytest.approx((0.4 * 41 + 0.1 * seldom) / (41 + seldom), rel=1e-5)
    logit = lambda p: np.log(p / (1 - p))  # noqa: E731
    expected = [[logit(0.4), logit(0.9), np.nan], [np.nan, np.nan, np.nan]]
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4)
    assert found.counts.tolist() == [[41, 41, 0], [0, 0, seldom]]


def test_targets_are_the_medians_shifted_in_logits():
    found = measured()
    np.testing.assert_allclose(found.targets()[0, :2], [0.4, 0.9], rtol=1e-4)
    np.testing.assert_allclose(found.targets()[1], found.mean, rtol=1e-5)
    shifted = found.targets(np.log(2))  # doubles the odds
    np.testing.assert_allclose(shifted[0, :2], [0.8 / 1.4, 1.8 / 1.9], rtol=1e-4)
    assert (found.targets(-1.0) < found.targets()).all()


def test_no_synergy_head_is_an_error():
    share = np.full((2, 1, 1), 0.5, np.float32)
    with pytest.raises(ConfigError, match="no synergy head"):
        Equilibrium.of(share, np.full((2, 1, 1), VISUAL, np.uint8))


def test_save_and_load(tmp_path):
    found = measured()
    found.save(tmp_path / "new" / "e.json")
    again = Equilibrium.load(tmp_path / "new" / "e.json")
    np.testing.assert_allclose(again.logits, found.logits, atol=1e-5)
    assert (again.mean, again.counts.tolist(), again.source) == (found.mean, found.counts.tolist(), found.source)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["e.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"mean": 0.5}', '{"mean": 2, "logits": [[0]], "counts": [[1]], "source": {}}']
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(ConfigError, match=r"e\.json is"):
        Equilibrium.load(tmp_path / "e.json")


def test_the_error_for_a_missing_file_says_how_to_create_it(tmp_path):
    with pytest.raises(ConfigError, match="heal calibrate"):
        Equilibrium.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="heal calibrate"):
        HEAL(alpha="auto").targets(Layout.of(VLM.random().model))


# ── in a model ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def vlm():
    return VLM.random()


def profile_for(vlm, path, mean=0.3, seed=0):
    layout = Layout.of(vlm.model)
    shape = (len(layout.layers), layout.heads)
    logits = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    found = Equilibrium(mean, logits, np.full(shape, 99))
    found.save(path)
    return found


def tokens_and_factors(vlm, method):
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    answer = vlm.generate(picture, "describe", method=method, trace=True, max_new_tokens=6)
    return answer.token_ids, answer.trace


def test_auto_is_alpha_at_the_mean(vlm, tmp_path):
    profile_for(vlm, tmp_path / "p.json", mean=0.3)
    ids, auto = tokens_and_factors(vlm, HEAL(alpha="auto", profile=str(tmp_path / "p.json")))
    same, fixed = tokens_and_factors(vlm, HEAL(alpha=0.3))
    assert ids == same
    np.testing.assert_array_equal(auto.beta, fixed.beta)
    assert auto.config["equilibrium"] == 0.3


def test_a_profile_gives_every_head_its_own_factors(vlm, tmp_path):
    found = profile_for(vlm, tmp_path / "p.json")
    for delta in (0.0, 0.5):
        method = HEAL(alpha="profile", delta=delta, profile=str(tmp_path / "p.json"), factor_limit=None)
        _, trace = tokens_and_factors(vlm, method)
        target, share = found.targets(delta), trace.alpha_vis
        changed = (trace.types == SYNERGY) & ~np.isnan(share)
        assert changed.any()
        np.testing.assert_allclose(trace.beta[changed], (target / share)[changed], rtol=1e-4)
        np.testing.assert_allclose(trace.gamma[changed], ((1 - target) / (1 - share))[changed], rtol=1e-3)


def test_the_profile_in_the_checkpoint_folder_is_used(vlm, tmp_path):
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    profile_for(vlm, tmp_path / FILE, mean=0.3)
    layout = Layout.of(VLM.load(tmp_path).model)
    assert HEAL(alpha="auto").targets(layout) == 0.3
    targets = HEAL(alpha="profile").targets(layout)
    assert isinstance(targets, torch.Tensor)
    assert targets.shape == (len(layout.layers), layout.heads)


def test_a_profile_of_another_model_is_refused(vlm, tmp_path):
    Equilibrium(0.5, np.zeros((1, 2), np.float32), np.ones((1, 2), np.int64)).save(tmp_path / "p.json")
    with pytest.raises(ConfigError, match=r"\(1, 2\)"):
        HEAL(alpha="profile", profile=str(tmp_path / "p.json")).targets(Layout.of(vlm.model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "best"}, "auto or profile"),
        ({"delta": 0.5}, "alpha='profile'"),
        ({"alpha": "auto", "delta": 0.5}, "alpha='profile'"),
        ({"alpha": "profile", "delta": float("nan")}, "finite"),
        ({"profile": "x.json"}, "profile requires"),
    ],
)
@pytest.mark.usefixtures("without_type_checker")
def test_options_that_conflict_are_rejected(options, message):
    with pytest.raises(ConfigError, match=message):
        HEAL(**options)


def test_options_as_text():
    assert parse("heal:alpha=profile,delta=0.25") == HEAL(alpha="profile", delta=0.25)
    assert parse("heal:alpha=0.4") == HEAL(alpha=0.4)
    assert json.dumps(HEAL(alpha="auto").options())
