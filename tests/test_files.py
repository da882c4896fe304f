"""Writing files: a reader sees the old one or the new one, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslbook import files
from sslbook.files import PART, atomic, write_text


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

    monkeypatch.setattr(files, "sync", look)
    files.write_bytes(target, b"new")
    assert synced == [(True, False), (False, True)]
