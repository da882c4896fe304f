"""The regression: it goes red when a number moves, appears, disappears or is held to another test; and measures tolerances."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from conftest import number, store

from sslbook import cli
from sslbook.book.layout import Book
from sslbook.book.ledger import compare, differences, entry, left_out, may_move, read_expected, update
from sslbook.book.values import Number
from sslbook.runtime.arguments import InputError

NEAR = number(value=1.0, expect=1.001, rtol=1e-2)
MEASURED = number(value=1.0, rtol=1e-6, id=None)
BOUNDED = number(value=1e-15, below=1e-12)


def held(*given: Number) -> dict:
    return json.loads(json.dumps({n.name: entry(n) for n in given}))


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (NEAR, {"value": 1.005}),
        (BOUNDED, {"value": 9e-13}),
        (BOUNDED, {"rivals": {"another loss": 0.5}, "rejects": {"sign": 2.0}}),
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
        (BOUNDED, {"value": 2e-12}, "x: 2e-12 is not ≤ 1e-12"),
        (BOUNDED, {"value": math.nan}, "x: nan is not ≤ 1e-12"),
        (BOUNDED, {"below": 1e-9}, "x: below is 1e-09; expected 1e-12"),
        (NEAR, {"rtol": 1e-1}, "x: rtol is 0.1; expected 0.01"),
        (NEAR, {"expect": 1.1}, "x: its theory value moved: expect is 1.1; expected 1.001"),
        (MEASURED, {"expect": 1.0}, "x: expect is 1.0; expected None"),
        (NEAR, {"id": "A-Thm2"}, "x: belongs to A-Thm2; expected A-Thm1"),
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


def test_bounds_hold_no_value() -> None:
    assert entry(BOUNDED) == {"id": "A-Thm1", "below": 1e-12}
    assert entry(NEAR) == {"id": "A-Thm1", "value": 1.0, "expect": 1.001, "rtol": 1e-2}


def test_update_makes_the_numbers_the_expected_ones(write_book) -> None:
    book = write_book(good="<<1>>")
    path = book.expected("good", "quick")
    store(book, "good", number("a", 1.0, rtol=1e-6), number("b", 1e-15, below=1e-12))
    count, problems = compare(book, "good", "quick")
    assert (count, len(problems)) == (2, 2)
    assert update(book, "good", "quick") == problems
    assert compare(book, "good", "quick") == (2, [])
    assert json.loads(path.read_text())["scale"] == "quick"

    first = path.read_bytes()
    store(book, "good", number("a", 1.0 + 1e-9, rtol=1e-6), number("b", 3e-16, below=1e-12))
    assert update(book, "good", "quick") == []
    assert path.read_bytes() == first, "noise must make no diff"

    store(book, "good", number("a", 2.0, rtol=1e-6), number("c", 1.0, rtol=1e-6))
    assert [line.partition(":")[0] for line in compare(book, "good", "quick")[1]] == ["a", "c", "b"]
    update(book, "good", "quick")
    assert {name: held.get("value") for name, held in read_expected(path).items()} == {"a": 2.0, "c": 1.0}


def test_what_the_other_scale_lacks_is_said(write_book) -> None:
    book = write_book(good="<<1>>")
    for scale, names in (("quick", ("a", "b", "new")), ("paper", ("a", "b", "gone"))):
        store(book, "good", *(number(name, 1.0, rtol=1e-6) for name in names), scale=scale)
        update(book, "good", scale)
    assert left_out(book, "good", "quick") == [
        "data/expected/good.paper.json has others, or for other claims: gone, new; "
        "sslbook execute good --scale paper --update-expected"
    ]
    book.expected("good", "paper").unlink()
    assert left_out(book, "good", "quick") == []


@pytest.mark.parametrize(
    "entry", ["1", '{"value": "1"}', '{"value": NaN}', '{"others": {"r": ["a", 1]}}', "[" * 100_000]
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "good.quick.json"
    path.write_text(f'{{"numbers": {{"a": {entry}}}}}')
    with pytest.raises(InputError, match=r"good\.quick\.json: not a file of expected numbers"):
        read_expected(path)


def test_a_name_produced_twice_is_refused(write_book) -> None:
    book = write_book(good="<<1>>")
    store(book, "good", number("a"), number("a"))
    with pytest.raises(ValueError, match=r"good \(quick\): the number 'a' is produced twice"):
        compare(book, "good", "quick")


@pytest.mark.parametrize(
    ("moved", "within"),
    [
        (may_move(0.5, (0.5, 0.5), (0.1, 0.9)), 5e-9),  # the last digits, whatever other seeds give
        (may_move(0.5, (0.5 + 1e-8, 0.5), (0.1, 0.9)), 1e-7),  # ten times what a machine changes
        (may_move(0.5, (0.501, 0.5), (0.4, 0.6)), 0.57),  # chaos: four deviations over the seeds
        (may_move(0.5, (0.51, 0.5), (0.4995, 0.5005)), 0.03),  # and at least what machines differ by, three times
        (may_move(0.0, (0.0,), (1.0, 2.0)), 1e-12),
        (may_move(0.5, (0.501, 0.5), (0.4, 0.6), 0.05), 0.05),  # but no farther than the chapter lets it
        (may_move(0.5, (0.52, 0.5), (0.4, 0.6), 0.05), 0.06),  # unless a machine moves it
        (may_move(3, (), ()), 3e-8),
    ],
)
def test_how_far_a_number_may_be_off(moved: float, within: float) -> None:
    assert moved == pytest.approx(within, rel=0.11)  # rounded up to two digits


def test_what_was_measured_takes_the_tolerances_place_on_a_processor() -> None:
    found = number(value=1.0, rtol=0.5, id=None)
    held = entry(found) | {"within": 1e-3}
    moved = number(value=1.01, rtol=0.5, id=None)
    assert differences([moved], {"x": held}) == [
        "x: moved to 1.01; expected 1.0 ± 0.001 (off by 0.01)",
    ]
    assert differences([number(value=1.01, rtol=0.5, id=None, device="cuda")], {"x": held}) == []


def test_rivals_and_broken_variants_are_held() -> None:
    claimed = {"value": 1e-15, "below": 1e-12}
    held = entry(number(**claimed)) | {"others": {"rival": [0.5, 1e-3], "sign": [1.0, 1e-3]}}
    assert differences([number(**claimed, rivals={"rival": 0.5}, rejects={"sign": 1.0})], {"x": held}) == []
    (problem,) = differences([number(**claimed, rivals={"rival": 0.6}, rejects={"sign": 1.0})], {"x": held})
    assert problem == "x: 'rival' moved to 0.6; expected 0.5 ± 0.001 (off by 0.1)"
    (problem,) = differences([number(**claimed, rivals={"rival": 0.5})], {"x": held})
    assert problem == "x: its rivals and broken variants are rival; expected rival, sign"


DRIFTS = """<<import torch
measure("steady", 0.5)
measure("threads", torch.get_num_threads(), rtol=2)
measure("seeded", 3.0 + run.seed // 100 % 2, rtol=1)
claim("first", run.seed, below=0.5, rejects={"another": 2.0}, rivals={"close": 1.0 + run.seed}, id=None)
claim("odd", float("nan") if run.seed == 200 else 0.1, below=1.0, id=None)
>>
"""


@pytest.mark.long
def test_a_chapter_is_run_elsewhere_and_with_other_seeds(
    write_book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book: Book = write_book(good=DRIFTS)
    monkeypatch.chdir(book.root)
    assert cli.main(["execute", "--spread", "2"]) == 2
    assert "--spread: it writes tolerances, and so needs --update-expected" in capsys.readouterr().err
    assert cli.main(["execute", "--update-expected", "--spread", "2"]) == 0
    said = capsys.readouterr().out
    assert "seed 100: first would fail" in said
    assert "seed 200: first, odd would fail" in said, "what is no number fails, and ends nothing"
    assert "AVX2 at most: first" not in said
    path = Path(book.expected("good", "quick"))  # shall hold an earlier run's value, near enough for the chapter
    path.write_text(path.read_text().replace('"value": 3.0', '"value": 3.5'))
    assert cli.main(["execute", "--update-expected", "--spread", "2"]) == 0
    held = json.loads(path.read_text())["numbers"]
    assert held["seeded"]["value"] == 3.0, "or what it has moved since would be taken for a machine's"
    assert held["steady"]["within"] == 5e-9
    assert held["seeded"]["within"] == 3e-8, "no machine moves it"
    assert held["threads"]["within"] == 3, "a machine moves it by all of itself: chaos, and no seed moves it farther"
    assert held["first"]["others"] == {"close": [1.0, 1e-8], "another": [2.0, 2e-8]}
    assert "within" not in held["first"], "a bound holds no value"
    assert cli.main(["execute", "--force"]) == 0
    assert re.search(r"As expected: 5 numbers", capsys.readouterr().out)
