"""Tolerances that are measured: what moves from machine to machine and from seed to seed, and by how much it may."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_book_regression import number

from sslbook import cli
from sslbook.book import regression
from sslbook.book.layout import Book
from sslbook.book.spread import Moved


@pytest.mark.parametrize(
    ("moved", "within"),
    [
        (Moved(0.5, (0.5, 0.5), (0.1, 0.9)), 5e-9),  # the last digits, whatever other seeds give
        (Moved(0.5, (0.5 + 1e-8, 0.5), (0.1, 0.9)), 1e-7),  # ten times what a machine changes
        (Moved(0.5, (0.501, 0.5), (0.4, 0.6)), 0.57),  # chaos: four deviations over the seeds
        (Moved(0.5, (0.51, 0.5), (0.4995, 0.5005)), 0.03),  # and at least what machines differ by, three times
        (Moved(0.0, (0.0,), (1.0, 2.0)), 1e-12),
        (Moved(0.5, (0.501, 0.5), (0.4, 0.6), 0.05), 0.05),  # but no farther than the chapter lets it
        (Moved(0.5, (0.52, 0.5), (0.4, 0.6), 0.05), 0.06),  # unless a machine moves it
        (Moved(3, (), ()), 3e-8),
    ],
)
def test_how_far_a_number_may_be_off(moved: Moved, within: float) -> None:
    assert moved.within == pytest.approx(within, rel=0.11)  # rounded up to two digits


def test_what_was_measured_takes_the_tolerances_place_on_a_processor() -> None:
    found = number(value=1.0, rtol=0.5, id=None)
    held = regression.entry(found) | {"within": 1e-3}
    moved = number(value=1.01, rtol=0.5, id=None)
    assert regression.differences([moved], {"x": held}) == [
        "x: moved to 1.01; expected 1.0 ± 0.001 (off by 0.01)",
    ]
    assert regression.differences([number(value=1.01, rtol=0.5, id=None, device="cuda")], {"x": held}) == []


def test_rivals_and_broken_variants_are_held() -> None:
    claimed = {"value": 1e-15, "below": 1e-12}
    held = regression.entry(number(**claimed)) | {"others": {"rival": [0.5, 1e-3], "sign": [1.0, 1e-3]}}
    assert regression.differences([number(**claimed, rivals={"rival": 0.5}, rejects={"sign": 1.0})], {"x": held}) == []
    (problem,) = regression.differences([number(**claimed, rivals={"rival": 0.6}, rejects={"sign": 1.0})], {"x": held})
    assert problem == "x: 'rival' moved to 0.6; expected 0.5 ± 0.001 (off by 0.1)"
    (problem,) = regression.differences([number(**claimed, rivals={"rival": 0.5})], {"x": held})
    assert problem == "x: its rivals and broken variants are rival; expected rival, sign"


CHAPTER = """<<import torch
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
    book: Book = write_book(good=CHAPTER)
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
