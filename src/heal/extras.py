"""Optional packages: imported where they are used; if one is missing, the error names the extra that has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from heal.errors import MissingPackageError

EXTRAS = {
    "accelerate": "eval",
    "gradio": "app",
    "httpx": "eval",
    "lmms_eval": "lmms",
    "matplotlib": "plots",
    "nltk": "chair",
    "numba": "cpu",
    "pandas": "eval",
    "rich": "cli",
    "sacrebleu": "studies",
    "scipy": "eval",
    "sklearn": "studies",
    "statsmodels": "studies",
    "triton": "gpu",
    "typer": "cli",
    "xxhash": "eval",
}
"""The extra of pyproject.toml that installs each optional package."""
SEPARATE = {"app", "gpu", "lmms"}
"""Extras that `all` does not contain."""


def require(*packages: str) -> None:
    """Fail before a long run if it could not write its results at the end."""
    for package in packages:
        with optional():
            import_module(package)


def require_installed(*packages: str) -> None:
    """The same without importing them, for packages that read the environment when they are imported."""
    for package in packages:
        with optional():
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)


@contextmanager
def optional() -> Iterator[None]:
    """Around the import of an optional package: if it is missing, the error names the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        every = "" if EXTRAS[package] in SEPARATE else ' (".[all]" has everything that the command line needs)'
        raise MissingPackageError(
            f'{package} is not installed: run `pip install ".[{EXTRAS[package]}]"` in the folder of heal{every}'
        ) from error
