"""The page about the library, and what stands below each statement of the book: what computes it, and what became of the claim.

autodoc turns the docstrings of the promised names into the page. `data/functions.yml` says which function computes a statement, and
the title of its box names the claims that it states, as in ``Several units · B-F1``. A promised name leads to its entry on the page
about the library, below a statement as on the notation page; a name that is nowhere is an error.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

import sslbook
from sslbook.book.layout import read_yaml
from sslbook.book.ledger import CODE, Claim, read_claims
from sslbook.book.typeset import entry_anchor
from sslbook.exports import homes
from sslbook.records import data_files

PAGE = "chapters/library"
NOTATION = "chapters/notation"
PACKAGE = "sslbook"


def connect(app: Sphinx) -> None:
    """Take part in the Sphinx run of the book."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", _configure)
    app.connect("autodoc-process-docstring", _edit)
    app.connect("autodoc-process-signature", _parsable)
    app.connect("doctree-read", _annotate)
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


def functions() -> dict[str, set[str]]:
    """Full names of the promised functions that compute each statement, by the statement's label."""
    content = read_yaml(data_files.folder() / "functions.yml", dict)
    return {label: {f"{PACKAGE}.{name}" for name in names} for label, names in content.items()}


def _edit(app: Sphinx, what: str, name: str, thing: Any, options: object, lines: list[str]) -> None:
    lines[:] = edited(lines, inspect.signature(thing).parameters if callable(thing) else ())


def _parsable(
    app: Sphinx, what: str, name: str, thing: Any, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A dataclass's signature without ``<factory>``, which is no Python: Sphinx would show what it can't parse as it is."""
    return arguments and arguments.replace("<factory>", "..."), result


def edited(lines: Iterable[str], names: Iterable[str]) -> list[str]:
    """A docstring as the page has it.

    Each ``name: …`` or ``name, name: …`` at the beginning of a sentence gets a paragraph, and ``[tian2020]`` becomes a citation.
    """
    text = re.sub(r"\[(tian20\w+)\]", r":cite:t:`\1`", "\n".join(lines))
    if one := "|".join(map(re.escape, names)):
        text = re.sub(rf"(?:(?<=\n)|(?<=\.  ))((?:{one})(?:, (?:{one}))*): ", r"\n\n**\1**: ", text)
    return text.splitlines()


def _annotate(app: Sphinx, doctree: nodes.document) -> None:
    annotate(doctree, functions(), {claim.id: claim for claim in read_claims(data_files.folder() / "claims.yml")})
    if app.env.docname == NOTATION:
        _link_names(doctree)


def _link_names(doctree: nodes.Element) -> None:
    """Let each ``module.name`` in code, as the notation page has them, lead to where that name is explained."""
    for code in list(doctree.findall(nodes.literal)):
        if "." in code.astext() and exists(f"{PACKAGE}.{code.astext()}"):
            code.replace_self(_function(f"{PACKAGE}.{code.astext()}", code.astext()))


def annotate(doctree: nodes.Element, computed: Mapping[str, set[str]], claims: Mapping[str, Claim]) -> None:
    """Below each theorem and its like, the functions that compute it, and the verdict on each claim that its title names."""
    elements = doctree.findall(nodes.Element)
    for box in [box for box in elements if isinstance(box, nodes.Admonition) and box.get("label")]:
        names = sorted(computed.get(str(box["label"]), ()))
        links: list[list[nodes.Node]] = [[_function(name, offered()[name])] for name in names]
        title = box.next_node(nodes.title)
        codes = CODE.findall(title.astext() if title else "")
        stated = [claims[code] for code in codes if code in claims]
        verdicts = [_verdict(claim) for claim in stated]
        content: list[nodes.Element] = [child for child in box.children if isinstance(child, nodes.section)]
        ours = "; our claim holds." if any(claim.verdict == "fails as stated" for claim in stated) else "."
        theirs = "The paper's claim " if len(stated) == 1 else "The paper's claims: "
        for begin, between, items, end in (("In the library: ", ", ", links, "."), (theirs, "; ", verdicts, ours)):
            if items:
                line = nodes.paragraph("", begin, classes=["sslbook-functions"])
                for number, item in enumerate(items):
                    line += [nodes.Text(between if number else ""), *item]
                line += nodes.Text(end)
                (content or [box])[-1].append(line)


def _function(name: str, text: str) -> addnodes.pending_xref:
    code = nodes.literal("", text)
    return addnodes.pending_xref("", code, refdomain="py", reftype="obj", reftarget=name, refexplicit=True)


def _verdict(claim: Claim) -> list[nodes.Node]:
    verdict = "holds as corrected here" if claim.verdict == "holds with the correction" else claim.verdict
    said = [_label(claim.id, entry_anchor(claim.id)), nodes.Text(f" {verdict}")]
    return [*said, nodes.Text(" ("), _label("errata", claim.errata), nodes.Text(")")] if claim.errata else said


def _label(text: str, label: str) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "", nodes.inline("", text), refdomain="std", reftype="ref", reftarget=label, refexplicit=True, refwarn=True
    )


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Where a name of Python's leads: to its entry or its owner's on the page, else nowhere; None if it doesn't exist."""
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
    return content


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
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        owner, _, field = name.rpartition(".")
        return (
            bool(owner) and exists(owner) and field in getattr(pkgutil.resolve_name(owner), "__dataclass_fields__", {})
        )
    return True
