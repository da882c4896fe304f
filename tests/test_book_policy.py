"""What a page may load and run: its policy, made from its HTML, and what a browser makes of it."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_cases
import pytest

from sslbook.book.layout import find_book
from sslbook.book.policy import apply, policy
from sslbook.book.render import pages

BOOK = find_book(Path(__file__).resolve().parents[1])
PAGES = ["search.html", *(f"{name}.html" for name in pages(BOOK.root))]


def hash_of(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def sources(html: str, directive: str) -> list[str]:
    told = dict(part.split(" ", 1) for part in policy(html).split("; "))
    return told[directive].split()


def test_scripts_are_allowed_by_what_they_are() -> None:
    html = (
        '<script>\n let a = "ü";\n</script><script src="b.js"></script><SCRIPT data-c="d">e()</SCRIPT><script></script>'
    )
    allowed = sources(html, "script-src")
    assert allowed[:2] == ["'self'", "file:"]
    assert sorted(allowed[2:]) == sorted([hash_of('\n let a = "ü";\n'), hash_of("e()")])


def test_what_is_not_named_is_refused() -> None:
    assert sources("", "default-src") == ["'none'"]
    assert "unsafe" not in " ".join(sources("<script>a</script>", "script-src"))
    outside = [source for source in policy("").split() if source.startswith(("http", "*", "//"))]
    assert outside == []


def test_the_policy_stands_before_whatever_loads_and_behind_the_charset(tmp_path: Path) -> None:
    page = '<html><head>\n<meta charset="utf-8" /><script>a()</script></head>ü</html>'
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/part.html").write_text("no page", encoding="utf-8")
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    apply(tmp_path)
    written = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert written.replace(f'\n<meta http-equiv="Content-Security-Policy" content="{policy(page)}">', "") == page
    assert written.index("charset") < written.index("Content-Security-Policy") < written.index("<script")
    assert (tmp_path / "_static/part.html").read_text(encoding="utf-8") == "no page"
    (tmp_path / "b.html").write_text("<html></html>", encoding="utf-8")
    with pytest.raises(ValueError, match=r"b\.html: has no <meta charset>"):
        apply(tmp_path)


# ---- In a browser, over the built book ------------------------------------------------------------------------------

WATCH = """
window.refused = [];
window.printed = 0;
window.print = () => { window.printed += 1; };
document.addEventListener("securitypolicyviolation", e => refused.push(`${e.effectiveDirective} ${e.blockedURI}`));
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
  setTimeout(() => done([refused, printed, all("[data-sslbook-print]").length]), 600);
});
"""
INJECT = """
const done = arguments[arguments.length - 1];
window.ran = [];
const script = document.createElement("script");
script.textContent = "ran.push('script')";
document.head.append(script);
const other = document.createElement("script");
other.src = "http://192.0.2.1/a.js";
document.head.append(other);
document.body.insertAdjacentHTML("beforeend",
  `<img src="http://192.0.2.1/a.png" alt=""><img src="data:," onerror="ran.push('handler')" alt="">
   <iframe src="http://192.0.2.1/"></iframe>`);
const sheet = document.createElement("link");
[sheet.rel, sheet.href] = ["stylesheet", "http://192.0.2.1/a.css"];
document.head.append(sheet);
fetch("http://192.0.2.1/").catch(() => 0);
setTimeout("ran.push('text as code')");
setTimeout(() => done([refused, ran]), 1000);
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    if not (BOOK.html / "index.html").is_file():
        pytest.skip("the book is not built: make book")
    driver = browser_cases.headless("hide-scrollbars", "window-size=1300,900", logging={"browser": "ALL"})
    driver.set_script_timeout(110)
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def homes() -> Iterator[dict[str, str]]:
    """Where the book is, by scheme."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(BOOK.html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": BOOK.html.as_uri()}
    server.shutdown()
    server.server_close()


@browser_cases.in_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_that_a_page_does_is_refused(driver: Any, homes: dict[str, str], page: str, scheme: str) -> None:
    driver.get_log("browser")
    driver.get(f"{homes[scheme]}/{page}{'?q=covariance' if page == 'search.html' else ''}")
    refused, printed, buttons = driver.execute_async_script(USE)
    assert refused == []
    assert printed == buttons, "the button that prints, prints"
    assert [
        entry["message"] for entry in driver.get_log("browser") if "Content Security Policy" in entry["message"]
    ] == []
    driver.execute_script("localStorage.clear()")


@browser_cases.in_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_what_is_smuggled_into_a_page_is_refused(driver: Any, homes: dict[str, str], scheme: str) -> None:
    driver.get(f"{homes[scheme]}/chapters/covariance.html")
    refused, ran = driver.execute_async_script(INJECT)
    assert ran == []
    wanted = (
        "script-src-elem inline",
        "script-src-attr inline",
        "script-src eval",
        "script-src-elem http://192.0.2.1/a.js",
    )
    loads = ("img-src http://192.0.2.1/a.png", "style-src-elem http://192.0.2.1/a.css", "connect-src http://192.0.2.1/")
    assert set(refused) == {*wanted, *loads, "frame-src http://192.0.2.1"}
