"""Sphinx extension of the book: everything local, accessible, and downloadable as a runnable notebook.

Named under `sphinx.extra_extensions` in `_config.yml`. It serves MathJax, the icons, the style sheet and the sliders' script
from `assets/`, so that no page asks another machine for anything; takes sphinx-thebe out (it names a CDN, and its script,
added twice, raises an error in the console); pastes numbers with their intervals and bounds; names papers by authors and year; puts
right what an accessibility checker finds in the theme; and offers each chapter as `.ipynb` and `.md` (`render` writes those files
beside the pages).

autodoc turns the docstrings of the promised names into the page about the library. `data/functions.yml` says which function
computes a statement, and the title of its box names the claims that it states, as in ``Several units · B-F1``. A promised name
leads to its entry on that page, below a statement as on the notation page; a name that is nowhere is an error.
"""

from __future__ import annotations

import functools
import html
import inspect
import json
import pkgutil
import posixpath
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from docutils import nodes
from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.template import field, first_of, href, optional
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

import sslbook
from bookbuild import canvas, cells, markdown, notebooks
from bookbuild.cells import TIME, opening
from bookbuild.layout import Repository, words
from bookbuild.ledger import CODE
from sslbook.exports import homes
from sslchapters import data_files
from sslchapters.ledger import Claim, read_claims
from sslchapters.records import recorded
from sslchapters.values import ROLES, entry_anchor, glue, named, pasted, printed, readable, typeset

ASSETS = Path(__file__).parent / "assets"
_LOG = logging.getLogger(__name__)
LONGEST = 160
"""Characters of a description: what result pages show."""
_BODIES = "sslbook_bodies"  # where Sphinx's application keeps the chapters' HTML till all pages are there
MATHJAX: dict[str, Any] = {
    # Without noundefined: a command that is not loaded becomes a visible error, which the page tests catch.
    "tex": {"packages": ["base", "ams", "newcommand", "configmacros", "textmacros", "boldsymbol", "mathtools"]},
    "svg": {"fontCache": "global"},
}
"""What `mathjax.js` is told; CONTRIBUTING.md says how it was joined, and which TeX packages it holds."""
_DROPPED = ("sphinx_thebe", "sphinx_comments")  # what they have connected: Jupyter Book always loads them


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; see the module's docstring for what it does."""
    for listeners in app.events.listeners.values():
        for listener in [one for one in listeners if one.handler.__module__.partition(".")[0] in _DROPPED]:
            app.disconnect(listener.id)
    app.connect("config-inited", _configure, priority=900)  # after the theme has appended its own template folders
    register_plugin("pybtex.style.labels", "sslbook", AuthorYearLabels)
    register_plugin("pybtex.style.formatting", "sslbook", AuthorYearStyle)  # `bibtex_default_style` in `_config.yml`
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", edit)
    # a dataclass's signature without ``<factory>``, which is no Python: Sphinx would show what it can't parse as it is
    app.connect(
        "autodoc-process-signature",
        lambda app, what, name, thing, options, given, result: (given and given.replace("<factory>", "..."), result),
    )
    app.connect("doctree-read", _annotate)
    app.connect("missing-reference", _resolve)
    cells.connect(app)
    app.add_directive("canvas", canvas.Canvas)
    for name in ROLES[1:]:  # the first is MyST-NB's own
        app.add_role(name, Pasted())
    for name in ("ran", "minutes"):
        app.add_role(name, Told())
    app.add_role("held", lambda *_, **__: ([], []))  # intervals that a verdict's word rests on: a test reads them
    app.connect("doctree-read", _unique_ids)
    app.connect("doctree-resolved", _typeset_numbers)  # by now numbers of other pages are pasted too
    app.connect("doctree-resolved", _mark, priority=900)
    app.connect("html-page-context", _page, priority=900)
    app.connect("build-finished", _write_notebooks)
    app.add_css_file("sslbook/icons.css", priority=850)
    app.add_css_file("sslbook/book.css", priority=900)
    app.add_js_file("sslbook/book.js", loading_method="defer")
    app.add_js_file("sslbook/formulas.js", loading_method="defer")  # before MathJax: it says when to typeset what
    return {"version": sslbook.__version__, "parallel_read_safe": True, "parallel_write_safe": True}


