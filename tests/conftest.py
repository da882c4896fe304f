"""What several test modules share: a tiny book in a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from sslbook.book.layout import PACKAGE, Book, find_book

# How long an example takes says what else the machine has to do, not whether the example is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

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
from sslbook.book import begin, claim, measure
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
    return Book(root.resolve(), packages=(PACKAGE, *packages))


@pytest.fixture
def write_book(tmp_path: Path) -> WriteBook:
    """`make_book` in this test's own folder."""
    return lambda **arguments: make_book(tmp_path, **arguments)


@pytest.fixture(scope="session")
def write_book_at() -> WriteBook:
    """`make_book`, for fixtures that live longer than a test."""
    return make_book


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the worker processes have it: several threads share a product by how many replicas there are, which rounds otherwise.

    120 steps make a millionfold of it: 1e-10 in float64, 0.01 in float32, seen with two threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a reader's environment, with the package from its wheel; one for all processes of pytest."""
    import reader_cases
    from filelock import FileLock

    book = find_book(Path(__file__).resolve().parents[1])
    if not list((book.html / "notebooks").glob("*.ipynb")):
        pytest.skip("the book is not built: make book")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder) / "reader"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            reader_cases.make(book, folder)
            (folder / "ready").touch()
    return folder / "bin/python"
