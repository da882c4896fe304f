"""The benchmarks run at small sizes, see a wrong product, and a missed bar is exit status 1."""

from __future__ import annotations

import math

import pytest

from benchmarks import Row, report
from benchmarks import covariance as bench
from sslbook import cli


def test_the_operator_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "covariance", "--quick"]) in (0, 1), "of a busy machine the bars of time"
    shown, (exact, *_) = capsys.readouterr().out, bench.accuracy(1)
    assert all(name in shown for name in ("relative error", "one application", "top 5 eigenpairs", exact.what))
    assert exact.verdict == "ok"


def test_training_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "training", "augment", "step", "--quick"]) in (0, 1)
    assert "our time by the clock" in capsys.readouterr().out
    assert cli.main(["bench", "training", "cooking"]) == 2
    assert "no stage 'cooking'" in capsys.readouterr().err


def test_a_missed_bar_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a", "even", 2.0, "s", 2.0), Row("a", "much", 9.0, "x", 8.0), Row("b", "no", math.nan, "", 1)]
    assert [report(rows), report(rows[:1])] == [1, 0]
    assert "1 of 3 bars are met." in capsys.readouterr().out
