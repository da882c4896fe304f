"""The regression: claims are held by their own tests, measured numbers by their stored value, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import number, store

from bookbuild import regression
from bookbuild.layout import Book
from sslchapters.intervals import Interval
from sslchapters.values import Number


def measured(value: float, **rest) -> Number:
    return number(value=value, id=None, **rest)


def mean(value: float, half: float = 0.5, *, n: int = 5, **rest) -> Number:
    return measured(value, low=value - half, high=value + half, n=n, **rest)


SIX = Interval(6.0, 5.5, 6.5, 5)


@pytest.mark.parametrize(
    ("found", "was", "forms", "moved"),
    [
        (measured(1.0 + 9e-6), 1.0, (), False),
        (measured(1.0 + 2e-5), 1.0, (), True),
        (measured(0.5004), 0.5, (".1%", ".0%"), False),  # half of 0.1 %, the finest digit that is printed
        (measured(0.501), 0.5, (".1%", ".0%"), True),
        (measured(0.033), 0.03, (".0%",), True),  # but a tenth of a number is told, however it is printed
        (measured(3), 4, (".0f",), True),
        (measured(11_173_900), 11_173_962, (":,d",), True),  # a count is exact
        (measured(3e-16), 1e-16, (".0e",), False),  # a rounding error
        (measured(1.3, atol=0.5), 1.0, (), False),  # what the chapter allows
        (measured(float("nan")), 1.0, (), True),
        (mean(6.00001), SIX, (), False),
        (mean(6.0, 0.51), SIX, (), True),
        (mean(6.9, 0.6, random=True), SIX, (), False),  # by its interval
        (mean(8.0, 0.6, random=True), SIX, (), True),
        (mean(6.0, n=6), SIX, (), True),
        (measured(6.0), SIX, (), True),
        (mean(6.0), 6.0, (), True),
    ],
)
def test_how_far_a_measured_number_may_move(found: Number, was: float | Interval, forms: tuple, moved: bool) -> None:
    assert bool(regression.differences([found], {"x": was}, {("good", "x"): forms})) is moved


def test_what_is_new_and_what_is_gone_are_told_and_claims_are_not_held_to_values() -> None:
    found = [
        measured(1.0),
        number("gap", 1e-15, below=1e-12),
        number("near", 1.2, expect=1.0, atol=0.5),
        number("y", 3, id=None),
    ]
    assert [
        str(one)
        for one in regression.differences(found, {"old": 2.0, "gap": 5.0, "near": None, "away": None, "y": None}, {})
    ] == [
        "x: new, 1.0",
        "gap: 1e-15; it was measured, 5.0, and is no longer held as that",
        "y: 3; it was a claim, and is no longer held as that",
        "old: gone, and no longer held; it was 2.0",
        "away: gone, and no longer held; it was a claim",
    ]
    (told,) = regression.differences([measured(2.0)], {"x": 1.0}, {})
    assert str(told) == "x: 2.0; it was 1.0 (off by 1, and may be by 1e-05)"


def kept(write_book) -> Book:
    """A chapter with a measured number, a check that holds, one that fails and an interval's parts."""
    book = write_book(good="{glue:text}`seen:.1f`\n<<1>>")
    part = measured(5.5, part_of="rate")
    numbers = [number("seen", 1.0, id=None), number("gap", 0.5, below=1.0), number("bad", 2.0, below=1.0)]
    interval = number("rate", 6.0, id=None, low=5.5, high=6.5, n=5)
    store(book, "good", *numbers, interval, Number(**{**part.__dict__, "name": "rate-low"}))
    return book


def test_update_makes_the_numbers_the_expected_ones(write_book) -> None:
    book = kept(write_book)
    path = book.expected("good", "quick")
    (found,) = regression.compare(book, ["good"], "quick")
    assert ([n.name for n in found.checks], [m.name for m in found.moved]) == (["bad"], ["seen", "gap", "bad", "rate"])
    assert [n.name for n in found.numbers] == ["seen", "gap", "bad", "rate", "rate-low"]
    regression.update(book, found, "quick")
    assert path.read_text() == '{\n"seen": 1.0,\n"rate": [6.0, 5.5, 6.5, 5],\n"claims": "gap bad"\n}\n'
    assert regression.read_expected(path) == {"seen": 1.0, "rate": SIX, "gap": None, "bad": None}
    claimed = [number("gap", 0.7, below=1.0), number("bad", 0.9, below=1.0)]
    rate = number("rate", 6.0 + 1e-9, id=None, low=5.5, high=6.5, n=5)
    store(book, "good", number("seen", 1.0 + 1e-9, id=None), rate, *claimed)
    before = path.read_bytes()
    (found,) = regression.compare(book, ["good"], "quick")
    assert found.lines == []
    regression.update(book, found, "quick")
    assert path.read_bytes() == before, "rounding makes no diff"
    store(book, "good", number("seen", 3.0, id=None), rate)
    assert regression.compare(book, ["good"], "quick", seed=1)[0].moved == (), "another seed is not compared"
    (found,) = regression.compare(book, ["good"], "quick")
    assert len(found.moved) == 3, "a number moved, and two claims are gone"
    regression.update(book, found, "quick")
    assert regression.read_expected(path) == {"seen": 3.0, "rate": SIX}, "what agrees stays"


def test_what_is_told(write_book, tmp_path: Path) -> None:
    book = kept(write_book)
    store(book, "other", number("seen", 1.0, id=None), failed=["other.md:7: this cell failed: NameError\n\nits code"])
    regression.write_expected(book.expected("good", "quick"), {"seen": 2.0, "rate": SIX, "gap": None, "bad": None})
    found = regression.compare(book, ["good", "other"], "quick")
    assert regression.table(found) == ["good   seen  1  the book has 2", "other  seen  1  the book has none"]
    page = regression.on_this_machine(found)
    assert "good   seen  1  the book has 2\n" in page
    assert "\ngood  bad (A-Thm1): 2.0 is not ≤ 1\nother  other.md:7: this cell failed: NameError\n" in page
    assert regression.on_this_machine([regression.Comparison("good")]).endswith("and every check held.")
    regression.write_junit(tmp_path / "out" / "report.xml", found, "quick")
    good, bad = ElementTree.parse(tmp_path / "out" / "report.xml").getroot()
    assert (good.attrib["failures"], good.attrib["errors"], bad.attrib["errors"]) == ("2", "0", "1")
    names = {case.attrib["name"]: [part.tag for part in case] for case in good}
    assert len(names) == int(good.attrib["tests"]) > 2, "a case for each number"
    assert {"bad", "seen"} <= {name for name, parts in names.items() if parts}
