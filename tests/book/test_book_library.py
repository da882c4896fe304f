"""The page about the library: every promised name, an example that runs, and a way there from each statement."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from docutils import nodes
from sphinx.addnodes import pending_xref

import sslbook
from sslbook.book.library import _entries, apart, cited, exists, functions, link_names, name_functions, offered, source
from sslbook.exports import homes

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "chapters" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NAMES = sorted(homes(Path(sslbook.__file__).with_suffix(".pyi")))
STATEMENT = re.compile(r"\{prf:(theorem|lemma|corollary|proposition|definition)\}(.*)\n:label: (\S+)")
CLAIM = re.compile(r"[ABC]-\w")


def test_each_promised_name_stands_on_the_page_once() -> None:
    assert sorted(re.findall(r"^\.\. auto\w+:: sslbook\.(\w+)$", PAGE, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_promised_name_has_an_example_in_its_section(name: str) -> None:
    sections = [section for section in PAGE.split("\n## ") if f":: sslbook.{name}\n" in section]
    assert len(sections) == 1
    assert re.search(rf"(?:>>>|\.\.\.) .*\bsslbook\.{name}\b", sections[0])
    assert re.search(r"\{(prf:)?ref\}", sections[0]), "a section links to those that derive what is in it"


def test_the_examples_run() -> None:
    assert len(BLOCKS) > 5
    test = doctest.DocTestParser().get_doctest("\n".join(BLOCKS), {}, "library.md", "chapters/library.md", 0)
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append)
    assert result.attempted > 40
    assert result.failed == 0, "".join(said)


def statements() -> dict[str, tuple[str, str]]:
    """Label -> chapter and title of each statement that has a claim."""
    found = {}
    for path in sorted((ROOT / "chapters").glob("*.md")):
        for _, title, label in STATEMENT.findall(path.read_text(encoding="utf-8")):
            if CLAIM.search(title):
                found[label] = (path.stem, title)
    return found


def test_every_statement_with_a_claim_names_its_function() -> None:
    assert len(statements()) > 40
    assert set(statements()) - set(functions()) == set()


def labels() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md")]
    return {label for text in texts for _, _, label in STATEMENT.findall(text)}


@pytest.mark.parametrize("label", functions())
def test_a_statements_functions_are_there(label: str) -> None:
    assert label in labels()
    assert [name for name in functions()[label] if not exists(name)] == []


def test_what_is_not_there_is_seen() -> None:
    assert exists("sslbook.operator.covariance.CovarianceOperator.trace")
    assert exists("sslbook.images.enumerated.Images.pixels"), "a field that has no default"
    assert not exists("sslbook.images.enumerated.Images.pixel")
    assert not exists("sslbook.operator.covariance.covariance")
    assert not exists("sslbook.no_such_module.f")


def test_a_function_is_named_below_its_statement_and_nowhere_else() -> None:
    one, other = nodes.Admonition, type("Theorem", (nodes.Admonition, nodes.Element), {})
    assert issubclass(other, one)
    doctree = nodes.Element()
    known, unknown = other(label="thm-lucky"), other(label="thm-of-mine")
    doctree += [known, unknown, other(label="thm-weighted")]
    name_functions(doctree)
    assert known.astext() == "In the library: sslbook.experiments.hltm.lucky_nodes.lucky_bound."
    assert unknown.astext() == ""
    assert doctree[2].astext() == "In the library: covariance_operator."  # a promised name needs no more than itself
    assert (
        next(iter(doctree[2].findall(pending_xref)))["reftarget"] == "sslbook.operator.covariance.covariance_operator"
    )


def test_promised_names_are_known_by_where_they_are_defined() -> None:
    assert offered()["sslbook.training.run.trainer.train"] == "train"


def test_papers_are_cited() -> None:
    assert cited(["Theorem 3 of [tian2020],", "x[0] and [N, V]"]) == [
        "Theorem 3 of :cite:t:`tian2020`,",
        "x[0] and [N, V]",
    ]


def test_explained_arguments_stand_apart() -> None:
    lines = [
        "What it does.",
        "",
        "views: of ``(N, V)``.  tau, beta: numbers.",
        "It says: nothing of net.",
        "beta: again",
    ]
    assert [line.strip() for line in apart(lines, ["views", "tau", "beta", "net"]) if line] == [
        "What it does.",
        "**views**: of ``(N, V)``.",
        "**tau, beta**: numbers.",
        "It says: nothing of net.",
        "**beta**: again",
    ]


def test_a_name_on_the_notation_page_leads_to_its_entry_its_owners_or_its_source() -> None:
    tree = nodes.Element()
    for text in ("operator.covariance.covariance_operator", "operator.covariance.step", "W.flatten()", "vec"):
        tree += nodes.paragraph("", "", nodes.literal("", text))
    link_names(tree)
    assert [link["reftarget"] for link in tree.findall(pending_xref)] == [
        "sslbook.operator.covariance.covariance_operator"
    ]
    assert tree.astext().split() == [
        "operator.covariance.covariance_operator",
        "operator.covariance.step",
        "W.flatten()",
        "vec",
    ]
    assert list(_entries("sslbook.operator.covariance.CovarianceOperator.matvec"))[:4] == [
        "sslbook.operator.covariance.CovarianceOperator.matvec",
        "sslbook.CovarianceOperator.matvec",
        "sslbook.CovarianceOperator",
        "sslbook.operator.covariance.CovarianceOperator",
    ]


@pytest.mark.parametrize(
    ("name", "path", "begins"),
    [
        ("sslbook.operator.layer.vec", "sslbook/operator/layer.py", "def vec("),
        ("sslbook.images.enumerated.Images.pixels", "sslbook/images/enumerated.py", "@dataclass"),
        ("sslbook.trees.latent.LatentTree.depth", "sslbook/trees/latent.py", "@"),
        ("sslbook.experiments.emergence.ring.SIGNS", "sslbook/experiments/emergence/ring.py", ""),
        ("sslbook.losses.pairs", "sslbook/losses/pairs.py", ""),
    ],
)
def test_a_name_has_a_place_in_the_source(name: str, path: str, begins: str) -> None:
    found, line = source(name)
    assert found == path
    assert bool(line) == bool(begins)
    assert (ROOT / found).read_text(encoding="utf-8").splitlines()[max(line, 1) - 1].strip().startswith(begins)
