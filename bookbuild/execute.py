"""Execute chapters once, in parallel, keep what has not changed, and know when what was built is still good.

A chapter goes from `chapters/<name>.md` to `_build/executed/<scale>/<name>.ipynb`. The executed notebook says what it depends on
(`key_parts`) and is executed again only when some of that changes. If only the prose changed, the new prose is put beside the old
outputs. A check that fails is published as failed, and a cell that raises leaves its error; the cells behind it are executed all
the same, unless the kernel has gone, and so are the other chapters.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from bookbuild import kernel
from bookbuild.kernel import KEYED, Failure, environment
from bookbuild.layout import PACKAGES, Book, Chapter, Setting, code_cells, number_cells, tags
from sslbook._files import write_text
from sslbook._machine import cores, end_with_parent
from sslchapters.data_files import read_text
from sslchapters.values import RECORD_KEY


@dataclass(frozen=True)
class Outcome:
    """What became of a chapter: ``cached``, ``prose`` (new prose, old outputs), ``executed`` or ``failed``.

    ``error``: what failed, or the warnings that its cells wrote to stderr.
    """

    chapter: str
    status: str
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class _Job:
    """All that a worker process needs, picklable."""

    chapter: Chapter
    source: str
    setting: Setting
    target: Path
    parts: dict[str, str]

    @classmethod
    def of(cls, book: Book, chapter: Chapter, setting: Setting) -> _Job:
        target = book.executed(setting.scale) / f"{chapter.name}.ipynb"
        return cls(chapter, book.shown(chapter.path), setting, target, key_parts(book, chapter, setting))

    def stored(self) -> dict[str, Any]:
        """What the executed notebook says of its own execution; empty if it doesn't exist or can't be read."""
        try:
            return dict(json.loads(read_text(self.target))["metadata"][RECORD_KEY])
        except (OSError, ValueError, KeyError, TypeError):
            return {}


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

    ``jobs`` processes work at once: by default one a core, as far as each has two gigabytes of memory; one on CUDA, where a
    chapter may need the whole memory. ``say`` gets a line of each chapter before the work begins, and when it ends or fails.
    """
    book.executed(setting.scale).mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    todo: list[tuple[float, _Job]] = []
    for chapter in chapters:
        job = _Job.of(book, chapter, setting)
        stored = job.stored()
        if force or stored.get("parts") != job.parts:
            old = stored.get("parts", {})
            changed = [name for name in {**job.parts, **old} if old.get(name) != job.parts.get(name)]
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            why = "asked for" if force else f"{', '.join(changed[:3])}{more} changed" if stored else "not executed yet"
            say(f"to run   {chapter.name} ({setting.scale}): {why}")
            todo.append((float(stored.get("seconds", "inf")), job))
        elif stored.get("source") == digest(chapter.text.encode()):
            say(f"kept     {chapter.name} ({setting.scale}): nothing changed")
            outcomes[chapter.name] = Outcome(chapter.name, "cached")
        else:
            say(f"kept     {chapter.name} ({setting.scale}): only the prose changed; outputs kept")
            write_text(job.target, nbformat.writes(_with_prose(nbformat.read(job.target, as_version=4), chapter)))
            outcomes[chapter.name] = Outcome(chapter.name, "prose")
    if todo:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        side_by_side = 1 if setting.device == "cuda" else max(1, min(cores(), memory // 2**31))
        todo.sort(key=lambda item: -item[0])  # the longest first, so that the cores end together
        with environment() as given:
            for outcome in _run_all([job for _, job in todo], given, min(jobs or side_by_side, len(todo)), say):
                outcomes[outcome.chapter] = outcome
    return [outcomes[chapter.name] for chapter in chapters]


def _with_prose(executed: NotebookNode, chapter: Chapter) -> NotebookNode:
    """The chapter as it reads now with the outputs of ``executed``, whose code cells must be the same ones."""
    notebook = chapter.notebook()
    for new, old in zip(code_cells(notebook), code_cells(executed), strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
        new.metadata.update({name: old.metadata[name] for name in ("papermill", "execution") if name in old.metadata})
    after = next((i + 1 for i, cell in enumerate(notebook.cells) if "parameters" in tags(cell)), 0)
    notebook.cells[after:after] = [cell for cell in executed.cells if "injected-parameters" in tags(cell)]
    notebook.metadata = {**executed.metadata, **notebook.metadata}
    notebook.metadata[RECORD_KEY]["source"] = digest(chapter.text.encode())
    return number_cells(notebook)


def _run_all(
    todo: Sequence[_Job], given: Mapping[str, str], at_once: int, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the jobs in a pool of fresh processes (papermill changes the working folder and the environment of its process).

    Where one process dies, as with too little memory, the pool is lost: what is left runs alone, each in a pool of its own.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_begin, initargs=(given,))
    lost: list[_Job] = []
    try:
        futures = {pool.submit(_run, job): job for job in todo}
        left = set(futures)
        say(f"running  {at_once} at once …")
        while left:  # awake every second: Python does not hear a signal that comes in the moment in which a wait begins
            ended, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ended:
                job = futures[future]
                try:
                    outcome = future.result()
                except OSError as error:  # the chapter's own are in its report: here a notebook can't be written
                    raise OSError(error.errno, error.strerror, error.filename or str(job.target)) from None
                except Exception as error:  # whatever stops one must not lose the others
                    if isinstance(error, BrokenProcessPool) and len(todo) > 1:
                        lost.append(job)
                        continue
                    outcome = Outcome(job.chapter.name, "failed", error=f"{type(error).__name__}: {error}")
                    _keep(job, job.chapter.notebook(), [outcome.error])
                took = f"{outcome.chapter} after {outcome.seconds:.1f} s"
                said = f"; it printed a warning:\n{outcome.error}" if outcome.error else ""
                say(f"FAILED   {took}\n{outcome.error}" if outcome.status == "failed" else f"done     {took}{said}")
                yield outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for job in lost:
        yield from _run_all([job], given, 1, say)


def _begin(given: Mapping[str, str]) -> None:
    """In a worker, before all else: no variable but these is there."""
    end_with_parent()
    os.environ.clear()
    os.environ.update(given)


def _run(job: _Job) -> Outcome:
    """In a worker: execute one chapter and put the notebook in its place."""
    start = time.monotonic()
    name, partial = job.chapter.name, job.target.with_suffix(".running.ipynb")
    result, failures = kernel.run(
        job.chapter.notebook(),
        partial=partial,
        folder=job.chapter.path.parent,
        cell_seconds=job.setting.cell_seconds,
        values={name: getattr(job.setting, name) for name in ("scale", "seed", "device")},
    )
    seconds = time.monotonic() - start
    reports = [_report(job, failure) for failure in failures]
    _keep(job, result, reports, seconds)
    partial.unlink(missing_ok=True)
    if reports:
        return Outcome(name, "failed", seconds, "\n\n".join(reports))
    outputs = [output for cell in code_cells(result) for output in cell.outputs]
    warned = "".join(output.text for output in outputs if output.get("name") == "stderr")
    return Outcome(name, "executed", seconds, warned)


def _report(job: _Job, failure: Failure) -> str:
    """A failure as its author wants to read it: file and line and what it is, the cell, the way there."""
    if not failure.source:
        return f"{job.source}: {failure.reason}"
    before, found, _ = job.chapter.text.partition(failure.source)
    line = f":{before.count(chr(10)) + 1}" if found else ""
    cell = "\n".join(f"    {text}" for text in failure.source.strip().splitlines())
    what = failure.reason.strip().splitlines()[-1]
    return f"{job.source}{line}: this cell failed: {what}\n\n{cell}\n\n{failure.reason}"


def _keep(job: _Job, result: NotebookNode, reports: Sequence[str], seconds: float = 0.0) -> None:
    """Write a notebook as it is kept: no absolute paths, the injected cell hidden, what it depends on in its metadata."""
    number_cells(result)
    papermill = result.metadata.get("papermill", {})
    papermill["input_path"], papermill["output_path"] = job.source, job.target.name
    for cell in result.cells:
        if "injected-parameters" in tags(cell):
            cell.metadata["tags"] = [*tags(cell), "remove-cell"]
    result.metadata[RECORD_KEY] = {
        **({"failed": reports} if reports else {"parts": job.parts}),  # what failed is executed again
        "source": digest(job.chapter.text.encode()),
        "chapter": job.chapter.name,
        "scale": job.setting.scale,
        "seed": job.setting.seed,
        "device": job.setting.device,
        "seconds": round(seconds, 2),
    }
    write_text(job.target, nbformat.writes(result))


# --- what a chapter's numbers depend on, and a mark of what the pages are made of --------------------------------------

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""
CHAPTERS = "sslchapters"
"""The package with a folder for each chapter: one of them counts for a chapter whose code has its name."""


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
    shell = [f"{name}={os.environ[name]}" for name in KEYED if name in os.environ]
    if "SSLBOOK_NOISE" in os.environ:
        shell.append(_content([Path(__file__).with_name("noise.py")]))
    modules: dict[str, list[str]] = {}
    for package in book.packages:
        for path in sorted(package.rglob("*.py")):
            folder = path.relative_to(package).parts[0] if path.parent != package else ""
            if not folder or package.name != CHAPTERS or re.search(rf"\b{folder}\b", code):
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


def inputs_of_pages(book: Book, scale: str, generated: Mapping[str, str]) -> str:
    """A digest of what pages are made of: notebooks, sources, configuration, generated pages, all packages and their versions."""
    files = [*(book.root / name for name in ("_config.yml", "_toc.yml", "data/functions.yml")), *book.notebooks(scale)]
    for folder in (book.chapters, *PACKAGES, Path(__file__).parent):
        files += sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    made_of = [_content(files), dict(generated), sorted({f"{each.name} {each.version}" for each in distributions()})]
    return digest_of(made_of)
