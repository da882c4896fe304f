"""The built book in a browser: every page, light and dark, wide and on a phone, from a server and from `file://`.

Needs the system's Chromium and its driver. The book is built first if it is not there or not fresh; SSLBOOK_HTML names
another built folder to look at instead.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import browser_cases
import pytest

ROOT = Path(__file__).resolve().parents[1]
AXE = ROOT / "tests/vendor/axe.min.js"
Seen = TypeVar("Seen")

pytestmark = browser_cases.MARKS

PATIENCE = 110
"""The longest that a page may take for anything, in seconds, on a machine with much else to do; selenium itself waits for 120."""
# The page's own script asked for the maths first, so it has run when we are told; then what it changed is drawn, and what goes
# wrong after that has a moment to show.
TYPESET = """
const done = arguments[arguments.length - 1];
const ready = window.MathJax && MathJax.startup && MathJax.startup.promise || Promise.resolve();
const drawn = () => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 150)));
ready.then(drawn, drawn);
"""
# A formula that was not typeset, one that MathJax could not read, and one whose picture is empty (a font that came too late).
BAD_MATHS = """
const raw = [...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container') && e.textContent.trim());
const wrong = [...document.querySelectorAll('[data-mjx-error]')];
const empty = [...document.querySelectorAll('mjx-container > svg')].filter(e => !e.querySelector('use, path, text, rect, line'));
return [...raw, ...wrong, ...empty].map(e => e.textContent.trim().slice(0, 80) || e.outerHTML.slice(0, 80));
"""
NO_ALT = """
return [...document.querySelectorAll('main img')]
  .filter(i => !(i.getAttribute('alt') || '').trim() || /^(_images|\\.\\.|\\/)/.test(i.alt)).map(i => i.src.slice(0, 80));
"""
VIOLATIONS = """
const done = arguments[arguments.length - 1];
axe.run().then(r => done(r.violations.filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => `${v.id}: ${v.nodes[0].html.slice(0, 160)} (${v.nodes.length} times)`)));
"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT_CODE = """
return [...document.querySelectorAll('.bd-article div[class*="highlight-"] pre')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && !e.closest('.cell_output')).map(e => e.textContent.trim().slice(0, 60));
"""
UNFOLDED = """
const closed = [...document.querySelectorAll('.bd-article details:not([open])')];
const fold = open => closed.forEach(e => { e.open = open; }), page = document.documentElement;
fold(true); const excess = page.scrollWidth - page.clientWidth;
fold(false); return excess;
"""
FRAMES = """
const figure = arguments[0];
const seen = i => !i.hidden && i.naturalWidth && i.getBoundingClientRect().height > 20;
return [...figure.querySelectorAll('img[data-text]')].map((i, n) => seen(i) && [n, i.dataset.text, i.alt]).filter(x => x);
"""


@dataclass(frozen=True)
class View:
    """How a reader looks at a page."""

    theme: str
    width: int
    height: int


VIEWS = {"light": View("light", 1300, 1000), "dark": View("dark", 1300, 1000), "phone": View("light", 360, 780)}
VIEWS["dark phone"] = View("dark", 360, 780)


def page_names() -> list[str]:
    """The pages to look at: those of the table of contents, or of the folder that SSLBOOK_HTML names."""
    if folder := os.environ.get("SSLBOOK_HTML"):
        return sorted(str(p.relative_to(folder).with_suffix("")) for p in Path(folder).glob("chapters/*.html"))
    from sslbook.book.render import pages

    return pages(ROOT)


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built book, fresh."""
    if folder := os.environ.get("SSLBOOK_HTML"):
        return Path(folder).resolve()
    from filelock import FileLock  # tests run in several processes, the book is built once

    (ROOT / "_build").mkdir(exist_ok=True)
    with FileLock(ROOT / "_build/test_pages.lock"):
        run = subprocess.run(
            [sys.executable, "-m", "sslbook", "build"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if run.returncode != 0:
        pytest.fail(f"sslbook build failed:\n{run.stdout}{run.stderr}", pytrace=False)
    return ROOT / "_build/html"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    """Where the built book is served."""
    yield from serve(html)


def serve(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Browser:
    """A headless Chromium that remembers what a page asked for and complained about."""

    def __init__(self) -> None:
        flags = "disable-background-networking disable-sync disable-component-update disable-quic hide-scrollbars"
        logging = {"performance": "ALL", "browser": "ALL"}
        self.driver = browser_cases.headless(*flags.split(), "window-size=1300,1000", logging=logging)
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(PATIENCE)
        self.cdp("Network.enable")

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, url: str, view: View) -> None:
        """Load a page as `view` shows it, and wait until its maths is typeset."""
        size = {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": view.width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": view.theme}
        self.cdp("Emulation.setEmulatedMedia", features=[feature])
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)
        self.driver.execute_async_script(TYPESET)

    def errors(self) -> list[str]:
        return [entry["message"][:300] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def problems(self, home: str) -> list[str]:
        """Everything that is wrong with the open page, which was loaded from below `home`."""
        script = self.driver.execute_script
        found = [f"console: {message}" for message in self.errors()]
        own = (home, "data:", "about:", "blob:")
        found += [f"leaves the machine: {url}" for url in self.requests() if not url.startswith(own)]
        found += [f"maths not typeset: {text}" for text in script(BAD_MATHS)]
        found += [f"no alternative text: {source}" for source in script(NO_ALT)]
        found += [f"code is cut off: {text}" for text in script(CUT_CODE)]
        if (excess := script(OVERFLOW)) > 1:
            found.append(f"{excess} px wider than the window")
        elif (excess := script(UNFOLDED)) > 1:
            found.append(f"{excess} px wider than the window where all that is folded is open")
        script(AXE.read_text(encoding="utf-8"))
        return found + [f"accessibility: {text}" for text in self.driver.execute_async_script(VIOLATIONS)]


def settles(look: Callable[[], Seen], wanted: Seen) -> Seen:
    """What ``look`` sees: ``wanted`` as soon as it does, and after :data:`PATIENCE` seconds whatever it sees instead."""
    end = time.monotonic() + PATIENCE
    while (seen := look()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return seen


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", page_names())
def test_page(browser: Browser, address: str, page: str, view: str) -> None:
    browser.open(f"{address}/{page}.html", VIEWS[view])
    assert browser.driver.execute_script("return document.documentElement.dataset.theme") == VIEWS[view].theme
    assert browser.problems(address) == []


@pytest.mark.parametrize("page", page_names())
def test_page_reads_from_a_folder(browser: Browser, html: Path, page: str) -> None:
    browser.open((html / f"{page}.html").as_uri(), VIEWS["light"])
    assert browser.problems(html.as_uri()) == []
    check_sliders(browser)


@pytest.mark.parametrize("page", page_names())
def test_sliders_move_their_figures(browser: Browser, address: str, html: Path, page: str) -> None:
    browser.open(f"{address}/{page}.html", VIEWS["phone"])
    found = check_sliders(browser)
    assert found == (html / f"{page}.html").read_text(encoding="utf-8").count("data-sslbook-slider")


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


INLINE = """
return [...document.querySelectorAll('.bd-article span.math')].filter(m => m.getClientRects().length).map(m => {
  const box = (m.closest('.sslbook-nobreak') || m).getBoundingClientRect();
  const cut = box.right > document.documentElement.clientWidth && !m.closest('.pst-scrollable-table-container');
  return [m.hasAttribute('tabindex'), cut];
});
"""
SCROLLED = """
return [...document.querySelectorAll('div.math > mjx-container, span.math.sslbook-scrolls')]
  .filter(m => m.scrollWidth > m.clientWidth + 1)
  .map(m => `${m.scrollWidth} px in ${m.clientWidth}: ${m.textContent.slice(0, 60)}`);
"""
WIDE = """
return [...document.querySelectorAll('[data-sslbook-wide]')].map(e => [
  e.dataset.sslbookWide, e.tabIndex, e.scrollWidth > e.clientWidth + 1, getComputedStyle(e).maskImage !== 'none']);
"""


@pytest.mark.parametrize("page", page_names())
def test_formulas_are_whole(browser: Browser, address: str, page: str) -> None:
    """None in a sentence is a tab stop at a desk; none at all reaches beyond a phone's edge, or scrolls there."""
    browser.open(f"{address}/{page}.html", VIEWS["light"])
    assert not any(stop for stop, _ in browser.driver.execute_script(INLINE))
    browser.open(f"{address}/{page}.html", VIEWS["phone"])
    assert not any(cut for _, cut in browser.driver.execute_script(INLINE))
    assert browser.driver.execute_script(SCROLLED) == [], "break it with aligned, or give a part of it a name"


def test_what_scrolls_says_so(browser: Browser, address: str) -> None:
    browser.open(f"{address}/chapters/covariance.html", VIEWS["phone"])
    found = browser.driver.execute_script(WIDE)
    assert found
    assert all(state == ["right", 0, True, True] for state in found), "faded at the right, and reached by keyboard"
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


BROKEN = """<!DOCTYPE html><html lang="en"><head><title>Broken</title></head><body><main>
<div style="width: 3000px">wide</div>
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">
<span class="math">\\\\(x\\\\)</span>
<mjx-container><svg></svg></mjx-container>
<p style="color: #ccc; background: #fff">hardly visible</p>
<script>setTimeout(() => fetch("http://192.0.2.1/").catch(() => 0)); throw new Error("on purpose");</script>
</main></body></html>"""


def test_a_broken_page_is_found_out(browser: Browser, tmp_path: Path) -> None:
    """Each probe above sees the defect that it is there for."""
    (tmp_path / "broken.html").write_text(BROKEN, encoding="utf-8")
    for home in serve(tmp_path):
        browser.open(f"{home}/broken.html", VIEWS["phone"])
        found = "\n".join(browser.problems(home))
    for sign in (
        "on purpose",
        "leaves the machine: http://192.0.2.1/",
        "maths not typeset: \\",
        "maths not typeset: <svg",
        "no alternative text",
        "px wider than the window",
        "accessibility: image-alt",
        "accessibility: color-contrast",
    ):
        assert sign in found
