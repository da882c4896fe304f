"""Execute chapters once, through papermill, in parallel, keep what has not changed, and know when what was built is still good.

A chapter goes from `chapters/<name>.md` to `_build/executed/<scale>/<name>.ipynb`. The executed notebook says what it
depends on and is executed again only when some of that changes. If only the prose changed, the new prose is put beside the old
outputs. A check that fails is published as failed, and a cell that raises leaves its error; the cells behind it are executed
all the same, unless the kernel has gone, and so are the other chapters.

It depends on its code cells, every module of the library that they reach through import statements, all recorded runs
and printed tables, the lock file, the versions that compute, the scale, the seed, the kind of device, whether the downloaded
images are there, and what a shell can change: a processor that stands in for another, and what ``PYTHONPATH`` adds. A module
counts by its syntax tree: a comment or a docstring changes nothing. A module imported under a name made at run time is not seen;
what chapters call has none but the names that a package promises (`sslbook.exports`), and these are followed through its stub.

Jupyter looks for the kernel ``python3`` in the user's folders too, where it may belong to another environment. Here a
folder with our own specification comes first, so that the interpreter that executes a chapter is the one that runs
this code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from bookbuild.layout import (
    PACKAGES,
    SOURCE,
    Book,
    Chapter,
    Setting,
    code_cells,
    number_cells,
    parameters,
    parse_cell,
    tags,
)
from sslbook._files import atomic, read_text, require_writable, user_path, write_text
from sslbook._machine import cores, end_with_parent
from sslbook.exports import homes
from sslchapters.running import LENIENT
from sslchapters.values import RECORD_KEY


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

    ``jobs`` processes work at once: by default as many as there are cores and memory for (`_side_by_side`), one on CUDA, where
    a chapter may need the whole memory. ``say`` gets a line of each chapter before the work begins, and when it ends or fails.
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
        with environment() as given:
            at_once = min(jobs or (1 if setting.device == "cuda" else _side_by_side()), len(todo))
            for outcome in _run_all([job for _, job in todo], given, at_once, say):
                outcomes[outcome.chapter] = outcome
    return [outcomes[chapter.name] for chapter in chapters]


def _side_by_side() -> int:
    """How many chapters run at once: one a core, as far as each has two gigabytes of memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores(), pages // 2**31))


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
        say(f"running  {at_once} at once …")
        for future in _as_they_end(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except OSError as error:  # the chapter's own are in its report: here a notebook can't be written
                raise OSError(error.errno, error.strerror, error.filename or str(job.target)) from None
            except Exception as error:  # whatever stops one must not lose the others
                if isinstance(error, BrokenProcessPool) and len(todo) > 1:
                    lost.append(job)
                    continue
                outcome = Outcome(job.name, "failed", error=f"{type(error).__name__}: {error}")
                _keep(job, job.chapter.notebook(), [outcome.error])
            if outcome.status == "failed":
                say(f"FAILED   {job.name} after {outcome.seconds:.1f} s\n{outcome.error}")
            else:
                say(f"done     {job.name} in {outcome.seconds:.1f} s")
            for note in outcome.notes:
                say(f"note     {job.name}: {note}")
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


def _as_they_end(futures: Iterable[Future[Outcome]]) -> Iterator[Future[Outcome]]:
    """As `as_completed`, but awake every second: Python does not hear a signal that comes in the moment in which a wait begins."""
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
        yield from ended


def _run(job: _Job) -> Outcome:
    """In a worker: execute one chapter and put the notebook in its place."""
    start = time.monotonic()
    partial = job.target.with_suffix(".running.ipynb")
    notebook = job.chapter.notebook()
    taken = parameters(notebook)
    result, failures = run(
        notebook,
        partial=partial,
        folder=job.chapter.path.parent,
        cell_seconds=job.setting.cell_seconds,
        values={name: getattr(job.setting, name) for name in ("scale", "seed", "device") if name in taken},
    )
    seconds = time.monotonic() - start
    reports = [_report(job, failure) for failure in failures]
    _keep(job, result, reports, seconds)
    partial.unlink(missing_ok=True)
    if reports:
        more = [f"and {len(reports) - SHOWN} more"] if len(reports) > SHOWN else []
        return Outcome(job.name, "failed", seconds, "\n\n".join([*reports[:SHOWN], *more]))
    return Outcome(job.name, "executed", seconds, notes=tuple(stderr_notes(result)))


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
        "chapter": job.name,
        "scale": job.setting.scale,
        "seed": job.setting.seed,
        "device": job.setting.device,
        "seconds": round(seconds, 2),
    }
    _write(result, job.target)


