"""A reader's environment: what `sslbook notebooks` says that its notebooks need; and the scripts of ``tools/`` as modules."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import torch

from bookbuild import notebooks
from bookbuild.layout import Book

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def tool(name: str) -> ModuleType:
    """The script ``tools/NAME.py``, run anew: what a test changes in it, no other sees."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    sys.path.insert(0, str(TOOLS))  # where scripts find each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


def make(book: Book, folder: Path) -> Path:
    """Make the environment in ``folder`` as Binder would, from `requirements.txt`; returns its Python.

    The package comes last, from its wheel.
    """
    python = folder / "bin/python"
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    source = folder / "source"  # setuptools leaves its work where it builds
    shutil.copytree(book.root, source, ignore=shutil.ignore_patterns("_build", "_data", ".*", "tests"), symlinks=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*wheel, "-w", str(folder), str(source)])
    environment = tool("environment")  # which torch suits this machine, it knows
    lock = folder / "pins.txt"
    lock.write_text("".join(environment.locked(book.root / "requirements.lock", hashes=False)))
    environment.install_torch(python, lock, "auto", torch.cuda.is_available())
    notebooks.copy_notebooks(book, folder / "notebooks")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    needed = str(folder / "notebooks/requirements.txt")
    run([*pip, "install", f"--constraint={lock}", "-r", needed])
    run([*pip, "install", f"--constraint={lock}", *map(str, folder.glob("sslbook-*.whl"))])
    return python


def run(command: list[str]) -> None:
    """Run a command, and say what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def kernel_of(python: Path, folder: Path) -> Path:
    """A folder for JUPYTER_PATH in which the kernel `python3` is ``python``."""
    spec = folder / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    return folder
