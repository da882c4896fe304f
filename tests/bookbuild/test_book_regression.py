"""The regression: claims are held by their own tests, measured numbers by their stored value, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import number, store

from bookbuild import regression
from bookbuild.layout import Book
from sslbook._check import InputError
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
    assert found.names == ("seen", "gap", "bad", "rate", "rate-low")
    assert regression.update(book, "good", "quick") == list(found.moved)
    assert path.read_text() == '{\n"seen": 1.0,\n"rate": [6.0, 5.5, 6.5, 5],\n"claims": "gap bad"\n}\n'
    assert regression.read_expected(path) == {"seen": 1.0, "rate": SIX, "gap": None, "bad": None}
    claimed = [number("gap", 0.7, below=1.0), number("bad", 0.9, below=1.0)]
    rate = number("rate", 6.0, id=None, low=5.5, high=6.5, n=5)
    store(book, "good", number("seen", 1.0 + 1e-9, id=None), rate, *claimed)
    before = path.read_bytes()
    assert regression.update(book, "good", "quick") == []
    assert path.read_bytes() == before, "rounding makes no diff"
    assert regression.compare(book, ["good"], "quick")[0].lines == []
    store(book, "good", number("seen", 3.0, id=None))
    assert regression.compare(book, ["good"], "quick", seed=1)[0].moved == (), "another seed is not compared"
    assert len(regression.update(book, "good", "quick")) == 4, "a number moved; one and two claims are gone"
    assert regression.read_expected(path) == {"seen": 3.0}


@pytest.mark.parametrize("entry", ['"1"', "NaN", "true", "[1, 2]", "[3, 2, 1, 5]"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "good.quick.json"
    path.write_text(f'{{"a": {entry}}}')
    with pytest.raises(InputError, match=r"good\.quick\.json: not a file of expected numbers"):
        regression.read_expected(path)


def test_what_is_told(write_book, tmp_path: Path) -> None:
    book = kept(write_book)
    store(book, "other", number("seen", 1.0, id=None), failed=["other.md:7: this cell failed: NameError\n\nits code"])
    regression.write_expected(book.expected("good", "quick"), {"seen": 2.0, "rate": SIX, "gap": None, "bad": None})
    found = regression.compare(book, ["good", "other"], "quick")
    assert regression.table(found) == ["good   seen  1  the book has 2", "other  seen  1  the book has none"]
    (top, foot), (other, _) = map(regression.note, found)
    assert "In this run 1 check failed" in top
    assert '<a href="#check-bad"><code>bad</code></a>: 2.0 is not ≤ 1' in top
    assert foot.endswith("1 number differs on this machine</a>; what failed stands at the top.</p>")
    assert "In this run 1 cell failed" in other
    assert "NameError</li>" in other
    assert regression.note(regression.Comparison("good")) == ("", "")
    page = regression.on_this_machine(found)
    assert "| {doc}`good <good>` | `seen` | 1 | 2 |" in page
    assert "`bad` | 2.0 is not ≤ 1 | holds |" in page
    assert "`a cell` | other.md:7: this cell failed: NameError | runs |" in page
    assert regression.on_this_machine([regression.Comparison("good")]).endswith("and every check held.")
    regression.write_junit(tmp_path / "out" / "report.xml", found, "quick")
    good, bad = ElementTree.parse(tmp_path / "out" / "report.xml").getroot()
    assert (good.attrib["failures"], good.attrib["errors"], bad.attrib["errors"]) == ("2", "0", "1")
    names = {case.attrib["name"]: [part.tag for part in case] for case in good}
    assert len(names) == int(good.attrib["tests"]) > 2, "a case for each number"
    assert {"bad", "seen"} <= {name for name, parts in names.items() if parts}
    regression.write_junit(tmp_path / "report.xml", found, "quick", gate=False)
    good, _ = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert (good.attrib["failures"], len(list(good.iter("skipped")))) == ("1", 1), "what moved is no failure there"
