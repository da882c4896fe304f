#!/usr/bin/env python3
"""Try the library on the oldest, the locked and the newest of what it declares: ``python3 tools/versions.py FOLDER``.

For each of these and each Python it makes an environment in FOLDER, with a copy of this checkout inside, and runs the
tests of the library there: all but those marked slow, browser or gpu. With ``--chapters`` it builds the book at quick
as well, which holds every number to the expected one. A table ends it; exit status 1 if something failed.

- oldest: the lower end of every range in pyproject.toml; where a Python is too new for that, the oldest wheel for it
- locked: requirements.lock
- newest: the upper end of every range

It needs uv (``pip install uv``), which keeps what it has fetched, so that a second run downloads little. torch comes as
a wheel of ``PIP_FIND_LINKS`` where the version fits, else from the PyTorch project's CPU index where that can be
reached, else from the package index, whose build for Linux brings 3 GB of CUDA and computes on the CPU all the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from environment import CPU_INDEX, LOCK, ROOT, python_version, say

KINDS = ("oldest", "locked", "newest")
PYTHONS = ("3.11", "3.12", "3.13")
SHOWN = ("torch", "numpy", "scipy", "matplotlib", "scikit-learn", "ipython")
LEFT_OUT = "not slow and not browser and not gpu"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}


@dataclass(frozen=True)
class Case:
    """One environment: a kind of versions, a Python such as 3.12, and a version of torch if one is asked for."""

    kind: str
    python: str
    torch: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.python}" + (f"-torch-{self.torch}" if self.torch else "")


@dataclass(frozen=True)
class Outcome:
    """What came of a case: a cell of the table for each of ``versions`` (see `SHOWN`), the tests and the chapters."""

    case: Case
    good: bool
    tests: str
    chapters: str = "not tried"
    versions: tuple[str, ...] = ()


class Failed(Exception):
    """A step of one case failed; the message names the step and its log."""


# --- making an environment -------------------------------------------------------------------------------------------


def find_python(version: str) -> str | None:
    """A Python of this version, from the path or from pyenv, that is more than a stub; None if there is none."""
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    wanted = tuple(map(int, version.split(".")))
    return next((name for name in (f"python{version}", *map(str, kept)) if python_version(name) == wanted), None)


def requirements(case: Case) -> list[str]:
    """What uv is told to install. Wheels alone: no library is built here because a Python is too new for its oldest."""
    pin = [f"torch=={case.torch}"] if case.torch else []
    if case.kind == "locked":
        return [
            "--only-binary",
            ":all:",
            "--no-verify-hashes",
            "--requirement",
            str(LOCK),
            *pin,
        ]  # torch may be another build
    resolution = {"oldest": "lowest-direct", "newest": "highest"}[case.kind]
    ranges = ["--requirement", str(ROOT / "pyproject.toml"), "--all-extras"]
    return ["--only-binary", ":all:", "--resolution", resolution, *ranges, *pin]


def torch_source() -> list[str]:
    """uv's option for CPU builds of torch, where their index answers."""
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=20).close()
    except OSError as error:
        say(f"{CPU_INDEX} can't be reached ({error}): torch comes from the package index, on Linux with 3 GB of CUDA")
        return []
    return ["--torch-backend", "cpu"]


def surroundings() -> dict[str, str]:
    """The environment variables of every step: one thread a process, and pip's folder of wheels for uv as well."""
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    return {**({"UV_FIND_LINKS": ",".join(links)} if links else {}), **os.environ, **ONE_THREAD}


def step(name: str, command: Sequence[str], folder: Path, work: Path | None = None) -> tuple[bool, str]:
    """Run one step of a case with its output in ``<name>.log``: whether it worked, and what it said last."""
    log = folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=work or folder, env=surroundings(), stdout=out, stderr=subprocess.STDOUT)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else ""


def must(name: str, command: Sequence[str], folder: Path) -> None:
    worked, last = step(name, command, folder)
    if not worked:
        raise Failed(f"{name} failed: {last} (see {folder / name}.log)")


