"""Recorded runs: what goes in comes out, with where it comes from."""

from __future__ import annotations

import json
import math
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from sslbook import _files
from sslchapters import data_files
from sslchapters.records import Provenance, Record, kept, plain, recorded, results_folder, rounded, save_record


def test_a_record_comes_back(tmp_path: Path) -> None:
    values = {
        "accuracy": np.float32(0.5),
        "curve": torch.tensor([1.0, 2.0]),
        "rows": [{"n": np.int64(3), "who": "paper"}],
    }
    path = save_record("table-2", values, seeds=range(2), seconds=12.3456, command="sslbook …", folder=tmp_path)
    assert path == tmp_path / "table-2.json"
    record = recorded("table-2", folder=tmp_path)
    assert record.values == {"accuracy": 0.5, "curve": [1.0, 2.0], "rows": [{"n": 3, "who": "paper"}]}
    assert record["accuracy"] == 0.5
    origin = record.provenance
    assert (origin.seeds, origin.seconds, origin.command) == ((0, 1), 12.346, "sslbook …")
    assert origin.versions["torch"] == version("torch")  # as pip names it: a CUDA build calls itself +cu130 besides
    assert {"python", "numpy", "sslbook"} <= set(origin.versions)
    assert origin.hardware
    assert len(origin.date) == 10
    facts, how = str(origin).splitlines()
    assert "2 seeds, 12 s" in facts
    assert how.split("  ")[1] == "sslbook …"


def test_a_caption_names_command_and_commit() -> None:
    for commit, shown in (("0123456789abcdef+changes", "0123456789, with changes"), (None, "unknown")):
        origin = Provenance("a CPU", {"torch": "2.0"}, commit, (0,), 3.0, "sslbook record x", "2026-01-02")
        assert str(origin) == f"2026-01-02, a CPU, torch 2.0, one seed, 3 s\n  sslbook record x  (commit {shown})"


def test_unknown_names_are_answered_with_the_nearest(tmp_path: Path) -> None:
    save_record("table-2", {"accuracy": 1}, seeds=[0], seconds=1, folder=tmp_path)
    with pytest.raises(ValueError, match=r"recorded run: got 'tabel-2'; did you mean table-2\?"):
        recorded("tabel-2", folder=tmp_path)
    with pytest.raises(ValueError, match=r"got 'acuracy'; did you mean accuracy\?"):
        recorded("table-2", folder=tmp_path)["acuracy"]


def test_names_are_file_names(tmp_path: Path) -> None:
    for name in ("", "../table", "a b", ".hidden"):
        with pytest.raises(ValueError, match="name: got"):
            save_record(name, {}, seeds=[0], seconds=1, folder=tmp_path)


def test_a_failed_save_leaves_the_old_record(tmp_path: Path) -> None:
    save_record("a", {"x": 1}, seeds=[0], seconds=1, folder=tmp_path)
    with pytest.raises(ValueError, match=r"values\['x'\]\[1\]: got nan"):
        save_record("a", {"x": [1.0, math.nan]}, seeds=[0], seconds=1, folder=tmp_path)
    assert recorded("a", folder=tmp_path)["x"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"values\['x'\]: got object"):
        plain({"x": object()})


def written(values: object, **changed: object) -> str:
    origin = {"hardware": "a CPU", "versions": {}, "commit": None, "seeds": [1], "seconds": 1, "command": "…"}
    return json.dumps({"values": values, "provenance": origin | {"date": "2026-01-01"} | changed})


