"""Arguments that several command lines take."""

from __future__ import annotations

import argparse

import pytest
import torch

from sslbook import arguments


def test_whole_numbers() -> None:
    assert arguments.positive("12") == 12
    assert arguments.seed("0") == 0
    for parse, wrong in [(arguments.positive, ("0", "-1", "1.5", "")), (arguments.seed, ("-1", str(2**32), "x"))]:
        for text in wrong:
            with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a whole number"):
                parse(text)


def test_counting() -> None:
    found = [arguments.counted(1, "seed"), arguments.counted(2, "seed"), arguments.counted(2, "process")]
    assert found == ["1 seed", "2 seeds", "2 processes"]


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
