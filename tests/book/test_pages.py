"""The built book in a browser: every page, light and dark, wide and from a folder, on a phone and from a server.

Needs the system's Chromium and its driver.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser_cases
import pytest
from page_cases import CONTRAST, INLINE, SCROLLED, VIEWS, Browser, address, browser, html, page_names, serve, settles

from sslbook.book import sphinx_ext

__all__ = ["address", "browser", "html"]  # fixtures
pytestmark = browser_cases.MARKS

FRAMES = """
const figure = arguments[0];
const seen = i => !i.hidden && i.naturalWidth && i.getBoundingClientRect().height > 20;
return [...figure.querySelectorAll('img[data-text]')].map((i, n) => seen(i) && [n, i.dataset.text, i.alt]).filter(x => x);
"""


@pytest.mark.parametrize("page", page_names())
def test_page_at_a_desk_from_a_folder(browser: Browser, html: Path, page: str) -> None:
    browser.open((html / f"{page}.html").as_uri(), VIEWS["light"])
    stops = [stop for stop, _ in browser.driver.execute_script(INLINE)]
    assert not any(stops), "no formula in a sentence is a tab stop"
    check_sliders(browser)
    check_themes(browser, html.as_uri())
    assert browser.use() == []


@pytest.mark.parametrize("page", page_names())
def test_page_on_a_phone_from_a_server(browser: Browser, address: str, html: Path, page: str) -> None:
    browser.open(f"{address}/{page}.html", VIEWS["phone"])
    script = browser.driver.execute_script
    assert not any(cut for _, cut in script(INLINE)), "no formula reaches beyond the edge"
    assert script(SCROLLED) == [], "nor scrolls: break it with aligned, or give a part of it a name"
    written = (html / f"{page}.html").read_text(encoding="utf-8")
    assert check_sliders(browser) == written.count("data-sslbook-slider")
    check_themes(browser, address)
    assert browser.use() == []


def check_themes(browser: Browser, home: str) -> None:
    """Nothing is wrong with the open page, which turns dark when the system does; only its colours are others then."""
    assert settles(browser.theme, "light") == "light"
    assert browser.problems(home) == []
    browser.prefer("dark")
    assert settles(browser.theme, "dark") == "dark"
    assert browser.problems(home) == []
    assert browser.violations(runOnly=[CONTRAST]) == []
    browser.prefer("light")
    assert settles(browser.theme, "light") == "light"
    assert browser.violations() == []


def test_every_part_has_a_slider_that_was_tested(html: Path) -> None:
    """The chapters that this book began with promise one each; without any, the tests above would pass over nothing."""
    for page in ("dual_networks", "covariance"):
        assert "data-sslbook-slider" in (html / f"chapters/{page}.html").read_text(encoding="utf-8")


def check_sliders(browser: Browser) -> int:
    """Move every slider of the open page by keyboard and by pointer; returns how many there are."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    figures = browser.driver.find_elements(By.CSS_SELECTOR, "[data-sslbook-slider]")
    for figure in figures:
        control = figure.find_element(By.CSS_SELECTOR, "input[type=range]")
        last = int(control.get_attribute("max"))
        browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", control)

        def state(figure: Any = figure) -> tuple[int, str, str]:
            visible = browser.driver.execute_script(FRAMES, figure)
            assert len(visible) == 1, "one frame is visible, and only one"
            index, text, alt = visible[0]
            assert figure.find_element(By.TAG_NAME, "output").text == text
            assert alt.strip()
            return index, text, alt

        def place(state: Callable[[], tuple[int, str, str]] = state) -> int:
            return state()[0]

        control.send_keys(Keys.HOME)
        assert settles(place, 0) == 0
        control.send_keys(Keys.ARROW_RIGHT)
        assert settles(place, 1) == 1
        control.send_keys(Keys.END)
        assert settles(place, last) == last
        assert control.get_attribute("aria-valuetext") == state()[1]
        half = control.size["width"] // 2
        left, right = (control, 3 - half, 0), (control, half - 3, 0)
        ActionChains(browser.driver).move_to_element_with_offset(*left).click().perform()
        assert settles(place, 0) == 0
        drag = ActionChains(browser.driver).move_to_element_with_offset(*left).click_and_hold()
        drag.move_to_element_with_offset(*right).release().perform()
        assert settles(place, last) == last
    return len(figures)


def test_a_slider_shows_its_first_state_without_scripts(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    try:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
        browser.driver.get(f"{address}/chapters/covariance.html")
        figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]")
        frames = figure.find_elements(By.TAG_NAME, "img")
        assert sum(frame.is_displayed() for frame in frames) == 1
        assert figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-note").is_displayed()
        assert not figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-control").is_displayed()
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


WIDE = """
return [...document.querySelectorAll('[data-sslbook-wide]')].map(e => [
  e.dataset.sslbookWide, e.tabIndex, e.scrollWidth > e.clientWidth + 1, getComputedStyle(e).maskImage !== 'none']);
"""


# A table and code of so many pixels, whatever fonts there are; what is narrow is left alone.
SCROLLING = """<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Wide</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="book.css"><script defer src="book.js"></script>
</head><body><main class="bd-article">
<div class="pst-scrollable-table-container"><table class="table"><tr><td><div style="width: {0}px">1</div></td></tr></table></div>
<pre style="overflow: auto"><div style="width: {0}px">1</div></pre></main></body></html>"""