def _configure(app: Sphinx, config: Config) -> None:
    """Point Sphinx to the book's own assets; in docstrings types in short, and names in single backquotes as code."""
    config.project = config.html_title or config.project  # the name that objects.inv gives
    config.html_static_path.append(str(ASSETS / "static"))
    config.templates_path.insert(0, str(ASSETS / "templates"))
    config.html_logo = config.html_logo or str(ASSETS / "static/sslbook/logo.svg")
    config.html_favicon = config.html_favicon or str(ASSETS / "static/sslbook/logo.svg")
    config.mathjax_path = "sslbook/mathjax.js"
    config.mathjax3_config = {**MATHJAX, **(config.mathjax3_config or {})}
    config.autodoc_typehints_format = "short"
    config.python_use_unqualified_type_names = True
    config.default_role = "code"  # of docstrings; pages in Markdown have no default role


def _unique_ids(app: Sphinx, doctree: nodes.document) -> None:
    """Number the ids that occur more than once, and set the word *Proof.* in italics.

    sphinx-proof and sphinx-exercise give one id to all boxes of a kind; docstrings begin anew to count their citations.
    """
    taken: Counter[str] = Counter()
    for node in doctree.findall(nodes.Element):
        if isinstance(node, nodes.admonition) and "proof" in node["ids"]:
            node["classes"].append("proof-text")
            first = next(iter(node.findall(nodes.Text)), None)
            if first is not None and first.startswith("Proof."):
                rest = nodes.Text(first.removeprefix("Proof."))
                first.parent.replace(first, [nodes.emphasis("", "Proof."), rest])
        taken.update(node["ids"])
        node["ids"] = [name if taken[name] == 1 else f"{name}-{taken[name]}" for name in node["ids"]]


class Told(SphinxRole):
    """``{ran}`training-exact epochs` ``: what was run, as the record itself says; ``{minutes}`intro useful:sec-probe:` ``: the time
    that it takes to read chapters, or parts of them (`cells.reading`)."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """What is told, or a warning that says what is missing."""
        try:
            return [self.told()], []
        except (OSError, ValueError) as error:
            return [], [self.inliner.reporter.warning(f"{{{self.name}}}`{self.text}`: {error}", line=self.lineno)]

    def told(self) -> nodes.Node:
        """The number or word."""
        if self.name == "minutes":
            folder = Path(self.env.srcdir, self.env.docname).parent
            return nodes.Text(str(sum(cells.reading(folder, part) for part in self.text.split())))
        name, _, part = self.text.partition(" ")
        told = recorded(name).ran(part)
        return nodes.Text(f"{told:,}" if isinstance(told, int) else str(told))


class Pasted(Told):
    """``{interval}``, ``{least}`` and ``{most}``: a number of this page's notebook, or of another's (``page.md::name:.1f``).

    They say in a sentence how sure a number is, or which side it bounds; `sslchapters.values.printed` rounds.
    """

    def told(self) -> nodes.Node:
        """The number, in its sentence."""
        page, name, form = named(self.text)
        document = self.env.docname
        if page:
            document = self.env.path2doc(self.env.relfn2path(page, document)[1]) or page
        try:
            text = printed(self.name, name, form, _glued(Path(self.env.srcdir) / f"{document}.ipynb"))
        except KeyError as missing:
            raise ValueError(f"it names {missing}, which {document} does not produce") from None
        classes = ["pasted-text", *(["sslbook-interval"] if self.name == "interval" else [])]
        node = nodes.inline(self.rawtext, text, classes=classes)
        self.set_source_info(node)
        return node


@functools.lru_cache(maxsize=32)
def _glued(notebook: Path) -> dict[str, Any]:
    return glue(json.loads(notebook.read_text(encoding="utf-8")))


class AuthorYearLabels(BaseLabelStyle):
    """Labels that say what the citations say: “Tian et al., 2020”, not “[5]”; two entries with one label are an error."""

    def format_labels(self, sorted_entries: Iterable[Any]) -> Iterator[str]:
        """One label for each entry."""
        for entry in sorted_entries:
            people = entry.persons.get("author") or entry.persons.get("editor") or []
            names = [" ".join([*person.prelast_names, *person.last_names]).strip("{}") for person in people]
            who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
            yield f"{who or entry.key}, {entry.fields.get('year', 'n.d.')}"


class AuthorYearStyle(PlainStyle):
    """The plain style with such labels and one link for each entry: a DOI's, an arXiv number's or an address's."""

    default_label_style = "sslbook"

    def format_web_refs(self, entry: Any) -> Any:
        """The first that there is (they lead to one place)."""
        return first_of[
            optional[self.format_doi(entry)], optional[self.format_eprint(entry)], optional[self.format_url(entry)]
        ]

    def format_url(self, entry: Any) -> Any:
        """The address as a link, without the word “URL”."""
        address = field("url", raw=True)
        return href[address, address]


