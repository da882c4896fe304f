"""From the page's HTML to Markdown: what stands in the book that ordinary HTML has not."""

from __future__ import annotations

import pytest

from bookbuild.cells import PICTURE
from bookbuild.markdown import MARK, pieces, without_marks

NAMES = ["one", "two"]


def plain(html: str, site: str = "") -> str:
    (piece,) = pieces(f'<{MARK} data-cell="0"></{MARK}>{html}', NAMES, site)
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


def test_links_lead_to_the_published_pages_where_there_are_any() -> None:
    assert plain('<p><a href="ledger.html#x">the ledger</a></p>', "https://ada.github.io/book") == (
        "[the ledger](https://ada.github.io/book/chapters/ledger.html#x)"
    )


def test_pieces_are_cut_where_cells_and_sections_begin() -> None:
    code = '<div class="cell"><div class="highlight-ipython3 notranslate"><div class="highlight"><pre>x\n</pre></div>\n</div></div>'
    html = (
        f'<section><{MARK} data-cell="0"></{MARK}><h1>One</h1><p>A <span class="pasted-text">4</span>.</p>'
        f'<{MARK} data-cell="1"></{MARK}>{code}'
        f'<{MARK} data-cell="2"></{MARK}><p>B.</p><section><h2>Two</h2><p>C.</p>'
        f'<div class="solution dropdown admonition"><p class="admonition-title">Solution</p><p>D.</p>'
        f'<{MARK} data-cell="3"></{MARK}>{code}</div><{MARK} data-cell="4"></{MARK}><p>E.</p></section></section>'
    )
    assert [(p.kind, p.cell, p.text, p.numbers, p.folded) for p in pieces(html, NAMES)] == [
        ("text", 0, "# One\n\nA 4.", ("4",), False),
        ("code", 1, "", (), False),
        ("text", 2, "B.", (), False),
        ("text", 2, "## Two\n\nC.", (), False),
        ("solution", 2, "D.", (), False),
        ("code", 3, "", (), True),
        ("text", 4, "E.", (), False),
    ]
    assert MARK not in without_marks(html)


CAPTIONED = (
    '<div class="cell"><div class="highlight-ipython3 notranslate"><div class="highlight"><pre>x\n</pre></div>\n</div>'
    '<div class="cell_output"><figure id="fig-one"><img alt="x"><figcaption><p><span class="caption-number">Figure 1.1 </span>'
    '<span class="caption-text">It <em>moves</em></span></p></figcaption></figure></div></div>'
)


def test_a_caption_stands_below_its_cell() -> None:
    words = '<a id="fig-one"></a>**Figure 1.1** It *moves*'
    after = f'<{MARK} data-cell="5"></{MARK}><p>More.</p>'
    found = pieces(f'<{MARK} data-cell="4"></{MARK}>{CAPTIONED}{after}', NAMES)
    assert [(p.kind, p.cell, p.text) for p in found] == [("code", 4, ""), ("caption", -1, words), ("text", 5, "More.")]
    opening, second = f'<{PICTURE} data-cell="4"></{PICTURE}>', f'<{MARK} data-cell="6"></{MARK}>{CAPTIONED}'
    assert [(p.kind, p.text) for p in pieces(opening + CAPTIONED + after + second, NAMES)] == [
        ("picture", words),
        ("text", "More."),
        ("code", ""),
        ("caption", words),
    ]