@pytest.mark.parametrize(("width", "state"), [(900, ["right", 0, True, True]), (90, None)])
def test_what_scrolls_says_so(browser: Browser, tmp_path: Path, width: int, state: list[Any] | None) -> None:
    """Faded at the side where there is more, and reached by keyboard."""
    for name in ("book.js", "book.css"):
        shutil.copy(sphinx_ext.ASSETS / "static/sslbook" / name, tmp_path)
    (tmp_path / "wide.html").write_text(SCROLLING.format(width), encoding="utf-8")
    for home in serve(tmp_path):
        browser.open(f"{home}/wide.html", VIEWS["phone"])
        wanted = [state, state] if state else []
        assert settles(lambda: browser.driver.execute_script(WIDE), wanted) == wanted
        if state:
            browser.driver.execute_script("document.querySelector('[data-sslbook-wide]').scrollLeft = 1e4")
            assert settles(lambda: browser.driver.execute_script(WIDE)[0][0], "left") == "left"


def test_a_link_opens_what_is_folded(browser: Browser, address: str) -> None:
    folded = "return document.querySelector('details.sslbook-fold p.sslbook-entry').checkVisibility()"
    browser.open(f"{address}/chapters/ledger.html", VIEWS["light"])
    assert not browser.driver.execute_script(folded)
    anchor = "return document.querySelector('details.sslbook-fold [id^=ledger-]').id"
    anchor = browser.driver.execute_script(anchor)
    browser.open(f"{address}/chapters/ledger.html#{anchor}", VIEWS["light"])
    assert browser.driver.execute_script(folded)


def test_the_theme_button_turns_the_page_dark(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    browser.open(f"{address}/{page_names()[0]}.html", VIEWS["light"])
    seen = set()
    try:
        for _ in range(3):
            browser.driver.find_element(By.CSS_SELECTOR, ".theme-switch-button").click()
            seen.add(browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    finally:
        browser.driver.execute_script("localStorage.clear()")
    assert len(seen) == 2


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_search_finds_the_operator(browser: Browser, address: str, html: Path, scheme: str) -> None:
    from selenium.webdriver.common.by import By

    home = address if scheme == "http" else html.as_uri()
    browser.open(f"{home}/search.html?q=covariance", VIEWS["light"])

    def found() -> bool:
        results = browser.driver.find_elements(By.CSS_SELECTOR, "ul.search li a")
        return any("chapters/" in str(result.get_attribute("href")) for result in results)

    assert settles(found, True)
    assert browser.refused() == []
    assert [url for url in browser.requests() if not url.startswith((home, "data:", "about:"))] == []
    assert browser.errors() == []


def test_code_can_be_copied_and_downloaded(browser: Browser, address: str, html: Path) -> None:
    from selenium.webdriver.common.by import By

    browser.open(f"{address}/chapters/covariance.html", VIEWS["light"])
    assert browser.driver.find_elements(By.CSS_SELECTOR, "div.cell_input button.copybtn")
    offers = browser.driver.find_elements(By.CSS_SELECTOR, ".dropdown-download-buttons a[download]")
    files = {str(offer.get_attribute("download")): str(offer.get_attribute("href")) for offer in offers}
    assert set(files) == {"covariance.ipynb", "covariance.md"}
    notebook = json.loads((html / files["covariance.ipynb"].removeprefix(address + "/")).read_text(encoding="utf-8"))
    assert any(
        "image/png" in output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())
    )
    assert not any("injected-parameters" in cell["metadata"].get("tags", ()) for cell in notebook["cells"])


BROKEN = """<!DOCTYPE html><html lang="en"><head><title>Broken</title>
<meta http-equiv="Content-Security-Policy" content="img-src data:"></head><body><main>
<img src="http://192.0.2.1/a.png" alt="refused">
<div style="width: 3000px">wide</div>
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">
<span class="math">\\\\(x\\\\)</span>
<mjx-container><svg></svg></mjx-container>
<div class="bd-article"><p><span class="sslbook-nobreak"><mjx-container style="display: block">x</mjx-container>.</span></p></div>
<p style="color: #ccc; background: #fff">hardly visible</p>
<pre style="background: #fff"><span class="k">code</span> <span class="k">of</span>
<span class="c">two</span> <span class="c">kinds</span></pre>
<style>.c { color: #ccc }</style>
<script>setTimeout(() => fetch("http://192.0.2.1/").catch(() => 0)); throw new Error("on purpose");</script>
</main></body></html>"""


def test_a_broken_page_is_found_out(browser: Browser, tmp_path: Path) -> None:
    """Each probe above sees the defect that it is there for."""
    (tmp_path / "broken.html").write_text(BROKEN, encoding="utf-8")
    for home in serve(tmp_path):
        browser.open(f"{home}/broken.html", VIEWS["phone"])
        found = "\n".join([*browser.problems(home), *browser.violations()])
    for sign in (
        "on purpose",
        "leaves the machine: http://192.0.2.1/",
        "maths not typeset: \\",
        "maths not typeset: <svg",
        "a sign of punctuation begins a line: x.",
        "no alternative text",
        "px wider than the window",
        "refused by the page's policy: img-src http://192.0.2.1/a.png",
        "accessibility: image-alt",
        "accessibility: color-contrast",
    ):
        assert sign in found
    assert re.search(r"color-contrast: .*\(2 times\)", found), "the paragraph, and code of one kind"