def _typeset_numbers(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    """Print the numbers pasted into the prose as numbers are printed, and keep "95 %" in one line."""
    for node in doctree.findall(nodes.inline):
        if "pasted-text" in node["classes"]:
            for text in list(node.findall(nodes.Text)):
                text.parent.replace(text, nodes.Text(typeset(text.astext())))
    for text in list(doctree.findall(nodes.Text)):
        if " %" in text and not isinstance(text.parent, _VERBATIM):
            text.parent[text.parent.index(text)] = nodes.Text(_PERCENT.sub("\u00a0%", text.astext()))


_VERBATIM = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block)
_PERCENT = re.compile(r"(?<=\d) %")


def _mark(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    """Tell a chapter's time, open it with its picture, fold its checks, and mark its cells for the reader's notebook."""
    notebook = Path(app.srcdir) / f"{pagename}.ipynb"
    if notebook.exists():
        for box in [node for node in opening(doctree) if isinstance(node, nodes.admonition)][:1]:
            box += nodes.paragraph("", cells.time_of(notebook), classes=[TIME])
        cells.open_with_picture(doctree)
        cells.fold_sections(doctree)
        markdown.mark_cells(doctree)


def _write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the reader's notebook of each chapter, from its page, once all pages are there."""
    bodies = {} if error else getattr(app, _BODIES, {})
    names = [posixpath.basename(page) for page in bodies]
    order = [page for page in app.env.collect_relations() if page in bodies]
    after = {
        page: f"[{app.env.titles[then].astext()}]({posixpath.basename(then)}.ipynb)" for page, then in pairwise(order)
    }
    repository = Repository.read(Path(app.srcdir))
    executed = {page: nbformat.read(Path(app.srcdir) / f"{page}.ipynb", as_version=4) for page in bodies}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(app.srcdir).glob("*/*.md")}
    texts |= {posixpath.basename(page): words(notebook) for page, notebook in executed.items()}
    formats = {(one.chapter, one.name): one.form for page, text in texts.items() for one in pasted(text, page)}
    for page, body in bodies.items():
        name = posixpath.basename(page)
        pieces = markdown.pieces(body, names, repository.site)
        notebook = notebooks.reader_notebook(
            name, executed[page], pieces, repository.requirement, following=after.get(page, ""), formats=formats
        )
        notebooks.write(notebook, Path(app.outdir) / notebooks.NOTEBOOKS / f"{name}.ipynb")


