"""What is staged, what a failed build says, a small book rendered whole, links of the built pages, and what they say."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import conftest
import jupytext
import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from conftest import number
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from bookbuild import render, search, sphinx_ext
from bookbuild.layout import find_book
from sslchapters import plots
from sslchapters.values import badge

ROOT = Path(__file__).resolve().parents[2]
HEADER = conftest.HEADER.partition("# The chapter")[0]
CHAPTER = """# One

What you will see.

```{code-cell} ipython3
print("hello")
```

The picture.

```{code-cell} ipython3
slider(draw)
```

(fig-learning)=
*It learns* $x$.
In steps.

```{code-cell} ipython3
:tags: [hide-cell]
claim("opening")
```

## Statements

```{prf:theorem} First
:label: thm-first
$x = x$
```

```{prf:lemma}
:label: lem-second
By {prf:ref}`thm-first`.
```

```{prf:proof}
Clear.
```

```{prf:proof}
Clear again.
```

$$ a = b $$ (eq-first)

See {eq}`eq-first`, {prf:ref}`lem-second` and {cite}`tian2020`. It is ($x$) of the $k$-th $y$, or {glue:text}`gap:.1e`.
The [errata](ledger.md) say so.

It gains {interval}`rise:+.1f`, {least}`rise:.1f` or more; {most}`one.md::share:.0%` of them.

| A | B | C | D |
|---|---|---|---|
| 1 | `torch.nn.Linear` | 3 | 4 |

```{list-table} Small
:name: tab-one
* - 1
```

```{exercise}
:label: ex-one
See {numref}`tab-one`.
```

```{solution} ex-one
One.
```

## Shown

See {numref}`fig-learning`, {numref}`fig-drawn`, {numref}`tab-above`, {numref}`tab-inside`.

```{code-cell} ipython3
:tags: [hide-input]
plot()
```

(fig-drawn)=
Drawn.

(tab-above)=
```{code-cell} ipython3
show("<p><em>Above</em></p><table>")
```

```{exercise}
:label: ex-three
Three.
```

```{solution-start} ex-three
:class: dropdown
```

By code.

```{code-cell} ipython3
solve()
```

```{solution-end}
```

### Inner

(tab-inside)=
```{code-cell} ipython3
show("<table><caption>Inside &lt; 1</caption>")
```

```{code-cell} ipython3
:tags: [hide-cell]
claim("inner")
```