SHOWN = 3
"""Failures of one chapter that are told in full."""


def _report(job: _Job, failure: Failure) -> str:
    """A failure as its author wants to read it: file and line and what it is, the cell, the way there."""
    if not failure.source:
        return f"{job.source}: {failure.reason}"
    before, found, _ = job.chapter.text.partition(failure.source)
    line = f":{before.count(chr(10)) + 1}" if found else ""
    cell = "\n".join(f"    {text}" for text in failure.source.strip().splitlines())
    return (
        f"{job.source}{line}: this cell failed: {failure.reason.strip().splitlines()[-1]}\n\n{cell}\n\n{failure.reason}"
    )


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


# --- what a chapter's numbers depend on, and a mark of what the pages are made of --------------------------------------

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""


def key_parts(book: Book, chapter: Chapter, *, scale: str, seed: int, device: str) -> dict[str, str]:
    """What the outputs of ``chapter`` depend on: a readable name, and a value or digest.

    ``device`` is the kind that will compute (cpu or cuda), not ``auto``.
    """
    cells = code_cells(chapter.notebook())
    data = variables().get("SSLBOOK_DATA")
    images = sorted(path for path in Path(data).glob("*/*") if path.is_file()) if data else []
    records = [
        path for folder in ("printed", "results") for path in sorted((book.root / "data" / folder).glob("*.json"))
    ]
    return {
        "its code": digest_of([[_cell(cell.source), tags(cell)] for cell in cells]),
        "the scale": scale,
        "the seed": str(seed),
        "the device": device,
        "Python": platform.python_version(),
        **{f"{name}'s version": version(name) for name in COMPUTES},
        "the downloaded images": digest_of([[path.parent.name, path.name, path.stat().st_size] for path in images]),
        "SSLBOOK_THREADS": os.environ.get("SSLBOOK_THREADS", "1"),
        "the processor": " ".join(f"{name}={os.environ[name]}" for name in PROCESSOR if name in os.environ) + _noise(),
        "PYTHONPATH": " ".join(_listing(folder, "*.py", "*/__init__.py") for folder in _added_path()),
        "the lock file": _content([book.root / "requirements.lock"]),
        "recorded runs and printed tables": _content(records),
        **{book.shown(path): does for path, does in reached([cell.source for cell in cells], book.packages).items()},
    }


def _noise() -> str:
    """What makes the rounding of another machine, if that is asked for."""
    return _content([Path(__file__).with_name("noise.py")]) if "SSLBOOK_NOISE" in os.environ else ""


def reached(sources: Iterable[str], packages: Iterable[Path]) -> dict[Path, str]:
    """The modules of ``packages`` that the cells ``sources`` import, directly or through one another, and digests of their code.

    Every import statement counts, wherever it stands (in a function, under ``TYPE_CHECKING``); so do the ``__init__.py`` above
    an imported module, since Python runs them. In a package a module is imported by its whole name.
    """
    modules = {}
    for package in packages:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            modules[".".join(parts).removesuffix(".__init__")] = path
    found: dict[Path, str] = {}
    seen: set[str] = set()
    waiting = [name for source in sources for name in _imports(parse_cell(source))]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        above, _, offered = name.rpartition(".")
        if name in modules:
            names, found[modules[name]] = _module(modules[name].read_bytes())
            waiting += names
        elif above in modules and (stub := modules[above].with_suffix(".pyi")).is_file() and offered in homes(stub):
            waiting.append(homes(stub)[offered])  # a name that a package offers leads to the module that defines it
        if above:
            waiting.append(above)
    return found


