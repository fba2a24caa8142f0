"""The interface of a method, the handle of an attached one, and the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from heal.engine.attachment import Attachment
from heal.engine.calls import refuse_compiled
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.source import Source
from heal.engine.tally import Fired
from heal.errors import ConfigError
from heal.values import check_types


@dataclass(frozen=True)
class Handle:
    """An attached method, as `attach` yields it."""

    attachment: Attachment

    @property
    def runtime(self) -> Runtime[Any]:
        return self.attachment.runtime

    @property
    def fired(self) -> Fired:
        """Over everything generated since the method was attached."""
        return self.attachment.tallies.fired()

    def row(self, at: Sequence[int], ids: Sequence[int] = ()) -> Fired:
        """Of one answer of the latest generation, whose token t was `ids[t]`, made in row `at[t]`."""
        tallies = self.attachment.tallies.latest
        return tallies[-1].row(at, ids) if tallies else Fired(reason="nothing was generated")


@dataclass(frozen=True)
class Method:
    """A way to reduce hallucination: a frozen configuration that can be attached to any supported model."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    searches: ClassVar[bool] = False
    """Whether it only sets options of generate(), so that it can go with a method that changes the model."""

    one_sample: ClassVar[bool] = False
    """Whether a call of the model's generate() takes one prompt only. VLM.generate then takes a batch row by row."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A method without a name of its own is called like its class."""
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        """Subclasses check the values of their options; the types are checked here."""
        check_types(self)

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        """The method at work on a model of this layout."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

    def generate_options(self) -> dict[str, Any]:
        """Options of generate() that belong to the method."""
        return {}

    @contextmanager
    def attach(
        self,
        model: Any,
        *,
        trace: bool = False,
        special_ids: Iterable[int] = (),
        shared: bool = False,
        timeout: float | None = None,
        source: Source | None = None,
    ) -> Iterator[Handle]:
        """Inside this context every `model.generate(...)` uses the method; afterwards the model is as before.

        Other threads that use the model meanwhile wait until the context ends. With `shared` their calls of
        `generate` use the method too, one after the other. `timeout`: the most seconds to wait for another thread.
        `source`: the images and texts that the prompt was made from, for methods that ask for them.
        """
        layout = Layout.of(model, frozenset(special_ids))
        refuse_compiled(layout)
        runtime = self.runtime(layout, trace)
        with Attachment(layout, runtime, self.generate_options(), source, shared, timeout) as attachment:
            yield Handle(attachment)

    def options(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        return {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in dataclasses.fields(self)
        }


_registry: dict[str, type[Method]] = {}


def register(cls: type[Method]) -> type[Method]:
    """Class decorator: the method can be written by its name, in Python and on the command line.

    A package registers its methods without an import by the entry-point group `heal.methods`; a class in a file is
    written as path/to/file.py:Name and needs no registration.
    """
    _registry[cls.name] = cls
    return cls


def available() -> dict[str, type[Method]]:
    """All registered methods by their names."""
    return dict(sorted(_registry.items()))


def create(name: str, **options: Any) -> Method:
    """A method by its name, with options by theirs."""
    if name not in _registry:
        raise ConfigError(
            f"unknown method {name!r}: choose one of {', '.join(available())}, or write path/to/file.py:Name"
        )
    known = {f.name for f in dataclasses.fields(_registry[name])}
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"{name} has no option {', '.join(unknown)}: it has {', '.join(sorted(known))}")
    return _registry[name](**options)
