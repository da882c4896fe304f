"""Sphinx extension of the book: everything local, accessible, and downloadable as a runnable notebook.

Named in `_config.yml`. It serves MathJax, the icons, the style sheet and the sliders' script from `assets/`, so that no page asks
another machine for anything; pastes numbers with their intervals and bounds; names papers by authors and year; puts right what an
accessibility checker finds in the theme; and offers each chapter as `.ipynb` and `.md` (`render` writes those files beside the
pages).

autodoc turns the docstrings of the promised names into the page about the library. `data/functions.yml` says which function
computes a statement, and the title of its box names the claims that it states, as in ``Several units · B-F1``. A promised name
leads to its entry on that page, below a statement as on the notation page; a name that is nowhere is an error.
"""

from __future__ import annotations

import functools
import html
import inspect
import itertools
import json
import operator
import pkgutil
import posixpath
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from sphinx.util.docutils import SphinxRole

import sslbook
from bookbuild import canvas, cells, markdown, notebooks
from bookbuild.cells import TIME, CodeTable, opening
from bookbuild.layout import Repository, words
from bookbuild.ledger import CODE
from sslbook._check import homes
from sslchapters import data_files
from sslchapters.ledger import Claim, read_claims
from sslchapters.records import recorded
from sslchapters.values import ROLES, entry_anchor, glue, named, pasted, printed, readable, typeset

ASSETS = Path(__file__).parent / "assets"
LONGEST = 160
"""Characters of a description: what result pages show."""
_bodies: dict[str, str] = {}  # the chapters' HTML, till all pages are there


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; see the module's docstring for what it does."""
    app.add_config_value("comments_config", {}, "")  # Jupyter Book sets it, for an extension that we leave out
    app.connect("config-inited", _configure, priority=900)  # after the theme has appended its own template folders
    register_plugin("pybtex.style.labels", "sslbook", AuthorYearLabels)
    register_plugin("pybtex.style.formatting", "sslbook", AuthorYearStyle)  # `bibtex_default_style` in `_config.yml`
    app.connect("autodoc-process-docstring", edit)
    # a dataclass's signature without ``<factory>``, which is no Python: Sphinx would show what it can't parse as it is
    app.connect(
        "autodoc-process-signature",
        lambda app, what, name, thing, options, given, result: (given and given.replace("<factory>", "..."), result),
    )
    app.connect("doctree-read", _annotate)
    app.connect("missing-reference", _resolve)
    ends = (CodeTable.open, lambda writer, node: writer.body.append("</figure>\n"))
    caption: Any = operator.itemgetter("caption")  # what {numref} may ask for
    app.add_enumerable_node(CodeTable, "table", caption, html=ends)
    app.add_transform(cells.Captions)
    app.add_directive(cells.MAP, cells.BookMap)
    app.connect("doctree-resolved", cells.set_map)
    app.add_directive("canvas", canvas.Canvas)
    for name in (*ROLES[1:], "ran"):  # the first is MyST-NB's own
        app.add_role(name, Told())
    app.add_role("held", lambda *_, **__: ([], []))  # intervals that a verdict's word rests on: a test reads them
    app.connect("doctree-read", _unique_ids)
    app.connect("doctree-resolved", _resolved, priority=900)  # by now numbers of other pages are pasted too
    app.connect("html-page-context", _page, priority=900)
    app.connect("build-finished", _write_notebooks)
    app.add_css_file("sslbook/icons.css", priority=850)
    app.add_css_file("sslbook/book.css", priority=900)
    app.add_js_file("sslbook/book.js", loading_method="defer")
    app.add_js_file("sslbook/formulas.js", loading_method="defer")  # before MathJax: it says when to typeset what
    return {"version": sslbook.__version__, "parallel_read_safe": True, "parallel_write_safe": True}


def _configure(app: Sphinx, config: Config) -> None:
    """Point Sphinx to the book's own assets."""
    config.html_static_path.append(str(ASSETS / "static"))
    config.templates_path.insert(0, str(ASSETS / "templates"))
    config.html_logo = config.html_favicon = str(ASSETS / "static/sslbook/logo.svg")


