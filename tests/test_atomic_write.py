"""Atomic file writes."""

import os

import pytest

from heal.atomic_write import atomic_write
from heal.errors import FileError, HealError


@pytest.mark.parametrize("content", ["α\n", b"\x00\xff", ""])
def test_the_file_is_written_and_nothing_else(tmp_path, content):
    path = tmp_path / "new" / "folder" / "file"
    assert atomic_write(path, content) == path
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = atomic_write(tmp_path / "file", "old")

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_of_a_file_is_kept(tmp_path):
    path = atomic_write(tmp_path / "file", "old")
    before = os.umask(0)
    os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~before
    for mode in (0o600, 0o640, 0o604):
        path.chmod(mode)
        atomic_write(path, "new")
        assert path.stat().st_mode & 0o777 == mode


def test_only_regular_files_are_replaced(tmp_path):
    target = atomic_write(tmp_path / "target", "precious")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place, reason in (
        (tmp_path / "link", "it is a symbolic link: remove it"),
        (tmp_path / "dangling", "it is a symbolic link: remove it"),
        (tmp_path / "folder", "it is a folder"),
        (tmp_path / "pipe", "it is a pipe or a device"),
        ("/dev/full", "it is a pipe or a device"),
        (target / "below", "target is not a folder"),
        ("/proc/nowhere/file", "No such file|not permitted|denied"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(FileError, match=f"cannot be written: .*({reason})") as raised:
            atomic_write(place, "new")
        assert isinstance(raised.value, HealError)
        assert isinstance(raised.value, OSError)
    assert target.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "folder", "link", "pipe", "target"]


def test_long_names_and_odd_characters(tmp_path):
    assert atomic_write(tmp_path / ("é" * 120), "a\udc80 猫").read_bytes() == "a\\udc80 猫".encode()
