"""Where the book is published, from the one place that says so: ``repository: url:`` in `_config.yml`.

The address of the pages, what pip installs, and where a chapter opens in a browser all follow from it; while it is empty, there
are no links that lead nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

BRANCH = "notebooks"
"""The branch that holds what `sslbook notebooks` writes; `.github/workflows/pages.yml` keeps it."""


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub, ``https://github.com/OWNER/NAME``, or none at all (``url`` empty)."""

    url: str = ""

    @classmethod
    def read(cls, folder: Path) -> Repository:
        """The repository that the `_config.yml` in ``folder`` names."""
        told = yaml.safe_load((folder / "_config.yml").read_text(encoding="utf-8")) or {}
        return cls(str((told.get("repository") or {}).get("url") or "").rstrip("/"))

    @property
    def site(self) -> str:
        """The address of the pages, as GitHub publishes them; empty without a repository."""
        owner, name = self._parts()
        return f"https://{owner.lower()}.github.io/{name}" if self.url else ""

    @property
    def requirement(self) -> str:
        """What pip is asked for: the package from the repository, or by its name."""
        return f'"sslbook @ git+{self.url}"' if self.url else "sslbook"

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

    def _parts(self) -> tuple[str, str]:
        address = urlsplit(self.url)
        owner, _, name = address.path.strip("/").removesuffix(".git").partition("/")
        if self.url and (address.netloc != "github.com" or not owner or not name or "/" in name):
            raise ValueError(f"repository: url: got {self.url!r}; https://github.com/OWNER/NAME is needed")
        return owner, name
