"""The margins of the checks: bars near what is measured, rivals far from the bar, and a count of loose bars that may only fall."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sslbook import cli
from sslbook.book import ledger
from sslbook.book.layout import Book
from sslbook.book.margins import LOOSE, loose, margins, table
from sslbook.book.values import Number
from sslbook.stats.intervals import Interval

BOOK = Book(Path(__file__).resolve().parents[2])

LEFT = {
    "byol": 2,
    "covariance": 6,
    "dual_networks": 0,
    "emergence": 1,
    "hltm": 2,
    "landscape": 0,
    "linear_byol": 2,
    "modulation": 0,
    "operators_today": 4,
    "training": 3,
}
"""How many checks of a chapter may have a bar of more than a hundred times what is measured; none may be added."""


def number(name: str = "x", value: float = 1.0, **rest: object) -> Number:
    fixed = {"id": "A-Thm1", "chapter": "good", "scale": "quick", "seed": 0, "device": "cpu", "device_name": "a CPU"}
    fixed |= {"dtype": "float64", "seconds": 0.1, "versions": {"torch": "2"}}
    return Number(name=name, value=value, **(fixed | rest))


@pytest.mark.parametrize(
    ("value", "test", "others", "bar", "rival"),
    [
        (2e-15, {"below": 1e-12}, {"sign": 0.5}, 500, 5e11),
        (0.9997, {"above": 0.99}, {"no augmentation": 0.985, "sign": -1.0}, 0.9997 / 0.99, 0.99 / 0.985),
        (1.01, {"expect": 1.0, "atol": 0.05}, {"flat": 0.8}, 5, 4),
        (-0.5, {"below": -0.25}, {"less": -0.1}, 2, 2.5),
        (7, {"expect": 7, "atol": 0}, {"one more": 8}, 1, math.inf),
        (0.4, {"above": 0.0}, {"none": -0.1}, 2, 2),
        (0.5, {"below": 1.0, "above": 0.4}, {"a": 1.5}, 1.25, 1.5),
        (0.0, {"below": 1e-12}, {}, 1e-12 / 2.2204e-16, math.inf),
        (0.1, {"below": 1.0}, {"broken": math.nan}, 10, math.inf),
    ],
)
def test_margins_are_factors(value: float, test: dict, others: dict, bar: float, rival: float) -> None:
    (found,) = margins([number(value=value, rivals=others, **test)])
    assert found.bar == pytest.approx(bar, rel=1e-3)
    assert found.rival == pytest.approx(rival)
    assert found.number.criterion.passes(value)


def test_an_interval_has_the_margin_of_its_worse_end() -> None:
    whole = number("gain", 2.0, above=0.5, low=1.0, high=3.0, n=5, rivals={"flat": Interval(0.3, 0.1, 0.4, 5)})
    part = number("gain-low", 1.0, above=0.5, part_of="gain")
    (found,) = margins([whole, part, number("measured", 1.0, rtol=1e-6)])
    assert (found.bar, found.rival) == (2.0, 5.0)


def test_the_worst_comes_first() -> None:
    tight, wide = number("tight", 2e-13, below=1e-12), number("wide", 5e-16, below=1e-12, rejects={"sign": 2e-12})
    found = margins([tight, wide])
    assert [margin.number.name for margin in found] == ["wide", "tight"]
    assert found[0].place == pytest.approx(math.log(2000) / math.log(4000))
    assert loose([tight, wide]) == {"good": 1}
    assert table(found)[1] == "    2e+03          2  good: wide (A-Thm1) ≤ 1e-12  nearest: sign"


def test_the_command(write_book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    book = write_book(good="<<1>>")
    numbers = [number("near", 1e-13, below=1e-12, rivals={"far": 1.0}), number("loose", 1e-15, below=1e-12)]
    numbers.append(number("close", 0.5, below=1.0, rivals={"nearly": 1.001}))
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: numbers)
    monkeypatch.chdir(book.root)

    def listed(*options: str) -> list[str]:
        assert cli.main(["margins", *options]) == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split()[3] for line in listed()[1:-1]] == ["loose", "near", "close"]
    assert [line.split()[3] for line in listed("--rivals", "--worst", "1")[1:-1]] == ["close"]
    assert listed("other")[1:] == ["Bars of more than 100 times what is measured: nothing is executed yet"]
    assert listed()[-1].endswith("measured: good 1")


@pytest.mark.parametrize("chapter", sorted(LEFT))
def test_no_bar_becomes_loose(chapter: str) -> None:
    if not (BOOK.executed("quick") / f"{chapter}.ipynb").exists():
        pytest.skip("the chapter is not executed: make book")
    own = [n for n in ledger.all_numbers(BOOK, "quick") if n.chapter == chapter]
    worst = [margin for margin in margins(own) if margin.bar > LOOSE]
    assert len(worst) <= LEFT[chapter], "\n".join(table(worst))
    assert [margin.number.name for margin in worst if not margin.number.why] == [], "a loose bar has a reason"