def _unique_ids(app: Sphinx, doctree: nodes.document) -> None:
    """Number the ids that occur more than once, and set the word *Proof.* in italics.

    sphinx-proof and sphinx-exercise give one id to all boxes of a kind; docstrings begin anew to count their citations.
    """
    taken: Counter[str] = Counter()
    for node in doctree.findall(nodes.Element):
        if isinstance(node, nodes.admonition) and "proof" in node["ids"]:
            node["classes"].append("proof-text")
            if (first := node.next_node(nodes.Text)) is not None and first.startswith("Proof."):
                rest = nodes.Text(first.removeprefix("Proof."))
                first.parent.replace(first, [nodes.emphasis("", "Proof."), rest])
        taken.update(node["ids"])
        node["ids"] = [name if taken[name] == 1 else f"{name}-{taken[name]}" for name in node["ids"]]


class Told(SphinxRole):
    """``{ran}`training-exact epochs` ``: what was run, as the record itself says; ``{interval}``, ``{least}`` and ``{most}``: a
    number of this page's notebook, or of another's (``page.md::name:.1f``).

    The last three say in a sentence how sure a number is, or which side it bounds; `sslchapters.values.printed` rounds.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """What is told, or a warning that says what is missing."""
        try:
            return [self.told()], []
        except (OSError, ValueError) as error:
            return [], [self.inliner.reporter.warning(f"{{{self.name}}}`{self.text}`: {error}", line=self.lineno)]

    def told(self) -> nodes.Node:
        """The number or word, in its sentence."""
        if self.name == "ran":
            record, _, part = self.text.partition(" ")
            told = recorded(record).ran(part)
            return nodes.Text(f"{told:,}" if isinstance(told, int) else str(told))
        document, (page, name, form) = self.env.docname, named(self.text)
        if page:
            document = self.env.path2doc(self.env.relfn2path(page, document)[1]) or page
        try:
            text = printed(self.name, name, form, _glued(Path(self.env.srcdir) / f"{document}.ipynb"))
        except KeyError as missing:
            raise ValueError(f"it names {missing}, which {document} does not produce") from None
        classes = ["pasted-text", *["sslbook-interval"][: self.name == "interval"]]
        node = nodes.inline(self.rawtext, text, classes=classes)
        self.set_source_info(node)
        return node


_glued = functools.lru_cache(maxsize=32)(lambda notebook: glue(json.loads(notebook.read_text(encoding="utf-8"))))


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


def _resolved(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    """Print the numbers pasted into the prose as numbers are printed, and keep "95 %" in one line; tell a chapter's time, open it
    with its picture, fold its checks, and mark its cells for the reader's notebook."""
    for node in doctree.findall(nodes.inline):
        if "pasted-text" in node["classes"]:
            for text in list(node.findall(nodes.Text)):
                text.parent.replace(text, nodes.Text(typeset(text.astext())))
    verbatim = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block)
    for text in list(doctree.findall(nodes.Text)):
        if " %" in text and not isinstance(text.parent, verbatim):
            text.parent[text.parent.index(text)] = nodes.Text(re.sub(r"(?<=\d) %", "\u00a0%", text.astext()))
    notebook = Path(app.srcdir) / f"{pagename}.ipynb"
    if notebook.exists():
        for box in [node for node in opening(doctree) if isinstance(node, nodes.admonition)][:1]:
            box += nodes.paragraph("", cells.time_of(notebook), classes=[TIME])
        cells.open_with_picture(doctree)
        cells.fold_sections(doctree)
        markdown.mark_cells(doctree)


def _write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the reader's notebook of each chapter, from its page, once all pages are there."""
    bodies = {} if error else _bodies
    names = [posixpath.basename(page) for page in bodies]
    order = [page for page in app.env.collect_relations() if page in bodies]
    after = {
        page: f"[{app.env.titles[then].astext()}]({posixpath.basename(then)}.ipynb)"
        for page, then in itertools.pairwise(order)
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
            name, executed[page], pieces, repository.requirement, after.get(page, ""), formats
        )
        notebooks.write(notebook, Path(app.outdir) / "notebooks" / f"{name}.ipynb")


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
            _bodies[pagename] = context["body"]
        context["body"] = _mend(cells.move_set_up(markdown.without_marks(context["body"])))
    if pagename == "chapters/ledger":
        app.add_js_file("sslbook/ledger.js", loading_method="defer")
    if f'class="{canvas.CANVAS}"' in context.get("body", ""):
        app.add_js_file("sslbook/canvas.js", loading_method="defer")
    if 'class="math ' not in context.get("body", ""):  # 1.8 MB for no formula
        texts = [f"{script.filename} {script.attributes.get('body', '')}" for script in context["script_files"]]
        needed = [re.search("mathjax|formulas", text, re.IGNORECASE) is None for text in texts]
        context["script_files"] = list(itertools.compress(context["script_files"], needed))


