"""The command line of the library alone, ``pip install .``: each command works, or names the extra that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest
from conftest import WriteBook
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bookbuild.layout import find_book
from sslbook import cli

ROOT = find_book(Path(__file__).resolve().parents[1]).root
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({absent}))  # to import None is an ImportError
from sslbook import cli
sys.argv[0] = "sslbook"
sys.exit(cli.main(sys.argv[1:]))
"""
BOOK, TRAIN = "pip install '.[book]'", "pip install '.[train]'"
NEEDS = {
    "execute": BOOK,
    "lab": "pip install '.[book,lab]'",
    "ledger": "",
    "record covariance-cifar10": "",
    "table A-Tab6": "",
    "train --list": "",
    "train digits-simclr-nce --epochs 1": "",
    "train digits-simclr-nce --tensorboard": "tensorboard is not installed",
    "train cifar10-small --download": TRAIN,
    "table A-Tab2 --run --seeds 1 --cluster local": TRAIN,
    "inspect --help": "",
}
BOOKS = ("execute", "ledger", "lab")
"""Commands that look for a book."""


def absent() -> set[str]:
    """The modules of what the extras bring, and ``pip install .`` doesn't."""
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    brought = {canonicalize_name(need.name) for need in map(Requirement, extras)}
    brought -= {canonicalize_name(need.name) for need in map(Requirement, PROJECT["dependencies"])}
    owners = packages_distributions().items()
    found = {name for name, by in owners if brought & {canonicalize_name(owner) for owner in by} and name[0] != "_"}
    return found | {"IPython", "docutils", "sphinx"}


def run(program: str, *line: str, folder: Path) -> tuple[int, str]:
    environment = os.environ | {"SSLBOOK_RUNS": str(folder / "runs"), "SSLBOOK_DATA": str(folder / "images")}
    command = [sys.executable, "-c", program, *line]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def program() -> str:
    return WITHOUT.replace("{absent}", repr(absent()))


@pytest.mark.long
@pytest.mark.parametrize("line", NEEDS)
def test_each_command_works_or_names_its_extra(line: str, program: str, tmp_path: Path, write_book: WriteBook) -> None:
    name, *rest = line.split()
    root = ("--root", str(write_book(good="<<1>>").root)) if name in BOOKS else ()
    status, said = run(program, name, *rest, *root, folder=tmp_path)
    assert "Traceback" not in said
    if needs := NEEDS[line]:
        assert status in (1, 2)
        assert needs in said
    else:
        assert status == 0, said


def test_every_room_loads_and_what_is_blocked_is_what_the_extras_bring(program: str, tmp_path: Path) -> None:
    assert {"IPython", "papermill", "pooch", "submitit", "jupyterlab", "sphinx"} <= absent()
    assert not {"torch", "numpy", "yaml", "sslbook"} & absent()
    folder = ROOT / "sslbook"
    rooms = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = ", ".join(f"sslbook.{name}" for name in sorted(rooms - {"__init__", "__main__"}))
    status, said = run(program.partition("from sslbook")[0] + f"import {modules}", folder=tmp_path)
    assert status == 0, said
    assert {"train", "inspect"} <= set(entry_points(group=cli.GROUP).names)


@pytest.mark.long
def test_without_a_checkout_the_ledger_is_the_book_s_and_the_rest_says_what_is_missing(
    program: str, tmp_path: Path
) -> None:
    away = "from sslchapters import data_files\ndata_files.root_of = lambda start=None: None\nfrom sslbook import cli"
    away = program.replace("from sslbook import cli", away)
    status, said = run(away, "ledger", folder=tmp_path)
    assert (status, "A-Thm3" in said) == (0, True), said
    status, said = run(away, "margins", folder=tmp_path)
    assert (status, "no book in" in said) == (2, True), said