@functools.cache
def _module(code: bytes) -> tuple[tuple[str, ...], str]:
    """What a module imports, and a digest of what it does: its syntax tree without the words below definitions."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [
                line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    return tuple(_imports(tree)), digest(ast.dump(tree).encode())


def _imports(tree: ast.AST) -> Iterator[str]:
    """The names of what ``tree`` imports; of ``from a import b`` both ``a`` and ``a.b``, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"  # import package; package.name


def _cell(source: str) -> str:
    """What a cell does; with it whether its last value is shown, which a semicolon decides that the tree lacks."""
    tree = parse_cell(source)
    return ast.dump(tree) + ";" * source.rstrip().endswith(";") if tree.body else source


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of what JSON can hold."""
    return digest(json.dumps(value, sort_keys=True).encode())


def _content(files: Iterable[Path]) -> str:
    """A digest of the names and contents of files, as far as they are there."""
    return digest_of([[path.name, digest(path.read_bytes())] for path in files if path.is_file()])


def _listing(folder: Path, *patterns: str) -> str:
    """A digest of the names, sizes and times of a folder's files."""
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return digest_of([[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def pages_mark(book: Book, scale: str, generated: dict[str, str]) -> str:
    """A digest of what the pages are made of: notebooks, sources, configuration, generated pages, all packages."""
    files = [*(book.root / name for name in ("_config.yml", "_toc.yml", "data/functions.yml")), *book.notebooks(scale)]
    for folder in (book.chapters, *PACKAGES, Path(__file__).parent):
        files += sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return digest_of([_content(files), generated, sorted({f"{d.name} {d.version}" for d in distributions()})])


def stamp(book: Book, mark: str) -> tuple[Path, bytes]:
    """A file, and what it holds where good pages that were built from what ``mark`` stands for lie there untouched."""
    return book.html.with_suffix(".stamp.json"), json.dumps([mark, _listing(book.html, "**/*")]).encode()


# --- one notebook in a kernel of the running interpreter ---------------------------------------------------------------

START_SECONDS = 120
"""The longest that a kernel may take to start; on a busy machine importing ipykernel alone takes seconds."""

# A kernel looks each second whether its parent is there, and not before it is up; killed chapters must not go on.
_LAUNCH = """
import os, runpy
from sslbook._machine import end_with_parent
end_with_parent(int(os.environ["JPY_PARENT_PID"]))
if seed := os.environ.get("SSLBOOK_NOISE"):
    from bookbuild import noise
    noise.start(seed)
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
ANSI = re.compile(r"\x1b\[[0-9;]*m")

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("SYSTEMROOT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "COMSPEC", "PATHEXT"),
    "SSLBOOK_COMMIT",
    "SSLBOOK_TESTS_OUTSIDE",  # the tests' list of what was asked of other machines
)
"""Variables of the calling shell that say where things lie: kernels get these, those below, and no others."""
PROCESSOR = (
    *("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE"),
    "SSLBOOK_NOISE",  # see bookbuild.noise
)
"""Those that let this processor stand in for another: kernels get them, and a chapter's key has them."""


def variables() -> dict[str, str]:
    """What of the shell's variables may reach what makes the book, and what Python needs to do the same under each shell."""
    kept = {name: os.environ[name] for name in (*PASSED, *PROCESSOR) if name in os.environ}
    if data := os.environ.get("SSLBOOK_DATA"):
        kept["SSLBOOK_DATA"] = str(user_path(data).resolve())
    # another working folder must find the same package, unless it is installed
    own = [] if SOURCE.name in ("site-packages", "dist-packages") else [SOURCE]
    path = os.pathsep.join(map(str, [*own, *_added_path()]))
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


def _added_path() -> list[Path]:
    """The folders that ``PYTHONPATH`` adds to the one of this package: a chapter's key has what lies there."""
    folders = [Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [folder for folder in dict.fromkeys(folders) if folder != SOURCE]


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """All variables under which kernels run, valid inside the block.

    One thread a kernel (unless ``SSLBOOK_THREADS`` says otherwise): chapters run side by side, and sums keep their
    order. The user's settings of IPython and matplotlib are kept out, as the shell's variables are: pages must not depend on them.
    """
    threads = os.environ.get("SSLBOOK_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="sslbook-") as name:
        require_writable(Path(name), 2**20)  # a kernel, which writes its profile, could not say that it can't
        argv = [sys.executable, "-c", _LAUNCH, "-f", "{connection_file}"]
        argv += ["--log-level=50"]  # else a kernel that is stopped after a failed cell talks into the report
        spec = json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"})
        write_text(Path(name) / "kernels/python3/kernel.json", spec)
        write_text(Path(name) / "matplotlibrc", "")
        yield {
            "HOME": name,  # where a container's user has none
            **variables(),
            "JUPYTER_PATH": name,
            "IPYTHONDIR": str(Path(name) / "ipython"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "MATPLOTLIBRC": str(Path(name) / "matplotlibrc"),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "SSLBOOK_THREADS": threads,
            "SSLBOOK_LEDGER": "ledger.html",
            LENIENT: "1",
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
        }


@dataclass(frozen=True)
class Failure:
    """What went wrong in a notebook: ``source`` is the cell that failed, empty if none is to blame."""

    reason: str
    source: str = ""


def run(
    notebook: NotebookNode, *, partial: Path, folder: Path, cell_seconds: float, values: Mapping[str, Any]
) -> tuple[NotebookNode, list[Failure]]:
    """Execute ``notebook`` with the parameters ``values``, working in ``folder``, saving to ``partial`` after each cell.

    A cell that raises does not stop those behind it. Returns the notebook with whatever was put out, and what failed: cells that
    raised, or did not run to their end.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import remove_error_markers

    logging.getLogger("papermill").setLevel(logging.ERROR)

    execute_notebook = functools.partial(
        papermill.execute_notebook,
        notebook,
        str(partial),
        parameters=dict(values),
        kernel_name="python3",
        progress_bar=False,
        start_timeout=START_SECONDS,
        execution_timeout=cell_seconds,
        cwd=str(folder),
        allow_errors=True,
    )
    stopped = ""
    try:
        try:
            return (executed := execute_notebook()), failures(executed)
        except RuntimeError as error:
            if "kernel_info" not in str(error):
                raise
            # another kernel took one of its ports between their choice and their use
            return (executed := execute_notebook()), failures(executed)
    except PapermillExecutionError:
        pass
    except CellTimeoutError:
        stopped = f"a cell ran longer than {cell_seconds:g} s and was stopped"
    except (DeadKernelError, RuntimeError) as error:
        stopped = f"the kernel died or did not start: {error}"
    executed = remove_error_markers(nbformat.read(partial, as_version=4)) if partial.exists() else notebook
    return executed, failures(executed, stopped)


def failures(notebook: NotebookNode, stopped: str = "") -> list[Failure]:
    """The cells of an executed notebook that raised, unless their tag says that they shall, and those that did not run.

    stopped: why the kernel stopped, if it did; the cell in which it did gets this as its output.
    """
    found, silent = [], []
    cells = code_cells(notebook)
    begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
    if stopped and not begun:
        return [Failure(stopped)]
    if stopped:
        begun[-1].outputs.append(nbformat.v4.new_output("error", ename="Stopped", evalue=stopped, traceback=[stopped]))
    for cell in cells:
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors and "raises-exception" not in tags(cell):
            # with the way there, unless it is an assertion, whose message says all
            last = errors[-1]
            short = last.ename in ("AssertionError", "Stopped") or not last.traceback
            way = [f"{last.ename}: {last.evalue}"] if short else last.traceback
            found.append(Failure(ANSI.sub("", "\n".join(way)), cell.source))
        elif not errors and cell.source.strip() and cell.execution_count is None:
            silent.append(cell.source)
    if silent:
        found.append(Failure(f"it did not run, nor did {len(silent) - 1} behind it", silent[0]))
    return found or [Failure(stopped)] * bool(stopped)
