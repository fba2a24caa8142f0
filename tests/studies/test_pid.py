import numpy as np
import pytest

from heal import HEAL, VLM
from heal.analysis.pid import decompose, i_min, mutual_information
from heal.studies import pid
from heal.studies.layer_details import observed
from heal.studies.parts import Measured, Records
from heal.studies.pid import STUDY, as_joint, atoms, head_figures, joints, rank_correlation
from heal.studies.pid_measurement import DIRECTIONS, Projections, measured
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made import cells


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(pid, "RESAMPLES", 20)


def record(number, values, scores):
    arrays = {"values": np.asarray(values, np.float32), "scores": np.asarray(scores, np.float32)}
    return Measured(str(number), {"unit": str(number)}, arrays)


def made(rng, number, tokens=30, heads=4):
    """Heads with more and more weight on the image."""
    image, words = rng.normal(size=(2, tokens, 1, heads, DIRECTIONS))
    weight = np.linspace(0.1, 0.9, heads)[:, None]
    both = weight * image + (1 - weight) * words + 0.1 * rng.normal(size=words.shape)
    scores = np.broadcast_to(
        np.stack([weight[:, 0], 1 - weight[:, 0], np.full(heads, 0.8)], -1), (tokens, 1, heads, 3)
    )
    return record(number, np.stack([image, words, both], -1), scores)


def report_of(*records):
    return STUDY.report(Found(Setup(), {"pid natural": Records.of(records)}))


def test_histogram_has_bins_of_equal_frequency_and_one_entry_per_token():
    rng = np.random.default_rng(0)
    found = joints([made(rng, i, tokens=20) for i in range(4)])
    assert found is not None
    assert found.histogram.shape == (4, 4, DIRECTIONS, 64)
    assert (found.histogram.sum(-1) == 20).all()
    for axes in ((1, 2), (0, 2), (0, 1)):
        np.testing.assert_allclose(as_joint(found.histogram.sum(0)[0, 0]).sum(axes), 0.25)


def test_information_is_that_of_the_decomposition():
    rng = np.random.default_rng(1)
    found = joints([made(rng, i) for i in range(5)])
    assert found is not None
    figures = head_figures(found, np.ones(5))
    by_hand = [decompose(as_joint(cells), i_min) for cells in found.histogram.sum(0)[2]]
    interaction = np.mean([a.synergy - a.redundancy for a in by_hand])
    assert figures.interaction[2] == pytest.approx(interaction, abs=1e-6)
    visual = np.mean([mutual_information(as_joint(c).sum(1)) for c in found.histogram.sum(0)[2]])
    assert figures.of_visual[2] == pytest.approx(visual, abs=1e-6)
    np.testing.assert_allclose(atoms(found, i_min)[2, 2], np.mean([a.redundancy for a in by_hand]), atol=1e-9)
    assert figures.i_vis[0] == pytest.approx(0.1)
    np.testing.assert_allclose(figures.i_syn, -0.2, atol=1e-6)


def test_weights_are_numbers_of_images():
    rng = np.random.default_rng(2)
    some = [made(rng, i) for i in range(3)]
    weighted = joints(some)
    assert weighted is not None
    twice = head_figures(weighted, np.array([2.0, 0.0, 1.0]))
    table = weighted.histogram[[0, 0, 2]]
    again = head_figures(pid.Joints(table, weighted.scores[[0, 0, 2]], weighted.tokens[[0, 0, 2]]), np.ones(3))
    np.testing.assert_allclose(twice.interaction, again.interaction, atol=1e-6)
    np.testing.assert_allclose(twice.i_vis, again.i_vis)


def test_scores_that_follow_the_histogram_are_confirmed_and_constant_ones_are_not():
    rng = np.random.default_rng(3)
    report = report_of(*(made(rng, i) for i in range(40)))
    rows = cells(report, "pair")
    assert rows["I_vis and I(V; Y)"]["correlation"].value == pytest.approx(1)
    assert rows["I_vis and I(V; Y)"]["tokens"] == 1200
    assert rows["I_vis and I(V; Y)"]["heads"] == 4
    assert np.isnan(rows["I_syn and S − R"]["correlation"].value)
    assert [v.outcome for v in report.verdicts] == [Outcome.TOO_FEW, Outcome.CONFIRMED, Outcome.CONFIRMED]
    by_measure = cells(report, "redundancy", table=1)
    assert list(by_measure) == ["I_min", "BROJA", "CCS"]
    assert by_measure["BROJA"]["I_vis ~ unique visual"].value > 0.9
    assert report.figures["pid"]().axes


def test_too_few_tokens():
    report = report_of(made(np.random.default_rng(0), 0))
    assert [v.outcome for v in report.verdicts] == [Outcome.TOO_FEW]
    assert "(30; a histogram needs 1000)" in report.verdicts[0].text
    nothing = report_of(Measured("a", {"unit": "a"}, {}))
    assert "(0; a histogram needs 1000)" in nothing.verdicts[0].text
    assert nothing.figures["pid"]().axes


def test_rank_correlation():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])) == pytest.approx(1)
    assert np.isnan(rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 2.0])))


def test_measured_values_are_projections_of_the_parts_of_a_head():
    """Y is the mix of V and L with the attention that each modality has."""
    vlm, samples = VLM.embedded(), Setup(samples=1).captions("natural")

    class Check(Projections):
        def __call__(self, at):
            found = super().__call__(at)
            share = at.at.real.shares.flatten(1, 2)[..., None, :]
            image, words, both = found["values"].unbind(-1)
            np.testing.assert_allclose(share[..., 0] * image + share[..., 1] * words, both, atol=1e-4)
            return found

    (found,) = observed(vlm, HEAL(calibrate=False), Check(), samples, 1, max_new_tokens=6)
    (own,) = measured(vlm, samples, HEAL(calibrate=False), 6)
    assert own.arrays["values"].shape == (5, 8, 8, DIRECTIONS, 3)
    np.testing.assert_allclose(own.arrays["values"], found.values["values"].numpy(), atol=1e-5)
    assert own.arrays["scores"].shape == (5, 8, 8, 3)
