"""The options of a method or task with the docstrings of their fields, for help texts and docs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import MISSING, dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    name: str
    type: str
    default: str
    doc: str


def options_of(kind: Any) -> list[Option]:
    """The fields of a dataclass in order. Inherited fields are documented in the base class."""
    docs = {
        name: doc for cls in reversed(kind.__mro__) if cls is not object for name, doc in _field_docs(cls).items()
    }
    return [Option(f.name, str(f.type), _default(f), docs.get(f.name, "")) for f in dataclasses.fields(kind)]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return repr(field.default_factory())
    return "required" if field.default is MISSING else repr(field.default)


def _field_docs(cls: type) -> dict[str, str]:
    """The string literal below each annotated field that this class defines itself."""
    if not dataclasses.is_dataclass(cls):
        return {}
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except OSError:  # there is no source file, as in an interactive session
        return {}
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
