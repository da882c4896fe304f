"""The roles ``{interval}``, ``{least}`` and ``{most}``: numbers in the prose that say how sure they are, or which side they bound.

They read what ``{glue:text}`` reads, and print it by `sslbook.book.typeset.printed`, which says how each rounds.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from sslbook.book.htmlcheck import glue, named
from sslbook.book.typeset import ROLES, printed


def register(app: Sphinx) -> None:
    """Make the roles known to Sphinx; ``{glue:text}`` is MyST-NB's own."""
    for name in ROLES[1:]:
        app.add_role(name, _Pasted())


class _Pasted(SphinxRole):
    """A number of this page's notebook, or of another's (``page.md::name:.1f``)."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        page, name, form = named(self.text)
        document = self.env.docname
        if page:
            document = self.env.path2doc(self.env.relfn2path(page, document)[1]) or page
        try:
            text = printed(self.name, name, form, _glued(Path(self.env.srcdir) / f"{document}.ipynb"))
        except KeyError as missing:
            problem = f"{{{self.name}}} names {missing}, which {document} does not produce"
        except (OSError, ValueError) as error:
            problem = f"{{{self.name}}}`{self.text}`: {error}"
        else:
            classes = ["pasted-text", *(["sslbook-interval"] if self.name == "interval" else [])]
            node = nodes.inline(self.rawtext, text, classes=classes)
            self.set_source_info(node)
            return [node], []
        return [], [self.inliner.reporter.warning(problem, line=self.lineno)]


@functools.lru_cache(maxsize=32)
def _glued(notebook: Path) -> dict[str, Any]:
    return glue(json.loads(notebook.read_text(encoding="utf-8")))
