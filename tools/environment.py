#!/usr/bin/env python3
"""Make the environment that builds and tests the book: ``python3 tools/environment.py [FOLDER]`` (default ``.venv``).

It needs a Python of at least 3.11 and its own standard library, and nothing else.  Running it again only mends what
is missing.  What it does:

1. sees whether the Python that runs it will do (3.11 to 3.13 are what CI runs; a newer one is taken, with a warning);
2. makes the virtual environment, afresh if the one that is there is broken or of another Python;
3. installs the exact versions of ``requirements.lock``, apart from torch;
4. installs torch, in the build that suits the machine (below);
5. installs this package in place, tells JupyterLab to ask nothing of the network, and tries it all out.

Which torch.  On Linux the package index's torch brings several gigabytes of CUDA libraries, so on a machine without an
NVIDIA GPU these are tried in order: what is installed already; a wheel that pip is configured to find locally; the
PyTorch project's CPU index; and only then the package index.  ``SSLBOOK_TORCH`` overrules that: ``cpu`` and ``cuda``
name a build, ``system`` takes the torch of the Python underneath (clusters and containers often have a good one).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
OLDEST, NEWEST_TESTED = (3, 11), (3, 13)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_RANGE = "torch>=2.5,<3"
TORCH_CHOICES = ("auto", "cpu", "cuda", "system")
TORCH_TRIAL = "import torch; assert float(torch.ones(2) @ torch.ones(2)) == 2.0; print(torch.__version__)"
# Lab asks nothing of the network.
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
}


class Source(NamedTuple):
    """One place that torch may come from: what to call it, and the arguments for pip."""

    name: str
    arguments: list[str]


def say(text: str) -> None:
    print(text, flush=True)


def stop(text: str) -> NoReturn:
    print(f"environment: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


# --- the Python underneath -------------------------------------------------------------------------------------------


def check_python() -> None:
    """Stop if the Python that runs this is too old or can't make environments; warn if the book is not tested on it."""
    here = f"{sys.executable} is Python {dotted(sys.version_info[:2])}"
    if sys.version_info[:2] < OLDEST:
        stop(f"{here}, and {dotted(OLDEST)} is needed. Install one, or name it: make book PYTHON=/path/to/python3")
    if asked(sys.executable, "import venv, ensurepip").returncode != 0:
        stop(f"{here}, which can't make environments; Debian keeps that part in python3-venv")
    if sys.version_info[:2] > NEWEST_TESTED:
        say(f"  warning: {here}, newer than {dotted(NEWEST_TESTED)}, the newest that the book is tested on")


def asked(python: Path | str, script: str) -> subprocess.CompletedProcess[str]:
    """What a Python says to a script, outside this checkout, so that only what is installed is found."""
    return subprocess.run([str(python), "-c", script], capture_output=True, text=True, cwd=ROOT.anchor)


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# --- talking to pip --------------------------------------------------------------------------------------------------


class Pip:
    """pip of one environment; what it says is kept in a log."""

    def __init__(self, python: Path, log: Path) -> None:
        self.python, self.log = python, log

    def install(self, *arguments: str) -> bool:
        """Run ``pip install``; True if it worked."""
        # Compiling is left to `compile_all`, which uses every core.
        command = [str(self.python), "-m", "pip", "install", "--no-compile", "--progress-bar", "off", *arguments]
        with self.log.open("a", encoding="utf-8") as log:
            print(f"\n$ {' '.join(command)}", file=log, flush=True)
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode == 0

    def must(self, *arguments: str) -> None:
        if not any(self.install(*arguments) for _ in range(3)):  # a network may fail once
            stop(self.told("pip failed"))

    def told(self, what: str) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        return "\n".join([f"{what}. The end of {self.log}:", *lines])


def locked(lock: Path, *, hashes: bool = True) -> list[str]:
    """What the lock pins but torch, whose build the machine decides: a requirement each, with the hashes of its files or without.

    A constraint can have none: pip would then ask for one of torch, too.
    """
    entries = re.split(r"(?m)^(?=\w)", lock.read_text(encoding="utf-8"))[1:]
    pins = [entry for entry in entries if not entry.startswith("torch==")]
    return pins if hashes else [re.sub(r" \\\n +--hash=\S+", "", pin) for pin in pins]


# --- torch -----------------------------------------------------------------------------------------------------------


