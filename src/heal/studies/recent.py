"""Table 12: MMHal-Bench and BLINK-Twice with and without HEAL, on official data."""

from __future__ import annotations

from heal.studies.model_rows import Compared, ModelTable, figures, notes, printed_rows
from heal.studies.paper_table import Column, papers_name
from heal.studies.parts import Part
from heal.studies.setup import Setup
from heal.studies.study import Found, Report, Study, Table

TABLE = ModelTable(
    "recent",
    (
        Column("MMHal rate ↓", "mmhal", "hallucination_rate", "mmhal_rate"),
        Column("MMHal score", "mmhal", "score", "mmhal_score", digits=2),
        Column("BLINK No-Acc", "blink-twice", "no_acc", "blink_no_accuracy", scale=100),
        Column("BLINK Yes-Acc", "blink-twice", "yes_acc", "blink_yes_accuracy", scale=100),
        Column("BLINK Q-Acc", "blink-twice", "q_acc", "blink_question_accuracy", scale=100),
        Column("BLINK I-Acc", "blink-twice", "i_acc", "blink_image_accuracy", scale=100),
        Column("BLINK G-Acc", "blink-twice", "g_acc", "blink_group_accuracy", scale=100),
    ),
)


def parts(setup: Setup) -> list[Part]:
    return list(TABLE.parts(setup))


def report(found: Found) -> Report:
    every = [Compared.of(TABLE, found, distribution) for distribution in found.setup.distributions]
    columns, own = TABLE.there(found.setup), papers_name(str(found.model["name"]))
    rows = [row for compared in every for row in compared.rows()] + printed_rows(TABLE, columns, own)
    return Report(
        (Table("recent", rows, "MMHal-Bench and BLINK-Twice with and without HEAL"),),
        [verdict for compared in every for verdict in compared.verdicts()],
        figures(every),
        (
            *notes(TABLE, found, every),
            "BLINK-Twice: in per cent; the paper prints shares. MMHal-Bench: without a judge, the number of changed "
            "answers is all that can be said.",
        ),
    )


STUDY = Study(
    "recent",
    "this model with and without HEAL on MMHal-Bench (needs a judge) and BLINK-Twice; official data only",
    "Table 12",
    parts,
    report,
    benchmarks=(),
    any_of=TABLE.benchmarks,
)
