"""`heal score`: score a run again, or answers of other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show

RUN = "run"


class Parser(StrEnum):
    official = "official"
    strict = "strict"


class Lemmatizer(StrEnum):
    rules = "rules"
    nltk = "nltk"


class _Group(TyperGroup):
    """Makes `heal score FOLDER` an alias of `heal score run FOLDER`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and RUN in self.commands:
            args = [RUN, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group, no_args_is_help=True, rich_markup_mode=None, help="Score a run, or answers of other programs."
)

ParserText = Annotated[
    Parser, typer.Option(help="official: parse as the official script; strict: unclear answers are wrong.")
]


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of `heal eval`.")],
    judge: Annotated[
        str | None,
        typer.Option(help="Model name of the judge, for tasks that need one; OPENAI_BASE_URL is its address."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Name of the method that the others are compared with. Default: the first of the run."),
    ] = None,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """Parse and score the answers of a run again, without its model. `heal score FOLDER` is the same."""
    from contextlib import nullcontext

    from heal.bench.run.folder import Folder
    from heal.bench.score.summary import rescore, summarise
    from heal.bench.tasks.judge import Judge, JudgeOptions
    from heal.bench.tasks.stored_replies import FOLDER
    from heal.cli.summary import print_summary

    output = chosen_format(form, as_json)
    asked = nullcontext() if judge is None else Judge(JudgeOptions.from_environment(judge), folder / FOLDER)
    with asked as ask:
        # scores.json always compares with the first method
        summary = rescore(folder, ask) if against is None else summarise(Folder(folder), ask, against=against)
    print_summary(summary, output)


@app.command()
def chair(
    captions: Annotated[Path, typer.Option(help='JSON Lines or array of {"image_id", "caption"}.')],
    objects: Annotated[Path, typer.Option(help="JSON {image id: [category, …]}: the objects in the images.")],
    synonyms: Annotated[
        Path | None, typer.Option(help="The official list of synonyms. Default: the table of this package.")
    ] = None,
    complete_sentences: Annotated[
        bool, typer.Option("--complete-sentences", help="Drop the last incomplete sentence (captions of 64 tokens).")
    ] = False,
    lemmatizer: Annotated[
        Lemmatizer,
        typer.Option(help="rules: needs no data; nltk: POS tags and WordNet, as in published figures (needs NLTK)."),
    ] = Lemmatizer.rules,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """CHAIR: objects that captions mention but images do not show."""
    from heal.bench.tasks.chair import score_files

    output = chosen_format(form, as_json)
    found = score_files(captions, objects, synonyms, complete_sentences, lemmatizer.value)
    _print("CHAIR", found, output)


@app.command()
def pope(
    answers: Annotated[Path, typer.Option(help="JSON Lines or array of {question_id, text or answer}.")],
    questions: Annotated[Path, typer.Option(help="Official question file of one split.")],
    parser: ParserText = Parser.official,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """POPE: yes/no answers, matched by question_id."""
    from heal.bench.tasks.pope import score_files

    output = chosen_format(form, as_json)
    found = score_files(answers, questions, parser.value)
    _print("POPE", found, output)


@app.command()
def mme(
    answers: Annotated[
        Path, typer.Option(help="A folder with one .txt file per subtask: image, question, truth, response.")
    ],
    parser: ParserText = Parser.official,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """MME: accuracy, pair accuracy and score per subtask."""
    from heal.bench.tasks.mme import score_files

    output = chosen_format(form, as_json)
    found = score_files(answers, parser.value)
    if found["ignored"]:
        note(f"ignored, because MME has no such subtask: {', '.join(found['ignored'])}")
    _print_mme(found, output)


def _print(title: str, found: dict[str, Any], output: Format) -> None:
    if output is Format.json:
        return emit(found)
    if output is Format.csv:
        return emit_csv([found])
    notes = ", ".join(f"{key} {value}" for key, value in found.items() if isinstance(value, str))
    say(f"{title}, {found['n']} answers ({notes})")
    rows = [(name, _number(name, value)) for name, value in found.items() if isinstance(value, float)]
    show(Table(("figure", "value"), rows), output)


def _print_mme(found: dict[str, Any], output: Format) -> None:
    if output in (Format.json, Format.csv):
        return _print("MME", found, output)
    keys = ("accuracy", "accuracy_plus", "score")
    rows = [[name, *(_number(key, found[f"{name}/{key}"]) for key in keys)] for name in found["subtasks"]]
    sums = ("hallucination", "perception", "cognition", "total", "unparsable")
    rows += [[name, "", "", _number(name, found[name])] for name in sums if name in found]
    say(f"MME, {found['n']} answers (parser {found['parser']})")
    show(Table(("subtask", "accuracy", "accuracy+", "score"), rows), output)


def _number(name: str, value: float) -> str:
    whole = name in ("unparsable", "without_objects")
    return "–" if value != value else f"{value:.0f}" if whole else f"{value:.2f}"
