"""The ledger: the claims file is well formed, and the joined ledger tells what was checked."""

from __future__ import annotations

import json
import math

import pytest
from conftest import number

from bookbuild import ledger
from bookbuild.ledger import margins, problems
from sslchapters.intervals import Interval
from sslchapters.ledger import VERDICTS, join, read_claims

CHECK = number("gap", 1e-15, below=1e-12, rejects={"sign": 1.4, "nothing": float("nan")})
MEASURE = number("seen", value=3, rtol=1e-6)


def settled(write_book, verdict: str) -> list[ledger.Claim]:
    path = write_book().claims
    path.write_text(path.read_text().replace("verdict: open", f"verdict: {json.dumps(verdict)}", 1))
    return read_claims(path)


@pytest.mark.parametrize("verdict", [v for v in VERDICTS if v != "open"])
def test_a_verdict_needs_a_check(verdict: str, write_book) -> None:
    claims = settled(write_book, verdict)
    assert problems(join(claims, [CHECK]), [CHECK]) == []
    for numbers in ([], [MEASURE]):
        assert problems(join(claims, numbers), numbers) == [
            f"A-Thm1: its verdict is {verdict!r}, but no executed check carries its id"
        ]


def test_a_check_stands_in_the_chapter_that_its_claim_names(write_book) -> None:
    claims = settled(write_book, "holds")
    elsewhere = [number("gap", 1e-15, below=1e-12, chapter="goood")]
    assert problems(join(claims, elsewhere), elsewhere) == [
        "A-Thm1: its chapter is 'good', but its checks are in goood"
    ]


def test_the_page(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    settled(lambda: book, "holds")
    hidden = number("unseen", value=10, expect=10, dtype="float", anchor=None, rejects={"a_b*c": 2.0})
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: [CHECK, hidden, MEASURE])
    page = ledger.page(book)
    assert "2 claims, 2 checks" in page
    tag = '<span class="sslbook-verdict sslbook-verdict-holds">holds</span>'
    settled_part, _, folded = page.partition('<details class="sslbook-fold"><summary>One open claim</summary>')
    assert f"(ledger-a-thm1)=\n{{.sslbook-entry}}\n**A-Thm1** {tag}\\\nOne plus one is two." in settled_part
    assert "**A-Thm2**" in folded
    assert "{doc}`Read the chapter <good>`" in page
    assert "## Later\n\nThe chapter is not written yet." in page
    check = next(line for line in page.splitlines() if ">gap<" in line)
    assert check == '- <a href="good.html#check-gap"><code>gap</code></a> =\u00a010⁻¹⁵ ≤\u00a010⁻¹²'
    assert page.count('<details class="sslbook-checked"><summary>3 checks</summary>') == 1
    assert '<a href="good.html"><code>unseen</code></a> =\u00a010, exactly' in page, "no link to what no page shows"
    assert "=\u00a03 (measured)" in page


@pytest.mark.parametrize(
    ("value", "test", "others", "rival"),
    [
        (2e-15, {"below": 1e-12}, {"sign": 0.5}, 5e11),
        (0.9997, {"above": 0.99}, {"no augmentation": 0.985, "sign": -1.0}, 1 + 0.005 / 0.99),
        (1.01, {"expect": 1.0, "atol": 0.05}, {"flat": 0.8}, 4),
        (-0.5, {"below": -0.25}, {"less": -0.1}, 1.6),
        (7, {"expect": 7, "atol": 0}, {"one more": 8}, math.inf),
        (0.4, {"above": 0.0}, {"none": -0.1}, 2),
        (0.5, {"below": 1.0, "above": 0.4}, {"a": 1.5}, 1.5),
        (0.1, {"below": 1.0}, {"broken": math.nan}, math.inf),
        (2.0, {"above": 0.5}, {"flat": Interval(0.3, 0.1, 0.4, 5)}, 1.8),
    ],
)
def test_a_rivals_margin_is_a_factor(value: float, test: dict, others: dict, rival: float) -> None:
    ((times, nearest, _),) = margins([number("x", value=value, rivals=others, **test), number("measured", value=1.0)])
    assert times == pytest.approx(rival)
    assert nearest == next(iter(others))
