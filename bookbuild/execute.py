"""Execute chapters once, in parallel, keep what has not changed, and know when what was built is still good.

A chapter goes from `chapters/<name>.md` to `_build/executed/<scale>/<name>.ipynb`. The executed notebook says what it depends on
(`key_parts`) and is executed again only when some of that changes. If only the prose changed, the new prose is put beside the old
outputs. A check that fails is published as failed, and a cell that raises leaves its error; the cells behind it are executed all
the same, unless the kernel has gone, and so are the other chapters.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from multiprocessing.pool import ThreadPool
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from bookbuild import kernel
from bookbuild.layout import PACKAGES, Book, Chapter, Setting, code_cells, number_cells, tags
from sslbook._files import write_text
from sslbook._machine import cores
from sslchapters.data_files import read_text
from sslchapters.values import RECORD_KEY


@dataclass(frozen=True)
class Outcome:
    """What became of a chapter: ``cached``, ``prose`` (new prose, old outputs), ``executed`` or ``failed``.

    ``error``: what failed, or the warnings that its cells wrote to stderr.
    """

    chapter: str
    status: str
    error: str = ""


def execute(
    book: Book,
    chapters: Sequence[Chapter],
    setting: Setting,
    *,
    force: bool = False,
    jobs: int | None = None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Bring the executed notebooks of ``chapters`` up to date; one `Outcome` each, in the order given.

    ``jobs`` kernels work at once: by default one a core, as far as each has two gigabytes of memory; one on CUDA, where a
    chapter may need the whole memory. ``say`` gets a line of each chapter before the work begins, and when it ends or fails.
    """
    outcomes: dict[str, Outcome] = {}
    todo: list[tuple[float, Chapter, dict[str, str]]] = []
    for chapter in chapters:
        target, parts = book.executed(setting.scale) / f"{chapter.name}.ipynb", key_parts(book, chapter, setting)
        try:  # what the executed notebook says of its own execution
            stored = dict(json.loads(read_text(target))["metadata"][RECORD_KEY])
        except (OSError, ValueError, KeyError, TypeError):
            stored = {}
        if force or stored.get("parts") != parts:
            old = stored.get("parts", {})
            changed = [name for name in {**parts, **old} if old.get(name) != parts.get(name)]
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            why = "asked for" if force else f"{', '.join(changed[:3])}{more} changed" if stored else "not executed yet"
            say(f"to run   {chapter.name} ({setting.scale}): {why}")
            todo.append((float(stored.get("seconds", "inf")), chapter, parts))
        elif stored.get("source") == digest(chapter.text.encode()):
            say(f"kept     {chapter.name} ({setting.scale}): nothing changed")
            outcomes[chapter.name] = Outcome(chapter.name, "cached")
        else:
            say(f"kept     {chapter.name} ({setting.scale}): only the prose changed; outputs kept")
            write_text(target, nbformat.writes(_with_prose(nbformat.read(target, as_version=4), chapter)))
            outcomes[chapter.name] = Outcome(chapter.name, "prose")
    if todo:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        side_by_side = 1 if setting.device == "cuda" else max(1, min(cores(), memory // 2**31))
        at_once = min(jobs or side_by_side, len(todo))
        todo.sort(key=lambda each: -each[0])  # the longest first, so that the cores end together
        with kernel.environment() as given, ThreadPool(at_once) as pool:  # who is interrupted waits for no thread
            say(f"running  {at_once} at once …")
            running = [pool.apply_async(_run, (book, one, setting, parts, given)) for _, one, parts in todo]
            while running:
                time.sleep(0.1)
                for ended in [each for each in running if each.ready()]:
                    running.remove(ended)
                    outcome = _keep(book, ended.get(), say)
                    outcomes[outcome.chapter] = outcome
    return [outcomes[chapter.name] for chapter in chapters]


def _with_prose(executed: NotebookNode, chapter: Chapter) -> NotebookNode:
    """The chapter as it reads now with the outputs of ``executed``, whose code cells must be the same ones."""
    notebook = chapter.notebook()
    for new, old in zip(code_cells(notebook), code_cells(executed), strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
    notebook.metadata = {**executed.metadata, **notebook.metadata}
    notebook.metadata[RECORD_KEY]["source"] = digest(chapter.text.encode())
    return number_cells(notebook)


def _run(
    book: Book, chapter: Chapter, setting: Setting, parts: Mapping[str, str], given: Mapping[str, str]
) -> NotebookNode:
    """In a thread: the executed chapter; its metadata hold what it depends on, or what failed, as its author wants to read it."""
    start, notebook, shown = time.monotonic(), chapter.notebook(), book.shown(chapter.path)
    if at := next((i + 1 for i, cell in enumerate(notebook.cells) if "parameters" in tags(cell)), 0):
        values = "".join(f"{name} = {getattr(setting, name)!r}\n" for name in ("scale", "seed", "device"))
        own = new_code_cell(f"# Parameters\n{values}", metadata={"tags": ["injected-parameters", "remove-cell"]})
        notebook.cells.insert(at, own)
    longest = {"quick": 600, "paper": 6 * 3600}[setting.scale]
    try:
        failures = kernel.run(notebook, given, folder=chapter.path.parent, cell_seconds=longest)
    except Exception as error:  # whatever stops one must not lose the others
        failures = [(f"{type(error).__name__}: {error}", "")]
    reports = []
    for reason, source in failures:
        line = chapter.text[: max(chapter.text.find(source), 0)].count("\n") + 1
        what, cell = reason.strip().splitlines()[-1], textwrap.indent(source.strip(), "    ")
        where = f"{shown}:{line}: this cell failed: {what}\n\n{cell}\n\n" if cell else f"{shown}: "
        reports.append(where + reason)
    notebook.metadata[RECORD_KEY] = {
        **({"failed": reports} if reports else {"parts": parts}),  # what failed is executed again
        "source": digest(chapter.text.encode()),
        "chapter": chapter.name,
        "scale": setting.scale,
        "seed": setting.seed,
        "device": setting.device,
        "seconds": round(time.monotonic() - start, 2),
    }
    return number_cells(notebook)


def _keep(book: Book, notebook: NotebookNode, say: Callable[[str], None]) -> Outcome:
    """Put an executed notebook in its place, and tell how it went."""
    record = notebook.metadata[RECORD_KEY]
    write_text(book.executed(record["scale"]) / f"{record['chapter']}.ipynb", nbformat.writes(notebook))
    took = f"{record['chapter']} after {record['seconds']:.1f} s"
    if "failed" in record:
        outcome = Outcome(record["chapter"], "failed", "\n\n".join(record["failed"]))
        say(f"FAILED   {took}\n{outcome.error}")
    else:
        outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
        warned = "".join(output.text for output in outputs if output.get("name") == "stderr")
        outcome = Outcome(record["chapter"], "executed", warned)
        say(f"done     {took}" + (f"; it printed a warning:\n{warned}" if warned else ""))
    return outcome


# --- what a chapter's numbers depend on, and a mark of what the pages are made of --------------------------------------

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""


def key_parts(book: Book, chapter: Chapter, setting: Setting) -> dict[str, str]:
    """What the outputs of ``chapter`` depend on: a readable name, and a value or digest.

    It depends on its code cells, the library and what the chapters share, the folders of code that its cells name, recorded runs
    and printed tables, the lock file, the versions that compute, scale, seed and kind of device, which images were downloaded, and
    what of the shell changes a rounding (`kernel.KEYED`) or adds code (``PYTHONPATH``).
    """
    cells = code_cells(chapter.notebook())
    code = "\n".join(cell.source for cell in cells)
    data = Path(kernel.variables().get("SSLBOOK_DATA", os.devnull))
    images = [[path.parent.name, path.name, path.stat().st_size] for path in sorted(data.glob("*/*")) if path.is_file()]
    records = [path for name in ("printed", "results") for path in sorted((book.root / "data" / name).glob("*.json"))]
    shell = [f"{name}={os.environ[name]}" for name in kernel.KEYED if name in os.environ]
    if "SSLBOOK_NOISE" in os.environ:
        shell.append(_content([Path(__file__).with_name("noise.py")]))
    modules: dict[str, list[str]] = {}
    for package in book.packages:
        for path in sorted(package.rglob("*.py")):
            folder = path.relative_to(package).parts[0] if path.parent != package else ""
            # a folder for one chapter counts for those whose code has its name
            if not folder or package.name != "sslchapters" or re.search(rf"\b{folder}\b", code):
                modules.setdefault(f"{package.name}/{folder}", []).extend([path.name, digest(path.read_bytes())])
    return {
        "its code": digest_of([[cell.source, tags(cell)] for cell in cells]),
        "the scale": setting.scale,
        "the seed": str(setting.seed),
        "the device": setting.device,
        "Python": platform.python_version(),
        **{f"{name}'s version": version(name) for name in COMPUTES},
        "the downloaded images": digest_of(images),
        "the shell's variables": " ".join(shell),
        "PYTHONPATH": os.pathsep.join(kernel.added_path()),
        "the lock file": _content([book.root / "requirements.lock"]),
        "recorded runs and printed tables": _content(records),
        **{folder: digest_of(files) for folder, files in modules.items()},
    }


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of what JSON can hold."""
    return digest(json.dumps(value, sort_keys=True).encode())


def _content(files: Iterable[Path]) -> str:
    """A digest of the names and contents of files, as far as they are there."""
    return digest_of([[path.name, digest(path.read_bytes())] for path in files if path.is_file()])


def inputs_of_pages(book: Book, scale: str, generated: object) -> str:
    """A digest of what pages are made of: notebooks, sources, configuration, generated pages, all packages and their versions."""
    files = [book.root / name for name in ("_config.yml", "_toc.yml", "data/functions.yml")]
    for folder in (book.executed(scale), book.chapters, *PACKAGES, Path(__file__).parent):
        files += sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    made_of = [_content(files), generated, sorted({f"{each.name} {each.version}" for each in distributions()})]
    return digest_of(made_of)
