"""Arguments that several command lines take."""

from __future__ import annotations

import argparse

import pytest

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