def _page(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Say in the page's head what it is about and where it lives, give it its buttons, and put its HTML right."""
    repository = Repository.read(Path(app.srcdir))
    is_notebook = context["is_notebook"] = (Path(app.srcdir) / f"{pagename}.ipynb").exists()
    if doctree is not None:
        title = " ".join(BeautifulSoup(str(context["title"]), "html.parser").get_text().split())
        book = str(app.config.html_title or app.config.project)
        if title == book:
            context["docstitle"] = ""  # the theme would say it twice
        context["metatags"] += head(title, book, pagename, description(doctree), repository.site)
        context["repository"] = repository.url
    if "body" in context:
        if is_notebook:
            app.__dict__.setdefault(_BODIES, {})[pagename] = context["body"]
        context["body"] = _mend(cells.move_set_up(markdown.without_marks(context["body"])))
    if pagename == "chapters/ledger":
        app.add_js_file("sslbook/ledger.js", loading_method="defer")
    if f'class="{canvas.CANVAS}"' in context.get("body", ""):
        app.add_js_file(canvas.SCRIPT, loading_method="defer")
    without = "|mathjax|formulas" if 'class="math ' not in context.get("body", "") else ""  # 1.8 MB for no formula
    dropped = re.compile(f"sphinx-thebe|THEBE_JS_URL{without}", re.IGNORECASE)
    for kind in ("script_files", "css_files"):  # by file name and inline text
        texts = [f"{getattr(i, 'filename', i)} {getattr(i, 'attributes', {}).get('body', '')}" for i in context[kind]]
        context[kind] = [item for item, text in zip(context[kind], texts, strict=True) if not dropped.search(text)]


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


def head(title: str, book: str, page: str, about: str, site: str) -> str:
    """The lines for a page's head. Addresses are absolute or of no use, so those need a ``site``."""
    told = {"og:title": title, "og:site_name": book, "og:type": "article" if title != book else "website"}
    lines = [f'<meta name="description" content="{html.escape(about)}">'] if about else []
    if about:
        told["og:description"] = about
    if site:
        told["og:url"] = f"{site}/{page}.html"
        told["og:image"] = f"{site}/_static/sslbook/social.png"
        told["twitter:card"] = "summary_large_image"
        told["og:image:alt"] = "Handwritten digits, what their augmented views share, and what tells them apart"
        lines.append(f'<link rel="canonical" href="{html.escape(told["og:url"])}">')
    lines += [f'<meta property="{name}" content="{html.escape(value)}">' for name, value in told.items()]
    return "\n    " + "\n    ".join(lines) + "\n"


def _mend(body: str) -> str:
    """Put right what accessibility checkers find in the HTML of a page's body.

    A bibliography is a list whose entries carry a role that lists may not hold; a folded cell announces other words than it
    shows; a figure is named by its caption. Beyond that, for narrow screens: dotted names in code get places to break, and wide
    tables learn to stack.
    """
    if 'role="list" class="citation-list"' in body:
        body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    body = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    body = _FIGURE.sub(r'\1 aria-labelledby="\2-caption">\3<figcaption id="\2-caption">', body)
    body = _NAME_IN_CODE.sub(lambda name: f"{name[1]}{_JOINT.sub(_BREAK, name[2])}</span>", body)
    return _TABLE.sub(lambda table: _stacking(table[0]), body)


_FIGURE = re.compile(r'(<figure\b[^>]*\bid="([^"]+)"[^>]*)>(.*?)<figcaption>', re.DOTALL)
_NAME_IN_CODE = re.compile(r'(<span class="pre">)([^<]*)</span>')
_JOINT = re.compile(r"(?<=\w)([_/=,]|\.(?!\d))(?=\w)")
_BREAK = r"\1<wbr>"
_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_FORMULA = re.compile(r"\\\((.*?)\\\)", re.DOTALL)
_ROLES = {"table": "table", "caption": "caption", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
_STACK_FROM = 4  # columns: narrower tables fit on a phone


def _stacking(table: str) -> str:
    """A wide table whose cells know their column, so that a phone can show each row as a block of its own.

    A style sheet that lays out table rows as blocks takes the table's meaning from them; the roles keep it.
    """
    soup = BeautifulSoup(table, "html.parser")
    heads, outer = soup.select("thead th"), soup.find_all("table")
    if len(heads) < _STACK_FROM or soup.select("[colspan], [rowspan]") or len(outer) != 1:
        return table
    labels = [" ".join(_FORMULA.sub(lambda tex: readable(tex[1]), head.get_text()).split()) for head in heads]
    outer[0]["class"] = " ".join([*outer[0].get_attribute_list("class"), "sslbook-stack"])
    for name, role in _ROLES.items():
        for tag in soup.find_all(name):
            tag["role"] = role
    for tag in soup.find_all("th"):
        tag["role"] = "rowheader" if tag.find_parent("tbody") else "columnheader"
    for row in soup.select("tbody tr"):
        for cell, label in zip(row.find_all(["td", "th"]), labels, strict=True):
            cell["data-label"] = label
    return str(soup)


PAGE = "chapters/library"
NOTATION = "chapters/notation"
PACKAGE = "sslbook"


@functools.cache
def offered() -> dict[str, str]:
    """The promised names by the place where each is defined: ``sslbook.operator.covariance.covariance_operator`` and so on."""
    stub = Path(str(sslbook.__file__)).with_suffix(".pyi")
    return {f"{home}.{name}": name for name, home in homes(stub).items()}


def functions() -> dict[str, set[str]]:
    """Full names of the promised functions that compute each statement, by the statement's label."""
    content = data_files.read_yaml(data_files.folder() / "functions.yml", dict)
    return {label: {f"{PACKAGE}.{name}" for name in names} for label, names in content.items()}


def edit(app: Sphinx | None, what: str, name: str, thing: Any, options: object, lines: list[str]) -> None:
    """Let autodoc show docstrings as the page has them.

    Each ``name: …`` or ``name, name: …`` at the beginning of a sentence gets a paragraph, and ``[tian2020]`` becomes a citation.
    """
    text = re.sub(r"\[(tian20\w+)\]", r":cite:t:`\1`", "\n".join(lines))
    if one := "|".join(map(re.escape, inspect.signature(thing).parameters if callable(thing) else ())):
        text = re.sub(rf"(?:(?<=\n)|(?<=\.  ))((?:{one})(?:, (?:{one}))*): ", r"\n\n**\1**: ", text)
    lines[:] = text.splitlines()


def _annotate(app: Sphinx, doctree: nodes.document) -> None:
    """Name functions and verdicts below statements; each ``module.name`` on the notation page leads to where it is explained."""
    annotate(doctree, functions(), {claim.id: claim for claim in read_claims(data_files.folder() / "claims.yml")})
    for code in list(doctree.findall(nodes.literal)) if app.env.docname == NOTATION else ():
        text = code.astext()
        name = text if text.startswith((f"{PACKAGE}.", "sslchapters.")) else f"{PACKAGE}.{text}"
        if "." in text and exists(name):
            code.replace_self(_link("", nodes.literal("", text), "py", "obj", name))
        elif re.fullmatch(r"\w+(\.\w+)+", text):
            _LOG.warning("the notation names %s, which does not exist", text, location=code)


def _link(rawsource: str, shown: nodes.Element, domain: str, kind: str, target: str) -> addnodes.pending_xref:
    """A link that Sphinx resolves, and warns of where it can't."""
    warn = domain == "std"
    return addnodes.pending_xref(
        rawsource, shown, refdomain=domain, reftype=kind, reftarget=target, refexplicit=True, refwarn=warn
    )


def annotate(doctree: nodes.Element, computed: Mapping[str, set[str]], claims: Mapping[str, Claim]) -> None:
    """Below each theorem and its like, the functions that compute it; beside its title, folded into an icon, our verdict on each
    claim of the papers that the title names, without whose codes the title is left."""

    def reference(text: str, label: str) -> addnodes.pending_xref:
        return _link("", nodes.inline("", text), "std", "ref", label)

    def verdict(claim: Claim) -> list[nodes.Node]:
        said = "holds as corrected here" if claim.verdict == "holds with the correction" else claim.verdict
        errata = [nodes.Text(" ("), reference("errata", claim.errata), nodes.Text(")")] if claim.errata else []
        return [reference(claim.id, entry_anchor(claim.id)), nodes.Text(f" {said}"), *errata]

    def line(begin: str, between: str, items: Sequence[Sequence[nodes.Node]], end: str) -> nodes.paragraph:
        found = nodes.paragraph("", begin, classes=["sslbook-functions"])
        for number, item in enumerate(items):
            found += [nodes.Text(between if number else ""), *item]
        found += nodes.Text(end)
        return found

    elements = doctree.findall(nodes.Element)
    for box in [box for box in elements if isinstance(box, nodes.Admonition) and box.get("label")]:
        names = sorted(computed.get(str(box["label"]), ()))
        links: list[list[nodes.Node]] = [[_link("", nodes.literal("", offered()[n]), "py", "obj", n)] for n in names]
        title = box.next_node(nodes.title)
        stated = [claims[code] for code in CODE.findall(title.astext() if title else "") if code in claims]
        content: list[nodes.Element] = [child for child in box.children if isinstance(child, nodes.section)]
        if links:
            (content or [box])[-1].append(line("In the library: ", ", ", links, "."))
        if stated and title is not None:
            for text in [text for text in title.findall(nodes.Text) if CODE.search(text)]:
                text.parent.replace(text, nodes.Text(_CODES.sub("", text.astext())))
            ours = "; our claim holds." if any(claim.verdict == "fails as stated" for claim in stated) else "."
            theirs = "The paper's claim " if len(stated) == 1 else "The paper's claims: "
            fold = nodes.container("", classes=["sslbook-claims"])
            fold += [nodes.raw("", _ICON, format="html"), line(theirs, "; ", [verdict(c) for c in stated], ours)]
            fold += nodes.raw("", "</details>", format="html")
            (content or [box])[0].insert(0, fold)


_CODES = re.compile(rf"\s*·\s*(?={CODE.pattern})[^)]*")
"""The codes at the end of a title, with the dot before them."""
_ICON = (
    '<details><summary title="The paper\'s claim"><svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">'
    '<path d="M3.5 1.5h6l3 3v10h-9zM9.5 1.5v3h3M5.5 8h5M5.5 11h5"/></svg>'
    '<span class="visually-hidden">The paper\'s claim</span></summary>'
)
"""A page with a folded corner, and its name for those who do not see it."""


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Where a name of Python's leads: to its entry or its owner's on the page, else nowhere; None if it doesn't exist."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    if not target.startswith((f"{PACKAGE}.", "sslchapters.")):
        return content
    if not exists(target):
        return None
    place, domain, parts = str(node.get("refdoc", PAGE)), env.get_domain("py"), target.split(".")
    for cut in range(len(parts), 1, -1):  # what the page may call it and, after it, each of its owners
        owner = ".".join(parts[:cut])
        promised = f"{PACKAGE}.{offered()[owner]}" if owner in offered() else owner
        for name in (".".join([promised, *parts[cut:]]), promised, owner):
            found: nodes.Node | None = domain.resolve_xref(env, place, app.builder, "obj", name, node, content)
            if found is not None:
                return found
    return content


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
