"""What several test modules share: a tiny book in a temporary folder, a reader's environment, and no network."""

from __future__ import annotations

import json
import os
import runpy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bookbuild import noise
from bookbuild.layout import PACKAGES, SOURCE, Book, find_book
from sslbook import cli
from sslchapters.values import Number

# How long an example takes says what else the machine has to do, not whether the example is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

OFFLINE = Path(__file__).parent / "offline/sitecustomize.py"
OUTSIDE = "SSLBOOK_TESTS_OUTSIDE"  # names the file that lists what was asked of other machines


def pytest_configure() -> None:
    """Refuse the network, here and in every Python that a test starts; and round as another machine, if asked to."""
    if seed := os.environ.get("SSLBOOK_NOISE"):
        noise.start(seed)
    handle, log = tempfile.mkstemp(prefix="sslbook-outside-")
    os.close(handle)
    os.environ[OUTSIDE] = log  # one for each process of pytest
    paths = [str(OFFLINE.parent), str(SOURCE), os.environ.get("PYTHONPATH")]  # and this checkout, not another's
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    runpy.run_path(str(OFFLINE))


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    Path(os.environ.pop(OUTSIDE, os.devnull)).unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a reader's environment, which pip fills; skip what needs the built book where there is none."""
    built = (find_book(Path(__file__).resolve().parents[1]).html / "index.html").is_file()
    for item in items:
        if "reader" in getattr(item, "fixturenames", ()):
            item.add_marker("registry")
            item.add_marker("built")
        if not built and item.get_closest_marker("built"):
            item.add_marker(pytest.mark.skip(reason="the book is not built: make book"))


@pytest.fixture(autouse=True)
def offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that asked another machine for something, even if it went on without an answer."""
    log = Path(os.environ[OUTSIDE])
    before = log.stat().st_size
    if request.node.get_closest_marker("registry"):
        monkeypatch.delenv(OUTSIDE)
    yield
    if asked := log.read_bytes()[before:].decode():
        pytest.fail(f"tests run without the network, and this one went outside:\n{asked}", pytrace=False)


HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst, format_version: 0.13}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# The chapter {name}

```{code-cell} ipython3
:tags: [parameters]
scale = "quick"
seed = 0
device = "auto"
```

```{code-cell} ipython3
from sslchapters import begin, claim, measure
run = begin("{name}", scale=scale, seed=seed, device=device)
```

"""

CLAIMS = """
- {id: A-Thm1, paper: A, chapter: good, kind: I, verdict: open, statement: "One plus one is two."}
- {id: A-Thm2, paper: A, chapter: later, kind: B, verdict: open, statement: "Later."}
"""

WriteBook = Callable[..., Book]


def make_book(root: Path, *, packages: tuple[Path, ...] = (), **chapters: str) -> Book:
    """A book in ``root`` whose chapters hold the header above, then the given text (code between ``<<`` and ``>>``)."""
    (root / "chapters").mkdir(parents=True, exist_ok=True)
    (root / "data" / "results").mkdir(parents=True, exist_ok=True)
    (root / "data" / "claims.yml").write_text(CLAIMS, encoding="utf-8")
    (root / "_toc.yml").write_text("format: jb-book\nroot: chapters/good\n", encoding="utf-8")
    for name, text in chapters.items():
        body = text.replace("<<", "```{code-cell} ipython3\n").replace(">>", "\n```\n")
        (root / "chapters" / f"{name}.md").write_text(HEADER.replace("{name}", name) + body, encoding="utf-8")
    return Book(root.resolve(), packages=(*PACKAGES, *packages))


@pytest.fixture
def write_book(tmp_path: Path) -> WriteBook:
    """`make_book` in this test's own folder."""
    return lambda **arguments: make_book(tmp_path, **arguments)


def number(name: str = "x", value: float = 1.0, **rest: Any) -> Number:
    """As a chapter gives it."""
    fixed = {"id": "A-Thm1", "chapter": "good", "scale": "quick", "seed": 0, "device": "cpu", "device_name": "a CPU"}
    fixed |= {"dtype": "float64", "seconds": 0.123, "versions": {"torch": "2.0"}, "anchor": f"check-{name}"}
    return Number(name=name, value=value, **(fixed | rest))


def store(book: Book, chapter: str, *given: Number, scale: str = "quick", **record: object) -> None:
    """A chapter as its execution leaves it, with these numbers alone."""
    outputs = [
        {"output_type": "display_data", "data": {}, "metadata": {"scrapbook": {"name": n.name}, "sslbook": n.to_json()}}
        for n in given
    ]
    cells = [{"cell_type": "code", "metadata": {}, "source": "", "outputs": outputs}]
    book.executed(scale).mkdir(parents=True, exist_ok=True)
    notebook = json.dumps({"metadata": {"sslbook": record}, "cells": cells})
    (book.executed(scale) / f"{chapter}.ipynb").write_text(notebook)


Told = Callable[[list[str]], str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """What a command that succeeds prints."""

    def run(line: list[str]) -> str:
        assert cli.main(line) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a reader's environment, with the package from its wheel; one for all processes of pytest."""
    import reader_cases
    from filelock import FileLock

    book = find_book(Path(__file__).resolve().parents[1])
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder) / "reader"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv(OUTSIDE)
                reader_cases.make(book, folder)
            (folder / "ready").touch()
    return folder / "bin/python"
