"""The pages' own scripts: formulas where the reader is, links that open what is folded, a search that works from a folder."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import browser_cases
import pytest

from bookbuild.layout import find_book
from bookbuild.sphinx_ext import ASSETS, MATHJAX

pytestmark = browser_cases.MARKS
BOOK = find_book(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    driver = browser_cases.headless("hide-scrollbars", "window-size=600,900", logging={"browser": "ALL"})
    driver.set_script_timeout(110)
    yield driver
    driver.quit()


def settles(driver: Any, script: str, wanted: object, *arguments: object) -> None:
    """Wait until a script returns what is ``wanted``; an error if it doesn't."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, 110, 0.05).until(lambda d: d.execute_script(script, *arguments) == wanted)


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
        (folder / name).write_bytes((ASSETS / "static/sslbook" / name).read_bytes())
    rows = "".join(ROW.format(i, HEIGHT) for i in range(ROWS))
    text = PAGE.format(config=json.dumps(MATHJAX), rows=rows, long="+".join("abcdefghijklmnopqrstuvwxyz"))
    (folder / "one.html").write_text(text, encoding="utf-8")
    return (folder / "one.html").as_uri()


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


BROKEN = r"""<section id="s0"><div class="math">\[\begin{split}\begin{aligned} & a = b \\
& \quad + c, \\ & d = e \end{aligned}\end{split}\]</div></section>"""


@pytest.mark.parametrize(("width", "lines"), [(900, 2), (400, 3)])
def test_a_statement_that_was_broken_for_phones_is_whole_on_a_desk(
    driver: Any, page: str, width: int, lines: int
) -> None:
    path = Path(page.removeprefix("file://")).with_name("broken.html")
    path.write_text(PAGE.format(config=json.dumps(MATHJAX), rows=BROKEN, long="x"), encoding="utf-8")
    size = driver.get_window_size()
    try:
        driver.set_window_size(width, 900)
        script = opened(driver, path.as_uri())
        rows = script("return document.querySelectorAll('.math [data-mml-node=mtr]').length")
        assert rows - 1 == lines, "the environment around it is a row, too"
    finally:
        driver.set_window_size(size["width"], size["height"])


BAR = """<p style="height: 3000px"></p><details class="sslbook-proved"><summary>{0}</summary>
<div class="sslbook-check" id="check-{0}">a check</div></details>"""
FOLDED = f"""<!DOCTYPE html><html lang="en" data-theme="light"><head><title>One</title><script src="book.js"></script>
<link rel="stylesheet" href="book.css"></head><body><main class="bd-article"><a id="link" href="#check-b">to b</a>
{BAR.format("a")}{BAR.format("b")}{BAR.format("50%")}<p style="height: 3000px"></p></main></body></html>"""
SEEN = "return ['check-a', 'check-b'].map(id => document.getElementById(id).checkVisibility())"
IN_VIEW = """
const box = document.getElementById(arguments[0]).getBoundingClientRect();
return box.bottom > 0 && box.top < innerHeight - 20;
"""


@pytest.fixture
def folded(driver: Any, page: str) -> str:
    """The address of a page with two bars; the browser is elsewhere."""
    path = Path(page.removeprefix("file://")).with_name("folded.html")
    path.write_text(FOLDED, encoding="utf-8")
    driver.get("about:blank")
    return path.as_uri()


def test_a_link_of_the_ledger_opens_the_bar_that_holds_the_check(driver: Any, folded: str) -> None:
    driver.get(f"{folded}#check-a")  # on load
    settles(driver, SEEN, [True, False])
    settles(driver, IN_VIEW, True, "check-a")
    driver.execute_script("location.hash = 'check-b'")  # on hashchange
    settles(driver, SEEN, [True, True])
    settles(driver, IN_VIEW, True, "check-b")
    driver.execute_script("document.querySelectorAll('.sslbook-proved')[1].open = false; scrollTo(0, 0)")
    driver.execute_script("document.getElementById('link').click()")  # the address does not change
    settles(driver, SEEN, [True, True])


def test_a_fragment_that_can_not_be_decoded_is_taken_as_it_is(driver: Any, folded: str, page: str) -> None:
    driver.get(f"{folded}#check-50%")
    settles(driver, IN_VIEW, True, "check-50%")
    for fragment in ("50%", "%E4"):
        script = opened(driver, f"{page}#{fragment}")
        assert script("return seen[0][1]") < 40, "the first formulas come first"
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_keyboard_opens_a_bar_and_sees_where_it_is(driver: Any, folded: str) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.get(folded)
    driver.find_element("tag name", "body").send_keys(Keys.TAB, Keys.TAB)
    at = driver.switch_to.active_element
    assert (at.tag_name, at.value_of_css_property("outline-style")) == ("summary", "solid")
    for key, opened in ((Keys.ENTER, True), (Keys.SPACE, False)):
        at.send_keys(key)
        settles(driver, SEEN, [opened, False])


