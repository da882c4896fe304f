"""A browser that looks at the pages of the built book, and what it asks of them.

The book is built first if it is not there or not fresh; SSLBOOK_HTML names another built folder to look at instead.
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
    from sslbook.book.render import pages

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
