"""The ledger: the claims file is complete and well formed, and the joined ledger tells what was checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_cases
import pytest
from test_book_plots import contrast, linear

from sslbook import cli
from sslbook.book import ledger
from sslbook.book.layout import find_book
from sslbook.book.ledger import LOOSE, VERDICTS, as_json, join, margin_lines, margins, problems, read_claims
from sslbook.book.sphinx_ext import ASSETS
from sslbook.book.values import Number
from sslbook.stats.intervals import Interval

ROOT = Path(__file__).resolve().parents[2]

IDS = """
A-Def1 A-Lem1 A-Thm1 A-Eq41 A-Thm2 A-Lem2 A-Thm3 A-Eq56 A-Thm4 A-Eq80 A-Eq7 A-Cor1 A-NTK A-5.1a A-5.1b A-5.1c A-5.1d
B-Thm5 B-MoG B-Fig7 B-Fig8 A-RN A-HLTM A-Lem3 A-Lem4 A-Lem5 A-Lem6 A-Lem7 A-Lem8 A-Fig11 A-Thm5 A-Lem9 A-Thm6 A-Eq15
A-Tab4 A-Tab6 B-Tab2 A-Fig13 A-Fig14 B-Fig9 B-Fig10 B-Eq11 B-Thm8 B-Cor1 B-Cor2 B-Thm9 B-F1 B-F2 B-F3 B-F4 B-Fig5
B-Tab3 B-Tab4 B-Tab5 B-Tab7 B-Tab8 B-Tab9 B-Tab10 C-Eq2 C-Lem1 C-Lem2 C-Cor1 C-Lem3 C-Lin C-Eq8 C-Eq9 C-Thm1 C-Thm2
C-Cor2 C-Thm3 C-Fig1 C-B5 C-Fig8 C-Lem4 C-Thm4 C-Lem5 C-Thm5 C-Thm6 C-Lem6 C-Cor3 C-Fig4 C-Fig9 C-Fig10 C-Fig5 C-Fig11
C-Tab1 C-Fig12 C-Fig13 A-Tab2 A-Tab3 A-IN B-IN
"""


def number(name: str, id: str | None = "A-Thm1", **rest: object) -> Number:
    fixed = {"value": 1e-15, "chapter": "good", "scale": "quick", "seed": 0, "device": "cpu", "device_name": "a CPU"}
    fixed |= {"dtype": "float64", "seconds": 0.123, "versions": {"torch": "2.0"}, "anchor": f"check-{name}"}
    return Number(name=name, id=id, **(fixed | rest))


CHECK = number("gap", below=1e-12, rejects={"sign": 1.4, "nothing": float("nan")})
MEASURE = number("seen", value=3, rtol=1e-6)


def test_the_claims_are_all_there() -> None:
    claims = read_claims(ROOT / "data" / "claims.yml")
    assert sorted(claim.id for claim in claims) == sorted(IDS.split())
    for claim in claims:
        assert claim.paper == claim.id[0]
        assert len(claim.statement) > 20
        assert claim.statement.endswith((".", ")."))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{id: A, paper: A, chapter: c, kind: X, verdict: open, statement: s}", "A: kind: got 'X'"),
        ("{id: A, paper: A, chapter: c, kind: I, verdict: maybe, statement: s}", "A: verdict: got 'maybe'"),
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
    numbers = [number("gap", "A-Thm11", below=1.0), number("free", None, below=1.0)]
    found = problems(join(read_claims(write_book().claims), numbers), numbers)
    assert len(found) == 1
    assert found[0].startswith("good: gap: id: got 'A-Thm11'; did you mean A-Thm1")


def test_the_page(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    hidden = number("unseen", below=1.0, anchor=None, rejects={"a_b*c": 2.0})
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: [CHECK, hidden, MEASURE])
    page = ledger.page(book)
    assert page.startswith("# Ledger\n")
    assert "2 claims, 2 checks" in page
    tag = '<span class="sslbook-verdict sslbook-verdict-open">open</span>'
    assert f"- {tag} 2: no run of the claim's size" in page
    assert "**A** is {cite:t}`tian2020`" in page
    assert page.count('<details class="sslbook-fold"><summary>One open claim</summary>\n\n(ledger-') == 2
    assert page.count("</details>") == 3
    assert "## The chapter good" in page
    assert "{doc}`Read the chapter <good>`" in page
    assert "## Later\n\nThe chapter is not written yet." in page
    assert f"(ledger-a-thm1)=\n{{.sslbook-entry}}\n**A-Thm1** {tag}\\\nOne plus one is two." in page
    check = next(line for line in page.splitlines() if ">gap<" in line)
    assert check == '- <a href="good.html#check-gap"><code>gap</code></a> =\u00a010⁻¹⁵ ≤\u00a010⁻¹²'
    assert page.count('<details class="sslbook-checked"><summary>3 checks</summary>') == 1
    assert '<a href="good.html"><code>unseen</code></a>' in page, "no link to a line that the page does not show"
    assert "=\u00a03 (measured)" in page
    assert "\n|" not in page, "no table, which a phone would have to scroll"


def test_settled_claims_are_not_folded(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    settled(lambda: book, "holds")
    monkeypatch.setattr(ledger, "all_numbers", lambda book, scale: [number("n", value=10, expect=10, dtype="float")])
    before, _, after = ledger.page(book).partition('<details class="sslbook-fold"')
    assert "sslbook-verdict-holds" in before.partition("## ")[2]
    assert "=\u00a010, exactly" in before
    assert "**A-Thm1**" not in after


def test_every_tag_can_be_read() -> None:
    """Each verdict's tag has its colours in both themes, with a contrast of at least 4.5."""
    sheet = (ASSETS / "static/sslbook/book.css").read_text(encoding="utf-8")
    for verdict, tag in ledger.TAGS.items():
        colour = re.search(rf"sslbook-verdict-{tag} {{ --tag: var\((--[\w-]+)\); --tag-wash: var\((--[\w-]+)\)", sheet)
        assert colour is not None, verdict
        inks, washes = (re.findall(rf"{name}: #(\w{{6}});", sheet) for name in colour.groups())
        assert len(inks) == len(washes) == 2, "one for light, one for dark"
        for ink, wash in zip(inks, washes, strict=True):
            assert contrast(linear(f"#{ink}"), linear(f"#{wash}")) >= 4.5, (verdict, ink, wash)