The end.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A book of three pages with this book's own configuration."""
    root = tmp_path / "book"
    (root / "chapters/figures").mkdir(parents=True)
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert config.count('  url: ""\n') == 1
    (root / "_config.yml").write_text(
        config.replace('  url: ""', "  url: https://github.com/Ada/book"), encoding="utf-8"
    )
    shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
    (root / "chapters/figures/one.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    (root / "chapters/.hidden.txt").write_text("not for the page", encoding="utf-8")
    part = {"caption": "Part", "numbered": True, "chapters": [{"file": "chapters/one"}, {"file": "chapters/ledger"}]}
    toc = {"format": "jb-book", "root": "chapters/intro", "parts": [part]}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    (root / "chapters/intro.md").write_text("# Intro\n\n```{bibliography}\n```\n", encoding="utf-8")
    (root / "chapters/one.md").write_text(HEADER + CHAPTER, encoding="utf-8")
    execute(root, CHAPTER)
    return root


GLUED = {"gap": -1.23e-15, "rise": 1.26, "rise-low": 0.4, "rise-high": 2.01, "rise-n": 5, "share": 0.271}


def slider_html() -> str:
    """What a notebook holds of a slider with two frames."""
    shown: list[str] = []
    with mock.patch.object(plots, "display_html", lambda html, text: shown.append(html)):
        plots.slider(lambda _: plots.figure()[0], (0, 1), label="steps", alt=str, name="learning")
    return shown[0]


def outputs(source: str) -> list[nbformat.NotebookNode]:
    """What a cell of the chapter has shown."""

    def display(data: dict[str, str], **metadata: Any) -> nbformat.NotebookNode:
        return nbformat.v4.new_output("display_data", data=data, metadata=metadata)

    said = nbformat.v4.new_output("stream", name="stdout", text="hello\n")
    if source.startswith("print"):
        kind = "application/papermill.record/"
        named = {name: {"name": name, "mime_prefix": kind} for name in GLUED}
        return [said, *(display({f"{kind}text/plain": repr(GLUED[n])}, scrapbook=named[n]) for n in GLUED)]
    if source.startswith("plot"):
        return [said, display({"image/png": PIXEL})]
    if source.startswith("solve"):
        return []
    if source.startswith("claim"):
        check = number(source.split('"')[1], 2e-16, id=None, below=1e-14, rejects={"sign": 1.0})
        return [display({"text/html": badge(check)})]
    html = SLIDER if source.startswith("slider") else source.split('"')[1] + "<tr><td>1</td></tr></table>"
    return [display({"text/html": html, "text/plain": "1"})]


SLIDER = slider_html()
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def execute(root: Path, chapter: str) -> None:
    """Write the notebook that an execution of `chapter` would leave."""
    notebook = jupytext.reads(HEADER + chapter, fmt="md:myst")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = outputs(cell.source)
    (root / "executed").mkdir(exist_ok=True)
    nbformat.write(notebook, root / "executed/one.ipynb")


LEDGER = {"chapters/ledger": "# Ledger\n"}


def build(root: Path) -> Path:
    return render.build(root / "executed", root / "_build/html", root=root, generated=LEDGER, failed={})


def test_a_chapter_that_failed_has_its_page_all_the_same(root: Path) -> None:
    path = root / "executed/one.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.outputs = [out for out in cell.outputs if out.get("metadata", {}).get("scrapbook", {}).get("name") != "gap"]
    cell.outputs.append(nbformat.v4.new_output("error", ename="ValueError", evalue="no gap", traceback=["no gap here"]))
    nbformat.write(notebook, path)
    (root / "chapters/one.md").write_text(HEADER + CHAPTER + "\n{prf:ref}`nowhere`\n", encoding="utf-8")
    failed = {"one": ["gap: 2.0 is not ≤ 1"]}
    render.build(root / "executed", root / "_build/html", root=root, generated=LEDGER, failed=failed)
    article = BeautifulSoup((root / "_build/html/chapters/one.html").read_text(encoding="utf-8"), "html.parser").article
    text = article.get_text()
    assert "the $k$-th $y$, or —." in text.replace("\\(", "$").replace("\\)", "$"), "what was not computed is a dash"
    assert "no gap here" in text
    assert article.h1.find_next_sibling("div").li.get_text() == "gap: 2.0 is not ≤ 1"


def test_stage_gathers_what_pages_refer_to_and_a_warning_quotes_the_line_that_it_means(root: Path) -> None:
    (root / "_build/stage/chapters").mkdir(parents=True)
    (root / "_build/stage/chapters/old.md").write_text("left by an earlier build", encoding="utf-8")
    folder = render.stage(root / "executed", root / "_build/stage", root=root, generated=LEDGER)
    files = sorted(str(path.relative_to(folder / "chapters")) for path in folder.rglob("*/*") if path.is_file())
    assert files == ["figures/one.svg", "intro.md", "ledger.md", "one.ipynb", "references.bib"]
    log = f"\x1b[91m{folder}/chapters/one.ipynb:10001: WARNING: something\x1b[39;49;00m\n{folder}/_toc.yml:3: WARNING: plain\nok\n"
    assert render.explain(log, folder).splitlines() == [
        "  chapters/one.md, cell 1, near “# One”: WARNING: something",
        "  _toc.yml:3: WARNING: plain",
    ]


@pytest.mark.slow
def test_a_small_book_rendered_whole(root: Path) -> None:
    index = build(root)
    html = index.parent
    assert index == root / "_build/html/index.html"
    text = (html / "chapters/one.html").read_text(encoding="utf-8")
    page = BeautifulSoup(text, "html.parser")

    ids = [tag["id"] for tag in page.select("[id]")]
    assert len(ids) == len(set(ids)) > 10, "boxes of a kind share none"
    titles = [" ".join(title.text.split()) for title in page.select("div.proof .admonition-title")]
    assert titles == ["Theorem 1.1 (First)", "Lemma 1.2"], "one counter for all statements, numbered by chapter"
    assert page.select_one("div.proof.lemma a.reference").text == "Theorem 1.1"
    assert page.select_one(".eqno").text.startswith("(1.1)")
    assert page.select_one("a.reference[href='#equation-eq-first']").text == "(1.1)"
    rise = "+1.3 (+0.4\u00a0to\u00a0+2.0, n\u00a0=\u00a05)"
    pasted = [span.text for span in page.select("article span.pasted-text")]
    assert pasted == ["−1.2\u00a0×\u00a010⁻¹⁵", rise, "1.2", "28%"]
    table = page.select_one("table.sslbook-stack")
    assert [cell["data-label"] for cell in table.select("tbody td")] == list("ABCD")
    assert table.select_one("code").decode_contents().count("<wbr/>") == 2

    # What cells become: an opening picture, figures and tables with numbers and captions, checks folded by sections.
    captions = {one["id"]: one.figcaption.text.strip("#\n") for one in page.select("figure[id]")}
    assert captions == {
        "fig-learning": "Figure 1.1 It learns \\(x\\).\nIn steps.",
        "fig-drawn": "Figure 1.2 Drawn.",
        "tab-above": "Table 1.2 Above",
        "tab-inside": "Table 1.3 Inside < 1",
    }
    assert "See Figure 1.1, Figure 1.2, Table 1.2, Table 1.3." in page.text
    assert page.select_one("#fig-learning #slider-learning")
    assert "hello" not in page.select_one("#fig-drawn").text
    article = str(page.article)
    signs = (
        "What you will see",
        "The picture.",
        "slider-learning",
        'id="check-opening"',
        'id="statements"',
        "The end.",
    )
    places = [*map(article.index, signs), article.index("Show the code that sets up this page and draws its first")]
    assert places == sorted(places), "it opens with its picture, and its set-up stands at its foot"
    opening, shown = page.select("details.sslbook-proved")
    assert (opening.summary.text, shown.summary.text) == ("✓ 1 check and the code", "✓ 1 check and the code")
    assert opening.find_next("section")["id"] == "statements"
    assert [pre.text.strip() for pre in shown.select(".cell_input pre")] == ["plot()", 'claim("inner")']
    assert str(shown).index('id="check-inner"') < str(shown).index("claim"), "a check stands above its code"
    assert shown.select_one("details.sslbook-check-rejects").has_attr("open"), "who opened the line wants all of it"
    assert shown.find_parent("section")["id"] == "shown", "at the end, below the section's own sections"

    intro = BeautifulSoup((html / "chapters/intro.html").read_text(encoding="utf-8"), "html.parser")
    assert intro.select_one("div.citation .label").text.strip("[]") == "Tian et al., 2020a"
    assert all(len(entry.select("p a")) <= 1 for entry in intro.select("div.citation")), "one link for each"
    licences = page.select_one("footer p.sslbook-licences a")["href"]
    assert "SIL OPEN FONT LICENSE" in (html / "chapters" / licences).read_text(encoding="utf-8")
    assert page.select_one("link[rel=canonical]")["href"] == "https://ada.github.io/book/chapters/one.html"
    assert text.index("_static/sslbook/formulas.js") < text.index("_static/sslbook/mathjax.js"), "told before it begins"
    light = (html / "chapters/intro.html").read_text(encoding="utf-8")
    assert "mathjax.js" not in light, "a page without a formula loads nothing for them"

    offers = {link["download"]: link["href"] for link in page.select("a[download]")}
    assert set(offers) == {"one.ipynb", "one.md"}
    notebook = nbformat.read(html / "chapters" / offers["one.ipynb"], as_version=4)
    nbformat.validate(notebook)
    told = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for words in (
        '<a id="fig-learning"></a>**Figure 1.1** *It learns* $x$.',
        "> **Theorem 1.1** (First)\n>\n> $x = x$",
        "By [Theorem 1.1](#thm-first).",
        '<a id="tab-one"></a>',
        "<summary>Solution</summary>\n\nOne.",
        "$$\na = b\n\\tag{1.1}\n$$",
        "See [(1.1)](#equation-eq-first), [Lemma 1.2](#lem-second)",
        f"It gains {rise}, 1.2 or more; 28% of them.",
        "[errata](https://ada.github.io/book/chapters/ledger.html)",
    ):
        assert words in told
    assert [" ".join(cell.source.split())[:16] for cell in notebook.cells if cell.cell_type == "code"] == [
        "# Run this first", 'print("hello")', "slider(draw)", 'claim("opening")', "# this run's num", "plot()",
        'show("<p><em>Abo', 'solve()', 'show("<table><ca', 'claim("inner")', "# what this run ",
    ]  # fmt: skip
    beside = notebook.cells[[cell.source.startswith("# this run") for cell in notebook.cells].index(True)]
    assert '"gap:.1e=-1.23e-15"' in beside.source
    assert '"interval rise:+.1f=(1.26, 0.4, 2.01, 5)"' in beside.source
    seen = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("show")]
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell not in seen]
    assert all(cell.metadata.jupyter.source_hidden for cell in code)
    assert [output.output_type for output in code[1].outputs] == ["stream"], "what is glued stays with the build"
    buttons = page.select(".dropdown-launch-buttons a, .dropdown-suggest-buttons a")
    assert [button.text.strip() for button in buttons] == ["Colab", "Binder", "Edit", "Issue"]
    assert (html / "chapters" / offers["one.md"]).read_text(encoding="utf-8") == HEADER + CHAPTER

    # A page with a broken reference, and without a number: refused, with its place; the good book stays.
    execute(root, CHAPTER + "\nSee {prf:ref}`thm-nowhere`.\n\nSo {interval}`gap:.1f`.\n")
    with pytest.raises(render.RenderError, match=r"chapters/one\.md.*thm-nowhere") as refused:
        build(root)
    assert "names 'gap-low', which chapters/one does not produce" in str(refused.value)
    assert (html / "chapters/one.html").read_text(encoding="utf-8") == text


