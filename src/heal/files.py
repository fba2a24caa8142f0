"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

PART = ".part"
"""How the name of a file ends that is being written, or whose writer was killed."""


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """In one step: whoever looks sees the old file or the whole new one. Missing folders are made."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        # a rename would put a file in the place of a device such as /dev/null, for every program
        raise OSError(errno.EINVAL, "Not an ordinary file", str(path))
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    return path


def _sync(folder: Path) -> None:
    """So that the new name is on disk too, where a system allows it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
