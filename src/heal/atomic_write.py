"""Atomic file writes, never through a symbolic link."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from heal.errors import FileError

PART = ".part"
"""Suffix of a file that is being written, or whose writer was killed."""
LINK = "it is a symbolic link: remove it, or give the path that it points to"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows


def atomic_write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Replace a file atomically. Readers see the old or the complete new file. Missing folders are created.

    An existing file keeps its mode; a new file gets the default mode. Raises `FileError`, which is an `OSError`.
    """
    path = Path(path)
    # lone surrogates, as in undecodable file names, are written as \\udc80
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        if os.path.lexists(path.parent) and not path.parent.is_dir():
            raise FileError(path, f"{path.parent} is not a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = replaceable(path)
        part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{PART}")
        try:
            _write(part, data, mode)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the name, or an empty name
        raise FileError(path, getattr(error, "strerror", None) or str(error)) from error
    _sync(path.parent)
    return path


def replaceable(path: Path) -> int | None:
    """The mode of an existing regular file, or None if the path does not exist. Raises for anything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        raise FileError(path, LINK)
    if stat.S_ISDIR(mode):
        raise FileError(path, "it is a folder")
    if not stat.S_ISREG(mode):
        raise FileError(path, "it is a pipe or a device, not a file")
    return stat.S_IMODE(mode)


def _write(part: Path, data: bytes, mode: int | None) -> None:
    with open(part, "xb") as file:
        if mode is not None:
            os.chmod(part, mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Sync the folder, so that the new name is on disk too. Not every system allows it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
