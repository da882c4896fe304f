"""From the page's HTML to Markdown: what stands in the book that ordinary HTML has not."""

from __future__ import annotations

import pytest

from bookbuild.markdown import MARK, pieces

NAMES = ["one", "two"]


def plain(html: str) -> str:
    (piece,) = pieces(f'<{MARK} data-cell="0"></{MARK}>{html}', NAMES)
    return piece.text


MATH = '<span class="math notranslate nohighlight">\\(a_1 |b|\\)</span>'
DISPLAY = """<div class="math notranslate nohighlight" id="equation-eq">
<span class="eqno">(2.1)<a class="headerlink" href="#equation-eq" title="Link">#</a></span>\\[
a &lt; b
\\]</div>"""


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        (
            '<div class="math">\\[\\begin{split}\\begin{aligned}a\\\\b\\end{aligned}\\end{split}\\]</div>',
            "$$\n\\begin{aligned}a\\\\b\\end{aligned}\n$$",
        ),
        (r'<div class="math">\[& a \\ & \qquad\quad + b\]</div>', "$$\n& a + b\n$$"),
        (
            '<div class="proof theorem admonition" id="thm"><p class="admonition-title"><span class="caption-number">'
            f"Theorem 2.1 </span> (Name · A-Thm3)</p><section class='theorem-content'><p>Let {MATH}.</p>{DISPLAY}</section></div>",
            '<a id="thm"></a>\n\n> **Theorem 2.1** (Name · A-Thm3)\n>\n> Let $a_1 |b|$.\n>\n'
            '> <a id="equation-eq"></a>\n> $$ a < b \\tag{2.1} $$',
        ),
        (
            '<div class="dropdown tip admonition"><p class="admonition-title">Hint</p><p>Add.</p></div>',
            "<details>\n<summary>Hint</summary>\n\nAdd.\n\n</details>",
        ),
        (
            f"<table><thead><tr><th>A</th></tr></thead><tbody><tr><td>{MATH}</td></tr></tbody></table>",
            "| A |\n| --- |\n| $a_1 \\vert b\\vert $ |",
        ),
        ('<p><a class="reference internal" href="two.html#thm">Theorem 3</a></p>', "[Theorem 3](two.ipynb#thm)"),
        ('<p><a class="reference internal" href="ledger.html">the ledger</a></p>', "the ledger"),
        ('<h2><span class="section-number">2.1. </span>So<a class="headerlink" href="#so">#</a></h2>', "## 2.1. So"),
        ("<p>a_b * c</p>", r"a\_b \* c"),
        (
            '<p>A.</p><table id="tab-a"><tbody><tr id="r"><td>B</td></tr></tbody></table>',
            'A.\n\n<a id="tab-a"></a>\n\n|  |\n| --- |\n|<a id="r"></a> B |',
        ),
        (
            '<a href="#so">So</a><a href="#id1">1</a><section id="so"><span id="id1">1</span><span id="id2">2</span></section>',
            '[So](#so)[1](#id1)\n\n<a id="so"></a>\n\n<a id="id1"></a>12',
        ),
    ],
)
def test_what_becomes_of(html: str, markdown: str) -> None:
    assert plain(html) == markdown
