"""Execute chapters once, through papermill, in parallel, and keep what has not changed.

A chapter goes from `chapters/<name>.md` to `_build/executed/<scale>/<name>.ipynb`. The executed notebook says what it
depends on (`sslbook.book.cache`) and is executed again only when some of that changes. If only the prose changed, the new
prose is put beside the old outputs. A chapter that fails leaves `<name>.failed.ipynb` and does not stop the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from sslbook.book import kernel
from sslbook.book.cache import digest, key_parts
from sslbook.book.chapters import Chapter, code_cells, number_cells, parameters, tags
from sslbook.book.layout import Book
from sslbook.book.values import RECORD_KEY
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import atomic, read_text
from sslbook.runtime.compute import cores, end_with_parent

CELL_SECONDS = {"quick": 600, "paper": 6 * 3600}
"""The longest that one cell may take before it is stopped, by scale."""


@dataclass(frozen=True)
class Outcome:
    """What became of a chapter: ``cached``, ``prose`` (new prose, old outputs), ``executed`` or ``failed`` (see ``error``).

    ``notes`` are lines worth a look that stop nothing, such as output on stderr that readers would see.
    """

    chapter: str
    status: str
    seconds: float = 0.0
    error: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What a chapter is run with. ``device`` is cpu or cuda, never auto: what is keyed is what runs; ``lenient``: see `spread`."""

    scale: str
    seed: int
    device: str
    cell_seconds: float
    lenient: bool = False


@dataclass(frozen=True)
class _Job:
    """All that a worker process needs, picklable."""

    chapter: Chapter
    source: str
    setting: Setting
    target: Path
    parts: dict[str, str]

    @property
    def name(self) -> str:
        return self.chapter.name

    def stored(self) -> dict[str, Any]:
        """What the executed notebook says of its own execution; empty if it doesn't exist or can't be read."""
        try:
            return dict(json.loads(read_text(self.target))["metadata"][RECORD_KEY])
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _job(book: Book, chapter: Chapter, setting: Setting) -> _Job:
    target = book.executed(setting.scale) / f"{chapter.name}.ipynb"
    parts = key_parts(book, chapter, scale=setting.scale, seed=setting.seed, device=setting.device)
    return _Job(chapter, book.shown(chapter.path), setting, target, parts)


def device_kind(device: str) -> str:
    """``auto`` resolved to the kind of device that there is; raises InputError for ``cuda`` where there is none.

    Imports torch, which takes seconds, only where its build might know CUDA.
    """
    if device == "cpu" or (device == "auto" and version("torch").endswith("+cpu")):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise InputError("device: got 'cuda', but torch finds no CUDA device here; allowed are 'auto' and 'cpu'")
    return "cpu"


