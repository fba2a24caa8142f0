from pathlib import Path

from heal.bench.summary import Summary
from heal.experiments.drift import Separation
from heal.methods import HEAL, VCD
from heal.report.embedded import Findings, Premise, document
from tests.experiments.test_comparison import row

RUNS = (
    "safety",
    "choice",
    "test-natural",
    "test-counter",
    "controls-natural",
    "controls-counter",
    "published-natural",
    "tuned-natural",
    "tuning",
)


def test_the_document_has_every_run_and_what_was_chosen():
    runs = {
        name: Summary(
            Path("x"), (row("mini-pope", "plain", value=10.0 + i), row("mini-pope", name, value=50.0 + i, shift=2.0))
        )
        for i, name in enumerate(RUNS)
    }
    drift = Separation("α_vis of synergy heads", 30, 12, 0.5, 0.4, 0.66, 0.6, 0.7, 0.61)
    premise = Premise(20, [drift], [("fork", 7, 0.31, 0.05)])
    settings = {"heal": HEAL(alpha=0.6), "vcd": VCD()}
    drifts = {"natural": premise, "counter": premise}
    text = document(Findings(runs, drifts, "heal α=0.6", settings, images=1000, fewer=500, validation=300))
    for i, name in enumerate(RUNS):
        assert f"| {name} | {50.0 + i} (+2.0*) |" in text
    assert "| α_vis of synergy heads | 0.500 (30) | 0.400 (12) | 0.660 (0.600–0.700) | 0.610 |" in text
    assert "| fork | 7 | 0.31 | 0.05 |" in text
    assert "**heal α=0.6**" in text
    assert "- heal: `heal:alpha=0.6`\n- vcd: `vcd`\n" in text
    assert "1000 pictures: 10 answers to mini-pope." in text
