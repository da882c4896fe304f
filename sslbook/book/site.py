"""Where the book is published, and what its pages say there of themselves to search engines and to whoever posts a link.

All of it follows from ``repository: url:`` in `_config.yml`: the address of the pages, what pip installs, where a chapter opens in
a browser, where a page is edited. While that is empty, there are no links that lead nowhere.
"""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes

from sslbook.book.bookmap import TIME
from sslbook.book.cells import opening
from sslbook.book.layout import read_yaml
from sslbook.book.searching import readable

LONGEST = 160
"""Characters of a description: what result pages show."""
_ADDRESS = re.compile(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?")


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub, ``https://github.com/OWNER/NAME``, or none at all (``url`` empty)."""

    url: str = ""

    @classmethod
    def read(cls, folder: Path) -> Repository:
        """The repository that the `_config.yml` in ``folder`` names."""
        told = read_yaml(folder / "_config.yml", dict)
        return cls(str((told.get("repository") or {}).get("url") or "").rstrip("/"))

    @property
    def _name(self) -> tuple[str, str]:
        if (found := _ADDRESS.fullmatch(self.url)) is None:
            raise ValueError(f"repository: url: got {self.url!r}; https://github.com/OWNER/NAME is needed")
        return found[1], found[2]

    @property
    def site(self) -> str:
        """The address of the pages, as GitHub publishes them; empty without a repository."""
        return f"https://{self._name[0].lower()}.github.io/{self._name[1]}" if self.url else ""

    @property
    def requirement(self) -> str:
        """What pip is asked for: the package from the repository; nothing without one, as its bare name is anybody's."""
        return f"sslbook @ git+{self.url}" if self.url else ""

    def launches(self, page: str) -> list[tuple[str, str, str]]:
        """Buttons that open the notebook of ``page`` in a browser (address, text, tooltip); none without a repository.

        They lead to the branch `notebooks`, which `.github/workflows/pages.yml` keeps.
        """
        if not self.url:
            return []
        place, file = "/".join(self._name), page.rpartition("/")[2] + ".ipynb"
        colab = f"https://colab.research.google.com/github/{place}/blob/notebooks/{file}"
        binder = f"https://mybinder.org/v2/gh/{place}/notebooks?urlpath=lab/tree/{file}"
        return [
            (colab, "Colab", "Run this chapter in Google Colab"),
            (binder, "Binder", "Run this chapter on Binder"),
        ]

    def suggestions(self, page: str) -> list[tuple[str, str, str]]:
        """Buttons that edit the source of ``page`` and that report an error; none without a repository."""
        if not self.url:
            return []
        source = "data/claims.yml" if page == "chapters/ledger" else f"{page}.md"
        return [
            (f"{self.url}/edit/main/{source}", "Edit", "Suggest a change of this page"),
            (f"{self.url}/issues/new?title={page}", "Issue", "Report an error on this page"),
        ]


def description(doctree: nodes.document) -> str:
    """What a page is about, in its own words: its first box, else its first paragraph, as far as a result page shows it."""
    boxes = [box for box in opening(doctree) if isinstance(box, nodes.admonition)]
    paragraphs = [
        p for box in boxes[:1] for p in box.children if isinstance(p, nodes.paragraph) and TIME not in p["classes"]
    ]
    paragraphs += [p for p in doctree.findall(nodes.paragraph) if len(p.astext().split()) > 8]
    said = "".join(
        readable(leaf.astext()) if isinstance(leaf.parent, (nodes.math, nodes.math_block)) else leaf.astext()
        for paragraph in paragraphs[:1]
        for leaf in paragraph.findall(nodes.Text)
    )
    return textwrap.shorten(said, LONGEST, placeholder=" …")


def head(*, title: str, book: str, page: str, about: str, site: str) -> str:
    """The lines for a page's head. Addresses are absolute or of no use, so those need a ``site``."""
    told = {"og:title": title, "og:site_name": book, "og:type": "article" if title != book else "website"}
    lines = []
    if about:
        told["og:description"] = about
        lines.append(f'<meta name="description" content="{html.escape(about)}">')
    if site:
        told["og:url"] = f"{site}/{page}.html"
        told["og:image"] = f"{site}/_static/sslbook/social.png"  # drawn by tools/make_cover.py
        told["twitter:card"] = "summary_large_image"
        told["og:image:alt"] = "Handwritten digits, what their augmented views share, and what tells them apart"
        lines.append(f'<link rel="canonical" href="{html.escape(told["og:url"])}">')
    lines += [f'<meta property="{name}" content="{html.escape(value)}">' for name, value in told.items()]
    return "\n    " + "\n    ".join(lines) + "\n"
