"""Execute chapters once, through papermill, in parallel, and keep what has not changed.

A chapter goes from `chapters/<name>.md` to `_build/executed/<scale>/<name>.ipynb`. The executed notebook carries its
content key (`sslbook.book.cache`) and is executed again only when the key changes. If only the prose changed, the new
prose is put beside the old outputs. A chapter that fails leaves `<name>.failed.ipynb` and does not stop the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from sslbook.book import kernel
from sslbook.book.cache import changes, data_parts, digest, key, key_parts
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
    setting: Setting
    target: Path
    parts: dict[str, str]
    book: Book

    @property
    def source(self) -> str:
        """The chapter's file, as a message should name it."""
        return self.book.shown(self.chapter.path)


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
    whole memory. ``say`` gets a line when a chapter starts, ends or fails.
    """
    folder = book.executed(setting.scale)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    waiting: list[tuple[Chapter, dict[str, str]]] = []
    for chapter in chapters:
        target = folder / f"{chapter.name}.ipynb"
        parts = key_parts(book, chapter, scale=setting.scale, seed=setting.seed, device=setting.device)
        stored = _stored_record(target)
        known = parts | _asked(book, stored)
        kept = None if force else _keep(chapter, target, stored, known)
        if kept is not None:
            outcomes[chapter.name] = kept
            say(f"{_KEPT[kept.status][0]} {chapter.name} ({setting.scale}): {_KEPT[kept.status][1]}")
        else:
            say(f"to run   {chapter.name} ({setting.scale}): {_reason(stored, known, force)}")
            waiting.append((chapter, parts))
    # Longest first, so that the cores end together.
    waiting.sort(key=lambda item: -_last_seconds(folder / f"{item[0].name}.ipynb"))
    if waiting:
        with kernel.environment(lenient=setting.lenient) as environment:
            todo = [_Job(c, setting, folder / f"{c.name}.ipynb", parts, book) for c, parts in waiting]
            default = 1 if setting.device == "cuda" else cores()
            for outcome in _run_all(todo, environment, min(jobs or default, len(todo)), say):
                outcomes[outcome.chapter] = outcome
    return [outcomes[chapter.name] for chapter in chapters]


_KEPT = {
    "cached": ("kept    ", "nothing changed"),
    "prose": ("prose   ", "only the prose changed; outputs kept"),
}


def _run_all(
    todo: Sequence[_Job], environment: Mapping[str, str], at_once: int, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the jobs in a pool of fresh processes (papermill changes the working folder and the environment of its process)."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_begin, initargs=(environment,))
    try:
        futures = {pool.submit(_run, job): job for job in todo}
        for job in todo[:at_once]:
            say(f"running  {job.chapter.name} …")
        started = at_once
        for future in _as_they_end(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except OSError as error:  # the chapter's own are in its report: here a notebook can't be written
                raise OSError(error.errno, error.strerror, error.filename or str(job.target)) from None
            except BrokenProcessPool:
                outcome = Outcome(job.chapter.name, "failed", error="its process was killed (out of memory?)")
            except Exception as error:  # whatever stops one chapter must not lose the others
                outcome = Outcome(job.chapter.name, "failed", error=f"{type(error).__name__}: {error}")
            if outcome.status == "failed":
                say(f"FAILED   {outcome.chapter} after {outcome.seconds:.1f} s\n{outcome.error}")
            else:
                say(f"done     {outcome.chapter} in {outcome.seconds:.1f} s")
            for note in outcome.notes:
                say(f"note     {outcome.chapter}: {note}")
            if started < len(todo):
                say(f"running  {todo[started].chapter.name} …")
                started += 1
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
    """In a worker: execute one chapter and put the notebook in its place; one more try if a cell ran out of time."""
    start = time.monotonic()
    partial, failed = job.target.with_suffix(".running.ipynb"), job.target.with_suffix(".failed.ipynb")
    notes: tuple[str, ...] = ()
    with _listening(job.book) as asked:
        result = _attempt(job, partial)
        if isinstance(result, kernel.Failure) and result.timed_out:
            notes = (f"{result.reason}; the chapter was run again",)
            result = _attempt(job, partial)
    seconds = time.monotonic() - start
    if isinstance(result, kernel.Failure):
        report = _report(job, result)
        if partial.exists():
            partial.replace(failed)
            report += f"\npartial notebook: {failed}"
        return Outcome(job.chapter.name, "failed", seconds, report, notes)
    write(_finished(result, job, seconds, asked), job.target)
    partial.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    return Outcome(job.chapter.name, "executed", seconds, notes=(*notes, *stderr_notes(result)))


def _attempt(job: _Job, partial: Path) -> NotebookNode | kernel.Failure:
    notebook = job.chapter.notebook()
    taken = parameters(notebook)
    return kernel.run(
        notebook,
        partial=partial,
        folder=job.chapter.path.parent,
        cell_seconds=job.setting.cell_seconds,
        values={name: getattr(job.setting, name) for name in ("scale", "seed", "device") if name in taken},
    )


def _report(job: _Job, failure: kernel.Failure) -> str:
    """A failure as its author wants to read it: file and line, the cell, the error."""
    if not failure.source:
        return f"{job.source}: {failure.reason}"
    before, found, _ = job.chapter.text.partition(failure.source)
    line = f":{before.count(chr(10)) + 1}" if found else ""
    cell = "\n".join(f"    {text}" for text in failure.source.strip().splitlines())
    return f"{job.source}{line}: this cell failed:\n\n{cell}\n\n{failure.reason}"


@contextmanager
def _listening(book: Book) -> Iterator[dict[str, str]]:
    """What `sslbook.records.data_files.noted` says inside the block, when it has ended: names from the book's folder, and
    digests."""
    asked: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sslbook-") as folder:
        log = Path(folder) / "asked"
        log.touch()
        os.environ["SSLBOOK_READS"] = str(log)
        yield asked
        del os.environ["SSLBOOK_READS"]
        for line in log.read_text(encoding="utf-8").splitlines():
            found, _, path = line.partition(" ")
            asked[book.shown(Path(path))] = found


def _finished(notebook: NotebookNode, job: _Job, seconds: float, asked: dict[str, str]) -> NotebookNode:
    """The executed notebook as it is kept: no absolute paths, the injected cell hidden from the page, the key in its metadata."""
    number_cells(notebook)
    papermill = notebook.metadata.get("papermill", {})
    papermill["input_path"], papermill["output_path"] = job.source, job.target.name
    for cell in notebook.cells:
        if "injected-parameters" in tags(cell):
            cell.metadata["tags"] = [*tags(cell), "remove-cell"]
    parts = job.parts | asked
    notebook.metadata[RECORD_KEY] = {
        "key": key(parts),
        "parts": parts,
        "asked": sorted(asked),
        "source": digest(job.chapter.text.encode()),
        "chapter": job.chapter.name,
        "scale": job.setting.scale,
        "seed": job.setting.seed,
        "device": job.setting.device,
        "seconds": round(seconds, 2),
    }
    return notebook


def is_current(book: Book, chapter: Chapter, setting: Setting) -> bool:
    """Whether the executed notebook of ``chapter`` has the code and the prose of its source, and all else that it depends on."""
    stored = _stored_record(book.executed(setting.scale) / f"{chapter.name}.ipynb")
    parts = key_parts(book, chapter, scale=setting.scale, seed=setting.seed, device=setting.device)
    wanted = (key(parts | _asked(book, stored)), digest(chapter.text.encode()))
    return (stored.get("key"), stored.get("source")) == wanted


def _asked(book: Book, stored: dict[str, Any]) -> dict[str, str]:
    """The data files that the chapter asked for when it was last executed, as they are now."""
    return data_parts(book, stored.get("asked", ()))


def _keep(chapter: Chapter, target: Path, stored: dict[str, Any], parts: dict[str, str]) -> Outcome | None:
    """What to report if the executed notebook at ``target`` is still good, after new prose was put in; None if it is not."""
    if stored.get("key") != key(parts):
        return None
    if stored.get("source") == digest(chapter.text.encode()):
        return Outcome(chapter.name, "cached")
    notebook = with_prose(nbformat.read(target, as_version=4), chapter)
    notebook.metadata[RECORD_KEY]["source"] = digest(chapter.text.encode())
    write(notebook, target)
    return Outcome(chapter.name, "prose")


def with_prose(executed: NotebookNode, chapter: Chapter) -> NotebookNode:
    """The chapter as it reads now with the outputs of ``executed``, whose code cells must be the same ones."""
    notebook = chapter.notebook()
    for new, old in zip(code_cells(notebook), code_cells(executed), strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
        new.metadata.update({name: old.metadata[name] for name in ("papermill", "execution") if name in old.metadata})
    after = next((i + 1 for i, cell in enumerate(notebook.cells) if "parameters" in tags(cell)), 0)
    notebook.cells[after:after] = [cell for cell in executed.cells if "injected-parameters" in tags(cell)]
    notebook.metadata = {**executed.metadata, **notebook.metadata}
    return number_cells(notebook)


def _stored_record(target: Path) -> dict[str, Any]:
    """What an executed notebook says of its own execution; empty if it doesn't exist or can't be read."""
    try:
        return dict(json.loads(read_text(target))["metadata"][RECORD_KEY])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _last_seconds(target: Path) -> float:
    return float(_stored_record(target).get("seconds", float("inf")))


def _reason(stored: dict[str, Any], parts: dict[str, str], force: bool) -> str:
    """Why a chapter must run, in a few words."""
    if force or not stored:
        return "asked for" if force else "not executed yet"
    changed = changes(stored.get("parts", {}), parts)
    return f"{', '.join(changed[:3])}{f' and {len(changed) - 3} more' if len(changed) > 3 else ''} changed"


def stderr_notes(notebook: NotebookNode) -> list[str]:
    """One line for each cell that wrote to stderr where its readers would see it."""
    return [
        f"cell {index} wrote to stderr: {output.text.strip().partition(chr(10))[0]}"
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
        if output.output_type == "stream" and output.name == "stderr"
    ]


def write(notebook: NotebookNode, target: Path) -> None:
    """Write a notebook so that readers see the old file or the new one, never half of it."""
    with atomic(target) as path:
        nbformat.write(notebook, path)