ANSWERS = {
    "collapse": [
        "byol.html#three-kinds-of-collapse-two-measures",
        "linear_byol.html#one-unit-collapse-or-survival",
    ],
    "BatchNorm": ["questions.html#what-does-batchnorm-do"],
    "why does BYOL not collapse": ["questions.html#why-does-byol-not-collapse"],
    "InfoNCE": ["covariance.html#infonce-and-triplets-a-weighted-covariance"],
    "stop-gradient": ["byol.html#stop-gradient"],
    "temperature": ["landscape.html#linear-filters-and-temperature"],
    "Theorem 6": ["hltm.html#what-survives-from-the-root", "errata.html#theorem-6-the-statement-and-its-proof"],
    "eq 56": ["covariance.html#normalised-outputs"],
    "A-Thm3": ["covariance.html#one-covariance-moves-every-layer"],
    "neural tangent kernel": ["covariance.html#is-it-the-neural-tangent-kernel"],
}
text_of = functools.cache(lambda path: Path(path).read_text(encoding="utf-8"))
FOUND = """
return [...document.querySelectorAll('#search-results ul.search > li')].map(row => [
  row.querySelector('a').href, row.querySelector('p').textContent, row.querySelectorAll('mark').length]);
"""


def look(driver: Any, query: str) -> list[tuple[str, str, int]]:
    driver.get(f"{(BOOK.html / 'search.html').as_uri()}?q={quote(query)}")
    settles(driver, "return !!window.sslbookSearch", True)
    return [tuple(row) for row in driver.execute_script(FOUND)]


@pytest.mark.built
@pytest.mark.parametrize("query", ANSWERS)
def test_a_reader_s_word_finds_the_section_among_the_first_three(driver: Any, query: str) -> None:
    found = look(driver, query)
    first = [href.rpartition("/")[2] for href, _, _ in found[:3]]
    assert set(first) & set(ANSWERS[query]), first
    for href, excerpt, _ in found:
        path, _, anchor = href.removeprefix("file://").partition("#")
        assert not anchor or f'id="{anchor}"' in text_of(path)
        assert "\\" not in excerpt.replace("\\ -m", "")
        assert "import torch" not in excerpt
    assert all(marks for _, _, marks in found[:10]), "each shows what was looked for"
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


PAIRS = """loss losses,process processes,batch batches,box boxes,axis axes,basis bases,hypothesis hypotheses,matrix matrices,
index indices,vertex vertices,property properties,try tries,bias biases,status statuses,size sizes,spectrum spectra,shift shifts,
criterion criteria,radius radii,formula formulae,schema schemata,half halves,leaf leaves,relu relus,speed speeds,gas gases"""
BOTH = "return arguments[0].map(words => words.map(word => sslbookSearch(word).map(found => found.anchor)))"


def test_a_plural_and_its_singular_find_each_other(driver: Any, tmp_path: Path) -> None:
    pairs = [pair.split() for pair in PAIRS.split(",")]
    rest = {"page": "one", "chapter": "", "title": "", "boxes": ""}
    sections = json.dumps([{**rest, "anchor": word, "text": word} for pair in pairs for word in pair])
    scripts = f"window.sslbookSections = {sections}", (ASSETS / "static/sslbook/search.js").read_text("utf-8")
    tags = "".join(f"<script>{script}</script>" for script in scripts)
    (tmp_path / "search.html").write_text(f'<!DOCTYPE html><div id="search-results"></div>{tags}', encoding="utf-8")
    driver.get((tmp_path / "search.html").as_uri())
    assert driver.execute_script(BOTH, pairs) == [[pair, pair] for pair in pairs]


@pytest.mark.built
def test_what_is_typed_is_found_at_once_and_nothing_is_said_so(driver: Any) -> None:
    said = "return document.querySelector('#search-results [role=status]').textContent.includes(arguments[0])"
    assert look(driver, "zzyzx") == []
    assert driver.execute_script(said, "zzyzx")
    field = driver.find_element("css selector", ".bd-search-container input")
    field.clear()
    field.send_keys("predictor")
    settles(driver, said, True, "sections for “predictor”")
