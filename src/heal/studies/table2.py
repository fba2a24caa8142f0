"""Table 2: the model of this run with and without HEAL, beside the models of the paper.

Every model is a run with its own `--out`; `heal.studies.model_rows.merged` puts several runs into one table.
"""

from __future__ import annotations

from heal.studies.answered import CHAIR_I, CHAIR_S, EQUAL_RECALL_NOTE
from heal.studies.model_rows import Compared, ModelTable, figures, labels, notes, printed_rows
from heal.studies.paper import printed
from heal.studies.paper_table import Column, papers_name
from heal.studies.parts import Part
from heal.studies.setup import Setup
from heal.studies.study import Found, Report, Row, Study, Table

TABLE = ModelTable(
    "table2",
    (
        Column("LLaVA-Bench", "llava-bench", "score", "llava_bench"),
        Column(CHAIR_S, "chair", "chair_s", "chair_s"),
        Column(CHAIR_I, "chair", "chair_i", "chair_i"),
        Column("POPE recall", "pope", "recall", "pope_recall"),
        Column("POPE F1", "pope", "f1", "pope_f1"),
        Column("POPE accuracy", "pope", "accuracy", "pope_accuracy"),
    ),
)
RIVAL = ("InternVL-7B", "LocoRE", "table2_locore_internvl_7b")
"""The only other method of the paper's table: model, method and place in paper.json."""


def parts(setup: Setup) -> list[Part]:
    return list(TABLE.parts(setup))


def report(found: Found) -> Report:
    every = [Compared.of(TABLE, found, distribution) for distribution in found.setup.distributions]
    own = papers_name(str(found.model["name"]))
    columns = TABLE.there(found.setup)
    model, method, place = RIVAL
    rival = Row(labels(model, method), {c.heading: c.only_printed(c.printed(printed(place))) for c in columns})
    rows = [row for compared in every for row in compared.rows()] + [*printed_rows(TABLE, columns, own), rival]
    return Report(
        (Table("table2", rows, "Models with and without HEAL"),),
        [verdict for compared in every for verdict in compared.verdicts()],
        figures(every),
        (*notes(TABLE, found, every), EQUAL_RECALL_NOTE),
    )


STUDY = Study(
    "table2",
    "this model with and without HEAL on CHAIR, POPE and LLaVA-Bench, beside the models of the paper",
    "Table 2",
    parts,
    report,
    benchmarks=(),
    any_of=TABLE.benchmarks,
)
