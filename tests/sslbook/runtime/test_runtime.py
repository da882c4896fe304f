"""Arguments of functions and of command lines, and files that are written whole."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from sslbook import _check, _files, _machine
from sslbook._files import PART, atomic, remove_parts, write_text
from sslchapters.data_files import read_text


def test_words_of_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for parse, right, wrong, words in (
        (_check.positive, {"12": 12}, ("0", "-1", "1.5", ""), "is not a whole number"),
        (_check.seed, {"0": 0, str(2**32 - 1): 2**32 - 1}, ("-1", str(2**32), "x"), "is not a whole number"),
        (_machine.device, {n: n for n in ("cpu", "cuda", "cuda:1")}, ("cuda:2",), "devices, cpu, cuda, cuda:0, cuda:1"),
    ):
        assert {text: parse(text) for text in right} == right
        for text in wrong:
            with pytest.raises(argparse.ArgumentTypeError, match=words):
                parse(text)


@pytest.mark.parametrize(
    ("check", "error", "words"),
    [
        (lambda: _check.require_one_of("loss", "infonce", ["simple", "info_nce"]), ValueError,
         "loss must be one of simple, info_nce, got 'infonce'"),
        (lambda: _check.require_number("tau", True), TypeError, "tau must be a number, got True"),
        (lambda: _check.require_number("tau", float("nan")), ValueError, "tau must be finite"),
        (lambda: _check.require_number("tau", 0, above=0), ValueError, "tau must be above 0, got 0"),
        (lambda: _check.require_whole("n", 5, least=1, most=4), ValueError, "n must be at least 1 and at most 4, got 5"),
        (lambda: _check.require_whole("n", 1.5), TypeError, "n must be a whole number, got 1.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_what_can(
    check: Callable[[], None], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check()


def test_numpys_numbers_can_be_used() -> None:
    for kind in (np.float32, np.array, torch.tensor, Fraction, np.longdouble):
        assert type(_check.require_number("tau", kind(0.5), above=0, most=0.5)) is float
    for whole in (np.int64(3), np.array(3), torch.tensor(3)):
        assert type(_check.require_whole("n", whole, least=3)) is int
    for wrong in (np.bool_(True), torch.tensor([3]), torch.tensor(3.0, requires_grad=True)):
        with pytest.raises(TypeError, match=r"n must be a (whole )?number"):
            _check.require_whole("n", wrong)


def test_a_file_and_its_folder_are_made_and_half_a_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content reaches the disk before the name, and the name before the end."""
    target, synced = tmp_path / "a" / "b.txt", []
    monkeypatch.setattr(_files, "sync", lambda path: synced.append((path.name.endswith(PART), target.exists())))
    write_text(target, "naïve\n")
    assert synced == [(True, False), (False, True)]
    assert target.read_bytes() == "naïve\n".encode()
    assert target.stat().st_mode & 0o777 == 0o644

    def fail() -> None:
        with atomic(target) as path:
            path.write_text("half")
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        fail()
    assert read_text(target) == "naïve\n"
    assert list(target.parent.iterdir()) == [target]


def test_what_the_dead_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".a.json.x1{PART}", f"a{PART}", ".a.json", "a.json"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.json", "a.json", f"a{PART}"]
