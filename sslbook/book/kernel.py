"""Run one notebook through papermill in a kernel of the running interpreter.

Jupyter looks for the kernel ``python3`` in the user's folders too, where it may belong to another environment. Here a
folder with our own specification comes first, so that the interpreter that executes a chapter is the one that runs
this code.
"""

from __future__ import annotations

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

from nbformat import NotebookNode

from sslbook.book.layout import LENIENT, PACKAGE
from sslbook.runtime.atomic_io import require_writable, user_path, write_text

START_SECONDS = 120
"""The longest that a kernel may take to start; on a busy machine importing ipykernel alone takes seconds."""

# A kernel looks each second whether its parent is there, and not before it is up; killed chapters must not go on.
_LAUNCH = """
import os, runpy
from sslbook.runtime.compute import end_with_parent
end_with_parent(int(os.environ["JPY_PARENT_PID"]))
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("SYSTEMROOT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "COMSPEC", "PATHEXT"),
    "SSLBOOK_COMMIT",
    "SSLBOOK_TESTS_OUTSIDE",  # the tests' list of what was asked of other machines
)
"""Variables of the calling shell that say where things lie: kernels get these, those below, and no others."""
PROCESSOR = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE")
"""Those that let this processor stand in for another: kernels get them, and a chapter's key has them."""


def variables() -> dict[str, str]:
    """What of the shell's variables may reach what makes the book, and what Python needs to do the same under each shell."""
    kept = {name: os.environ[name] for name in (*PASSED, *PROCESSOR) if name in os.environ}
    if data := os.environ.get("SSLBOOK_DATA"):
        kept["SSLBOOK_DATA"] = str(user_path(data).resolve())
    # another working folder must find the same package, unless it is installed
    own = [] if PACKAGE.parent.name in ("site-packages", "dist-packages") else [PACKAGE.parent]
    path = os.pathsep.join(map(str, [*own, *added_path()]))
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


def added_path() -> list[Path]:
    """The folders that ``PYTHONPATH`` adds to the one of this package: a chapter's key has what lies there."""
    folders = [Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [folder for folder in dict.fromkeys(folders) if folder != PACKAGE.parent]


@contextmanager
def environment(*, lenient: bool = False) -> Iterator[dict[str, str]]:
    """All variables under which kernels run, valid inside the block; ``lenient`` lets failed claims be numbers.

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
            **({LENIENT: "1"} if lenient else {}),
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
        }


@dataclass(frozen=True)
class Failure:
    """Why a notebook did not run to its end: ``source`` is the cell that failed, empty if none is to blame."""

    reason: str
    source: str = ""


def run(
    notebook: NotebookNode, *, partial: Path, folder: Path, cell_seconds: float, values: Mapping[str, Any]
) -> NotebookNode | Failure:
    """Execute ``notebook`` with the parameters ``values``, working in ``folder``, saving to ``partial`` after each cell."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)

    def execute() -> NotebookNode:
        executed: NotebookNode = papermill.execute_notebook(
            notebook,
            str(partial),
            parameters=dict(values),
            kernel_name="python3",
            progress_bar=False,
            start_timeout=START_SECONDS,
            execution_timeout=cell_seconds,
            cwd=str(folder),
        )
        return executed

    try:
        try:
            return execute()
        except RuntimeError as error:
            if "kernel_info" not in str(error):
                raise
            return execute()  # another kernel took one of its ports between their choice and their use
    except PapermillExecutionError as error:
        # with the way there, unless it is an assertion, whose message says all
        way = error.traceback if error.ename != "AssertionError" else [f"{error.ename}: {error.evalue}"]
        return Failure(_ANSI.sub("", "\n".join(way)), error.source)
    except CellTimeoutError:
        return Failure(f"a cell ran longer than {cell_seconds:g} s and was stopped")
    except (DeadKernelError, RuntimeError) as error:
        return Failure(f"the kernel died or did not start: {error}")
