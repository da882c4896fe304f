"""One notebook in a kernel of the running interpreter, by papermill, whatever the shell and the user's folders hold.

Jupyter looks for the kernel ``python3`` in the user's folders too, where it may belong to another environment. Here a folder with
our own specification comes first, so the interpreter that executes a chapter is the one that runs this code. Settings of IPython
and matplotlib stay out, and so do the shell's variables but for those in `PASSED` and `KEYED`: a page must not depend on them.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from bookbuild.layout import SOURCE, code_cells, tags
from sslbook._files import user_path, write_text
from sslchapters.data_files import require_writable
from sslchapters.running import LENIENT

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
"""Variables of the calling shell that say where things lie, which changes no number."""
KEYED = (
    *("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE"),
    "SSLBOOK_THREADS",
    "SSLBOOK_NOISE",  # see bookbuild.noise
)
"""Those that change roundings: this processor stands in for another. Kernels get them, and a chapter's key has their values."""


def added_path() -> list[str]:
    """The folders that ``PYTHONPATH`` adds to this source tree; what lies there may change a number, so a key has their names."""
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = dict.fromkeys(str(Path(part).resolve()) for part in parts if part)
    return [folder for folder in folders if folder != str(SOURCE)]


def variables() -> dict[str, str]:
    """What of the shell's variables may reach what makes the book, and what Python needs to do the same under each shell."""
    kept = {name: os.environ[name] for name in (*PASSED, *KEYED) if name in os.environ}
    if data := os.environ.get("SSLBOOK_DATA"):
        kept["SSLBOOK_DATA"] = str(user_path(data).resolve())  # a kernel works in another folder
    own = [] if SOURCE.name in ("site-packages", "dist-packages") else [str(SOURCE)]
    path = os.pathsep.join([*own, *added_path()])
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """All variables under which kernels run, valid inside the block: the specification of their kernel lies in a folder that goes.

    One thread a kernel, unless ``SSLBOOK_THREADS`` says otherwise: chapters run side by side, and sums keep their order.
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
    raised, or did not run to their end. Call it under the variables of `environment`.
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
            executed = execute_notebook()
        except RuntimeError as error:
            if "kernel_info" not in str(error):
                raise
            executed = execute_notebook()  # another kernel took one of its ports between their choice and their use
        return executed, failures(executed)
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
