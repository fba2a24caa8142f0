"""The options of a method as documented at their fields: the one source for help texts and docs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass

from heal.methods.base import Method


@dataclass(frozen=True)
class Option:
    name: str
    type: str
    default: str
    doc: str


def options_of(method: type[Method]) -> list[Option]:
    docs = _field_docs(method)
    return [Option(f.name, str(f.type), repr(f.default), docs.get(f.name, "")) for f in dataclasses.fields(method)]


def _field_docs(cls: type) -> dict[str, str]:
    """The string literal below each annotated field."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(below.value.value)
    return docs
