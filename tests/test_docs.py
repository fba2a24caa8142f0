"""The documentation: links resolve, commands parse, every method is described, and the wording is the field's."""

import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from heal.cli.app import app
from heal.methods import available

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "training/card.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
]
SOURCES = [
    *DOCUMENTS,
    *(path for folder in ("src", "tests") for path in sorted((ROOT / folder).rglob("*.py"))),
]
AVOIDED = (
    ("made", "[ -]", "up"),
    ("named", " ", "rightly"),
    ("found", " ", "anew"),
    ("so many", " ", "steps"),
    ("at like", " ", "places"),
    ("what is", " ", "kept"),
    ("speaks?", " ", "louder"),
    ("read", " ", "once"),
    ("in", " ", "silence"),
)
"""Phrases of earlier versions, in parts so that this file does not contain them."""
PATTERN = re.compile("|".join(rf"\b{first}{gap}{last}\b" for first, gap, last in AVOIDED), re.IGNORECASE)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(
    r"(?<![\w/.-])((?:tests|docs|training|benchmarks|src/heal|analysis|engine|methods)/[\w/.-]*\w\.(?:py|md|svg))"
)
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(heal [a-z][^`]*)`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as GitHub forms them."""
    titles = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", text(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_resolve(path: Path) -> None:
    for link in LINK.findall(CODE_BLOCK.sub("", text(path))):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_named_files_exist(path: Path) -> None:
    for file in NAMED_FILE.findall(text(path)):
        assert (ROOT / file).exists() or (ROOT / "src" / "heal" / file).exists(), file


def test_named_test_folders_exist() -> None:
    for folder in re.findall(r"(?<![\w/])tests/[\w/]*\w(?![\w.])", text(ROOT / "docs" / "reliability.md")):
        assert (ROOT / folder).is_dir(), folder


def commands(path: Path) -> list[str]:
    """The `heal …` commands of shell blocks and of inline code."""
    content = text(path)
    found = []
    for language, block in CODE_BLOCK.findall(content):
        if language in ("sh", "bash"):
            joined = block.replace("\\\n", " ")
            found += [line for line in joined.splitlines() if line.startswith("heal ")]
    return found + INLINE.findall(CODE_BLOCK.sub("", content))


def check_command(line: str) -> None:
    """The command and its options exist. Values and arguments are not looked at."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] in command.commands:
            command = command.commands[words.pop(0)]
        elif "run" in command.commands and command.name == "score":  # `heal score RUN`
            command = command.commands["run"]
        else:
            break
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"-h", "--help"}
    if hasattr(command, "commands"):
        unknown = [word for word in words if word not in known and word not in ("COMMAND", "…")]
        assert not unknown, f"{line}: no command {unknown[0]}"
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]
    assert [option for option in options if option not in known] == [], line


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_and_options_exist(path: Path) -> None:
    for line in commands(path):
        check_command(line)


def test_commands_are_really_checked() -> None:
    assert len(commands(ROOT / "README.md")) >= 10
    for wrong in ("heal evaluate x", "heal eval pope --no-such-option", "heal compare --task pope"):
        with pytest.raises(AssertionError):
            check_command(wrong)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"(?:`|^)make ([\w-]+)", text(path), re.MULTILINE)
        assert set(named) <= targets, name(path)


def test_named_extras_exist() -> None:
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for path in DOCUMENTS:
        for named in re.findall(r"""pip install ["']?\.\[([\w,]+)\]""", text(path)):
            assert set(named.split(",")) <= set(extras), f"{name(path)}: {named}"


def test_every_method_has_a_line() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", text(ROOT / "docs" / "methods.md"), re.MULTILINE)
    for method in available():
        assert rows.count(method) == 2, f"{method}: one row for its cost, one for its options"


def test_every_option_of_a_method_is_documented() -> None:
    table = text(ROOT / "docs" / "methods.md")
    for method, kind in available().items():
        line = re.findall(rf"^\| `{method}` \|.*$", table, re.MULTILINE)[1]
        missing = [option.name for option in fields(kind) if f"`{option.name}" not in line]
        assert not missing or method == "heal", f"{method}: {missing}"  # HEAL's line names the main ones


@pytest.mark.parametrize("folder", ["README.md", "CONTRIBUTING.md", "docs", "src", "tests", "training/card.md"])
def test_wording(folder: str) -> None:
    found = [
        f"{name(path)}:{number}: {line.strip()[:100]}"
        for path in SOURCES
        if name(path) == folder or name(path).startswith(f"{folder}/")
        for number, line in enumerate(text(path).splitlines(), 1)
        if PATTERN.search(line)
    ]
    assert not found, "\n".join(found)
