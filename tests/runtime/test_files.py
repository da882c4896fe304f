"""Writing files: a reader sees the old one or the new one, whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sslbook.runtime import atomic_io
from sslbook.runtime.atomic_io import PART, atomic, naming, read_bytes, read_text, remove_parts, write_text


def test_a_file_and_its_folder_are_made(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b.txt"
    write_text(target, "naïve\n")
    assert target.read_bytes() == "naïve\n".encode()
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(target.parent.iterdir()) == [target]


def test_what_fails_halfway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "b.txt"
    write_text(target, "old")

    def fail() -> None:
        with atomic(target) as path:
            path.write_text("half")
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_content_reaches_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "b.txt", []

    def look(path: Path) -> None:
        synced.append((path.name.endswith(PART), target.exists()))

    monkeypatch.setattr(atomic_io, "sync", look)
    atomic_io.write_bytes(target, b"new")
    assert synced == [(True, False), (False, True)]


def test_an_error_without_a_name_gets_one_and_another_keeps_its_own(tmp_path: Path) -> None:
    def fail(*details: object) -> None:
        with naming(tmp_path):
            raise OSError(*details)

    with pytest.raises(OSError, match="No space") as full:
        fail(errno.ENOSPC, "No space")
    assert full.value.filename == str(tmp_path)
    with pytest.raises(PermissionError) as own:
        fail(errno.EACCES, "No leave", "elsewhere")
    assert own.value.filename == "elsewhere"
    with pytest.raises(OSError, match=r"^only words$"):
        fail("only words")


def test_what_the_dead_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".a.json.x1{PART}", f"a{PART}", ".a.json", "a.json"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.json", "a.json", f"a{PART}"]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name, what in (("pipe", "Not a file"), ("folder", "Not a file"), ("link", "No such file"), ("none", "No such")):
        with pytest.raises(OSError, match=f"{what}.*{name}"):
            read_bytes(tmp_path / name)
    (tmp_path / "word").write_bytes("naïve".encode())
    assert read_text(tmp_path / "word") == "naïve"
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="bytes: not a text in UTF-8"):
        read_text(tmp_path / "bytes")