DAMAGED = [
    *("{", json.dumps({"values": {}, "provenance": {"seeds": []}}), "[" * 100_000),
    *(written(values) for values in ({"accuracy": math.nan}, [1])),
    written({"accuracy": 17}).replace("17", "1" + "0" * 9000),
    *(written({"accuracy": 17}, **{part: 5}) for part in ("versions", "commit", "hardware")),
    *(written({"accuracy": 17}, seeds=seeds) for seeds in ("01", [None])),
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: not a recorded run") as refused:
        recorded("a", folder=tmp_path)
    assert len(str(refused.value)) < len(str(tmp_path)) + 200, "it does not repeat a number of thousands of digits"


def test_what_is_written_here_without_damage_is_a_record(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(written({"accuracy": 17}, commit="0123", versions={"torch": "2"}, seconds=1.5))
    assert recorded("a", folder=tmp_path)["accuracy"] == 17


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_part_of_a_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text(text)
    with pytest.raises(ValueError, match=r"part\.json: not a part of a record .*; remove it, and it is made again"):
        kept(tmp_path / "part.json", dict)


def test_a_record_says_what_was_run() -> None:
    found = recorded("training-exact")
    assert [found.ran(part) for part in ("seeds", "epochs", "images", "precision", "batch")] == [
        *(len(found.provenance.seeds), found["epochs"][-1], found["images"]),
        *("bfloat16", found["settings"]["info_nce"]["batch"]),
    ]
    for part in ("objective", "colour"):  # one that its runs differ in, one that they don't have
        with pytest.raises(ValueError, match=f"no '{part}' that all of its runs share"):
            found.ran(part)


def test_every_record_of_the_book_can_be_read() -> None:
    for path in results_folder().glob("*.json"):
        assert isinstance(recorded(path.stem), Record)


def test_numbers_are_rounded_wherever_they_stand() -> None:
    values = torch.tensor([[1.23456789, 1e-9], [123456789.0, 0.0]], dtype=torch.float64)
    assert rounded(values, 3) == [[1.235, 0.0], [123456789.0, 0.0]]
    assert rounded({"a": (values[0], 7)}, digits=3) == {"a": [[1.23, 1e-9], 7]}


def test_a_record_says_what_is_not_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Provenance("a CPU", {"torch": "1.0"}, "0123456789abcdef", (0,), 3.0, "sslbook record x", "2026-01-02")
    for changed, told in ((True, "has changed since commit 0123456789"), (False, None), (None, "can't be told")):
        monkeypatch.setattr(data_files, "changed_since", lambda commit, changed=changed: changed)
        first, *others = there.differences()
        assert first == f"torch was 1.0, and is {version('torch')}"
        assert len(others) == (told is not None)
        assert all(str(told) in sentence for sentence in others)


def test_an_installed_package_finds_the_folder_installed_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(data_files, "PACKAGE", tmp_path / "site-packages" / "sslbook")
    (tmp_path / "site-packages" / "data").mkdir(parents=True)  # somebody else's
    assert data_files.folder() != tmp_path / "site-packages" / "data"
    assert (data_files.folder() / "printed" / "B-Tab3.json").is_file()


def test_a_change_since_a_commit_is_seen_where_git_can_tell(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (package := tmp_path / "sslbook").mkdir()
    monkeypatch.setattr(_files, "SOURCE", package)
    assert data_files.changed_since("0123") is None
    git("init")
    (package / "one.py").write_text("1\n")
    git("add", ".")
    git("commit", "-m", "one")
    assert data_files.changed_since("HEAD") is False
    (package / "one.py").write_text("2\n")
    assert data_files.changed_since("HEAD") is True
    assert data_files.changed_since("0123") is None
    assert data_files.changed_since("") is None
    monkeypatch.delenv("SSLBOOK_COMMIT", raising=False)
    mine = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True).strip()
    assert _files.commit() == f"{mine}+changes"
    for inside in ("other", ".venv/lib/sslbook"):  # an environment in somebody's repository, and what is not in it
        (other := tmp_path / inside).mkdir(parents=True)
        (other / "one.py").write_text("1\n")
        monkeypatch.setattr(_files, "SOURCE", other)
        assert _files.commit() is None
    git("add", ".")
    assert _files.commit() is None, "deeper than a source tree"
    monkeypatch.setattr(_files, "SOURCE", package)
    monkeypatch.setenv("GIT_DIR", str(Path(__file__).parents[2] / ".git"))
    assert _files.commit() == f"{mine}+changes"
