"""The checks of the built pages: each kind of defect must be found, and a good page must pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sslbook.book.chapters import find_chapters
from sslbook.book.htmlcheck import check_html, pasted, prose
from sslbook.book.layout import Book

PROSE = """
The gap is {glue:text}`gap:.1e` of {glue:text}`n`, elsewhere {glue:text}`other.md::rate:.3f`.

````{prf:theorem} One
:label: one

Again {glue:text}`gap:.2f`.
```{note}
And {glue:text}`n:d`, {least}`rise:.1f` and {interval}`rise:+.1f`.
```
````

Written as `` {glue:text}`literal` ``.
% commented {glue:text}`comment`

```python
# {glue:text}`code`
```

<<"{glue:text}`cell`">>
"""

GAP = "1.2\u00a0×\u00a010⁻¹⁵"

POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'">"""
PAGE = f"""<html><head>{POLICY}<link rel="stylesheet" href="../_static/style.css"><link rel="canonical" href="https://example.org/">
<script src="../_static/script.js"></script></head><body>
<nav><a href="#top">up</a><span class="pasted-text">9.9</span></nav>
<article id="top"><h1>Good</h1>
<p><span class="pasted-text">1.2\u00a0×\u00a010⁻¹⁵</span> of <span class="pasted-text">3</span>,
<span class="pasted-text">0.667</span></p>
<p><span class="pasted-text">0.00</span> <span class="pasted-text">3</span> <span class="pasted-text">1.2</span>
<span class="pasted-text sslbook-interval">+1.3 (+0.4\u00a0to\u00a0+2.1, n\u00a0=\u00a05)</span></p>
<a href="other.html#check-rate">a check</a> <a href="https://example.org">out</a> <a href="mailto:a@b.c">mail</a>
<a name="old"></a><a href="good.html#old">old</a> <img src="data:image/png;base64,AA"> <a href="files/a%20b.txt">file</a>
</article></body></html>
"""
OTHER = f'<html>{POLICY}<body><article><div id="check-rate"></div><a href="good.html">back</a></article></body></html>'


RISE = {"rise": "1.26", "rise-low": "0.4", "rise-high": "2.01", "rise-n": "5"}


def notebook(**values: str) -> str:
    outputs = [
        {
            "output_type": "display_data",
            "data": {"application/papermill.record/text/plain": value},
            "metadata": {"scrapbook": {"name": name}},
        }
        for name, value in values.items()
    ]
    return json.dumps({"metadata": {}, "cells": [{"cell_type": "code", "metadata": {}, "outputs": outputs}]})


@pytest.fixture
def book(write_book) -> Book:
    """A built book of two good pages."""
    book = write_book(good=PROSE, other="<<1>>")
    executed = book.executed("quick")
    executed.mkdir(parents=True)
    (executed / "good.ipynb").write_text(notebook(gap="1.23e-15", n="3", **RISE), encoding="utf-8")
    (executed / "other.ipynb").write_text(notebook(rate="0.6666666"), encoding="utf-8")
    files = {
        "chapters/good.html": PAGE,
        "chapters/other.html": OTHER,
        "chapters/files/a b.txt": "",
        "_static/style.css": "body { background: url('image.png') }",
        "_static/script.js": "",
        "_static/template.html": '<a href="nowhere.html">not a page</a>',
        "index.html": POLICY
        + '<meta http-equiv="refresh" content="0; url=chapters/good.html"><a href="chapters/good.html">open</a>',
    }
    for name, text in files.items():
        path = book.html / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return book


def problems(book: Book) -> list[str]:
    return check_html(book, "quick", book.html)


def test_good_pages_pass(book: Book) -> None:
    assert problems(book) == []


