"""A check on a page: its badge, what stands behind it, and that a keyboard and a link of the ledger reach it."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import browser_cases
import pytest
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from myst_nb.sphinx_ import HideCodeCellNode

from sslbook.book import badges, sphinx_ext
from sslbook.book.folding import badge, fold_checks
from sslbook.book.plain import MARK, Links, mark_cells, pieces
from sslbook.book.values import Number

QUIET = "Where these numbers come from"


def number(name: str, id: str | None = "A-Thm3", **more: Any) -> Number:
    made = {
        "chapter": "one",
        "scale": "quick",
        "seed": 0,
        "device": "cpu",
        "device_name": "a processor",
        "dtype": "float64",
    }
    return Number(name, 2e-16, id, **made, seconds=0.1, versions={}, **({"below": 1e-14} | more))


def strip(name: str, id: str | None = "A-Thm3", **more: Any) -> str:
    return badges.badge(number(name, id, **more))


def cell(*outputs: str, tags: tuple[str, ...] = ("hide-cell",), index: int = 4) -> nodes.container:
    """A cell as MyST-NB makes it: the code, then what it printed, in one fold."""
    source = nodes.container("", nodes.literal_block("", "claim(…)"), nb_element="cell_code_source")
    shown = nodes.container(
        "", *(nodes.raw("", html, format="html") for html in outputs), nb_element="cell_code_output"
    )
    fold = HideCodeCellNode(prompt_show="Show", prompt_hide="Hide", classes=["above-input"])
    fold += [source, *([shown] if outputs else [])]
    return nodes.container("", fold, cell_index=index, classes=["cell", *(f"tag_{tag}" for tag in tags)])


def page(*cells: nodes.container) -> nodes.document:
    tree = new_document("page")
    tree += nodes.section("", nodes.title("", "One"), *cells)
    return tree


def html_of(tree: nodes.Node) -> str:
    """The raw HTML of a tree with the code where it stands; enough to see what is before what."""
    return "".join(
        node.astext() if isinstance(node, nodes.raw) else f"<pre>{node.astext()}</pre>"
        for node in tree.findall(lambda n: isinstance(n, (nodes.raw, nodes.literal_block)))
    )


def test_one_check_is_its_line_without_name_link_or_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLBOOK_LEDGER", "ledger.html")
    whole = strip("thm3-gap")
    assert "<code>thm3-gap</code>" in whole
    shown = badge([whole])
    assert BeautifulSoup(shown, "html.parser").get_text(" ", strip=True) == "✓ A-Thm3 =\xa02\xa0×\xa010⁻¹⁶ ≤\xa010⁻¹⁴"
    assert not [part for part in ("<a ", "id=", "<code", "<div", "<details") if part in shown], "a summary is pressed"
    assert shown.count('aria-label="check passed"') == 1


def test_up_to_three_checks_have_a_line_each() -> None:
    lines = BeautifulSoup(badge([strip("a"), strip("b", "A-Thm4"), strip("c", None)]), "html.parser")
    shown = [line.get_text(" ", strip=True).partition(" =")[0] for line in lines.select(".sslbook-proved-check")]
    assert shown == ["✓ A-Thm3", "✓ A-Thm4", "✓ c"], "a check of no claim goes by its own name"


def test_a_check_in_words_is_known_by_them() -> None:
    whole = strip("thm3-gap", what="step by listing, <largest> error")
    said = BeautifulSoup(whole, "html.parser").select_one(".sslbook-check-line")
    assert said is not None
    number = "=\xa02\xa0×\xa010⁻¹⁶ ≤\xa010⁻¹⁴"
    assert said.get_text(" ", strip=True) == f"✓ step by listing, <largest> error {number} A-Thm3 thm3-gap"
    shown = BeautifulSoup(badge([whole]), "html.parser").get_text(" ", strip=True)
    assert shown == f"✓ step by listing, <largest> error {number}"


def test_of_more_it_says_how_many_and_of_which_claims() -> None:
    many = [strip("a", "B-Thm8"), strip("b"), strip("c"), strip("d", None)]
    assert BeautifulSoup(badge(many), "html.parser").get_text() == "✓ 4 checks: A-Thm3, B-Thm8"
    assert BeautifulSoup(badge([strip(name, None) for name in "abcd"]), "html.parser").get_text() == "✓ 4 checks"


def test_a_folded_cell_without_a_check_says_so_quietly() -> None:
    assert BeautifulSoup(badge([]), "html.parser").get_text() == QUIET
    tree = page(cell())
    fold_checks(tree)
    assert f'<span class="sslbook-proved-quiet">{QUIET}</span></summary>' in html_of(tree)


def test_behind_the_badge_stand_the_strips_then_the_code() -> None:
    tree = page(cell(strip("a", rejects={"sign": 1.0}), "<p>a table</p>"))
    fold_checks(tree)
    html = html_of(tree)
    parts = [
        '<details class="sslbook-proved"><summary>',
        'id="check-a"',
        "a table",
        "<pre>claim(…)</pre>",
        "</details>",
    ]
    places = [html.index(part) for part in parts[:-1]] + [html.rindex(parts[-1])]
    assert places == sorted(places)
    assert '<details open class="sslbook-check-rejects">' in html, "who opened the badge wants all of it"
    assert html.count("<details") == html.count("</details>") == 2
    assert not list(tree.findall(HideCodeCellNode)), "one thing to press, not two"


def test_other_cells_stay_as_they_are() -> None:
    tree = page(cell(strip("a"), tags=("hide-input",)), nodes.container("", cell_index=5, classes=["tag_hide-cell"]))
    before = tree.pformat()
    fold_checks(tree)
    assert tree.pformat() == before


def test_a_notebook_has_the_cell_and_none_of_the_page_s_badge() -> None:
    tree = page(cell(strip("a"), index=0))
    fold_checks(tree)
    mark_cells(tree)
    code = '<div class="highlight-ipython3 notranslate"><div class="highlight"><pre>claim(…)</pre></div>\n</div>'
    body = html_of(tree).replace("<pre>claim(…)</pre>", code)
    body = body.replace("</details>\n", "</details></div>").replace(
        "<details class", '<div class="cell"><details class', 1
    )
    (piece,) = pieces(body, Links([]))
    assert (piece.kind, piece.cell, piece.text) == ("code", 0, "")
    assert MARK in body


# ---- In a browser ---------------------------------------------------------------------------------------------------

LONG = '<p style="height: 3000px">A long way down.</p>'
PAGE = """<!DOCTYPE html><html lang="en" data-theme="light"><head><title>One</title><script src="book.js"></script>
<link rel="stylesheet" href="book.css"></head>
<body><main class="bd-article"><a id="link" href="#check-b">to b</a>{long}{first}{long}{second}{long}</main></body></html>"""
SEEN = "return ['check-a', 'check-b'].map(id => document.getElementById(id).checkVisibility())"
IN_VIEW = """
const box = document.getElementById(arguments[0]).getBoundingClientRect();
return box.bottom > 0 && box.top < innerHeight - 20;
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a page with two badges is served, with the book's own script."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("book.js", "book.css"):
        (folder / name).write_bytes((sphinx_ext.ASSETS / "static/sslbook" / name).read_bytes())
    trees = [page(cell(strip(name, rejects={"sign": 1.0}))) for name in "ab"]
    for tree in trees:
        fold_checks(tree)
    first, second = map(html_of, trees)
    (folder / "one.html").write_text(PAGE.format(long=LONG, first=first, second=second), encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/one.html"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    driver = browser_cases.headless("hide-scrollbars", "window-size=1300,900")
    yield driver
    driver.quit()


def settles(driver: Any, script: str, wanted: object, *arguments: object) -> bool:
    from selenium.webdriver.support.wait import WebDriverWait

    return bool(WebDriverWait(driver, 60, 0.05).until(lambda d: d.execute_script(script, *arguments) == wanted))


@browser_cases.in_browser
def test_a_link_of_the_ledger_opens_the_badge_that_holds_the_check(driver: Any, address: str) -> None:
    driver.get(address)
    assert settles(driver, SEEN, [False, False])
    driver.get("about:blank")
    driver.get(f"{address}#check-a")  # on load
    assert settles(driver, SEEN, [True, False])
    assert settles(driver, IN_VIEW, True, "check-a")
    driver.execute_script("location.hash = 'check-b'")  # on hashchange
    assert settles(driver, SEEN, [True, True])
    assert settles(driver, IN_VIEW, True, "check-b")


@browser_cases.in_browser
def test_a_link_opens_it_again_after_it_was_closed(driver: Any, address: str) -> None:
    driver.get("about:blank")
    driver.get(f"{address}#check-b")
    assert settles(driver, SEEN, [False, True])
    driver.execute_script("document.querySelectorAll('.sslbook-proved')[1].open = false; scrollTo(0, 0)")
    driver.execute_script("document.getElementById('link').click()")  # the address does not change
    assert settles(driver, SEEN, [False, True])
    assert settles(driver, IN_VIEW, True, "check-b")


@browser_cases.in_browser
def test_a_keyboard_opens_a_badge_and_sees_where_it_is(driver: Any, address: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver.get("about:blank")
    driver.get(address)
    body = driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB, Keys.TAB)
    at = driver.switch_to.active_element
    assert at.tag_name == "summary"
    assert at.value_of_css_property("outline-style") == "solid"
    at.send_keys(Keys.ENTER)
    assert settles(driver, SEEN, [True, False])
    at.send_keys(Keys.SPACE)
    assert settles(driver, SEEN, [False, False])
