"""Data files of the package, found and named."""

from __future__ import annotations

import subprocess

import pytest

from sslbook.records import data_files


def test_the_folder_of_a_source_tree_is_its_own() -> None:
    assert data_files.folder() == data_files.PACKAGE.parent / "data"


def test_an_installed_package_finds_the_folder_installed_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(data_files, "PACKAGE", tmp_path / "site-packages" / "sslbook")
    (tmp_path / "site-packages" / "data").mkdir(parents=True)  # somebody else's
    assert data_files.folder() != tmp_path / "site-packages" / "data"
    assert (data_files.folder() / "printed" / "B-Tab3.json").is_file()


def test_printed_tables_by_name() -> None:
    assert data_files.printed_file("B-Tab3")["source"] == "Table 3 of [tian2021iclr]"
    with pytest.raises(ValueError, match=r"name must be one of A-Tab2, .*B-Tab9.*, got 'B-Tab6'"):
        data_files.printed_file("B-Tab6")


def test_a_change_since_a_commit_is_seen_where_git_can_tell(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(data_files, "PACKAGE", tmp_path)
    assert data_files.changed_since("0123") is None
    git("init")
    (tmp_path / "one.py").write_text("1\n")
    git("add", ".")
    git("commit", "-m", "one")
    assert data_files.changed_since("HEAD") is False
    (tmp_path / "one.py").write_text("2\n")
    assert data_files.changed_since("HEAD") is True
    assert data_files.changed_since("0123") is None
    assert data_files.changed_since("") is None