def test_roles_are_found_where_they_are_prose(book: Book) -> None:
    chapter = next(c for c in find_chapters(book) if c.name == "good")
    assert list(pasted(chapter.text, "good")) == [
        ("good", "gap", ".1e", "glue:text"),
        ("good", "n", "s", "glue:text"),
        ("other", "rate", ".3f", "glue:text"),
        ("good", "gap", ".2f", "glue:text"),
        ("good", "n", "d", "glue:text"),
        ("good", "rise", ".1f", "least"),
        ("good", "rise", "+.1f", "interval"),
    ]
    assert "commented" not in prose(chapter.text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GAP, "1.2e-15", f"chapters/good.html: the number {GAP} of its source is not in the page"),
        (GAP, "1.3e-15", "chapters/good.html: it shows the number 1.3e-15, which its source does not paste"),
        (
            '<span class="pasted-text">3</span> <span class="pasted-text">1.2',
            '<span class="pasted-text">1.2',
            "chapters/good.html: the number 3 of its source is not in the page",
        ),
        ("other.html#check-rate", "other.html#check-rat", "names an anchor that other.html does not have"),
        ("other.html#check-rate", "othr.html", "chapters/good.html: othr.html leads to no file"),
        ("#top", "#bottom", "#bottom names an anchor that good.html does not have"),
        ("files/a%20b.txt", "../../../data/claims.yml", "leads out of the book"),
        ("data:image/png;base64,AA", "gone.png", "gone.png leads to no file"),
        ("../_static/script.js", "https://cdn.example/x.js", "<script> loads https://cdn.example/x.js"),
        ("data:image/png;base64,AA", "//cdn.example/x.png", "<img> loads //cdn.example/x.png"),
        ("../_static/style.css", "https://cdn.example/x.css", "<link> loads https://cdn.example/x.css"),
        ('rel="canonical"', 'rel="preconnect"', "<link> loads https://example.org/"),
        ("<h1>", '<h1 style="background: url(https://cdn.example/x)">', "a style loads https://cdn.example/x"),
        ("<h1>", '<style>@import "//cdn.example/x.css";</style><h1>', "a style loads //cdn.example/x.css"),
        (
            "<h1>",
            '<img src="data:," srcset="../_static/script.js 1x, https://cdn.example/x 2x"><h1>',
            "<img> loads https://cdn.example/x",
        ),
        ("<h1>", '<iframe src="https://example.org/"></iframe><h1>', "<iframe> loads https://example.org/"),
        ("<h1>", '<h1 onclick="go()">', "<h1 onclick> is refused by the page's policy"),
        ('href="#top"', 'href="javascript:go()"', "<a> leads to a script, which the page's policy refuses"),
        (POLICY, "", "chapters/good.html: has no Content-Security-Policy"),
    ],
)
def test_each_defect_is_found(old: str, new: str, message: str, book: Book) -> None:
    assert old in PAGE
    (book.html / "chapters" / "good.html").write_text(PAGE.replace(old, new), encoding="utf-8")
    found = problems(book)
    assert any(message in problem for problem in found), found


def test_a_role_for_a_number_that_is_not_produced(book: Book) -> None:
    (book.executed("quick") / "other.ipynb").write_text(notebook(ratio="0.6666666"), encoding="utf-8")
    assert any("names 'rate', which other does not produce" in problem for problem in problems(book))


def test_an_interval_needs_its_ends(book: Book) -> None:
    without = {name: value for name, value in RISE.items() if name != "rise-high"}
    (book.executed("quick") / "good.ipynb").write_text(notebook(gap="1.23e-15", n="3", **without), encoding="utf-8")
    assert any("{interval} names 'rise-high', which good does not produce" in problem for problem in problems(book))


def test_a_bound_that_was_rounded_to_nearest_is_found(book: Book) -> None:
    (book.html / "chapters/good.html").write_text(PAGE.replace(">1.2<", ">1.3<"), encoding="utf-8")
    assert "chapters/good.html: the number 1.2 of its source is not in the page" in problems(book)


def test_a_style_sheet_that_loads_from_elsewhere(book: Book) -> None:
    Path(book.html / "_static" / "style.css").write_text(
        "@font-face { src: url(https://fonts.example/a.woff2) }", encoding="utf-8"
    )
    assert problems(book) == ["_static/style.css: loads https://fonts.example/a.woff2"]
