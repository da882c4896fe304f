"""The regression: it must go red when a number moves, appears, disappears or is held to another test."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from sslbook.book.layout import Book
from sslbook.book.regression import accept, compare, differences, entry, left_out, read_expected, update
from sslbook.book.values import Number
from sslbook.runtime.arguments import InputError


def number(name: str = "x", value: float = 1.0, **rest: object) -> Number:
    fixed = {"id": "A-Thm1", "chapter": "good", "scale": "quick", "seed": 0, "device": "cpu", "device_name": "a CPU"}
    fixed |= {"dtype": "float64", "seconds": 0.1, "versions": {"torch": "2"}}
    return Number(name=name, value=value, **(fixed | rest))


NEAR = number(value=1.0, expect=1.001, rtol=1e-2)
MEASURED = number(value=1.0, rtol=1e-6, id=None)
BOUNDED = number(value=1e-15, below=1e-12)


def held(*given: Number) -> dict:
    return json.loads(json.dumps({n.name: entry(n) for n in given}))


@pytest.mark.parametrize("claimed", [NEAR, MEASURED, BOUNDED])
def test_the_same_number_agrees(claimed: Number) -> None:
    assert differences([claimed], held(claimed)) == []


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (NEAR, {"value": 1.005}),
        (MEASURED, {"value": 1.0 + 5e-7}),
        (BOUNDED, {"value": 9e-13}),
        (BOUNDED, {"value": -1.0}),
        (NEAR, {"seconds": 9.0, "device": "cuda", "why": "new words"}),
    ],
)
def test_noise_within_the_tolerance_agrees(before: Number, change: dict) -> None:
    assert differences([dataclasses.replace(before, **change)], held(before)) == []


@pytest.mark.parametrize(
    ("before", "change", "message"),
    [
        (NEAR, {"value": 1.02}, "x: moved to 1.02; expected 1.0 ± 0.01 (off by 0.02)"),
        (MEASURED, {"value": 1.0 + 2e-6}, "x: moved to 1.000002; expected 1.0 ± 1e-06 (off by 2e-06)"),
        (MEASURED, {"value": math.nan}, "x: moved to nan; expected 1.0 ± 1e-06 (off by nan)"),
        (BOUNDED, {"value": 2e-12}, "x: 2e-12 is not ≤ 1e-12"),
        (BOUNDED, {"value": math.nan}, "x: nan is not ≤ 1e-12"),
        (BOUNDED, {"below": 1e-9}, "x: below is 1e-09; expected 1e-12"),
        (BOUNDED, {"below": None, "above": 0.0}, "x: below is None; expected 1e-12"),
        (NEAR, {"rtol": 1e-1}, "x: rtol is 0.1; expected 0.01"),
        (NEAR, {"expect": 1.1}, "x: its theory value moved: expect is 1.1; expected 1.001"),
        (NEAR, {"expect": None}, "x: expect is None; expected 1.001"),
        (MEASURED, {"expect": 1.0}, "x: expect is 1.0; expected None"),
        (NEAR, {"id": "A-Thm2"}, "x: belongs to A-Thm2; expected A-Thm1"),
        (MEASURED, {"id": "A-Thm2"}, "x: belongs to A-Thm2; expected no claim"),
    ],
)
def test_what_changed_is_red(before: Number, change: dict, message: str) -> None:
    assert differences([dataclasses.replace(before, **change)], held(before)) == [message]


def test_a_new_number_and_a_missing_one_are_red() -> None:
    assert differences([number("new")], held(number("old", rtol=1e-6), number("bound", below=1.0))) == [
        "new: new, with the value 1.0; nothing is expected of it yet",
        "old: missing; it was held to 1.0",
        "bound: missing; it was held to ≤ 1",
    ]


def test_rivals_and_broken_variants_are_free() -> None:
    claimed = number(value=1e-15, below=1e-12, rivals={"another loss": 0.5}, rejects={"sign": 1.0})
    assert differences([dataclasses.replace(claimed, rivals={}, rejects={"sign": 2.0})], held(claimed)) == []


def test_bounds_hold_no_value() -> None:
    assert entry(BOUNDED) == {"id": "A-Thm1", "below": 1e-12}
    assert entry(NEAR) == {"id": "A-Thm1", "value": 1.0, "expect": 1.001, "rtol": 1e-2}


def store(book: Book, *given: Number) -> None:
    """An executed chapter, as far as the regression reads it."""
    outputs = [
        {"output_type": "display_data", "data": {}, "metadata": {"scrapbook": {"name": n.name}, "sslbook": n.to_json()}}
        for n in given
    ]
    folder = book.executed("quick")
    folder.mkdir(parents=True, exist_ok=True)
    cells = [{"cell_type": "code", "metadata": {}, "source": "", "outputs": outputs}]
    (folder / "good.ipynb").write_text(json.dumps({"metadata": {}, "cells": cells}))


def test_update_makes_the_numbers_the_expected_ones(write_book) -> None:
    book = write_book(good="<<1>>")
    path = book.expected("good", "quick")
    store(book, number("a", 1.0, rtol=1e-6), number("b", 1e-15, below=1e-12))
    result = compare(book, "good", "quick")
    assert (result.compared, len(result.problems)) == (2, 2)
    assert result.command == "sslbook execute good --scale quick --update-expected"

    assert len(update(book, "good", "quick")) == 2
    assert compare(book, "good", "quick").problems == ()
    assert json.loads(path.read_text())["scale"] == "quick"

    first = path.read_bytes()
    store(book, number("a", 1.0 + 1e-9, rtol=1e-6), number("b", 3e-16, below=1e-12))
    assert update(book, "good", "quick") == []
    assert path.read_bytes() == first, "noise must make no diff"

    store(book, number("a", 2.0, rtol=1e-6), number("c", 1.0, rtol=1e-6))
    assert [line.partition(":")[0] for line in compare(book, "good", "quick").problems] == ["a", "c", "b"]
    update(book, "good", "quick")
    assert {name: held.get("value") for name, held in read_expected(path).items()} == {"a": 2.0, "c": 1.0}


def test_what_the_other_scale_lacks_is_said(write_book) -> None:
    book = write_book(good="<<1>>")
    for scale, names in (("quick", ("a", "b", "new")), ("paper", ("a", "b", "gone"))):
        accept(book, "good", scale, [number(name, 1.0, rtol=1e-6) for name in names])
    assert left_out(book, "good", "quick") == [
        "data/expected/good.paper.json has others, or for other claims: gone, new; "
        "sslbook execute good --scale paper --update-expected"
    ]
    accept(book, "good", "paper", [number(name, 2.0, rtol=1e-6) for name in ("a", "b", "new")])
    assert left_out(book, "good", "quick") == []
    book.expected("good", "paper").unlink()
    assert left_out(book, "good", "quick") == []


def test_a_damaged_expected_file_is_refused(write_book) -> None:
    book = write_book(good="<<1>>")
    store(book, number("a"))
    path = book.expected("good", "quick")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a file of expected numbers"):
        compare(book, "good", "quick")


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        '"numbers"',
        *(json.dumps({"numbers": numbers}) for numbers in (None, [1], "abc", {"a": None}, {"a": 1})),
        *(
            json.dumps({"numbers": {"a": entry}})
            for entry in ({"value": "1"}, {"value": None}, {"id": 3}, {"rtol": True})
        ),
        '{"numbers": {"a": {"value": NaN}}}',
        '{"numbers": {"a": {"value": 1e999}}}',
        '{"numbers": {"a": {"id": null, "rtol": 0.1}}}',
        '{"numbers": {"a": {"id": null, "expect": 1.0, "below": 2.0}}}',
        *(
            f'{{"numbers": {{"a": {{"value": 1.0, {part}: 1{"0" * 400}}}}}}}'
            for part in ('"value"', '"expect"', '"below"')
        ),
        f'{{"numbers": {{"a": {{"value": 1.0, "others": {{"r": [1{"0" * 400}, 1]}}}}}}}}',
        "[" * 100_000,
        *(
            json.dumps({"numbers": {"a": {"value": 1.0, "others": others}}})
            for others in ({"r": [1]}, {"r": ["a", "b"]}, {"r": None}, {"r": [1.0, True]}, ["r"], 5)
        ),
    ],
)
def test_a_damaged_entry_is_refused_with_the_files_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "good.quick.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"good\.quick\.json: not a file of expected numbers"):
        read_expected(path)


def test_a_name_produced_twice_is_refused(write_book) -> None:
    book = write_book(good="<<1>>")
    store(book, number("a"), number("a"))
    with pytest.raises(ValueError, match=r"good \(quick\): the number 'a' is produced twice"):
        compare(book, "good", "quick")
