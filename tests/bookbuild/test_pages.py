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
from bookbuild.sphinx_ext import ASSETS, MATHJAX
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


def test_a_slider_plays_when_somebody_asks_for_it(browser: Browser) -> None:
    """Not before, to the end, and not against whoever takes the slider."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{HTML.as_uri()}/chapters/training.html")
    figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]:has(button.sslbook-play)")
    control, button = (figure.find_element(By.CSS_SELECTOR, what) for what in ("input[type=range]", "button"))
    last = int(control.get_attribute("max"))
    control.send_keys(Keys.HOME)
    assert settles(lambda: browser.js(FRAMES, figure), 0) == 0
    time.sleep(0.9)  # a frame takes 0.7
    assert browser.js(FRAMES, figure) == 0, "nothing moves by itself"
    button.send_keys(Keys.ENTER)
    assert settles(lambda: browser.js(FRAMES, figure), last) == last
    stop = "b.click(); const during = b.ariaLabel; b.click(); return [during, b.ariaLabel]"
    stop = f"const b = arguments[0].querySelector('button'); {stop}"
    assert browser.js(stop, figure) == ["Pause: epochs of training", "Play: epochs of training"]


OUTLINED = """
const element = document.activeElement, style = getComputedStyle(element);
const drawn = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1.5;
return [element.tagName, element.getAttribute('aria-label') || element.textContent.trim(), drawn];
"""


def test_every_button_shows_that_it_has_the_focus_and_photographs_are_true_in_the_dark(
    browser: Browser, address: str
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{address}/chapters/training.html", theme="dark")
    found: dict[str, bool] = {}
    for _ in range(90):  # the sidebar comes first, a stop a page
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        tag, name, outlined = browser.js(OUTLINED)
        if tag == "BUTTON":
            found[name] = outlined
    assert {"Toggle primary sidebar", "Download this page"} <= set(found)
    assert [name for name, outlined in found.items() if not outlined] == []
    styles = (
        "return [...document.querySelectorAll('.cell_output img.keep-colors')].map(i => getComputedStyle(i).filter)"
    )
    assert set(browser.js(styles)) == {"none"}


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
BROKEN = r"""<section id="s0"><div class="math">\[\begin{split}\begin{aligned} & a = b \\
& \quad + c, \\ & d = e \end{aligned}\end{split}\]</div></section>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of many formulas, by its address, with the book's own scripts; beside it one with a broken display."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("book.js", "book.css", "formulas.js", "mathjax.js"):
        (folder / name).write_bytes((ASSETS / "static/sslbook" / name).read_bytes())
    rows = "".join(ROW.format(i, HEIGHT) for i in range(ROWS))
    for name, what in (("one", rows), ("broken", BROKEN)):
        text = PAGE.format(config=json.dumps(MATHJAX), rows=what, long="+".join("abcdefghijklmnopqrstuvwxyz"))
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return (folder / "one.html").as_uri()


def test_what_the_reader_sees_comes_first_and_all_come(browser: Browser, page: str) -> None:
    for address, first in ((page, 0), (f"{page}#s120", 110)):
        browser.open(address)
        seen = browser.js("return seen")
        assert first <= seen[0][0] < first + 40, "what the reader sees, or the link leads to"
        assert (browser.js(RAW), sum(count for *_, count in seen)) == (0, 2 * ROWS + 1), "each once"
    top = "return Math.round(document.getElementById('s120').getBoundingClientRect().top)"
    assert abs(browser.js(top)) <= 2, "a link's place stays where it is"


@pytest.mark.parametrize(("width", "lines"), [(900, 2), (400, 3)])
def test_a_statement_that_was_broken_for_phones_is_whole_on_a_desk(
    browser: Browser, page: str, width: int, lines: int
) -> None:
    browser.open(page.replace("one.html", "broken.html"), (width, 900))
    rows = (
        "return document.querySelectorAll('.math [data-mml-node=mtr]').length - 1"  # the environment around it is a row
    )
    assert browser.js(rows) == lines


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
    browser: Browser, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes: list[str] = []
    monkeypatch.setattr(reading, "display_html", lambda html, text: boxes.append(html))
    reading.ask(1 / 4, computed=0.25, wrong={"Squared > it.": 0.5, "Not “p”.": -0.75})
    path = Path(page.removeprefix("file://")).with_name("ask.html")
    head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><script src="book.js"></script></head><body>'
    path.write_text(f"{head}{boxes[0]}</body></html>", encoding="utf-8")
    browser.open(path.as_uri())
    given = ["1/4", ".252", "0,25", "0.5", "\u22123/4", "0.3", "a quarter", "1/", ""]
    no = "A number"
    said = ["✓ Yes.", "✓ Yes.", "✓ Yes.", "✗ Square", "✗ Not “p", "✗ Not th", no, no, no]
    assert browser.js(ANSWERED, given) == said


