"""The ledger: the claims file is complete and well formed, and the joined ledger tells what was checked."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_cases
import pytest
from conftest import number

from bookbuild import ledger
from bookbuild.layout import find_book
from bookbuild.ledger import margins, problems
from sslbook import cli
from sslchapters.intervals import Interval
from sslchapters.ledger import VERDICTS, as_json, join, read_claims

ROOT = Path(__file__).resolve().parents[2]

CHECK = number("gap", 1e-15, below=1e-12, rejects={"sign": 1.4, "nothing": float("nan")})
MEASURE = number("seen", value=3, rtol=1e-6)


def test_the_claims_are_all_there() -> None:
    claims = read_claims(ROOT / "data" / "claims.yml")
    assert Counter(claim.paper for claim in claims) == {"A": 40, "B": 25, "C": 30}
    assert all(claim.paper == claim.id[0] and claim.statement.endswith((".", ").")) for claim in claims)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{id: A, paper: A, chapter: c, kind: X, verdict: open, statement: s}", "A: kind: got 'X'"),
        ("{id: A, paper: A, chapter: c, kind: I, verdict: open}", "A: .*statement"),
        ("{id: A, paper: A, chapter: c, kind: I, verdict: open, statement: s, colour: red}", "A: .*colour"),
        ("{id: A-Thm1, paper: A, chapter: c, kind: I, verdict: open, statement: s}", "given twice: A-Thm1"),
    ],
)
def test_a_bad_claims_file_is_refused(line: str, message: str, write_book) -> None:
    book = write_book()
    book.claims.write_text(book.claims.read_text() + f"- {line}\n")
    with pytest.raises(ValueError, match=message):
        read_claims(book.claims)


def test_json_has_one_object_for_each_claim(write_book) -> None:
    objects = as_json(join(read_claims(write_book().claims), [MEASURE, CHECK]))
    measured = {
        "scale": "quick",
        "value": 1e-15,
        "expected": 1e-12,
        "tolerance": "≤ 1e-12",
        "device": "cpu",
        "seconds": 0.123,
    }
    fields = ["id", "paper", "statement", "chapter", "kind", "verdict", *measured, "note", "checks"]
    assert [list(item) for item in objects] == [fields, fields]
    done, undone = objects
    assert {part: done[part] for part in measured} == measured
    assert [check["name"] for check in done["checks"]] == ["gap", "seen"], "checks come before measurements"
    assert done["checks"][0]["rejects"] == {"sign": 1.4, "nothing": "nan"}
    assert all(undone[part] is None for part in measured)
    assert undone["verdict"] == "open"
    json.dumps(objects, allow_nan=False)


def test_an_interval_is_one_check(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = number("mean", value=1.5, above=0.0, rivals={"flat": -0.5}, low=1.0, high=2.0, n=5)
    part = number("mean-low", value=1.0, above=0.0, part_of="mean")
    book = write_book(good="<<1>>")
    (entry, _) = join(read_claims(book.claims), [whole, part])
    assert entry.checks == (whole,)
    told = as_json([entry])[0]["checks"][0]
    assert (told["low"], told["high"], told["n"], told["rivals"]) == (1.0, 2.0, 5, {"flat": -0.5})
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: [whole, part])
    page = ledger.page(book)
    assert "=\u00a01.5\u00a0(1\u00a0to\u00a02,\u00a0n\u00a0=\u00a05) ≥\u00a00" in page


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


def test_an_id_that_no_claim_has_is_found(write_book) -> None:
    numbers = [number("gap", id="A-Thm11", below=1.0), number("free", id=None, below=1.0)]
    found = problems(join(read_claims(write_book().claims), numbers), numbers)
    assert len(found) == 1
    assert found[0].startswith("good: gap: id: got 'A-Thm11'; did you mean A-Thm1")


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


def test_indices_and_exponents_are_set_as_such() -> None:
    assert (
        ledger._words("f_{l-1}(x), W_p = (1 + κ)^t, a*b, x_pᵀ and ρ_{0μ}²")
        == "f<sub>l-1</sub>(x), W<sub>p</sub>\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}(1 + κ)<sup>t</sup>, a\\*b, "
        "x<sub>p</sub>ᵀ and ρ<sub>0μ</sub>²"
    )


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


def test_the_margins_are_listed(write_book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    book = write_book(good="<<1>>")
    numbers = [number("far", value=1e-13, below=1e-12, rivals={"one": 1.0}), number("bare", value=1e-15, below=1e-12)]
    numbers.append(number("close", value=0.5, below=1.0, rivals={"nearly": 1.001}))
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: numbers)
    monkeypatch.chdir(book.root)
    assert cli.main(["margins", "--worst", "5"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == ["close", "far"]


def test_a_check_that_fails_is_marked(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: [number("gap", 2.0, below=1.0), CHECK])
    failed, passed = [line for line in ledger.page(book).splitlines() if line.startswith("- <a")]
    assert failed.endswith("✗</span> fails in this run")
    assert "✗" not in passed


SEEN = """
return [...document.querySelectorAll("p.sslbook-entry")].filter(p => p.checkVisibility()).map(p => [
  p.querySelector("strong").textContent, p.querySelector(".sslbook-verdict").textContent]);
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    page = find_book(ROOT).html / "chapters/ledger.html"
    if not page.is_file():
        pytest.skip("the book is not built: make book")
    driver = browser_cases.headless("window-size=1300,900", logging={"browser": "ALL"})
    driver.get(page.as_uri())
    yield driver
    driver.quit()


@browser_cases.in_browser
def test_the_filter_shows_what_it_is_asked_for_and_says_how_many(driver: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select
    from selenium.webdriver.support.wait import WebDriverWait

    claims = {claim.id: claim.verdict for claim in read_claims(ROOT / "data" / "claims.yml")}
    form = driver.find_element(By.CSS_SELECTOR, "form.sslbook-filter")
    status = form.find_element(By.CSS_SELECTOR, "[role=status]")
    field, verdict = form.find_element(By.CSS_SELECTOR, "input"), form.find_element(By.CSS_SELECTOR, "select")
    assert [box.accessible_name for box in (form, field, verdict)] == ["Filter the claims", "Words", "Verdict"]
    assert status.text == f"{len(claims)} claims"
    unfiltered = driver.execute_script(SEEN)

    def wait(text: str) -> None:
        WebDriverWait(driver, 60, 0.05).until(lambda d: status.text == text)

    for chosen in sorted(set(claims.values())):
        Select(verdict).select_by_visible_text(chosen)
        wanted = [id for id, given in claims.items() if given == chosen]
        wait(f"{len(wanted)} of {len(claims)} claims")
        seen = driver.execute_script(SEEN)
        assert sorted(id for id, _ in seen) == sorted(wanted), "open claims are unfolded"
        assert {given for _, given in seen} == {chosen}
    Select(verdict).select_by_index(0)
    field.send_keys("a-thm3 COVARIANCE")
    WebDriverWait(driver, 60, 0.05).until(lambda d: status.text.startswith("1 of"))
    assert [id for id, _ in driver.execute_script(SEEN)] == ["A-Thm3"]
    heads = "return [...document.querySelectorAll('article h2')].filter(h => h.checkVisibility()).length"
    assert driver.execute_script(heads) == 1
    field.send_keys(" zzyzx")
    wait(f"0 of {len(claims)} claims")
    # A link to a claim that the filter hides shows it again.
    driver.execute_script("location.hash = 'ledger-b-thm8'")
    wait(f"{len(claims)} claims")
    assert driver.execute_script(SEEN) == unfiltered
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
