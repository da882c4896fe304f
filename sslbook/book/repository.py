"""Where the book is published, from the one place that says so: ``repository: url:`` in `_config.yml`.

The address of the pages, what pip installs, where a chapter opens in a browser, where a page is edited and where an error in it is
reported all follow from it; while it is empty, there
are no links that lead nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from sslbook.book.layout import read_yaml

BRANCH = "notebooks"
"""The branch that holds what `sslbook notebooks` writes; `.github/workflows/pages.yml` keeps it."""
MAIN = "main"
"""The branch that the pages are made from."""
SOURCES = {"chapters/ledger": "data/claims.yml"}
"""What to edit for a page that has no source of its own."""


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
    def site(self) -> str:
        """The address of the pages, as GitHub publishes them; empty without a repository."""
        owner, name = self._parts()
        return f"https://{owner.lower()}.github.io/{name}" if self.url else ""

    @property
    def requirement(self) -> str:
        """What pip is asked for: the package from the repository; nothing without one, as its bare name is anybody's."""
        return f"sslbook @ git+{self.url}" if self.url else ""

    def launches(self, page: str) -> list[dict[str, str]]:
        """The buttons that open the notebook of ``page`` in a browser; none without a repository."""
        if not self.url:
            return []
        owner, name = self._parts()
        file = page.rpartition("/")[2] + ".ipynb"
        return [
            {
                "url": f"https://colab.research.google.com/github/{owner}/{name}/blob/{BRANCH}/{file}",
                "text": "Colab",
                "tooltip": "Run this chapter in Google Colab",
            },
            {
                "url": f"https://mybinder.org/v2/gh/{owner}/{name}/{BRANCH}?urlpath=lab/tree/{file}",
                "text": "Binder",
                "tooltip": "Run this chapter on Binder",
            },
        ]

    def suggestions(self, page: str, title: str) -> list[dict[str, str]]:
        """The buttons that edit the source of ``page``, and that report what is wrong with it; none without a repository."""
        if not self.url:
            return []
        issue = f"{self.url}/issues/new?title={quote(title)}&body={quote(f'On the page {self.site}/{page}.html:')}"
        return [
            {
                "url": f"{self.url}/edit/{MAIN}/{SOURCES.get(page, f'{page}.md')}",
                "text": "Edit",
                "tooltip": "Suggest a change of this page",
            },
            {"url": issue, "text": "Issue", "tooltip": "Report an error on this page"},
        ]

    def source(self, path: str, line: int = 0) -> str:
        """The address of a file, at a line unless that is 0; empty without a repository."""
        return f"{self.url}/blob/{MAIN}/{path}" + (f"#L{line}" if line else "") if self.url else ""

    def _parts(self) -> tuple[str, str]:
        address = urlsplit(self.url)
        owner, _, name = address.path.strip("/").removesuffix(".git").partition("/")
        if self.url and (address.netloc != "github.com" or not owner or not name or "/" in name):
            raise ValueError(f"repository: url: got {self.url!r}; https://github.com/OWNER/NAME is needed")
        return owner, name