def has_nvidia() -> bool:
    """Whether this machine has an NVIDIA GPU with a working driver."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    tool = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def locked_torch() -> str:
    """The version of torch in the lock, such as ``2.13.0``."""
    found = re.search(r"^torch==([0-9.]+)", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found is None:
        stop(f"{LOCK.name} pins no torch")
    return found.group(1)


def torch_sources(version: str, *, cuda: bool, linux: bool) -> list[Source]:
    """Where to look for torch, best place first.

    A local wheel and the CPU index come with ``--no-deps``: the lock already holds what those builds need.  ``===`` asks
    for the index's own build, which ``==`` would pass over for a local ``+cpu`` wheel of the same version.
    """
    local = ["--no-index", "--no-deps", "--only-binary=torch"]
    index = [
        Source("the package index", [f"torch==={version}" if cuda else f"torch=={version}"]),
        Source("the package index (another version)", [TORCH_RANGE]),
    ]
    if cuda:
        return index
    nearby = [
        Source("a wheel on this machine", [*local, f"torch=={version}"]),
        Source("a wheel on this machine (another version)", [*local, TORCH_RANGE]),
    ]
    if not linux:  # elsewhere the package index's build is for the CPU anyway
        return nearby + index
    # "+cpu" in full, so that no other configured index can answer with a CUDA build.
    cpu_index = ["--index-url", CPU_INDEX, "--retries", "2", "--timeout", "30", "--no-deps", f"torch=={version}+cpu"]
    return [*nearby, Source("the PyTorch project's CPU index", cpu_index), *index]


def torch_works(python: Path | str, *, on_cuda: bool = False) -> str | None:
    """The version of torch that this Python imports and can compute with, if it is in the range; else None."""
    done = asked(python, TORCH_TRIAL + ("; assert torch.cuda.is_available()" if on_cuda else ""))
    found = re.match(r"(\d+)\.(\d+)", done.stdout)
    fits = done.returncode == 0 and found and (2, 5) <= (int(found[1]), int(found[2])) < (3, 0)
    return done.stdout.strip() if fits else None


def install_torch(pip: Pip, pins: Path, choice: str, nvidia: bool) -> str:
    """Make torch importable in the environment and return its version."""
    present = torch_works(pip.python, on_cuda=choice == "cuda")
    if present:
        say(f"  torch {present} is there already")
        return present
    cuda = choice == "cuda" or (choice == "auto" and nvidia)
    for source in torch_sources(locked_torch(), cuda=cuda, linux=platform.system() == "Linux"):
        if source.name == "the package index" and not cuda and platform.system() == "Linux":
            say("  no CPU build was found: the package index's may bring gigabytes of CUDA libraries (Ctrl-C stops)")
        say(f"  from {source.name}: {source.arguments[-1]}")
        if pip.install("--constraint", str(pins), *source.arguments):
            version = torch_works(pip.python)
            if version:
                return version
            say("  it was installed but does not run here; trying the next place")
    stop(pip.told("torch could not be installed"))


# --- the environment -------------------------------------------------------------------------------------------------


def make_venv(folder: Path, system_packages: bool) -> Path:
    """Create the environment if there is none that runs on this Python; return its interpreter."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    settings = folder / "pyvenv.cfg"
    moved = settings.exists() and str(folder) not in settings.read_text(encoding="utf-8")
    version = "import sys; print(*sys.version_info[:2])"
    if python.exists() and not moved and asked(python, version).stdout == asked(sys.executable, version).stdout:
        say(f"  {folder.name} is there already")
        return python
    if folder.exists() and not settings.exists() and any(folder.iterdir()):
        stop(f"{folder} exists and is not a virtual environment: it is left alone; name another folder")
    options = ["--system-site-packages"] if system_packages else []
    if subprocess.run([sys.executable, "-m", "venv", "--clear", *options, str(folder)]).returncode != 0:
        stop(f"{sys.executable} could not make an environment in {folder} (on Debian: apt install python3-venv)")
    return python


def compile_all(python: Path) -> None:
    """Byte-compile what was installed, on every core; without it the first import of everything would be slow."""
    site = asked(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
    # Some packages ship files that no Python can compile on purpose, so the status says nothing.
    skip = r"[/\\](tests?|testing|idlelib)[/\\]"
    subprocess.run([str(python), "-m", "compileall", "-qq", "-j", "0", "-x", skip, site], stdout=subprocess.DEVNULL)


def verify(python: Path) -> None:
    """Import the package and its neighbours, and check that versions agree."""
    done = asked(python, "import sslbook, papermill, jupytext, jupyter_book")
    if done.returncode != 0:
        stop(f"the environment does not work:\n{done.stderr}")
    agreed = subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, text=True)
    if agreed.returncode != 0:
        say(f"  warning: pip check says:\n{agreed.stdout}")


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__)
        raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)
    choice = os.environ.get("SSLBOOK_TORCH", "auto")
    if choice not in TORCH_CHOICES:
        stop(f"SSLBOOK_TORCH is {choice!r}; it may be one of {', '.join(TORCH_CHOICES)}")
    began = time.monotonic()
    folder = Path(arguments[0] if arguments else ".venv").absolute()

    check_python()
    nvidia = choice != "cpu" and has_nvidia()
    if choice == "auto" and nvidia and torch_works(sys.executable, on_cuda=True):
        choice = "system"  # it computes on the GPU already: nothing to download
    kind = "an NVIDIA GPU" if nvidia else "CPU only"
    say(f"[1/5] Python {dotted(sys.version_info[:2])} ({sys.executable}), {kind}: making {folder.name}")
    python = make_venv(folder, system_packages=choice == "system")
    pip = Pip(python, folder / "pip.log")
    pip.log.unlink(missing_ok=True)

    hashed, pins = folder / "hashed.txt", folder / "pins.txt"
    hashed.write_text("".join(locked(LOCK)), encoding="utf-8")
    pins.write_text("".join(locked(LOCK, hashes=False)), encoding="utf-8")
    say("[2/5] the exact versions of requirements.lock, each file with its hash: some 200 packages")
    # The lock is complete, so there is nothing to resolve.
    pip.must("--no-deps", "--require-hashes", "--requirement", str(hashed))

    say("[3/5] torch")
    torch = install_torch(pip, pins, choice, nvidia)

    say("[4/5] compiling, and sslbook itself, in place")
    compile_all(python)
    # The lock holds setuptools, so building the package needs no download.
    pip.must("--no-deps", "--no-index", "--no-build-isolation", "--editable", str(ROOT))
    settings = folder / "share/jupyter/lab/settings/overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(LAB_SETTINGS, indent=2) + "\n", encoding="utf-8")

    say("[5/5] trying it out")
    verify(python)
    say(f"The environment is ready: {folder.name}, torch {torch}, {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main(sys.argv[1:])
