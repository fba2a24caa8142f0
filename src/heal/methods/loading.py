"""Third-party methods: classes in a user's file, and packages that register through an entry point."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from heal.errors import ConfigError, HealWarning, first_line
from heal.methods.base import Method, available, register

GROUP = "heal.methods"
"""Entry-point group: `name = "package.module:Class"`."""
FILE = re.compile(r"(?P<path>[^:]*\.py):(?P<name>[A-Za-z_]\w*)")
"""A method in a file: path/to/file.py:Name."""

_looked_up: list[bool] = []


def from_file(path: str | Path, name: str) -> type[Method]:
    """The class `name` of a Python file. The file is executed: load only files that you trust."""
    module = _module(Path(path))
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, Method):
        return found
    own = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Method) and v is not Method]
    choice = f"it has {', '.join(own)}" if own else "it defines no subclass of heal.Method"
    raise ConfigError(f"{path} has no method {name}: {choice}")


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: give the path of the Python file that defines the method")
    content = path.read_bytes()
    name = f"heal_method_{path.stem}_{sha256(content + str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
    return module


def load_installed() -> None:
    """Register the methods of installed packages, once. Methods that cannot be loaded are skipped with a warning."""
    if _looked_up:
        return
    _looked_up.append(True)
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
            if not (isinstance(found, type) and issubclass(found, Method)):
                raise TypeError(f"{entry.value} is not a subclass of heal.Method")
            if found.name not in available():
                register(found)
        except Exception as error:
            warnings.warn(
                f"the method {entry.name!r} cannot be loaded: {first_line(error)}", HealWarning, stacklevel=3
            )
