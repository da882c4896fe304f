"""The built book in a browser: every page, light and dark, wide and from a folder, on a phone and from a server.

Needs the system's Chromium and its driver.  The book is built anew if it is not fresh; SSLBOOK_HTML names another
built folder to look at instead.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
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

from bookbuild import sphinx_ext

pytestmark = [*browser_cases.MARKS, *(() if os.environ.get("SSLBOOK_HTML") else (pytest.mark.built,))]
ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "tests/vendor/axe.min.js"
Seen = TypeVar("Seen")

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
# A formula's glyphs are paths, which axe has no rule for, and the words of code that are of one kind have one colour on one ground;
# together they are most of a page's elements, and of its time.
VIOLATIONS = """
const done = arguments[arguments.length - 1];
document.querySelectorAll('mjx-container > svg').forEach(s => s.replaceChildren());
const kinds = new Set();
document.querySelectorAll('pre span').forEach(word => {
  const kind = [word, word.parentElement, word.closest('.cell_input, .cell_output, .admonition')].map(e => e?.className).join();
  if (kinds.has(kind)) word.replaceWith(word.textContent); else kinds.add(kind);
});
const asked = {preload: false, resultTypes: ['violations'], ...arguments[0]};
axe.run(asked).then(r => done(r.violations.filter(v => ['serious', 'critical'].includes(v.impact))
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
# A line that begins with the full stop or comma of a formula.
ALONE = """
const top = what => { const r = document.createRange(); r.selectNodeContents(what); return r.getBoundingClientRect(); };
return [...document.querySelectorAll('.bd-article .sslbook-nobreak')].filter(held => {
  const formula = held.querySelector('mjx-container'), rest = held.lastChild;
  return formula && rest.nodeType === 3 && top(rest).width && top(rest).top > formula.getBoundingClientRect().bottom - 2;
}).map(held => held.parentElement.textContent.slice(0, 80));
"""
WATCH = "window.printed = 0; window.print = () => { window.printed += 1; };"
# Everything that a reader can set in motion; the figures' sliders too, with what the theme puts on each page.
USE = """
const done = arguments[arguments.length - 1];
const ready = window.MathJax && MathJax.startup && MathJax.startup.promise || Promise.resolve();
ready.then(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  for (const slider of all("input[type=range]")) {
    for (const end of [slider.max, slider.min]) {
      slider.value = end;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }
  all(".sslbook-slider button, .copybtn, .toggle-button").forEach(button => button.click());
  all("details").forEach(fold => { fold.open = true; });
  all("[data-bs-toggle=dropdown], [data-bs-toggle=tooltip]").forEach(b => {
    b.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
    b.focus();
    b.click();
  });
  all(".search-button__button").forEach(button => button.click());
  for (let i = 0; i < 3; i++) all(".theme-switch-button").forEach(button => button.click());
  all("label.sidebar-toggle, .pst-navbar-icon.sidebar-toggle").forEach(button => button.click());
  all("[data-sslbook-print]").forEach(button => button.click());
  scrollTo(0, document.documentElement.scrollHeight);
  setTimeout(() => done([printed, all("[data-sslbook-print]").length]), 600);
});
"""


THEME = "return document.getAnimations().length ? '' : document.documentElement.dataset.theme"


@dataclass(frozen=True)
class View:
    """How a reader looks at a page."""

    theme: str
    width: int
    height: int


VIEWS = {"light": View("light", 1300, 1000), "dark": View("dark", 1300, 1000), "phone": View("light", 360, 780)}
CONTRAST = "color-contrast"


def page_names() -> list[str]:
    """The pages to look at: those of the table of contents, or of the folder that SSLBOOK_HTML names."""
    if folder := os.environ.get("SSLBOOK_HTML"):
        return sorted(str(p.relative_to(folder).with_suffix("")) for p in Path(folder).glob("chapters/*.html"))
    from bookbuild.render import pages

    return pages(ROOT)


@pytest.fixture(scope="session")
def html(request: pytest.FixtureRequest) -> Path:
    """The folder of the built book, fresh; where it must be executed anew, which takes minutes, the build is heard."""
    if folder := os.environ.get("SSLBOOK_HTML"):
        return Path(folder).resolve()
    from filelock import FileLock  # tests run in several processes, the book is built once

    (ROOT / "_build").mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # a chapter's key has it
    with (
        FileLock(ROOT / "_build/test_pages.lock"),
        request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled(),
    ):
        run = subprocess.run([sys.executable, "-m", "sslbook", "build"], cwd=ROOT, env=env, stdout=2, check=False)
    if run.returncode != 0:
        pytest.fail("sslbook build failed, and has said why", pytrace=False)
    return ROOT / "_build/html"


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    """Where the built book is served."""
    yield from serve(html)


def serve(folder: Path) -> Iterator[str]:
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *words: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(folder)))
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
        self.cdp("Page.addScriptToEvaluateOnNewDocument", source=WATCH)

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, url: str, view: View) -> None:
        """Load a page as `view` shows it, and wait until its maths is typeset."""
        size = {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": view.width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        self.prefer(view.theme)
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)
        self.driver.execute_async_script(TYPESET)

    def prefer(self, theme: str) -> None:
        """Let the system be light or dark."""
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def theme(self) -> str:
        """That of the open page; "" while its colours change."""
        return str(self.driver.execute_script(THEME))

    def errors(self) -> list[str]:
        return [entry["message"][:300] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def problems(self, home: str) -> list[str]:
        """What is wrong with the open page, which was loaded from below `home`, but for what axe finds."""
        script = self.driver.execute_script
        found = [f"console: {message}" for message in self.errors()]
        own = (home, "data:", "about:", "blob:")
        found += [f"leaves the machine: {url}" for url in self.requests() if not url.startswith(own)]
        found += [f"maths not typeset: {text}" for text in script(BAD_MATHS)]
        found += [f"a sign of punctuation begins a line: {text}" for text in script(ALONE)]
        found += [f"no alternative text: {source}" for source in script(NO_ALT)]
        found += [f"code is cut off: {text}" for text in script(CUT_CODE)]
        if (excess := script(OVERFLOW)) > 1:
            found.append(f"{excess} px wider than the window")
        elif (excess := script(UNFOLDED)) > 1:
            found.append(f"{excess} px wider than the window where all that is folded is open")
        return found

    def violations(self, **options: Any) -> list[str]:
        """What axe finds, by these of its options, which takes most of a test's time; it takes glyphs and repeated colours away."""
        self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        return [f"accessibility: {text}" for text in self.driver.execute_async_script(VIOLATIONS, options)]

    def use(self) -> list[str]:
        """Set in motion all that a reader can, and leave nothing set; what went wrong, and whether it printed."""
        printed, buttons = self.driver.execute_async_script(USE)
        self.driver.execute_script("localStorage.clear()")
        found = ["the button that prints does not"] if printed != buttons else []
        return found + [f"console: {message}" for message in self.errors()]


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


FRAMES = """
const figure = arguments[0];
const seen = i => !i.hidden && i.naturalWidth && i.getBoundingClientRect().height > 20;
return [...figure.querySelectorAll('img[data-text]')].map((i, n) => seen(i) && [n, i.dataset.text, i.alt]).filter(x => x);
"""


@pytest.mark.parametrize("page", page_names())
def test_page_at_a_desk_from_a_folder(browser: Browser, html: Path, page: str) -> None:
    browser.open((html / f"{page}.html").as_uri(), VIEWS["light"])
    assert not any(stop for stop, _ in browser.driver.execute_script(INLINE)), "no formula in a sentence is a tab stop"
    check(browser, html.as_uri())


@pytest.mark.parametrize("page", page_names())
def test_page_on_a_phone_from_a_server(browser: Browser, address: str, page: str) -> None:
    browser.open(f"{address}/{page}.html", VIEWS["phone"])
    assert not any(cut for _, cut in browser.driver.execute_script(INLINE)), "no formula reaches beyond the edge"
    assert browser.driver.execute_script(SCROLLED) == [], "nor scrolls: break it, or give a part of it a name"
    check(browser, address)


def check(browser: Browser, home: str) -> None:
    """Whatever moves does, and nothing is wrong with the open page, light and, with other colours, dark as the system is."""
    check_sliders(browser)
    assert settles(browser.theme, "light") == "light"
    assert browser.problems(home) == []
    browser.prefer("dark")
    assert settles(browser.theme, "dark") == "dark"
    assert browser.problems(home) == []
    assert browser.violations(runOnly=[CONTRAST]) == []
    browser.prefer("light")
    assert settles(browser.theme, "light") == "light"
    assert browser.violations() == []
    assert browser.use() == []


def check_sliders(browser: Browser) -> None:
    """Move every slider of the open page by keyboard and by pointer."""
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


def test_a_slider_shows_three_of_its_frames_on_paper_and_needs_no_script(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    try:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
        browser.driver.get(f"{address}/chapters/covariance.html")
        figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]")
        frames = figure.find_elements(By.TAG_NAME, "img")
        assert any(frame.is_displayed() for frame in frames)
        browser.cdp("Emulation.setEmulatedMedia", media="print")
        assert [i for i, one in enumerate(frames) if one.is_displayed()] == [0, len(frames) // 2, len(frames) - 1]
        assert figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-note").is_displayed()
        assert not figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-control").is_displayed()
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
        browser.cdp("Emulation.setEmulatedMedia", media="")


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


def test_code_can_be_copied_and_downloaded(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    browser.open(f"{address}/chapters/covariance.html", VIEWS["light"])
    assert browser.driver.find_elements(By.CSS_SELECTOR, "div.cell_input button.copybtn")
    offers = browser.driver.find_elements(By.CSS_SELECTOR, ".dropdown-download-buttons a[download]")
    assert {str(offer.get_attribute("download")) for offer in offers} == {"covariance.ipynb", "covariance.md"}


PLAYABLE = "[data-sslbook-slider]:has(button.sslbook-play)"
STATE = """
const frames = [...arguments[0].querySelectorAll('img[data-text]')];
return [frames.findIndex(frame => !frame.hidden), Number(arguments[0].querySelector('input').value),
        arguments[0].querySelector('button').ariaLabel];
"""
PLAY = """
const button = arguments[0].querySelector('button'), input = arguments[0].querySelector('input');
button.click();
const during = [input.value, button.ariaLabel];
"""
STOPS = ["button.click()", "input.dispatchEvent(new Event('input'))", "input.dispatchEvent(new Event('pointerdown'))"]
OUTLINED = """
const element = document.activeElement, style = getComputedStyle(element);
const drawn = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1.5;
return [element.tagName, element.getAttribute('aria-label') || element.textContent.trim(), drawn];
"""
KEPT = """
return [...document.querySelectorAll('.cell_output img.keep-colors')].map(i => {
  const style = getComputedStyle(i);
  return [style.filter, style.padding, style.borderTopWidth, style.backgroundColor];
});
"""


def playable(browser: Browser) -> tuple[Any, Any, Any]:
    """The first slider of the open page that plays, its control and its button."""
    from selenium.webdriver.common.by import By

    figure = browser.driver.find_element(By.CSS_SELECTOR, PLAYABLE)
    button = figure.find_element(By.CSS_SELECTOR, "button.sslbook-play")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    return figure, figure.find_element(By.CSS_SELECTOR, "input[type=range]"), button


def test_a_slider_plays_when_somebody_asks_for_it(browser: Browser, html: Path) -> None:
    """Not before, to the end, and not against whoever takes the slider."""
    from selenium.webdriver.common.keys import Keys

    browser.open((html / "chapters/training.html").as_uri(), VIEWS["light"])
    figure, control, button = playable(browser)
    last = int(control.get_attribute("max"))

    def state() -> list[object]:
        return list(browser.driver.execute_script(STATE, figure))

    control.send_keys(Keys.HOME)
    still = [0, 0, "Play: epochs of training"]
    assert settles(state, still) == still
    time.sleep(0.9)  # a frame takes 0.7
    assert state() == still, "nothing moves by itself"
    button.send_keys(Keys.ENTER)
    ended = [last, last, "Play: epochs of training"]
    assert settles(state, ended) == ended
    for stop in STOPS:  # in one script: on a busy machine it may have ended before a second one runs
        during, after = browser.driver.execute_script(f"{PLAY} {stop}; return [during, button.ariaLabel];", figure)
        assert (during, after) == (["0", "Pause: epochs of training"], "Play: epochs of training")
        time.sleep(0.9)
        assert state() == still
        control.send_keys(Keys.END)
        assert settles(state, ended) == ended
    button.send_keys(Keys.SPACE)
    assert settles(lambda: state() != ended, True), "by either key"
    assert settles(state, ended) == ended


def test_every_button_shows_that_it_has_the_focus(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{address}/chapters/training.html", VIEWS["dark"])
    found: dict[str, bool] = {}
    for _ in range(40):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        tag, name, outlined = browser.driver.execute_script(OUTLINED)
        if tag == "BUTTON":
            found[name] = outlined
    _, control, button = playable(browser)
    control.send_keys(Keys.SHIFT, Keys.TAB)
    _, name, found["play"] = browser.driver.execute_script(OUTLINED)
    assert name == button.get_attribute("aria-label")
    assert {"Toggle primary sidebar", "Download this page"} <= set(found)
    assert [name for name, outlined in found.items() if not outlined] == []


def test_photographs_are_true_in_the_dark_and_lie_on_the_page(browser: Browser, address: str) -> None:
    browser.open(f"{address}/chapters/training.html", VIEWS["dark"])
    kept = browser.driver.execute_script(KEPT)
    assert len(kept) > 4
    assert [style for style in kept if style != ["none", "0px", "0px", "rgba(0, 0, 0, 0)"]] == []
