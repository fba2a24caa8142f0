"""The errors of this package. Each message says what is wrong and what to do."""

from __future__ import annotations


class HealError(Exception):
    """Base class of all errors that this package raises."""


class ConfigError(HealError, ValueError):
    """An option has an invalid value (alpha outside (0, 1), unknown strategy, interval < 1 …)."""


class ImageError(HealError, ValueError):
    """An image is missing or unreadable, or the number of images does not match the prompt."""


class PromptError(HealError, ValueError):
    """A prompt is empty or malformed."""


class ModelError(HealError):
    """A model cannot be loaded, or its architecture is not supported."""


class CheckpointError(ModelError):
    """A checkpoint folder is incomplete (no processor, no weights, not safetensors)."""


class UnsupportedError(HealError):
    """The method does not support this way of generating (assisted decoding, continuous batching …)."""


class AttachmentError(HealError, RuntimeError):
    """Another method is already attached to the model."""


class BusyError(AttachmentError):
    """Another thread uses the model, and did not release it within the timeout."""


class ClosedError(HealError):
    """A stream was closed before it had an answer."""


class NonFiniteError(HealError, ArithmeticError):
    """The model produced NaN or infinity."""


class TraceError(HealError, ValueError):
    """A trace has inconsistent shapes, or a file is not a trace."""


class DataError(HealError, ValueError):
    """Benchmark data or answers are missing, broken, or do not match."""


class RunError(HealError):
    """A run folder cannot be used: it exists, belongs to another configuration, is broken, or the disk is full."""


class FileError(HealError, OSError):
    """A file cannot be written: the path is a folder or a symbolic link, the disk is full, permission is denied …"""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.strerror = reason


class MissingPackageError(HealError, ImportError):
    """An optional package is not installed. The message names the extra that has it."""


class HealWarning(UserWarning):
    """A likely mistake, for example a run in which nothing was changed."""


class InputWarning(HealWarning):
    """An image or a prompt is used in a way that may not be intended. Issued once, also within a run."""


def shortened(text: object, limit: int = 300) -> str:
    """External text for a message: one line, cut with an ellipsis, control characters escaped."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(error: BaseException, limit: int = 300) -> str:
    """The message of an error of another library, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return shortened(lines[0].rstrip(".:") if lines else type(error).__name__, limit)
