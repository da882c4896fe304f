"""The page about the library: from the docstrings of the names that `sslbook` offers, and from each statement to its function.

autodoc turns docstrings into pages. `data/functions.yml` says which function computes a statement; below the statement stands its
name, which leads to the page about the library if it is one of those that are promised.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

import sslbook
from sslbook import data_files
from sslbook.exports import homes

PAGE = "chapters/library"
PACKAGE = "sslbook"


def connect(app: Sphinx) -> None:
    """Take part in the Sphinx run of the book."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", _configure)
    app.connect("autodoc-process-docstring", _set_apart)
    app.connect("doctree-read", lambda app, doctree: name_functions(doctree))
    app.connect("missing-reference", _resolve)


def _configure(app: Sphinx, config: Config) -> None:
    """Types in short, and names in single backquotes as code."""
    config.autodoc_typehints_format = "short"
    config.python_use_unqualified_type_names = True
    config.default_role = "code"  # of docstrings; pages in Markdown have no default role


@functools.cache
def offered() -> dict[str, str]:
    """The promised names by the place where each is defined: ``sslbook.operators.covariance_operator`` and so on."""
    stub = Path(str(sslbook.__file__)).with_suffix(".pyi")
    return {f"{home}.{name}": name for name, home in homes(stub).items()}


def functions() -> dict[str, list[str]]:
    """Full names of the functions that compute each statement, by the statement's label."""
    content = yaml.safe_load((data_files.folder() / "functions.yml").read_text(encoding="utf-8"))
    return {label: [f"{PACKAGE}.{name}" for name in names] for label, names in content.items()}


def _set_apart(app: Sphinx, what: str, name: str, thing: Any, options: object, lines: list[str]) -> None:
    """A paragraph for each argument that a docstring explains, ``name: …`` at the beginning of a sentence."""
    lines[:] = apart(lines, inspect.signature(thing).parameters if callable(thing) else ())


def apart(lines: Iterable[str], names: Iterable[str]) -> list[str]:
    """The lines, with a paragraph of its own for each ``name: …`` or ``name, name: …`` at the beginning of a sentence."""
    one = "|".join(map(re.escape, names))
    if not one:
        return list(lines)
    begun = re.compile(rf"(?:(?<=\n)|(?<=\.  ))((?:{one})(?:, (?:{one}))*): ")
    return begun.sub(r"\n\n**\1**: ", "\n".join(lines)).splitlines()


def name_functions(doctree: nodes.Element) -> None:
    """Below each statement of a page, the functions that compute it."""
    known = functions()
    for statement in list(doctree.findall(nodes.Element)):
        names = known.get(str(statement.get("label", "")), [])
        if names and isinstance(statement, nodes.Admonition):
            content: list[nodes.Element] = [child for child in statement.children if isinstance(child, nodes.section)]
            (content or [statement])[-1].append(_line(names))


def _line(names: list[str]) -> nodes.paragraph:
    line = nodes.paragraph("", "In the library: ", classes=["sslbook-functions"])
    for number, name in enumerate(names):
        line += nodes.Text(", " if number else "")
        text = offered().get(name, name)
        line += addnodes.pending_xref(
            "", nodes.literal("", text), refdomain="py", reftype="obj", reftarget=name, refexplicit=True
        )
    line += nodes.Text(".")
    return line


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Where a name of Python's in a docstring leads: to a promised name's place on the page, or nowhere, if it exists at all."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    if target in offered():
        place, name = str(node.get("refdoc", PAGE)), f"{PACKAGE}.{offered()[target]}"
        found: nodes.Node | None = env.get_domain("py").resolve_xref(
            env, place, app.builder, "obj", name, node, content
        )
        return found
    return content if not target.startswith(f"{PACKAGE}.") or exists(target) else None


def exists(name: str) -> bool:
    """Whether a full name is that of a module, or of something in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, parts[cut:], thing)
        except AttributeError:
            return False
        return True
    return False
