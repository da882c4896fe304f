"""A bibliography whose labels are what the citations say: “Tian et al., 2020”, not “[5]”."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.template import field, first_of, href, optional

NAME = "sslbook"
"""What `bibtex_default_style` in `_config.yml` names."""


class AuthorYearLabels(BaseLabelStyle):
    """Labels of last names and year; two entries with one label are a warning of sphinxcontrib-bibtex, so an error here."""

    def format_labels(self, sorted_entries: Iterable[Any]) -> Iterator[str]:
        """One label for each entry."""
        for entry in sorted_entries:
            people = entry.persons.get("author") or entry.persons.get("editor") or []
            names = [" ".join([*person.prelast_names, *person.last_names]).strip("{}") for person in people]
            yield f"{_joined(names) or entry.key}, {entry.fields.get('year', 'n.d.')}"


def _joined(names: list[str]) -> str:
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


class AuthorYearStyle(PlainStyle):
    """The plain style with author-year labels and one link for each entry: arXiv's if it has a number there, else its URL."""

    default_label_style = NAME

    def format_web_refs(self, entry: Any) -> Any:
        """A DOI, an arXiv number, or an address: the first that there is (they lead to one place)."""
        return first_of[
            optional[self.format_doi(entry)], optional[self.format_eprint(entry)], optional[self.format_url(entry)]
        ]

    def format_url(self, entry: Any) -> Any:
        """The address as a link, without the word “URL”."""
        address = field("url", raw=True)
        return href[address, address]


def register() -> None:
    """Make the style known to pybtex under `NAME`."""
    register_plugin("pybtex.style.labels", NAME, AuthorYearLabels)
    register_plugin("pybtex.style.formatting", NAME, AuthorYearStyle)
