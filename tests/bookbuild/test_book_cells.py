"""What cells become on a page when something is missing, or has failed; what a whole page looks like: `test_book_render`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from conftest import number
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from bookbuild.cells import summary
from sslchapters.values import badge

CONF = """
extensions = ["myst_nb"]
nb_execution_mode = "off"

def setup(app):
    from bookbuild.cells import connect
    connect(app)
"""
PAGE = """# One

```{code-cell}
```

Text.

(fig-late)=
A caption.

```{raw} html
<div class="sslbook-slider"></div>
```

(tab-none)=
```{code-cell}
2
```
"""


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    tmp_path.joinpath("conf.py").write_text(CONF)
    tmp_path.joinpath("index.md").write_text("---\nkernelspec: {name: python3}\nfile_format: mystnb\n---\n" + PAGE)
    folders, warned = map(str, (tmp_path, tmp_path, tmp_path / "html", tmp_path / "tree")), io.StringIO()
    with patch_docutils(str(tmp_path)), docutils_namespace():
        Sphinx(*folders, "html", status=None, warning=warned).build()
    for words in (
        "fig-late: no code cell with a picture stands directly above it",
        "a slider without a caption",
        "tab-none: the code cell below it shows no table",
    ):
        assert words in warned.getvalue()
    assert not BeautifulSoup((tmp_path / "html/index.html").read_text(), "html.parser").select("figure[id]")


def strip(name: str, below: float = 1e-14) -> str:
    return badge(number(name, 2e-16, below=below))


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ([strip("a"), strip("b")], "✓ 2 checks and the code"),
        ([strip("a")], "✓ 1 check and the code"),
        ([strip("a"), strip("b", below=1e-20)], "✗ 1 of 2 checks failed"),
        ([], "The code"),
    ],
)
def test_a_line_counts_its_checks(checks: list[str], said: str) -> None:
    assert BeautifulSoup(summary(checks), "html.parser").get_text() == said