INDEXED = r"""<article class="bd-article"><section id="top"><h1>2. One</h1><p>First <span class="math">\(\beta\)</span>.</p>
<div class="cell"><div class="highlight-ipython3 notranslate"><div class="highlight"><pre>import torch</pre></div></div></div>
<section id="two"><h2>2.1. Two</h2><p>Second.</p>
<div class="proof theorem" id="thm"><p class="admonition-title">Theorem 2.1</p>
<section id="proof-content"><p>So <code>op</code>.</p><div class="math">\[\begin{split}a\end{split}\]</div></section></div>
<div class="cell"><p>Printed.</p><figure id="fig"><figcaption><p>Figure 2.1 Drawn.</p></figcaption></figure></div>
<section id="three"><h3>2.1.1. Three</h3><p>Third.</p><dl class="py class"><dt id="sslbook.Net"><em class="sig-param"><span
class="n">width</span>: <span class="n">int</span></em></dt><dd><p>A net.</p><dl class="py method"><dt id="sslbook.Net.plot"></dt>
<dd><p>Draws.</p></dd></dl></dd></dl></section></section></section></article>"""


def test_each_section_has_its_own_words_and_no_code() -> None:
    rows = search.sections("chapters/one", INDEXED)
    assert {row["chapter"] for row in rows} == {"2. One"}
    assert [(row["anchor"], row["title"], row["boxes"], row["text"]) for row in rows] == [
        ("top", "2. One", "", "First β."),
        ("two", "2.1. Two", "Theorem 2.1", "Second. Theorem 2.1 So op. … Figure 2.1 Drawn."),
        ("three", "2.1.1. Three", "", "Third."),
        ("sslbook.Net", "Net", "width", "A net."),
        ("sslbook.Net.plot", "Net.plot", "", "Draws."),
    ]


MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=lambda *_: "")


@pytest.mark.built
def test_every_link_of_the_built_book_leads_somewhere() -> None:
    """Also in HTML of ours and in readers' notebooks, which Sphinx does not see: their text, and what is shown below their code."""
    html = find_book(ROOT).html.resolve()
    shown = {path: path.read_text("utf-8") for path in html.rglob("*.html") if "_static" not in path.parts}
    for path in (html / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        text = [MARKDOWN.render(cell.source) for cell in cells if cell.cell_type == "markdown"]
        outputs = [out.get("data", {}).get("text/html", "") for cell in cells for out in cell.get("outputs", ())]
        shown[path] = "\n".join(text + outputs)
    texts = {path: re.sub("<(script|style).*?</\\1>", "", text, flags=re.DOTALL) for path, text in shown.items()}
    anchors = {path: re.findall(r'<[^<>]*\sid="([^"]+)"', text) for path, text in texts.items()}
    wrong = []
    for path, text in texts.items():
        wrong += [(path.name, name) for name, count in Counter(anchors[path]).items() if count > 1]
        for address in {unescape(found) for found in re.findall(r'<[^<>]*\s(?:href|src)="([^"]+)"', text)}:
            there = urlsplit(address)
            target = (path.parent / unquote(there.path)).resolve() if there.path else path
            lost = there.fragment and unquote(there.fragment) not in anchors.get(target, [unquote(there.fragment)])
            if not (there.scheme or there.netloc) and (lost or not target.exists()):
                wrong.append((path.name, address))
    assert len(texts) > 30
    assert wrong == []


@pytest.mark.built
def test_every_built_page_has_a_title_and_a_description_of_its_own() -> None:
    pages = sorted((find_book(ROOT).html / "chapters").glob("*.html"))
    heads = [BeautifulSoup(path.read_text("utf-8").partition("</head>")[0], "html.parser") for path in pages]
    titles = [head.title.get_text() for head in heads]
    about = [str(head.select_one("meta[name=description]")["content"]) for head in heads]
    assert len(set(titles)) == len(set(about)) == len(pages)
    assert "What Survives Augmentation" in titles, "the landing page says it once"
    assert all(40 <= len(text) <= sphinx_ext.LONGEST and "\\" not in text for text in about), about
