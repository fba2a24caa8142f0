"""The interface of a method, the handle of an attached one, and the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from heal.engine.answers import Edit
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
        """What the method changed in everything generated since it was attached."""
        return self.attachment.tallies.fired()

    @property
    def edits(self) -> list[Edit] | None:
        """The answers of the latest generate(), each with the steps whose tokens were kept and with its judged
        sentences. None if the method leaves nothing out.
        """
        return self.attachment.edits

    def row(self, at: Sequence[int], ids: Sequence[int] = ()) -> Fired:
        """What the method changed in one answer of the latest generation. Token t is `ids[t]`, from row `at[t]`."""
        tallies = self.attachment.tallies.latest
        return tallies[-1].row(at, ids) if tallies else Fired(reason="nothing was generated")


@dataclass(frozen=True)
class Method:
    """A way to reduce hallucination: a frozen configuration that can be attached to any supported model."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    searches: ClassVar[bool] = False
    """Whether it only sets options of generate(), so that it can be combined with a method that changes the model."""

    wraps: ClassVar[tuple[str, ...]] = ()
    """The methods that change the model and that this one can be combined with. It must define `around`."""

    one_sample: ClassVar[bool] = False
    """Whether the model's generate() accepts only one prompt per call. VLM.generate then runs a batch row by row."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The default name is the class name in lower case."""
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        """Check the types of all options. Subclasses check the values of theirs."""
        check_types(self)

    @property
    def passes_per_token(self) -> float:
        """How often the model runs for a generated token, for estimates of time."""
        return 1.0

    @property
    def rows_per_prompt(self) -> int:
        """How many rows of a pass belong to one prompt (beams), for estimates of time."""
        return 1

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        """The runtime of the method for a model of this layout."""
        raise NotImplementedError(f"{type(self).__name__} must define runtime()")

    def around(self, inner: Any, layout: Layout, trace: bool) -> Runtime[Any]:
        """The runtime of the method around another method that changes the model."""
        raise NotImplementedError(f"{type(self).__name__} must define around()")

    def generate_options(self) -> dict[str, Any]:
        """Options that the method passes to generate()."""
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
        """Use the method in every `model.generate(...)` inside this context. The model is restored on exit.

        Other threads that use the model wait until the context ends. With `shared`, their calls of `generate` use
        the method too, one at a time. `timeout` is the maximum number of seconds to wait for another thread.
        `source` holds the images and texts that the prompt was made from, for methods that need them.
        """
        layout = Layout.of(model, frozenset(special_ids))
        refuse_compiled(layout)
        runtime = self.runtime(layout, trace)
        with Attachment(layout, runtime, self.generate_options(), source, shared, timeout) as attachment:
            yield Handle(attachment)

    def options(self) -> dict[str, Any]:
        """The configuration as a JSON-serialisable dictionary."""
        return {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in dataclasses.fields(self)
        }


_registry: dict[str, type[Method]] = {}


def register(cls: type[Method]) -> type[Method]:
    """Class decorator that makes a method available by name, in Python and on the command line.

    Packages can register methods through the entry-point group `heal.methods`. A class in a file is written as
    path/to/file.py:Name and needs no registration.
    """
    _registry[cls.name] = cls
    return cls


def available() -> dict[str, type[Method]]:
    """All registered methods by name, with those of installed packages."""
    from heal.methods.loading import load_installed  # it registers methods, so it imports this module

    load_installed()
    return dict(sorted(_registry.items()))


def create(name: str, **options: Any) -> Method:
    """Create a registered method with the given options."""
    methods = available()
    if name not in methods:
        raise ConfigError(
            f"unknown method {name!r}: choose one of {', '.join(methods)}, or write path/to/file.py:Name"
        )
    known = {f.name for f in dataclasses.fields(methods[name])}
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"{name} has no option {', '.join(unknown)}: it has {', '.join(sorted(known))}")
    return methods[name](**options)