def description(doctree: nodes.document) -> str:
    """What a page is about, in its own words: its first box, else its first paragraph, as far as a result page shows it."""
    boxes = [box for box in opening(doctree) if isinstance(box, nodes.admonition)]
    inside = [p for box in boxes[:1] for p in box.children if isinstance(p, nodes.paragraph)]
    long = (p for p in doctree.findall(nodes.paragraph) if len(p.astext().split()) > 8)
    first = next((p for p in itertools.chain(inside, long) if TIME not in p["classes"]), None)
    leaves, maths = first.findall(nodes.Text) if first else (), (nodes.math, nodes.math_block)
    texts = [readable(leaf) if isinstance(leaf.parent, maths) else leaf for leaf in leaves]
    return textwrap.shorten("".join(texts), LONGEST, placeholder=" …")


def head(title: str, book: str, page: str, about: str, site: str) -> str:
    """The lines for a page's head. Addresses are absolute or of no use, so those need a ``site``."""
    told = {"og:title": title, "og:site_name": book, "og:type": "article" if title != book else "website"}
    lines = [f'<meta name="description" content="{html.escape(about)}">'] if about else []
    told |= {"og:description": about} if about else {}
    if site:
        told["og:url"] = f"{site}/{page}.html"
        told["og:image"] = f"{site}/_static/sslbook/social.png"
        told["twitter:card"] = "summary_large_image"
        told["og:image:alt"] = "Handwritten digits, what their augmented views share, and what tells them apart"
        lines.append(f'<link rel="canonical" href="{html.escape(told["og:url"])}">')
    lines += [f'<meta property="{name}" content="{html.escape(value)}">' for name, value in told.items()]
    return "\n    ".join(["", *lines]) + "\n"


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
    body = _NAME_IN_CODE.sub(lambda name: name[1] + _JOINT.sub(r"\1<wbr>", name[2]) + "</span>", body)
    return re.sub(r"<table\b.*?</table>", lambda table: _stacking(table[0]), body, flags=re.DOTALL)


_FIGURE = re.compile(r'(<figure\b[^>]*\bid="([^"]+)"[^>]*)>(.*?)<figcaption>', re.DOTALL)
_NAME_IN_CODE = re.compile(r'(<span class="pre">)([^<]*)</span>')
_JOINT = re.compile(r"(?<=\w)([_/=,]|\.(?!\d))(?=\w)")
_ROLES = {"table": "table", "caption": "caption", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}


def _stacking(table: str) -> str:
    """A table of four columns or more whose cells know their column, so that a phone can show each row as a block of its own.

    A style sheet that lays out table rows as blocks takes the table's meaning from them; the roles keep it.
    """
    soup = BeautifulSoup(table, "html.parser")
    heads, outer = soup.select("thead th"), soup.find_all("table")
    if len(heads) < 4 or soup.select("[colspan], [rowspan]") or len(outer) != 1:
        return table
    texts = [re.sub(r"\\\((.*?)\\\)", lambda tex: readable(tex[1]), head.get_text(), flags=re.DOTALL) for head in heads]
    labels = [" ".join(text.split()) for text in texts]
    outer[0]["class"] = " ".join([*outer[0].get_attribute_list("class"), "sslbook-stack"])
    for tag in soup.find_all([*_ROLES, "th"]):
        tag["role"] = _ROLES.get(tag.name) or ("rowheader" if tag.find_parent("tbody") else "columnheader")
    for row in soup.select("tbody tr"):
        for cell, label in zip(row.find_all(["td", "th"]), labels, strict=True):
            cell["data-label"] = label
    return str(soup)


PACKAGE = "sslbook"


@functools.cache
def offered() -> dict[str, str]:
    """The promised names by the place where each is defined: ``sslbook.operator.covariance.covariance_operator`` and so on."""
    stub = Path(str(sslbook.__file__)).with_suffix(".pyi")
    return {f"{home}.{name}": name for name, home in homes(stub).items()}


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
    computed = data_files.read_yaml(data_files.folder() / "functions.yml", dict)
    annotate(doctree, computed, {claim.id: claim for claim in read_claims(data_files.folder() / "claims.yml")})
    for code in list(doctree.findall(nodes.literal)) if app.env.docname == "chapters/notation" else ():
        text = code.astext()
        name = text if text.startswith((f"{PACKAGE}.", "sslchapters.")) else f"{PACKAGE}.{text}"
        if "." in text and exists(name):
            code.replace_self(_link("", nodes.literal("", text), "py", "obj", name))
        elif re.fullmatch(r"\w+(\.\w+)+", text):
            doctree.reporter.warning(f"the notation names {text}, which does not exist", base_node=code)