def copy_checkout(target: Path) -> None:
    """The files that git knows or would add. A copy, so that no case reads or overwrites what another has built."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def make(case: Case, base: str, folder: Path, uv: Sequence[str], source: Sequence[str]) -> tuple[str, Path]:
    """The environment of ``case``, made afresh in ``folder``: its interpreter, and the checkout that it has installed."""
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise Failed(f"{folder} exists and is no virtual environment: it is left alone")
    subprocess.run([*uv, "venv", "--quiet", "--no-config", "--clear", "--python", base, str(folder)], check=True)
    python, book = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")), folder / "book"
    copy_checkout(book)
    # Without the project's settings for uv, which are `make lock`'s: they hold torch to the lock.
    install = [*uv, "pip", "install", "--no-config", "--python", python]
    must("install", [*install, *source, *requirements(case)], folder)
    must("sslbook", [*install, "--no-deps", "--no-build-isolation", "--editable", str(book)], folder)
    must("check", [*uv, "pip", "check", "--python", python], folder)
    return python, book


# --- trying it -------------------------------------------------------------------------------------------------------


def versions(python: str) -> tuple[str, ...]:
    script = f"from importlib.metadata import version\nfor name in {SHOWN}: print(version(name))"
    return tuple(subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.split())


def counts(summary: str) -> str:
    """pytest's last line as ``passed/failed/skipped``; an error counts as a failure; a line of another kind as it is."""
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", summary)}
    if not found:
        return summary or "no tests"
    return f"{found.get('passed', 0)}/{found.get('failed', 0) + found.get('error', 0)}/{found.get('skipped', 0)}"


def attempt(case: Case, options: argparse.Namespace, uv: Sequence[str], source: Sequence[str]) -> Outcome | None:
    """Make one environment and try it; None where its Python is missing."""
    base = find_python(case.python)
    if base is None:
        say(f"{case.name}: skipped: there is no Python {case.python} on the path or under ~/.pyenv")
        return None
    folder, began = options.folder.absolute() / case.name, time.monotonic()
    say(f"{case.name}: making the environment")
    try:
        python, book = make(case, base, folder, uv, source)
    except (Failed, OSError, subprocess.CalledProcessError) as error:
        say(f"{case.name}: {error}")
        return Outcome(case, good=False, tests="not installed")
    outcome = tried(case, python, book, options)
    say(f"{case.name}: {time.monotonic() - began:.0f} s; the logs are in {folder}")
    return outcome


def tried(case: Case, python: str, book: Path, options: argparse.Namespace) -> Outcome:
    """The tests, and the chapters if they are asked for, in an environment that stands."""
    found, folder, processes = versions(python), book.parent, str(options.processes)
    say("  " + ", ".join(f"{name} {version}" for name, version in zip(SHOWN, found, strict=True)))
    tests = [python, "-m", "pytest", "-q", "-n", processes, "-m", LEFT_OUT, *options.tests]
    passed, summary = step("tests", tests, folder, book)
    say(f"  tests: {summary}")
    if not options.chapters:
        return Outcome(case, passed, counts(summary), versions=found)
    agreed, last = step("chapters", [python, "-m", "sslbook", "build", "--processes", processes], folder, book)
    say(f"  chapters: {last}")
    return Outcome(case, passed and agreed, counts(summary), "as expected" if agreed else "wrong", found)


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes in columns, one line each."""
    head = ("versions", "Python", *SHOWN, "tests: passed/failed/skipped", "numbers")
    missing = ("",) * len(SHOWN)
    rows = [head, *((o.case.kind, o.case.python, *(o.versions or missing), o.tests, o.chapters) for o in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def find_uv() -> list[str] | None:
    """The command for uv: beside this Python, or on the path."""
    for command in ([sys.executable, "-m", "uv"], ["uv"]):
        try:
            if subprocess.run([*command, "--version"], capture_output=True).returncode == 0:
                return command
        except OSError:
            continue
    return None


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    first, _, rest = __doc__.partition("\n\n")
    made = argparse.ArgumentParser(description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, help="where the environments go, 1 to 7 GB each; made if it isn't there")
    made.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS, help="which versions (default: all)")
    made.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS, help="which Pythons (default: all)")
    made.add_argument("--torch", default="", metavar="VERSION", help="hold torch to this version, such as 2.11.0")
    made.add_argument("--chapters", action="store_true", help="build the book too, and compare its numbers")
    made.add_argument("--processes", type=int, default=2, help="how many tests, or chapters, run at once (default: 2)")
    made.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="these test files only")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    uv = find_uv()
    if uv is None:
        parser().error("uv is missing: pip install uv")
    if options.torch and "locked" in options.kind:
        parser().error(
            f"--torch: got {options.torch}, but the lock holds a torch of its own; name --kind oldest or newest"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    source = torch_source()
    cases = [Case(kind, python, options.torch) for kind, python in product(options.kind, options.python)]
    outcomes = [outcome for case in cases if (outcome := attempt(case, options, uv, source)) is not None]
    say("\n" + table(outcomes))
    return 0 if outcomes and all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
