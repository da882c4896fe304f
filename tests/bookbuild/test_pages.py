"""The built book in a browser: every page, light and dark, at a desk from a folder and on a phone from a server; its own scripts.

Needs the system's Chromium and its driver, and the built book (`make book`).
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import browser_cases
import pytest

from bookbuild.layout import find_book
from bookbuild.render import pages
from bookbuild.sphinx_ext import ASSETS
from sslchapters import reading
from sslchapters.ledger import read_claims

pytestmark = [*browser_cases.MARKS, pytest.mark.built]
BOOK = find_book(Path(__file__).resolve().parents[2])
HTML = BOOK.html
Seen = TypeVar("Seen")
PATIENCE = 110
"""The longest that a page may take for anything, in seconds, on a machine with much else to do; selenium itself waits for 120."""
DESK, PHONE = (1300, 1000), (360, 780)
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
WATCH = "window.printed = 0; window.print = () => { window.printed += 1; };"
THEME = "return document.getAnimations().length ? '' : document.documentElement.dataset.theme"


class Browser:
    """A headless Chromium that remembers what a page asked for and complained about."""

    def __init__(self) -> None:
        flags = "disable-background-networking disable-sync disable-component-update disable-quic hide-scrollbars"
        logging = {"performance": "ALL", "browser": "ALL"}
        self.driver = browser_cases.headless(*flags.split(), "window-size=1300,1000", logging=logging)
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.set_script_timeout(PATIENCE)
        self.js, self.cdp = self.driver.execute_script, self.driver.execute_cdp_cmd
        self.cdp("Network.enable", {})
        self.cdp("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})

    def open(self, url: str, size: tuple[int, int] = DESK, theme: str = "light") -> None:
        """Load a page, and wait until its maths is typeset."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)
        self.prefer(theme)
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)
        self.driver.execute_async_script(TYPESET)

    def prefer(self, theme: str) -> None:
        """Let the system be light or dark."""
        self.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})

    def errors(self) -> list[str]:
        """What the console has complained of since the last time."""
        severe = [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [f"console: {entry['message'][:300]}" for entry in severe]

    def layout(self, size: tuple[int, int]) -> list[str]:
        """What is too wide, cut off or out of its line on the open page."""
        found = [f"a sign of punctuation begins a line: {text}" for text in self.js(ALONE)]
        found += [f"code is cut off: {text}" for text in self.js(CUT_CODE)]
        excess, places = max(self.js(OVERFLOW), self.js(UNFOLDED)), self.js(INLINE)
        found += [f"{excess} px wider than the window, or where what is folded is open"] * (excess > 1)
        if size == PHONE:
            found += ["a formula reaches beyond the edge"] * any(cut for _, cut in places)
            return found + [f"a formula scrolls: {text}" for text in self.js(SCROLLED)]
        return found + ["a formula in a sentence is a tab stop"] * any(stop for stop, _ in places)

    def problems(self, home: str) -> list[str]:
        """What else is wrong with the open page, which was loaded from below `home`, but for what axe finds."""
        found = self.errors()
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        found += [
            f"leaves the machine: {url}" for url in asked if not url.startswith((home, "data:", "about:", "blob:"))
        ]
        found += [f"maths not typeset: {text}" for text in self.js(BAD_MATHS)]
        return [*found, *(f"no alternative text: {source}" for source in self.js(NO_ALT))]

    def violations(self, **options: Any) -> list[str]:
        """What axe finds, by these of its options; it takes glyphs and repeated colours away."""
        self.js(browser_cases.AXE.read_text(encoding="utf-8"))
        return [f"accessibility: {text}" for text in self.driver.execute_async_script(VIOLATIONS, options)]


def settles(look: Callable[[], Seen], wanted: Seen) -> Seen:
    """What ``look`` sees: ``wanted`` as soon as it does, and after :data:`PATIENCE` seconds whatever it sees instead."""
    end = time.monotonic() + PATIENCE
    while (seen := look()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return seen


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the built book is served."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *words: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["at a desk from a folder", "on a phone from a server"])
def test_all_pages(browser: Browser, address: str, size: tuple[int, int]) -> None:
    """No error, nothing from elsewhere, nothing too wide, nothing that axe finds: light, dark, and with all set in motion."""
    home = address if size == PHONE else HTML.as_uri()
    wrong: dict[str, list[str]] = {}
    for page in pages(BOOK.root):
        browser.open(f"{home}/{page}.html", size)
        found = browser.problems(home) + browser.layout(size) + check_sliders(browser)
        browser.prefer("dark")
        if settles(lambda: browser.js(THEME), "dark") != "dark":
            found.append("it does not become dark with the system")
        found += browser.problems(home) + browser.violations(runOnly=["color-contrast"])
        browser.prefer("light")
        settles(lambda: browser.js(THEME), "light")
        found += browser.violations()
        printed, buttons = browser.driver.execute_async_script(USE)
        browser.js("localStorage.clear()")
        found += ["the button that prints does not"] * (printed != buttons) + browser.errors()
        if found:
            wrong[page] = found
    assert wrong == {}


FRAMES = """
const figure = arguments[0];
const seen = i => !i.hidden && i.naturalWidth && i.getBoundingClientRect().height > 20;
const found = [...figure.querySelectorAll('img[data-text]')].map((i, n) => seen(i) && [n, i.dataset.text, i.alt]).filter(x => x);
return found.length === 1 && found[0][2].trim() && figure.querySelector('output').textContent === found[0][1] ? found[0][0] : -1;
"""


def check_sliders(browser: Browser) -> list[str]:
    """Move every slider of the open page by keyboard: one frame is seen, and its value and its words belong to it."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    wrong = []
    for figure in browser.driver.find_elements(By.CSS_SELECTOR, "[data-sslbook-slider]"):
        control = figure.find_element(By.CSS_SELECTOR, "input[type=range]")
        last = int(control.get_attribute("max"))
        browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", control)
        for key, place in ((Keys.HOME, 0), (Keys.ARROW_RIGHT, 1), (Keys.END, last)):
            control.send_keys(key)
            if settles(lambda figure=figure: browser.js(FRAMES, figure), place) != place:  # type: ignore[misc]
                wrong.append(f"a slider does not come to {place}")
    return wrong


def test_a_slider_needs_no_script_and_shows_three_frames_on_paper(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    try:
        browser.cdp("Emulation.setScriptExecutionDisabled", {"value": True})
        browser.driver.get(f"{address}/chapters/covariance.html")
        figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]")
        frames = figure.find_elements(By.TAG_NAME, "img")
        assert any(frame.is_displayed() for frame in frames)
        browser.cdp("Emulation.setEmulatedMedia", {"media": "print"})
        assert [i for i, one in enumerate(frames) if one.is_displayed()] == [0, len(frames) // 2, len(frames) - 1]
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.cdp("Emulation.setEmulatedMedia", {"media": ""})


def test_a_slider_plays_to_its_end_when_somebody_asks_for_it(browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{HTML.as_uri()}/chapters/training.html")
    figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]:has(button.sslbook-play)")
    last = int(figure.find_element(By.CSS_SELECTOR, "input[type=range]").get_attribute("max"))
    figure.find_element(By.CSS_SELECTOR, "button").send_keys(Keys.ENTER)
    assert settles(lambda: browser.js(FRAMES, figure), last) == last


SEEN = "return arguments[0].map(id => document.getElementById(id).checkVisibility())"
AGAIN = """
document.getElementById(arguments[0]).closest('details').open = false;
const link = document.createElement('a'); link.href = location.href; document.body.append(link); link.click();
"""
BARS = "return [...document.querySelectorAll('.sslbook-proved:has(.sslbook-check)')].map(b => b.querySelector('.sslbook-check').id)"


def test_a_link_of_the_ledger_opens_the_bar_that_holds_the_check(browser: Browser) -> None:
    page = f"{HTML.as_uri()}/chapters/covariance.html"
    browser.open(page)
    bars = browser.js(BARS)[:2]
    browser.open(f"{page}#{bars[0]}")  # on load
    assert settles(lambda: browser.js(SEEN, bars), [True, False]) == [True, False]
    browser.js(f"location.hash = '{bars[1]}'")  # on hashchange
    assert settles(lambda: browser.js(SEEN, bars), [True, True]) == [True, True]
    browser.js(AGAIN, bars[1])  # the address does not change
    assert settles(lambda: browser.js(SEEN, bars), [True, True]) == [True, True]


ANSWERED = """const box = document.querySelector(".sslbook-ask"), said = box.querySelector("output");
return arguments[0].map((given) => {
  box.querySelector("input").value = given;
  box.querySelector("form").requestSubmit();
  return said.textContent.slice(0, 8);
});"""


def test_the_box_of_an_exercise_takes_a_number_and_names_the_mistake(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes: list[str] = []
    monkeypatch.setattr(reading, "display_html", lambda html, text: boxes.append(html))
    reading.ask(1 / 4, computed=0.25, wrong={"Squared > it.": 0.5, "Not “p”.": -0.75})
    head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><script src="book.js"></script></head><body>'
    (tmp_path / "ask.html").write_text(f"{head}{boxes[0]}</body></html>", encoding="utf-8")
    (tmp_path / "book.js").write_bytes((ASSETS / "static/sslbook/book.js").read_bytes())
    browser.open((tmp_path / "ask.html").as_uri())
    given = ["1/4", ".252", "0,25", "0.5", "\u22123/4", "0.3", "a quarter", "1/", ""]
    no = "A number"
    said = ["✓ Yes.", "✓ Yes.", "✓ Yes.", "✗ Square", "✗ Not “p", "✗ Not th", no, no, no]
    assert browser.js(ANSWERED, given) == said


ENTRIES = """
return [...document.querySelectorAll("p.sslbook-entry strong")].filter(id => id.checkVisibility()).map(id => id.textContent);
"""


def test_the_ledger_s_filter_shows_what_it_is_asked_for_and_says_how_many(browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    claims = {claim.id: claim.verdict for claim in read_claims(BOOK.claims)}
    browser.open(f"{HTML.as_uri()}/chapters/ledger.html")
    form = browser.driver.find_element(By.CSS_SELECTOR, "form.sslbook-filter")
    status, field, verdict = (form.find_element(By.CSS_SELECTOR, what) for what in ("[role=status]", "input", "select"))
    Select(verdict).select_by_visible_text("open")
    wanted = sorted(id for id, given in claims.items() if given == "open")
    said = f"{len(wanted)} of {len(claims)} claims"
    assert settles(lambda: status.text, said) == said
    assert sorted(browser.js(ENTRIES)) == wanted, "open claims are unfolded"
    Select(verdict).select_by_index(0)
    field.send_keys("a-thm3 COVARIANCE")
    assert settles(lambda: browser.js(ENTRIES), ["A-Thm3"]) == ["A-Thm3"]
    browser.js("location.hash = 'ledger-b-thm8'")  # a link to a claim that the filter hides shows it again
    assert settles(lambda: status.text, f"{len(claims)} claims") == f"{len(claims)} claims"


ANSWERS = {
    "collapse": ["byol.html#three-kinds-of-collapse-two-measures", "linear_byol.html#one-unit-collapse-or-survival"],
    "why does BYOL not collapse": ["questions.html#why-does-byol-not-collapse"],
    "InfoNCE": ["operators_today.html#infonce-as-springs-on-the-square"],
    "Theorem 6": ["hltm.html#what-survives-from-the-root", "errata.html#theorem-6-the-statement-and-its-proof"],
    "eq 56": ["details_covariance.html#normalised-outputs"],
    "A-Thm3": ["covariance.html#one-covariance-moves-the-weights"],
    "callbacks": ["library.html#training"],
    "colapse": ["questions.html#why-does-byol-not-collapse"],
    "how do I know if it collapsed": ["questions.html#what-should-i-watch-in-a-run"],
}
NAMED = {"covariance_operator": "covariance_operator", "effective_rnak": "effective_rank", "on_epoch": "pretrain"}
NAMED |= {"top_eigenpairs": "CovarianceOperator.top_eigenpairs", "EigenPairs.plot()": "EigenPairs.plot"}
ANSWERS |= {asked: [f"library.html#sslbook.{name}"] for asked, name in NAMED.items()}
FOUND = """
return [...document.querySelectorAll('#search-results ul.search > li')]
  .map(row => [row.querySelector('a').href, row.querySelectorAll('mark').length]);
"""
text_of = functools.cache(lambda path: Path(path).read_text(encoding="utf-8"))


def test_a_reader_s_word_finds_the_section_among_the_first_three(browser: Browser) -> None:
    for query, wanted in ANSWERS.items():
        browser.open(f"{HTML.as_uri()}/search.html?q={quote(query)}")
        assert settles(lambda: browser.js("return !!window.sslbookSearch"), True)
        found = browser.js(FOUND)
        first = [href.rpartition("/")[2] for href, _ in found[: 2 if query in NAMED else 3]]
        assert set(first) & set(wanted), (query, first)
        for href, _ in found:
            path, _, anchor = href.removeprefix("file://").partition("#")
            assert not anchor or f'id="{anchor}"' in text_of(path)
        shown = [marks or "#sslbook." in href for href, marks in found[:10]]
        assert all(shown), "each shows what was looked for, or is the entry of a name"
        assert browser.errors() == []
