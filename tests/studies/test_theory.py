"""The measured quantities of the theorems against brute force, and the report on hand-made records."""

import numpy as np
import pytest
import torch

from heal import HEAL, VLM
from heal.analysis import theory
from heal.analysis.taxonomy import HeadType
from heal.engine.layout import Layout
from heal.errors import UnsupportedError
from heal.studies.layer_details import observed
from heal.studies.parts import Measured, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.theory import STUDY
from heal.studies.theory_measurement import (
    ALPHAS,
    Parts,
    check_layers,
    gain,
    mix_figures,
    scaled,
    theory_measurement,
)
from tests.studies.made import cells

SETUP = Setup(samples=2, max_new_tokens=20)


@pytest.fixture(scope="module")
def vlm():
    return VLM.embedded()


class Check:
    """Compares what is measured at each layer with a direct computation from the same vectors."""

    def __init__(self) -> None:
        self.parts = Parts((None, 2.0))
        self.layers = 0

    def __call__(self, at):
        found = self.parts(at)
        shares = at.at.real.shares.flatten(1, 2)
        visual, language = (shares[..., i, None] * p.value for i, p in enumerate(at.at.split()[:2]))
        torch.testing.assert_close(visual + language, at.heads, rtol=1e-3, atol=2e-5)
        synergy = (at.types == int(HeadType.SYNERGY)) & (at.scores[..., :2] > 1e-6).all(-1)
        assert found["heads"].tolist() == synergy.sum(1).tolist()
        weight = at.projection.weight.detach()
        own_gain = gain(at.layout.layers[at.layer])
        share = at.scores[..., 0] / at.scores[..., :2].sum(-1)
        factors = [(alpha / share, (1 - alpha) / (1 - share)) for alpha in ALPHAS]
        for index, (beta, gamma) in enumerate(factors):
            out = beta[..., None] * visual + gamma[..., None] * language
            heads = torch.where(synergy[..., None], out, at.heads)
            stream = own_gain * (at.residual + heads.flatten(1) @ weight.T)
            expected = torch.cosine_similarity(stream, found["direction"], -1)
            known = synergy.any(1)
            torch.testing.assert_close(
                found["alignment"][known, index], expected[known], rtol=1e-3, atol=1e-4, equal_nan=True
            )
            cosines = torch.where(synergy, torch.cosine_similarity(out, visual, -1), 0.0)
            torch.testing.assert_close(found["cosine"][:, index], cosines.sum(1), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(at.rescore(at.at), at.scores, rtol=1e-3, atol=1e-5)
        beta, gamma = (torch.where(synergy, f, 1.0) for f in factors[0])
        again = scaled(at, beta, gamma)
        whole = again.real.output.flatten(1, 3)
        torch.testing.assert_close(
            whole, beta[..., None] * visual + gamma[..., None] * language, rtol=1e-3, atol=1e-4
        )
        same = mix_figures(at, visual, language, synergy & False, None)
        assert float(same["known"].sum()) == 0
        self.layers += 1
        return found


def test_measured_quantities_are_those_of_the_definitions(vlm):
    check = Check()
    found = observed(vlm, HEAL(calibrate=False), check, SETUP.captions("natural"), 8, max_new_tokens=20)
    assert check.layers == 3 * 8  # steps 1, 9, 17
    assert [own.steps for own in found] == [[1, 9, 17]] * 2
    for own in found:
        values = own.values
        assert float(values["error of theorem 1"].max()) < 1e-5
        assert float(values["error of theorem 2"].max()) < 1e-3
        # the margin has the sign of the slope, and the slope is that of the alignment
        slope = (values["alignment"][..., 2] - values["alignment"][..., 0]) / (ALPHAS[2] - ALPHAS[0])
        clear = slope.abs() > 0.05
        assert bool(((slope > 0) == (values["margin"][..., 1] > 0))[clear].all())


def test_observing_changes_no_token(vlm):
    samples = SETUP.captions("natural")
    plain = [vlm.generate(s.image(), s.prompt, max_new_tokens=20, do_sample=False).token_ids for s in samples]
    nothing = {"nothing": torch.zeros(2)}
    found = observed(vlm, HEAL(calibrate=False), lambda at: nothing, samples, 1, max_new_tokens=20)
    assert [own.answer.token_ids for own in found] == plain
    forced = observed(
        vlm, HEAL(alpha=0.3), lambda at: nothing, samples, 1, force=[plain[0][:5], plain[1]], max_new_tokens=20
    )
    assert forced[1].answer.token_ids == plain[1]
    assert forced[0].answer.token_ids[:5] == plain[0][:5]


def test_the_part(vlm):
    part = theory_measurement(Setup(samples=1, max_new_tokens=12), "counter")
    (record,) = part.measure(vlm, part.samples)
    assert record.facts["steps"] == [1, 9]
    assert record.arrays["margin"].shape == (2, 8, len(ALPHAS))
    assert record.arrays["running alignment"].shape == (2, 8, 2)
    assert "direction" not in record.arrays


def test_layers_that_the_theory_does_not_cover(vlm):
    class Plain(torch.nn.Module):
        post_attention_layernorm = torch.nn.LayerNorm(4)

    with pytest.raises(UnsupportedError, match="no RMSNorm"):
        gain(Plain())
    check_layers(Layout.of(vlm.model))


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def made(number, margin=1.0, rise=0.1, reached=0.5, heads=2, steps=2, layers=2):
    shape = (steps, layers)

    def full(value, *more):
        return np.full((*shape, *more), value, np.float32)

    running = np.stack([full(0.2), full(0.2 + rise)], -1)
    arrays = {
        "heads": np.full(shape, heads), "rising": np.full(shape, heads), "margin": full(margin, 3),
        "slope": full(0.3, 3), "alignment": full(0.25, 3), "plain alignment": full(0.1),
        "running alignment": running, "cosine": full(heads * 0.5, 3),
        "error of theorem 1": full(1e-7), "error of theorem 2": full(1e-6),
    }  # fmt: skip
    known = np.maximum(heads - 1, 0)
    for name, value in (
        ("known", 1.0), ("reached", reached), ("error", abs(reached - 0.5)), ("error before", 0.3), ("norm mix", 0.6)
    ):  # fmt: skip
        arrays[f"{name}, unbounded"] = full(known * value, 3)
    return Measured(str(number), {"unit": str(number), "steps": list(range(steps))}, arrays)


def report_of(*records):
    return STUDY.report(Found(Setup(), {"theory natural": Records.of(records)}))


def test_rows_by_hand():
    report = report_of(made(0), made(1, margin=-1.0, rise=-0.1), made(2, heads=0))
    layers = cells(report, "layer")
    assert list(layers) == ["0", "1", "all"]
    assert layers["0"]["M ≥ 0 %"].value == 50  # the third image has no calibrated head
    assert layers["all"]["in the model at 0.7"].value == pytest.approx(0.2)
    assert layers["all"]["rises %"].value == 50
    assert layers["all"]["agrees %"].value == 100
    mix = cells(report, "factors", "α asked", table=1)
    assert list(mix) == [("unbounded", "0.3"), ("unbounded", "0.5"), ("unbounded", "0.7")]
    assert mix["unbounded", "0.5"]["reached"].value == 0.5
    assert mix["unbounded", "0.5"]["no longer mixed %"].value == 50
    heads = cells(report, "distribution", table=2)["natural"]
    assert (heads["rising %"].value, heads["cosine at 0.3"].value, heads["heads"]) == (100, 0.5, 16)
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.TOO_FEW}


def test_verdicts():
    good = report_of(*(made(i, reached=0.5 + 0.001 * i) for i in range(10)))
    assert [v.outcome for v in good.verdicts] == [Outcome.CONFIRMED] * 4 + [Outcome.CONTRADICTED]
    assert "M ≥ 0 in most cases (natural) confirmed: in 100.0 (100.0 to 100.0) % of layers and steps" in [
        v.text for v in good.verdicts
    ]
    bad = report_of(*(made(i, margin=-1.0, rise=-0.1, reached=0.9) for i in range(10)))
    assert [v.outcome for v in bad.verdicts[1:4]] == [Outcome.CONTRADICTED] * 3
    assert good.figures["theory"]().axes


def test_no_step_was_measured():
    empty = Measured("a", {"unit": "a", "steps": []}, {})
    report = report_of(empty)
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.TOO_FEW}
    assert report.figures["theory"]().axes
    assert theory.norm(torch.ones(4)) == 2
