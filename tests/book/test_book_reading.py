"""How long a page takes: words and formulas, the seconds of its run, and the line at the end of its first box."""

from __future__ import annotations

from pathlib import Path

import jupytext
import pytest
from docutils import nodes
from docutils.utils import new_document

from sslbook.book.plain import MARK, Links, pieces
from sslbook.book.reading import LINE, WORDS_A_MINUTE, Time, minutes, prose, tell_time, time_of

ROOT = Path(__file__).resolve().parents[2]
THEOREM = "```{prf:theorem}\n:label: thm\n$$ a = b $$\n$$ c = d $$\n```\n"


def test_minutes_are_words_and_formulas_of_theorems() -> None:
    words = "word " * WORDS_A_MINUTE
    assert minutes(words) == 1
    assert minutes(f"{words}\n\n{THEOREM}") == 3
    assert minutes(f"{words}\n\n```python\n{words}\n```\n") == 1, "code is not read word by word"
    assert minutes(f"{words}\n\n$$ {words} $$\n") == 1
    assert [line for _, line in prose("A `b` $c$ d.\n\n```{tip}\nE.\n```\n")] == ["A  x d.", "", "E."]


@pytest.mark.parametrize("name", ["covariance", "byol", "intro"])
def test_a_notebook_is_as_long_as_its_source(name: str) -> None:
    text = (ROOT / f"chapters/{name}.md").read_text(encoding="utf-8")
    assert Time.of(jupytext.reads(text, fmt="md:myst")).minutes == round(minutes(text))


@pytest.mark.parametrize(
    ("time", "said", "brief"),
    [
        (Time(31, 61.2), "31 minutes to read · runs in 60 s on one core", "31 min · runs in 60 s"),
        (Time(45), "45 minutes to read", "45 min"),
        (Time(1, 0.2, threads=2), "1 minute to read · runs in 1 s on 2 cores", "1 min · runs in 1 s"),
        (Time(25), "25 minutes to read", "25 min"),
        (Time(19, 12.4), "19 minutes to read · runs in 12 s on one core", "19 min · runs in 12 s"),
        (Time(60, 7200), "60 minutes to read · runs in 120 minutes on one core", "60 min · runs in 120 min"),
    ],
)
def test_a_time_in_words(time: Time, said: str, brief: str) -> None:
    assert str(time) == said
    assert time.brief == brief


def test_a_notebook_says_how_long_it_ran(tmp_path: Path) -> None:
    notebook = jupytext.reads("word " * 400, fmt="md:myst")
    notebook.metadata["sslbook"] = {"seconds": 61.23, "parts": {"SSLBOOK_THREADS": "2"}}
    assert Time.of(notebook) == Time(2, 61.23, 2)
    jupytext.write(notebook, tmp_path / "one.ipynb")
    assert time_of(tmp_path / "one.ipynb") == Time(2, 61.23, 2)


def test_the_line_ends_the_first_box_of_the_opening() -> None:
    tree = new_document("page")
    box = nodes.admonition("", nodes.title("", "What you will see"), nodes.paragraph("", "Before this: nothing."))
    later = nodes.admonition("", nodes.paragraph("", "Another."))
    tree += nodes.section("", nodes.title("", "One"), box, nodes.section("", nodes.title("", "Two"), later))
    tell_time(tree, Time(31))
    assert (box[-1].astext(), box[-1]["classes"]) == (str(Time(31)), [LINE])
    assert len(later) == 1
    tree[0].remove(box)
    before = tree.pformat()
    tell_time(tree, Time(31))
    assert tree.pformat() == before, "a page without such a box stays as it is"


def test_a_notebook_leaves_the_page_s_line_out() -> None:
    html = f'<{MARK} data-cell="0"></{MARK}><p>Before this.</p><p class="{LINE}">Half an hour to read</p>'
    (piece,) = pieces(html, Links([]))
    assert piece.text == "Before this."
