"""How a passed check looks: its line, its rivals in a table, what it rejects folded, and numbers on their side of the bar."""

from __future__ import annotations

import math
import os

import pytest

from sslbook.book import claims
from sslbook.book.badges import badge, entry_anchor, line, outcome
from sslbook.book.claims import begin, claim, measure
from sslbook.book.values import Number, short
from sslbook.stats.intervals import Interval

FIVE = Interval(1.2, 0.4, 2.0, 5)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Number]:
    """The numbers that would go into the notebook, of a run of the test's own."""
    sent: list[Number] = []
    monkeypatch.setattr(claims, "_session", claims._Session())
    monkeypatch.delenv("SSLBOOK_THREADS", raising=False)
    real = claims._publish
    monkeypatch.setattr(claims, "_publish", lambda number: sent.append(number) or real(number))
    begin("covariance", scale="quick", seed=3, device="cpu")
    return sent


def test_the_badge(monkeypatch: pytest.MonkeyPatch, published: list[Number]) -> None:
    monkeypatch.delenv("SSLBOOK_LEDGER", raising=False)
    claim("thm1-gap", 3.1e-16, id="A-Thm1", below=1e-12, rejects={"tower <2>'s sign": 1.4})
    assert line(published[0]) == "✓ A-Thm1  thm1-gap = 3.1e-16 ≤ 1e-12 · rejects: tower <2>'s sign (1.4)"
    html = badge(published[0])
    assert 'id="check-thm1-gap"' in html
    nobreak = '<span class="sslbook-nobreak">{}</span>'.format
    assert nobreak("=\u00a03.1\u00a0×\u00a010⁻¹⁶") + " " + nobreak("≤\u00a010⁻¹²") in html
    assert nobreak("<strong>A-Thm1</strong>") in html
    assert '<details class="sslbook-check-rejects"><summary>rejects one broken variant</summary>' in html
    assert f"<li>tower &lt;2&gt;&#x27;s sign: {nobreak('1.4')}</li>" in html
    assert "<a " not in html
    monkeypatch.setitem(os.environ, "SSLBOOK_LEDGER", "ledger.html")
    assert '<a href="ledger.html#ledger-a-thm1">' in badge(published[0])
    assert entry_anchor("A-5.1a") == "ledger-a-5-1a"


def test_rivals_stand_in_a_table(published: list[Number]) -> None:
    wrong = {"no <augmentation>": 0.985, "another loss": Interval(0.5, 0.25, 0.75, 4)}
    claim("cosine", 0.99971, id="A-Thm3", above=0.99, rivals=wrong, rejects={"sign": -1.0})
    assert line(published[0]) == (
        "✓ A-Thm3  cosine = 0.9997 ≥ 0.99 · nearest rivals: no <augmentation> (0.985), another loss (0.5 (0.25 to 0.75, n = 4))"
        " · rejects: sign (-1)"
    )
    html = badge(published[0])
    assert '<table class="sslbook-check-rivals"><caption>nearest rivals</caption><tbody><tr><th scope="row">' in html
    assert 'no &lt;augmentation&gt;</th><td><span class="sslbook-nobreak">0.985</span></td></tr>' in html
    assert "0.5 (0.25 to 0.75, n = 4)" in html
    assert html.index("</table>") < html.index("<details")
    claim("rate", FIVE, id="A-Thm3", above=0, rivals={"flat": 0.0 - 1e-9})
    assert "=\u00a01.2\u00a0(0.4\u00a0to\u00a02,\u00a0n\u00a0=\u00a05)" in badge(published[1])
    assert "nearest rival</caption>" in badge(published[1])


def test_a_value_is_printed_on_its_side_of_the_bar() -> None:
    assert short(0.0150001) == "0.015"
    assert short(0.0150001, 0.015) == "0.0150001"
    assert short(0.99971) == "0.9997", "it is not one"
    assert short(2.0 + 1e-9) == "2"
    assert short(1234.5) == "1234.5"
    assert short(1.5e7) == "1.5e+07"
    assert short(-0.4999, -0.5) == "-0.4999"
    assert short(math.nan, 1.0) == "nan"


def test_what_a_badge_says_of_a_value(published: list[Number]) -> None:
    claim("size", 10, id="A-NTK", expect=10, atol=0, rejects={"less": 9, "more": 11})
    claim("rate", -0.487, id="A-Thm3", expect=-0.5, atol=0.06, below=0.0, rejects={"flat": 0.1})
    measure("seen", 2e-9)
    size, rate, seen = map(outcome, published)
    assert size == ["=\u00a010, exactly"]
    assert rate == ["=\u00a0−0.487", "≈\u00a0−0.5\u00a0±\u00a00.06", "and\u00a0≤\u00a00"]
    assert seen == ["=\u00a02\u00a0×\u00a010⁻⁹"]
    assert "<summary>rejects 2 broken variants</summary>" in badge(published[0])
    assert "rejects" not in badge(published[2])
