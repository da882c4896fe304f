"""Formulas come where the reader is first, the page stands still while the others get their size, and paper has them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import browser_cases
import pytest

from sslbook.book import sphinx_ext

pytestmark = browser_cases.MARKS

ROWS = 150
# Typeset it is six times as high as its source; in a browser that, as Safari, keeps no place by itself.
HEIGHT = r"\[\begin{pmatrix} 1 \\ 2 \\ 3 \\ 4 \\ 5 \\ 6 \end{pmatrix}\]"
ROW = '<section id="s{0}"><h2>{0}</h2><div class="math">{1}</div><p>and <span class="math">\\(x_{{{0}}}\\)</span></p></section>'
PAGE = """<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>One</title>
<style>html {{ overflow-anchor: none; scroll-behavior: smooth }}</style><link rel="stylesheet" href="book.css">
<script>window.MathJax = {config}; window.seen = [];
document.addEventListener("sslbook:typeset", (event) => {{
  const rows = event.detail.map((formula) => formula.closest("section").id.slice(1));
  window.seen.push([Number(rows[0]), Number(rows.at(-1)), event.detail.length]);
  if (window.asked) {{ window.asked = 0; window.dispatchEvent(new Event("beforeprint")); }}
}});</script>
<script defer src="book.js"></script><script defer src="formulas.js"></script><script defer src="mathjax.js"></script></head>
<body><main class="bd-article"><a id="link" href="#s120">to 120</a>{rows}
<section id="s999"><details id="fold"><summary>more</summary>
<p style="width: 150px"><span class="math">\\({long}\\)</span></p></details></section>
</main></body></html>"""
RAW = "return [...document.querySelectorAll('.math')].filter(formula => !formula.querySelector('mjx-container')).length"
TOP = "return Math.round(document.getElementById(arguments[0]).getBoundingClientRect().top)"
DONE = (
    "const done = arguments[0]; MathJax.startup.promise.then(() => requestAnimationFrame(() => setTimeout(done, 50)));"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of many formulas, by its address, with the book's own scripts."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("book.js", "book.css", "formulas.js", "mathjax.js"):
        (folder / name).write_bytes((sphinx_ext.ASSETS / "static/sslbook" / name).read_bytes())
    rows = "".join(ROW.format(i, HEIGHT) for i in range(ROWS))
    text = PAGE.format(config=json.dumps(sphinx_ext.MATHJAX), rows=rows, long="+".join("abcdefghijklmnopqrstuvwxyz"))
    (folder / "one.html").write_text(text, encoding="utf-8")
    return (folder / "one.html").as_uri()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    driver = browser_cases.headless("hide-scrollbars", "window-size=600,900")
    driver.set_script_timeout(110)
    yield driver
    driver.quit()


def opened(driver: Any, address: str, *, whole: bool = True) -> Any:
    """The driver, with the page open; ``whole`` when all its formulas are typeset."""
    driver.get("about:blank")
    driver.get(address)
    if whole:
        driver.execute_async_script(DONE)
    return driver.execute_script


def test_what_the_reader_sees_comes_first_and_all_come(driver: Any, page: str) -> None:
    script = opened(driver, page)
    first, last, count = script("return seen[0]")
    assert first == 0
    assert last < 40
    assert count < ROWS / 2
    assert script(RAW) == 0
    assert sum(count for *_, count in script("return seen")) == 2 * ROWS + 1, "each once"


def test_a_link_from_elsewhere_leads_to_its_place_and_stays_there(driver: Any, page: str) -> None:
    script = opened(driver, f"{page}#s120")
    first, last, _ = script("return seen[0]")
    assert (first > 110, last >= 120) == (True, True), "what the link leads to comes first"
    assert script(RAW) == 0
    assert abs(script(TOP, "s120")) <= 2


def test_who_moves_on_is_not_called_back(driver: Any, page: str) -> None:
    script = opened(driver, f"{page}#s120", whole=False)
    script("window.dispatchEvent(new WheelEvent('wheel')); scrollTo({top: 0, behavior: 'instant'})")
    driver.execute_async_script(DONE)
    assert script("return scrollY") == 0


def test_paper_has_every_formula(driver: Any, page: str) -> None:
    """Who prints before the last is typeset waits for it."""
    driver.get("about:blank")
    driver.execute_cdp_cmd("Page.enable", {})
    early = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": "window.asked = 1"})
    try:
        script = opened(driver, page)
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", early)
    assert script(RAW) == 0
    assert [count for *_, count in script("return seen")][1:] == [2 * ROWS + 1 - script("return seen[0][2]")]


def test_a_folded_formula_fits_its_column_once_it_opens(driver: Any, page: str) -> None:
    script = opened(driver, page)
    scrolls = "return document.querySelector('#fold .math').matches('.sslbook-scrolls[tabindex]')"
    assert not script(scrolls)
    script("document.getElementById('fold').open = true")
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert script(scrolls)
