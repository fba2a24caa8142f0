"""Files appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from heal.files import write_whole


@pytest.mark.parametrize("content", ["α\n", b"\x00\xff", ""])
def test_what_is_written_is_there_and_nothing_else(tmp_path, content):
    path = tmp_path / "new" / "folder" / "file"
    assert write_whole(path, content) == path
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = write_whole(tmp_path / "file", "old")

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_ordinary_file_is_left_alone(tmp_path: Path) -> None:
    """A rename over a device would take it away from every program."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not an ordinary file"):
        write_whole(tmp_path / "pipe", "text")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]