def is_current(book: Book, chapter: Chapter, setting: Setting) -> bool:
    """Whether the executed notebook of ``chapter`` has the code and the prose of its source, and all else that it depends on."""
    job = _job(book, chapter, setting)
    stored = job.stored()
    return (stored.get("parts"), stored.get("source")) == (job.parts, digest(chapter.text.encode()))


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

    ``jobs`` processes work at once: as many as there are cores by default, one on CUDA, where a chapter may need the
    whole memory. ``say`` gets a line of each chapter before the work begins, and when it ends or fails.
    """
    book.executed(setting.scale).mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    todo: list[tuple[float, _Job]] = []
    for chapter in chapters:
        job = _job(book, chapter, setting)
        stored = job.stored()
        if not force and stored.get("parts") == job.parts:
            outcomes[job.name] = _kept(job, stored)
            why = "nothing changed" if outcomes[job.name].status == "cached" else "only the prose changed; outputs kept"
            say(f"kept     {job.name} ({setting.scale}): {why}")
        else:
            say(f"to run   {job.name} ({setting.scale}): {_reason(stored, job.parts, force)}")
            todo.append((float(stored.get("seconds", "inf")), job))
    todo.sort(key=lambda item: -item[0])  # the longest first, so that the cores end together
    if todo:
        with kernel.environment(lenient=setting.lenient) as environment:
            at_once = min(jobs or (1 if setting.device == "cuda" else cores()), len(todo))
            for outcome in _run_all([job for _, job in todo], environment, at_once, say):
                outcomes[outcome.chapter] = outcome
    return [outcomes[chapter.name] for chapter in chapters]


def _kept(job: _Job, stored: Mapping[str, Any]) -> Outcome:
    """The outcome where the outputs still are good; new prose is put in."""
    source = digest(job.chapter.text.encode())
    if stored.get("source") == source:
        return Outcome(job.name, "cached")
    notebook = _with_prose(nbformat.read(job.target, as_version=4), job.chapter)
    notebook.metadata[RECORD_KEY]["source"] = source
    _write(notebook, job.target)
    return Outcome(job.name, "prose")


def _with_prose(executed: NotebookNode, chapter: Chapter) -> NotebookNode:
    """The chapter as it reads now with the outputs of ``executed``, whose code cells must be the same ones."""
    notebook = chapter.notebook()
    for new, old in zip(code_cells(notebook), code_cells(executed), strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
        new.metadata.update({name: old.metadata[name] for name in ("papermill", "execution") if name in old.metadata})
    after = next((i + 1 for i, cell in enumerate(notebook.cells) if "parameters" in tags(cell)), 0)
    notebook.cells[after:after] = [cell for cell in executed.cells if "injected-parameters" in tags(cell)]
    notebook.metadata = {**executed.metadata, **notebook.metadata}
    return number_cells(notebook)


def _reason(stored: Mapping[str, Any], parts: Mapping[str, str], force: bool) -> str:
    """Why a chapter must run, in a few words."""
    if force or not stored:
        return "asked for" if force else "not executed yet"
    old = stored.get("parts", {})
    changed = [name for name in [*parts, *(set(old) - set(parts))] if old.get(name) != parts.get(name)]
    return f"{', '.join(changed[:3])}{f' and {len(changed) - 3} more' if len(changed) > 3 else ''} changed"


def _run_all(
    todo: Sequence[_Job], environment: Mapping[str, str], at_once: int, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the jobs in a pool of fresh processes (papermill changes the working folder and the environment of its process)."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_begin, initargs=(environment,))
    try:
        futures = {pool.submit(_run, job): job for job in todo}
        say(f"running  {at_once} at once …")
        for future in _as_they_end(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except OSError as error:  # the chapter's own are in its report: here a notebook can't be written
                raise OSError(error.errno, error.strerror, error.filename or str(job.target)) from None
            except Exception as error:  # whatever stops one, such as too little memory, must not lose the others
                outcome = Outcome(job.name, "failed", error=f"{type(error).__name__}: {error}")
            if outcome.status == "failed":
                say(f"FAILED   {job.name} after {outcome.seconds:.1f} s\n{outcome.error}")
            else:
                say(f"done     {job.name} in {outcome.seconds:.1f} s")
            for note in outcome.notes:
                say(f"note     {job.name}: {note}")
            yield outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin(environment: Mapping[str, str]) -> None:
    """In a worker, before all else: no variable but these is there."""
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)


def _as_they_end(futures: Iterable[Future[Outcome]]) -> Iterator[Future[Outcome]]:
    """As `as_completed`, but awake every second: Python does not hear a signal that comes in the moment in which a wait begins."""
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
        yield from ended


def _run(job: _Job) -> Outcome:
    """In a worker: execute one chapter and put the notebook in its place."""
    start = time.monotonic()
    partial, failed = job.target.with_suffix(".running.ipynb"), job.target.with_suffix(".failed.ipynb")
    notebook = job.chapter.notebook()
    taken = parameters(notebook)
    result = kernel.run(
        notebook,
        partial=partial,
        folder=job.chapter.path.parent,
        cell_seconds=job.setting.cell_seconds,
        values={name: getattr(job.setting, name) for name in ("scale", "seed", "device") if name in taken},
    )
    seconds = time.monotonic() - start
    if isinstance(result, kernel.Failure):
        report = _report(job, result)
        if partial.exists():
            partial.replace(failed)
            report += f"\npartial notebook: {failed}"
        return Outcome(job.name, "failed", seconds, report)
    _write(_finished(result, job, seconds), job.target)
    partial.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    return Outcome(job.name, "executed", seconds, notes=tuple(stderr_notes(result)))


def _report(job: _Job, failure: kernel.Failure) -> str:
    """A failure as its author wants to read it: file and line, the cell, the error."""
    if not failure.source:
        return f"{job.source}: {failure.reason}"
    before, found, _ = job.chapter.text.partition(failure.source)
    line = f":{before.count(chr(10)) + 1}" if found else ""
    cell = "\n".join(f"    {text}" for text in failure.source.strip().splitlines())
    return f"{job.source}{line}: this cell failed:\n\n{cell}\n\n{failure.reason}"


def _finished(notebook: NotebookNode, job: _Job, seconds: float) -> NotebookNode:
    """The executed notebook as it is kept: no absolute paths, the injected cell hidden, what it depends on in its metadata."""
    number_cells(notebook)
    papermill = notebook.metadata.get("papermill", {})
    papermill["input_path"], papermill["output_path"] = job.source, job.target.name
    for cell in notebook.cells:
        if "injected-parameters" in tags(cell):
            cell.metadata["tags"] = [*tags(cell), "remove-cell"]
    notebook.metadata[RECORD_KEY] = {
        "parts": job.parts,
        "source": digest(job.chapter.text.encode()),
        "chapter": job.name,
        "scale": job.setting.scale,
        "seed": job.setting.seed,
        "device": job.setting.device,
        "seconds": round(seconds, 2),
    }
    return notebook


def stderr_notes(notebook: NotebookNode) -> list[str]:
    """One line for each cell that wrote to stderr where its readers would see it."""
    return [
        f"cell {index} wrote to stderr: {output.text.strip().partition(chr(10))[0]}"
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
        if output.output_type == "stream" and output.name == "stderr"
    ]


def _write(notebook: NotebookNode, target: Path) -> None:
    """Write a notebook so that readers see the old file or the new one, never half of it."""
    with atomic(target) as path:
        nbformat.write(notebook, path)