def _link(rawsource: str, shown: nodes.Element, domain: str, kind: str, target: str) -> addnodes.pending_xref:
    """A link that Sphinx resolves, and warns of where it can't."""
    warn = domain == "std"
    return addnodes.pending_xref(
        rawsource, shown, refdomain=domain, reftype=kind, reftarget=target, refexplicit=True, refwarn=warn
    )


def annotate(doctree: nodes.Element, computed: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]) -> None:
    """Below each theorem and its like, the functions that compute it, as ``computed`` has them by its label; beside its title,
    folded into an icon, our verdict on each claim of the papers that the title names, without whose codes the title is left."""

    def reference(text: str, label: str) -> addnodes.pending_xref:
        return _link("", nodes.inline("", text), "std", "ref", label)

    def line(*parts: str | nodes.Node) -> nodes.paragraph:
        shown = [nodes.Text(part) if isinstance(part, str) else part for part in parts]
        return nodes.paragraph("", "", *shown, classes=["sslbook-functions"])

    elements = doctree.findall(nodes.Element)
    for box in [box for box in elements if isinstance(box, nodes.Admonition) and box.get("label")]:
        content: list[nodes.Element] = [child for child in box.children if isinstance(child, nodes.section)] or [box]
        functions: list[str | nodes.Node] = []
        for name in sorted(f"{PACKAGE}.{name}" for name in computed.get(str(box["label"]), ())):
            functions += [", ", _link("", nodes.literal("", offered()[name]), "py", "obj", name)]
        if functions:
            content[-1].append(line("In the library: ", *functions[1:], "."))
        title = box.next_node(nodes.title)
        stated = [claims[code] for code in CODE.findall(title.astext() if title else "") if code in claims]
        if stated and title is not None:
            for text in [text for text in title.findall(nodes.Text) if CODE.search(text)]:
                text.parent.replace(text, nodes.Text(_CODES.sub("", text.astext())))
            verdicts: list[str | nodes.Node] = []
            for claim in stated:
                said = "holds as corrected here" if claim.verdict == "holds with the correction" else claim.verdict
                verdicts += ["; ", reference(claim.id, entry_anchor(claim.id)), f" {said}"]
                verdicts += [" (", reference("errata", claim.errata), ")"] if claim.errata else []
            ours = "; our claim holds." if any(claim.verdict == "fails as stated" for claim in stated) else "."
            theirs = "The paper's claim " if len(stated) == 1 else "The paper's claims: "
            begin, end = (nodes.raw("", tags, format="html") for tags in (_ICON, "</details>"))
            told = line(theirs, *verdicts[1:], ours)
            content[0].insert(0, nodes.container("", begin, told, end, classes=["sslbook-claims"]))


_CODES = re.compile(rf"\s*·\s*(?={CODE.pattern})[^)]*")  # at the end of a title, with the dot before them
_ICON = (
    '<details><summary title="The paper\'s claim"><svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">'
    '<path d="M3.5 1.5h6l3 3v10h-9zM9.5 1.5v3h3M5.5 8h5M5.5 11h5"/></svg>'
    '<span class="visually-hidden">The paper\'s claim</span></summary>'
)


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
    parts, find = target.split("."), functools.partial(env.get_domain("py").resolve_xref, env)
    for cut in range(len(parts), 1, -1):  # what the page may call it and, after it, each of its owners
        owner = ".".join(parts[:cut])
        promised = f"{PACKAGE}.{offered()[owner]}" if owner in offered() else owner
        for name in (".".join([promised, *parts[cut:]]), promised, owner):
            if found := find(str(node["refdoc"]), app.builder, "obj", name, node, content):
                return found
    return content


def exists(name: str) -> bool:
    """Whether a full name is that of a module, of something in one, or of a dataclass's field."""
    owner, _, field = name.rpartition(".")
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        fields = getattr(pkgutil.resolve_name(owner), "__dataclass_fields__", {}) if owner and exists(owner) else {}
        return field in fields
    return True
