"""Every error of this package. Each message says what is wrong and what to do."""

from __future__ import annotations


class HealError(Exception):
    """Base class: `except heal.errors.HealError` catches whatever this package raises on purpose."""


class ConfigError(HealError, ValueError):
    """An option has a value that makes no sense (alpha outside (0, 1), unknown strategy, interval < 1 …)."""


class ImageError(HealError, ValueError):
    """An image is missing, unreadable, or their number does not match the prompt."""


class PromptError(HealError, ValueError):
    """A prompt is empty or malformed."""


class ModelError(HealError):
    """A model cannot be loaded, or its architecture cannot take part."""


class CheckpointError(ModelError):
    """A checkpoint folder is incomplete (no processor, no weights, not safetensors)."""


class UnsupportedError(HealError):
    """A way of generating that cannot work with the method (assisted decoding, continuous batching …)."""


class AttachmentError(HealError, RuntimeError):
    """A method is attached where another one already is."""


class BusyError(AttachmentError):
    """Another thread uses the model, and it did not become free in the time that was given."""


class ClosedError(HealError):
    """A stream was closed before it had an answer."""


class NonFiniteError(HealError, ArithmeticError):
    """The model produced NaN or infinity."""


class TraceError(HealError, ValueError):
    """A trace has inconsistent shapes, or a file is not a trace."""


class DataError(HealError, ValueError):
    """Benchmark data or answers are missing, broken, or do not belong together."""


class RunError(HealError):
    """A run folder cannot be used: it exists, belongs to another configuration, is broken, or the disk is full."""


class FileError(HealError, OSError):
    """A file cannot be written: the path is a folder or a symbolic link, the disk is full, it is not allowed …"""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.strerror = reason


class MissingPackageError(HealError, ImportError):
    """An optional package is not installed. The message names the extra that has it."""


class HealWarning(UserWarning):
    """Something is probably not what you want: for example, a run in which nothing was changed."""


class InputWarning(HealWarning):
    """A picture or a prompt is used in a way that may not be meant. Given once, also within a run."""


def shortened(text: object, limit: int = 300) -> str:
    """Foreign text for a message: one line, cut with an ellipsis, control characters written as escapes."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(error: BaseException, limit: int = 300) -> str:
    """What an error of another library says, or its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return shortened(lines[0].rstrip(".:") if lines else type(error).__name__, limit)
