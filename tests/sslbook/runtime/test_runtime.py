"""What is asked of arguments, of functions and of command lines."""

from __future__ import annotations

import argparse
import copy
import errno
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from sslbook import _check as arguments
from sslbook import _files as atomic_io
from sslbook._files import PART, atomic, naming, read_bytes, read_text, remove_parts, write_text
from sslbook._machine import figure


def test_whole_numbers() -> None:
    assert arguments.positive("12") == 12
    assert arguments.seed("0") == 0
    for parse, wrong in [(arguments.positive, ("0", "-1", "1.5", "")), (arguments.seed, ("-1", str(2**32), "x"))]:
        for text in wrong:
            with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a whole number"):
                parse(text)


def test_a_device_is_one_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments.device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(argparse.ArgumentTypeError, match="'cuda' is not one of this machine's devices, cpu"):
        arguments.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [arguments.device(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    with pytest.raises(argparse.ArgumentTypeError, match="devices, cpu, cuda, cuda:0, cuda:1"):
        arguments.device("cuda:2")


@pytest.mark.parametrize(
    ("check", "error", "words"),
    [
        (lambda: arguments.require_one_of("loss", "infonce", ["simple", "info_nce"]), ValueError,
         r"loss must be one of simple, info_nce, got 'infonce'; did you mean 'info_nce'\?"),
        (lambda: arguments.require_number("tau", True), TypeError, "tau must be a number, got True"),
        (lambda: arguments.require_number("tau", 0, above=0), ValueError, "tau must be above 0, got 0"),
        (lambda: arguments.require_whole("n", 5, least=1, most=4), ValueError, "n must be between 1 and 4, got 5"),
        (lambda: arguments.require_finite(f=torch.tensor([[1.0, math.nan], [1.0, 2.0]])), ValueError,
         "f must be finite numbers, got 1 of 2 rows that are not"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_what_can(check, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check()


def test_numpys_numbers_can_be_used() -> None:
    for kind in (np.float32, np.array, torch.tensor, Fraction, np.longdouble):
        assert type(arguments.require_number("tau", kind(0.5), above=0, most=0.5)) is float
    for whole in (np.int64(3), np.array(3), torch.tensor(3)):
        assert type(arguments.require_whole("n", whole, least=3)) is int
    for wrong in (
        np.bool_(True),
        torch.tensor([3]),
        torch.tensor(3.0, requires_grad=True),
        torch.empty((), device="meta"),
    ):
        with pytest.raises(TypeError, match="n must be a whole number"):
            arguments.require_whole("n", wrong)


def test_a_figure_is_a_picture_in_a_notebook() -> None:
    drawn = figure(figsize=(2, 1))
    drawn.subplots().plot([1, 2])
    for same in (drawn, copy.deepcopy(drawn)):
        assert InteractiveShell().display_formatter.format(same)[0]["image/png"].startswith(b"\x89PNG")


def test_slips_are_known() -> None:
    assert arguments.nearest("CIFAR10", ["cifar10", "stl10"])[:1] == ["cifar10"]
    assert arguments.nearest("zzz", ["cifar10"]) == []
    assert arguments.meant("Info-NCE", ["simple", "info_nce"]) == "info_nce"
    assert arguments.meant("other", ["simple"]) == "other"


def test_the_ends_of_what_can_be_stored() -> None:
    for n in (2**63 - 1, -(2**63)):
        arguments.require_whole("n", n)
    for n in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="n must be a whole number of 64 bits"):
            arguments.require_whole("n", n)
    assert (arguments.seed(str(2**32 - 1)), arguments.positive("1")) == (2**32 - 1, 1)


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
