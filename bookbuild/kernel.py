"""One notebook in a kernel of the running interpreter, by nbclient, whatever the shell and the user's folders hold.

Jupyter looks for the kernel ``python3`` in the user's folders too, where it may belong to another environment. Here the kernel is
of the interpreter that runs this code. Settings of IPython and matplotlib stay out, and so do the shell's variables but for those
in `PASSED` and `KEYED`: a page must not depend on them.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode

from bookbuild.layout import SOURCE, code_cells
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

PASSED = """
PATH HOME USER LOGNAME TMPDIR TEMP TMP MPLCONFIGDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR
LD_LIBRARY_PATH DYLD_LIBRARY_PATH CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER
SSLBOOK_COMMIT SSLBOOK_TESTS_OUTSIDE
"""
"""Variables of the calling shell that say where things lie, which changes no number."""
KEYED = (
    *("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE"),
    *("SSLBOOK_THREADS", "SSLBOOK_NOISE"),
)
"""Those that change roundings: this processor stands in for another. Kernels get them, and a chapter's key has their values."""


def added_path() -> list[str]:
    """The folders that ``PYTHONPATH`` adds to this source tree; what lies there may change a number, so a key has their names."""
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = dict.fromkeys(str(Path(part).resolve()) for part in parts if part)
    return [folder for folder in folders if folder != str(SOURCE)]


def variables() -> dict[str, str]:
    """What of the shell's variables may reach what makes the book, and what Python needs to do the same under each shell."""
    kept = {name: os.environ[name] for name in (*PASSED.split(), *KEYED) if name in os.environ}
    if data := os.environ.get("SSLBOOK_DATA"):
        kept["SSLBOOK_DATA"] = str(Path(data).expanduser().resolve())  # a kernel works in another folder
    path = os.pathsep.join([str(SOURCE), *added_path()])
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """All variables under which kernels run, valid inside the block: what they write of their own lies in a folder that goes.

    One thread a kernel, unless ``SSLBOOK_THREADS`` says otherwise: chapters run side by side, and sums keep their order.
    """
    threads = os.environ.get("SSLBOOK_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="sslbook-", ignore_cleanup_errors=True) as name:
        require_writable(Path(name), 2**20)  # a kernel, which writes its profile, could not say that it can't
        yield {
            "HOME": name,  # where a container's user has none
            **variables(),
            "IPYTHONDIR": str(Path(name) / "ipython"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "MATPLOTLIBRC": os.devnull,
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "SSLBOOK_THREADS": threads,
            "SSLBOOK_LEDGER": "ledger.html",
            LENIENT: "1",
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
        }


class _OwnKernel(AsyncKernelManager):
    """A kernel of the running interpreter, and not what `python3` is to the user's Jupyter."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """How it is started: silent, else a kernel that is stopped after a failed cell talks into the report."""
        argv = [sys.executable, "-c", _LAUNCH, "-f", "{connection_file}", "--log-level=50"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def run(
    notebook: NotebookNode, given: Mapping[str, str], *, folder: Path, cell_seconds: float
) -> list[tuple[str, str]]:
    """Execute ``notebook`` in place, working in ``folder``, under the variables ``given`` (of `environment`).

    A cell that raises does not stop those behind it, and one that takes longer than ``cell_seconds`` does. Returns, for each cell
    that raised or did not run to its end, the reason and its source, which is empty if no cell is to blame.
    """
    client = NotebookClient(
        notebook,
        kernel_manager_class=_OwnKernel,
        startup_timeout=START_SECONDS,
        timeout=cell_seconds,
        allow_errors=True,
        shutdown_kernel="immediate",
    )
    stopped = ""
    try:
        asyncio.run(client.async_execute(cwd=str(folder), env=dict(given)))
    except CellTimeoutError:
        stopped = f"a cell ran longer than {cell_seconds:g} s and was stopped"
    except RuntimeError as error:
        stopped = f"the kernel died or did not start: {error}"
    return failures(notebook, stopped)


def failures(notebook: NotebookNode, stopped: str) -> list[tuple[str, str]]:
    """The cells of an executed notebook that raised, and those that did not run.

    stopped: why the kernel stopped, if it did; the cell in which it did gets this as its output.
    """
    found: list[tuple[str, str]] = []
    cells = code_cells(notebook)
    begun = [cell for cell in cells if "execution" in cell.metadata]
    if not begun:
        return [(stopped, "")] * bool(stopped)
    if stopped:
        begun[-1].outputs.append(nbformat.v4.new_output("error", ename="Stopped", evalue=stopped, traceback=[stopped]))
    for cell in cells:
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors:
            # with the way there, unless it is an assertion, whose message says all
            last = errors[-1]
            short = (last.ename in ("AssertionError", "Stopped") and last.evalue) or not last.traceback
            way = [f"{last.ename}: {last.evalue}"] if short else last.traceback
            found.append((ANSI.sub("", "\n".join(way)), cell.source))
    silent = [cell.source for cell in cells if cell.source.strip() and not (cell.outputs or cell.execution_count)]
    if silent:
        found.append((f"it did not run, nor did {len(silent) - 1} behind it", silent[0]))
    return found
