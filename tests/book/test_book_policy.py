"""What a page may load and run: its policy, made from its HTML, and what a browser makes of it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import browser_cases
import pytest
from page_cases import VIEWS, Browser, address, browser, html

from sslbook.book.policy import apply, policy

__all__ = ["address", "browser", "html"]  # fixtures


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


@browser_cases.in_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_what_is_smuggled_into_a_page_is_refused(browser: Browser, address: str, html: Path, scheme: str) -> None:
    """What pages do by themselves is not: see `test_pages.py`."""
    home = address if scheme == "http" else html.as_uri()
    browser.open(f"{home}/chapters/covariance.html", VIEWS["light"])
    refused, ran = browser.driver.execute_async_script(INJECT)
    assert ran == []
    wanted = (
        "script-src-elem inline",
        "script-src-attr inline",
        "script-src eval",
        "script-src-elem http://192.0.2.1/a.js",
    )
    loads = ("img-src http://192.0.2.1/a.png", "style-src-elem http://192.0.2.1/a.css", "connect-src http://192.0.2.1/")
    assert set(refused) == {*wanted, *loads, "frame-src http://192.0.2.1"}