ENTRIES = """
return [...document.querySelectorAll("p.sslbook-entry")].filter(p => p.checkVisibility()).map(p => [
  p.querySelector("strong").textContent, p.querySelector(".sslbook-verdict").textContent]);
"""


def test_the_ledger_s_filter_shows_what_it_is_asked_for_and_says_how_many(browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    claims = {claim.id: claim.verdict for claim in read_claims(BOOK.claims)}
    browser.open(f"{HTML.as_uri()}/chapters/ledger.html")
    form = browser.driver.find_element(By.CSS_SELECTOR, "form.sslbook-filter")
    status, field, verdict = (form.find_element(By.CSS_SELECTOR, what) for what in ("[role=status]", "input", "select"))
    for chosen in sorted(set(claims.values())):
        Select(verdict).select_by_visible_text(chosen)
        wanted = sorted(id for id, given in claims.items() if given == chosen)
        said = f"{len(wanted)} of {len(claims)} claims"
        assert settles(lambda: status.text, said) == said
        assert sorted(id for id, _ in browser.js(ENTRIES)) == wanted, "open claims are unfolded"
    Select(verdict).select_by_index(0)
    field.send_keys("a-thm3 COVARIANCE")
    assert settles(lambda: [id for id, _ in browser.js(ENTRIES)], ["A-Thm3"]) == ["A-Thm3"]
    browser.js("location.hash = 'ledger-b-thm8'")  # a link to a claim that the filter hides shows it again
    assert settles(lambda: status.text, f"{len(claims)} claims") == f"{len(claims)} claims"
    assert browser.errors() == []


ANSWERS = {
    "collapse": [
        "byol.html#three-kinds-of-collapse-two-measures",
        "linear_byol.html#one-unit-collapse-or-survival",
    ],
    "why does BYOL not collapse": ["questions.html#why-does-byol-not-collapse"],
    "InfoNCE": ["operators_today.html#infonce-as-springs-on-the-square"],
    "Theorem 6": ["hltm.html#what-survives-from-the-root", "errata.html#theorem-6-the-statement-and-its-proof"],
    "eq 56": ["details_covariance.html#normalised-outputs"],
    "A-Thm3": ["covariance.html#one-covariance-moves-the-weights"],
    "callbacks": ["library.html#training"],
    "colapse": ["questions.html#why-does-byol-not-collapse"],
    "how do I know if it collapsed": ["questions.html#what-should-i-watch-in-a-run"],
}
NAMED = {"Pipeline": "Pipeline", "covariance_operator": "covariance_operator", "effective_rnak": "effective_rank"}
NAMED |= {
    "on_epoch": "pretrain",
    "top_eigenpairs": "CovarianceOperator.top_eigenpairs",
    "EigenPairs.plot()": "EigenPairs.plot",
}
ANSWERS |= {asked: [f"library.html#sslbook.{name}"] for asked, name in NAMED.items()}
FOUND = """
return [...document.querySelectorAll('#search-results ul.search > li')].map(row => [
  row.querySelector('a').href, row.querySelector('p').textContent, row.querySelectorAll('mark').length]);
"""
text_of = functools.cache(lambda path: Path(path).read_text(encoding="utf-8"))


def test_a_reader_s_word_finds_the_section_among_the_first_three(browser: Browser) -> None:
    for query, wanted in ANSWERS.items():
        browser.open(f"{HTML.as_uri()}/search.html?q={quote(query)}")
        assert settles(lambda: browser.js("return !!window.sslbookSearch"), True)
        found = browser.js(FOUND)
        first = [href.rpartition("/")[2] for href, _, _ in found[: 2 if query in NAMED else 3]]
        assert set(first) & set(wanted), (query, first)
        for href, excerpt, _ in found:
            path, _, anchor = href.removeprefix("file://").partition("#")
            assert not anchor or f'id="{anchor}"' in text_of(path)
            assert "import torch" not in excerpt
        shown = [marks or "#sslbook." in href for href, _, marks in found[:10]]
        assert all(shown), "each shows what was looked for, or is the entry of a name"
        assert browser.errors() == []
    browser.open(f"{HTML.as_uri()}/search.html?q=colapse")
    said = "Nothing has “colapse”; this is for “collapse”."
    assert settles(
        lambda: said in browser.js("return document.querySelector('#search-results [role=status]').textContent"), True
    )
