"""The study of costs on hand-made times and counts."""

from dataclasses import replace

import pytest

from heal import VLM
from heal.methods import HEAL, OPERA, VHR, Guard, available
from heal.studies import launch_counts
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.cost import BATCHES, LARGER, STEPS, STUDY, in_batches, methods_of, parts, rate, report, sizes
from heal.studies.launch_counts import Launched, counted, counts_of
from heal.studies.parts import Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made import cells, interval
from tests.studies.made_answers import value

SETUP = Setup(samples=100, methods={"quick": HEAL(), "slow": OPERA(), "odd": VHR()})
MIB = 2**20


def times(id, skipped=None, **ms):
    """`first_ms` is ten times, and the memory in MiB a hundred times the time of a token."""
    own = {
        name: {
            "ms": float(m),
            "first_ms": 10.0 * m,
            "memory": 100.0 * m * MIB,
            "changes": 0.0 if name == "odd" else 5,
        }
        for name, m in ms.items()
    }
    return Measured(id, {"times": own, "skipped": skipped or {}})


def counts(rows, skipped=None, **launches):
    own = {n: {"launches": float(x), "waits": x / 40, "layers": 8, "rows": rows} for n, x in launches.items()}
    return Records.of([Measured("a", {"counts": own, "skipped": skipped or {}})])


FOUND = Found(
    SETUP,
    {
        "times, batch 1": Records.of(
            [times("a", plain=2, quick=3, slow=20, odd=2), times("b", plain=4, quick=8, slow=48, odd=4)]
        ),
        "launches, batch 1": counts(1, plain=40, quick=60, slow=400, odd=44),
        "times, batch 8": Records.of([times("a", {"odd": "no luck"}, plain=1, quick=1.25)]),
        "launches, batch 8": counts(8, {"odd": "no luck"}, plain=40, quick=64),
    },
    {"device": "cpu"},
)


@pytest.fixture(scope="module")
def made():
    return report(FOUND)


def test_every_method_is_measured():
    found = methods_of(Setup())
    assert next(iter(found.items())) == ("plain", None)
    assert {m.name for m in found.values() if m is not None} == set(available())
    assert found["heal"] == EMBEDDED_HEAL
    assert found["heal, one draw"] == HEAL(preset="paper")
    assert found["guard"] == Guard()
    assert list(methods_of(SETUP)) == ["plain", "quick", "slow", "odd"]
    assert list(in_batches(SETUP, 8)) == ["plain", "quick", "odd"]


def test_parts():
    assert sizes(SETUP) == [1, LARGER]
    assert sizes(Setup(samples=3)) == [1, 3]
    assert sizes(Setup(samples=1)) == [1]
    alone, alone_counts, batch, batch_counts = parts(SETUP)
    assert isinstance(alone, Measurement)
    assert isinstance(batch, Measurement)
    assert (alone.options["steps"], len(alone.samples), alone.tokens) == (STEPS, 10, STEPS + 1)
    assert (batch.options["batch"], len(batch.samples)) == (LARGER, BATCHES)
    assert set(alone.options["methods"]) == {"plain", "quick", "slow", "odd"}
    assert set(batch.options["methods"]) == {"plain", "quick", "odd"}
    assert [part.options["batch"] for part in (alone_counts, batch_counts) if isinstance(part, Measurement)] == [1, 8]


def test_table(made):
    rows = cells(made, "batch", "method")
    assert set(rows) == {("1", m) for m in ("plain", "quick", "slow", "odd")} | {("8", "plain"), ("8", "quick")}
    plain, quick = rows["1", "plain"], rows["1", "quick"]
    assert value(quick, "ms per token").value == 5.5
    assert value(quick, "tokens/s").value == pytest.approx(1000 / 5.5)
    ratio = value(quick, "time ratio")
    assert (ratio.value, ratio.low, ratio.high) == (1.75, 1.5, 2.0)
    assert value(quick, "first token ms").value == 55
    assert value(quick, "first token ratio").value == 1.75
    assert value(quick, "peak MiB").value == 800
    assert plain["time ratio"] is None
    assert value(quick, "launches per token").value == 480
    assert value(rows["8", "quick"], "launches per token").value == 64
    assert value(rows["8", "quick"], "launches per step and layer").value == 64
    assert (value(plain, "host waits per step").value, value(quick, "host waits per step").value) == (1, 1.5)
    assert value(quick, "waits beyond plain").value == 0.5
    assert "waits beyond plain" not in plain
    assert not value(rows["8", "quick"], "time ratio").has_interval


def test_verdicts_only_measure(made):
    verdicts = {v.claim: v for v in made.verdicts}
    assert set(verdicts) == {"cost of quick", "cost of slow", "cost of odd"}
    assert {v.outcome for v in verdicts.values()} == {Outcome.MEASURED}
    assert verdicts["cost of quick"].text == (
        "cost of quick: time per token 1.75 (1.50 to 2.00) at batch 1 relative to plain, first token "
        "1.75 (1.50 to 2.00); 60.0 launches per step and layer (plain 40.0) and 1.5 host waits per step (plain 1.0)"
    )


def test_one_image_is_too_few():
    one = Records.of([times("a", plain=2, quick=3, slow=20, odd=2)])
    verdicts = report(replace(FOUND, parts={**FOUND.parts, "times, batch 1": one})).verdicts
    assert {v.outcome for v in verdicts} == {Outcome.TOO_FEW}
    assert verdicts[0].text.endswith("too few images for an interval (1): measure more images")


def test_notes_name_what_is_left_out_or_does_nothing(made):
    notes = "\n".join(made.notes)
    assert "Left out: odd (batch 8): no luck" in notes
    assert "Left out: slow (batch 8): it takes one prompt at a time" in notes
    assert "odd changed nothing on these images" in notes
    assert "quick changed nothing" not in notes
    assert "2 batches of 1 and 1 batches of 8" in notes


def test_the_figure_has_one_row_for_each_method(made):
    figure = made.figures["cost"]()
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["quick", "slow", "odd"]
    alone = figure.axes[0].lines[1]
    assert list(alone.get_xdata()) == [1.75, 11, 1]


def test_rate():
    found = rate(interval(5.0))
    assert [found.value, found.low, found.high] == pytest.approx([200, 1000 / 6, 250])


# ── launches ──────────────────────────────────────────────────────────────────────────────────────────────


def test_launches_are_counted_on_the_images(monkeypatch):
    monkeypatch.setattr(launch_counts, "TOKENS", 4)
    rows = Setup(samples=2).captions("natural")
    methods = {"plain": None, "vhr": VHR(), "heal": HEAL(interval=2, alpha=0.5), "odd": HEAL(layers=(99,))}
    part = counted("n", rows, methods, {"methods": {}})
    assert [s.id for s in part.samples] == [rows[0].id]
    found, skipped = counts_of(Records.of(part.measure(VLM.random(), part.samples)))
    assert list(found) == ["plain", "vhr", "heal"]
    assert "layer" in skipped["odd"]
    plain, heal = found["plain"], found["heal"]
    assert plain.rows == 2
    assert plain.per_token == plain.launches * plain.layers / 2
    assert heal.launches > found["vhr"].launches >= plain.launches > 20
    assert heal.waits >= plain.waits >= 1
    assert counts_of(Records.of([])) == ({}, {})


def test_launches_per_token_are_shared_by_rows():
    assert Launched(launches=40.0, waits=1.0, layers=8, rows=4).per_token == 80


def test_study():
    assert STUDY.benchmarks == ("chair",)