def test_indices_and_exponents_are_set_as_such() -> None:
    assert (
        ledger._words("f_{l-1}(x), W_p = (1 + κ)^t, a*b, x_pᵀ and ρ_{0μ}²")
        == "f<sub>l-1</sub>(x), W<sub>p</sub>\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}(1 + κ)<sup>t</sup>, a\\*b, "
        "x<sub>p</sub>ᵀ and ρ<sub>0μ</sub>²"
    )


# ---- Margins: bars near what is measured, rivals far from the bar, and a count of loose bars that may only fall -------

LEFT = {
    "audit_byol": 0,
    "audit_hltm": 2,
    "audit_modulation": 0,
    "audit_training": 2,
    "byol": 2,
    "covariance": 6,
    "dual_networks": 0,
    "emergence": 1,
    "hltm": 0,
    "landscape": 0,
    "linear_byol": 2,
    "modulation": 0,
    "operators_today": 4,
    "training": 1,
    "worked": 0,
}
"""How many checks of a chapter may have a bar of more than a hundred times what is measured; none may be added."""


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
    (found,) = margins([number("x", value=value, rivals=others, **test)])
    assert found.bar == pytest.approx(bar, rel=1e-3)
    assert found.rival == pytest.approx(rival)
    assert found.number.criterion.passes(value)


def test_an_interval_has_the_margin_of_its_worse_end() -> None:
    whole = number("gain", value=2.0, above=0.5, low=1.0, high=3.0, n=5, rivals={"flat": Interval(0.3, 0.1, 0.4, 5)})
    part = number("gain-low", value=1.0, above=0.5, part_of="gain")
    (found,) = margins([whole, part, number("measured", value=1.0, rtol=1e-6)])
    assert (found.bar, found.rival) == (2.0, 5.0)


def test_the_worst_comes_first() -> None:
    tight, wide = (
        number("tight", value=2e-13, below=1e-12),
        number("wide", value=5e-16, below=1e-12, rejects={"sign": 2e-12}),
    )
    found = margins([tight, wide])
    assert [margin.number.name for margin in found] == ["wide", "tight"]
    assert found[0].place == pytest.approx(math.log(2000) / math.log(4000))
    assert margin_lines(found, 1)[1:] == [
        "    2e+03          2  good: wide (A-Thm1) ≤ 1e-12  nearest: sign",
        "Bars of more than 100 times what is measured: good 1",
    ]


def test_the_command(write_book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    book = write_book(good="<<1>>")
    numbers = [number("near", value=1e-13, below=1e-12, rivals={"far": 1.0}), number("loose", value=1e-15, below=1e-12)]
    numbers.append(number("close", value=0.5, below=1.0, rivals={"nearly": 1.001}))
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
    if not (find_book(ROOT).executed("quick") / f"{chapter}.ipynb").exists():
        pytest.skip("the chapter is not executed: make book")
    own = [n for n in ledger.all_numbers(find_book(ROOT), "quick") if n.chapter == chapter]
    worst = [margin for margin in margins(own) if margin.bar > LOOSE]
    assert len(worst) <= LEFT[chapter], "\n".join(margin_lines(worst, 100))
    assert [margin.number.name for margin in worst if not margin.number.why] == [], "a loose bar has a reason"


# ---- The filter, in a browser, over the built book -------------------------------------------------------------------

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
