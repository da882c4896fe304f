"""The page about the library: from the docstrings of the names that `sslbook` offers, and from each statement to its function.

autodoc turns docstrings into pages. `data/functions.yml` says which function computes a statement; below the statement stands its
name. It leads, as do the names of code on the notation page, to its entry on the page about the library if it is promised, and else
to its source, where `_config.yml` says in which repository that is.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

import sslbook
from sslbook.book.layout import read_yaml
from sslbook.book.repository import Repository
from sslbook.exports import homes
from sslbook.records import data_files

PAGE = "chapters/library"
NOTATION = "chapters/notation"
PACKAGE = "sslbook"
_repository = functools.cache(Repository.read)


def connect(app: Sphinx) -> None:
    """Take part in the Sphinx run of the book."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", _configure)
    app.connect("autodoc-process-docstring", _set_apart)
    app.connect("autodoc-process-signature", _parsable)
    app.connect("doctree-read", _name)
    app.connect("missing-reference", _resolve)


def _configure(app: Sphinx, config: Config) -> None:
    """Types in short, and names in single backquotes as code."""
    config.autodoc_typehints_format = "short"
    config.python_use_unqualified_type_names = True
    config.default_role = "code"  # of docstrings; pages in Markdown have no default role


@functools.cache
def offered() -> dict[str, str]:
    """The promised names by the place where each is defined: ``sslbook.operator.covariance.covariance_operator`` and so on."""
    stub = Path(str(sslbook.__file__)).with_suffix(".pyi")
    return {f"{home}.{name}": name for name, home in homes(stub).items()}


def functions() -> dict[str, list[str]]:
    """Full names of the functions that compute each statement, by the statement's label."""
    content = read_yaml(data_files.folder() / "functions.yml", dict)
    return {label: [f"{PACKAGE}.{name}" for name in names] for label, names in content.items()}


def _set_apart(app: Sphinx, what: str, name: str, thing: Any, options: object, lines: list[str]) -> None:
    """A paragraph for each argument that a docstring explains, ``name: …`` at the beginning of a sentence; papers are cited."""
    lines[:] = cited(apart(lines, inspect.signature(thing).parameters if callable(thing) else ()))


def _parsable(
    app: Sphinx, what: str, name: str, thing: Any, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A dataclass's signature without ``<factory>``, which is no Python: Sphinx would show what it can't parse as it is."""
    return arguments and arguments.replace("<factory>", "..."), result


def apart(lines: Iterable[str], names: Iterable[str]) -> list[str]:
    """The lines, with a paragraph of its own for each ``name: …`` or ``name, name: …`` at the beginning of a sentence."""
    one = "|".join(map(re.escape, names))
    if not one:
        return list(lines)
    begun = re.compile(rf"(?:(?<=\n)|(?<=\.  ))((?:{one})(?:, (?:{one}))*): ")
    return begun.sub(r"\n\n**\1**: ", "\n".join(lines)).splitlines()


def cited(lines: Iterable[str]) -> list[str]:
    """The lines, with ``[tian2020]`` and its like as the page's citations."""
    return [re.sub(r"\[(tian20\w+)\]", r":cite:t:`\1`", line) for line in lines]


def _name(app: Sphinx, doctree: nodes.document) -> None:
    name_functions(doctree)
    if app.env.docname == NOTATION:
        link_names(doctree)


def link_names(doctree: nodes.Element) -> None:
    """Let each ``module.name`` in code, as the notation page has them, lead to where that name is explained."""
    for code in list(doctree.findall(nodes.literal)):
        if "." in code.astext() and exists(f"{PACKAGE}.{code.astext()}"):
            code.replace_self(_reference(f"{PACKAGE}.{code.astext()}", code.astext()))


def name_functions(doctree: nodes.Element) -> None:
    """Below each statement of a page, the functions that compute it."""
    known = functions()
    for statement in statements(doctree):
        if names := known.get(str(statement["label"]), []):
            append(statement, _line(names))


def statements(doctree: nodes.Element) -> list[nodes.Element]:
    """The boxes of a page that have a label: theorems and their like."""
    elements = doctree.findall(nodes.Element)
    return [box for box in elements if isinstance(box, nodes.Admonition) and box.get("label")]


def append(statement: nodes.Element, line: nodes.paragraph) -> None:
    """Set a line below the text of a statement."""
    content: list[nodes.Element] = [child for child in statement.children if isinstance(child, nodes.section)]
    (content or [statement])[-1].append(line)


def _line(names: list[str]) -> nodes.paragraph:
    line = nodes.paragraph("", "In the library: ", classes=["sslbook-functions"])
    for number, name in enumerate(names):
        line += nodes.Text(", " if number else "")
        line += _reference(name, offered().get(name, name))
    line += nodes.Text(".")
    return line


def _reference(name: str, text: str) -> addnodes.pending_xref:
    code = nodes.literal("", text)
    return addnodes.pending_xref("", code, refdomain="py", reftype="obj", reftarget=name, refexplicit=True)


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Where a name of Python's leads: to its entry or its owner's on the page, else to its source; None if it doesn't exist."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    if not target.startswith(f"{PACKAGE}."):
        return content
    if not exists(target):
        return None
    place, domain = str(node.get("refdoc", PAGE)), env.get_domain("py")
    for name in _entries(target):
        found: nodes.Node | None = domain.resolve_xref(env, place, app.builder, "obj", name, node, content)
        if found is not None:
            return found
    address = _repository(Path(app.srcdir)).source(*source(target))
    return nodes.reference("", "", content, refuri=address, internal=False) if address else content


def _entries(name: str) -> Iterator[str]:
    """What the page may call a full name and, after it, each of its owners."""
    parts = name.split(".")
    for cut in range(len(parts), 1, -1):
        owner = ".".join(parts[:cut])
        if promised := offered().get(owner):
            yield ".".join([PACKAGE, promised, *parts[cut:]])
            yield f"{PACKAGE}.{promised}"
        yield owner


def exists(name: str) -> bool:
    """Whether a full name is that of a module, of something in one, or of a dataclass's field."""
    return bool(_reach(name))


def source(name: str) -> tuple[str, int]:
    """The file, from the repository's root, of a full name that exists, and the line where it begins; 0 for a module or value."""
    root = Path(str(sslbook.__file__)).resolve().parents[1]
    for thing in reversed(_reach(name)):
        made = getattr(thing, "fget", None) or getattr(thing, "func", None) or thing  # of a property, computed or kept
        try:
            path, line = inspect.getsourcefile(made), inspect.getsourcelines(made)[1]
        except TypeError:  # a value: its module says it
            continue
        if path and Path(path).resolve().is_relative_to(root / PACKAGE):
            return Path(path).resolve().relative_to(root).as_posix(), line
    raise ValueError(f"name: got {name!r}; a full name below {PACKAGE} is needed")


def _reach(name: str) -> list[Any]:
    """What a full name passes, from its module on; a field without a value of its own adds nothing. Empty if it leads nowhere."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            reached: list[Any] = [importlib.import_module(".".join(parts[:cut]))]
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if hasattr(reached[-1], part):
                reached.append(getattr(reached[-1], part))
            elif part not in getattr(reached[-1], "__dataclass_fields__", {}):
                return []
        return reached
    return []
