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
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
OLDEST, NEWEST_TESTED = (3, 11), (3, 13)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_RANGE = "torch>=2.5,<3"
TORCH_CHOICES = ("auto", "cpu", "cuda", "system")
TORCH_TRIAL = """
import torch
assert (2, 5) <= tuple(map(int, torch.__version__.split(".")[:2])) < (3, 0)
assert float(torch.ones(2) @ torch.ones(2)) == 2.0
print(torch.__version__)
"""
LAB_SETTINGS = {"@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"}}


def say(text: str) -> None:
    print(text, flush=True)


def stop(text: str) -> NoReturn:
    print(f"environment: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


# --- the Python underneath -------------------------------------------------------------------------------------------


def check_python() -> None:
    """Stop if the Python that runs this is too old or can't make environments; warn if the book is not tested on it."""
    version, oldest, newest = (".".join(map(str, pair)) for pair in (sys.version_info[:2], OLDEST, NEWEST_TESTED))
    here = f"{sys.executable} is Python {version}"
    if sys.version_info[:2] < OLDEST:
        stop(f"{here}, and {oldest} is needed. Install one, or name it: make book PYTHON=/path/to/python3")
    if asked(sys.executable, "import venv, ensurepip").returncode != 0:
        stop(f"{here}, which can't make environments; Debian keeps that part in python3-venv")
    if sys.version_info[:2] > NEWEST_TESTED:
        say(f"  warning: {here}, newer than {newest}, the newest that the book is tested on")


def asked(python: Path | str, script: str) -> subprocess.CompletedProcess[str]:
    """What a Python says to a script, outside this checkout, so that only what is installed is found."""
    return subprocess.run([str(python), "-c", script], capture_output=True, text=True, cwd=ROOT.anchor)


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


# --- what is installed -----------------------------------------------------------------------------------------------


def locked(lock: Path, *, hashes: bool = True) -> list[str]:
    """What the lock pins but torch, whose build the machine decides: a requirement each, with the hashes of its files or without.

    A constraint can have none: pip would then ask for one of torch, too.
    """
    entries = re.split(r"(?m)^(?=\w)", lock.read_text(encoding="utf-8"))[1:]
    pins = [entry for entry in entries if not entry.startswith("torch==")]
    return pins if hashes else [re.sub(r" \\\n +--hash=\S+", "", pin) for pin in pins]


def pip_install(python: Path, *arguments: str, required: bool = True) -> bool:
    """Run ``pip install``, which itself asks a network again; what it says is in a log, whose end is told if it must not fail."""
    log = python.parents[1] / "pip.log"
    # Compiling comes later, on every core.
    command = [str(python), "-m", "pip", "install", "--no-compile", "--progress-bar", "off", *arguments]
    with log.open("a", encoding="utf-8") as out:
        print(f"\n$ {' '.join(command)}", file=out, flush=True)
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode == 0
    if required and not done:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        stop("\n".join([f"pip failed. The end of {log}:", *lines]))
    return done


def torch_sources(version: str, *, cuda: bool, linux: bool) -> dict[str, list[str]]:
    """Where to look for torch, best place first: what to call it, and the arguments for pip.

    A local wheel and the CPU index come with ``--no-deps``: the lock already holds what those builds need.  ``===`` asks
    for the index's own build, which ``==`` would pass over for a local ``+cpu`` wheel of the same version.
    """
    local = ["--no-index", "--no-deps", "--only-binary=torch"]
    index = {
        "the package index": [f"torch==={version}" if cuda else f"torch=={version}"],
        "the package index (another version)": [TORCH_RANGE],
    }
    nearby = {
        "a wheel on this machine": [*local, f"torch=={version}"],
        "a wheel on this machine (another version)": [*local, TORCH_RANGE],
    }
    # "+cpu" in full, so that no other configured index can answer with a CUDA build.
    cpu_index = ["--index-url", CPU_INDEX, "--retries", "2", "--timeout", "30", "--no-deps", f"torch=={version}+cpu"]
    if linux:  # elsewhere the package index's build is for the CPU anyway
        nearby["the PyTorch project's CPU index"] = cpu_index
    return index if cuda else nearby | index


def torch_works(python: Path | str, *, on_cuda: bool = False) -> str:
    """The version of torch that this Python imports and can compute with, if it is in the range; else nothing."""
    done = asked(python, TORCH_TRIAL + "assert torch.cuda.is_available()\n" * on_cuda)
    return done.stdout.strip() if done.returncode == 0 else ""


def install_torch(python: Path, pins: Path, choice: str, nvidia: bool) -> str:
    """Make torch importable in the environment and return its version."""
    if present := torch_works(python, on_cuda=choice == "cuda"):
        say(f"  torch {present} is there already")
        return present
    (version,) = re.findall(r"(?m)^torch==([0-9.]+)", LOCK.read_text(encoding="utf-8"))
    cuda, linux = choice == "cuda" or (choice == "auto" and nvidia), platform.system() == "Linux"
    for source, arguments in torch_sources(version, cuda=cuda, linux=linux).items():
        if source == "the package index" and not cuda and linux:
            say("  no CPU build was found: the package index's may bring gigabytes of CUDA libraries (Ctrl-C stops)")
        say(f"  from {source}: {arguments[-1]}")
        if pip_install(python, "--constraint", str(pins), *arguments, required=False):
            if found := torch_works(python):
                return found
            say("  it was installed but does not run here; trying the next place")
    stop(f"torch could not be installed; see {python.parents[1] / 'pip.log'}")


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__)
        raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)
    choice = os.environ.get("SSLBOOK_TORCH", "auto")
    if choice not in TORCH_CHOICES:
        stop(f"SSLBOOK_TORCH is {choice!r}; it may be one of {', '.join(TORCH_CHOICES)}")
    began, folder = time.monotonic(), Path(arguments[0] if arguments else ".venv").absolute()

    check_python()
    drivers = (Path("/proc/driver/nvidia/version"), Path("/usr/lib/wsl/lib/nvidia-smi"))
    nvidia = choice != "cpu" and any(path.exists() for path in drivers)
    if choice == "auto" and nvidia and torch_works(sys.executable, on_cuda=True):
        choice = "system"  # it computes on the GPU already: nothing to download
    kind = "an NVIDIA GPU" if nvidia else "CPU only"
    say(f"[1/5] Python {platform.python_version()} ({sys.executable}), {kind}: making {folder.name}")
    python = make_venv(folder, system_packages=choice == "system")
    (folder / "pip.log").unlink(missing_ok=True)

    hashed, pins = folder / "hashed.txt", folder / "pins.txt"
    hashed.write_text("".join(locked(LOCK)), encoding="utf-8")
    pins.write_text("".join(locked(LOCK, hashes=False)), encoding="utf-8")
    say("[2/5] the exact versions of requirements.lock, each file with its hash: some 200 packages")
    # The lock is complete, so there is nothing to resolve.
    pip_install(python, "--no-deps", "--require-hashes", "--requirement", str(hashed))

    say("[3/5] torch")
    torch = install_torch(python, pins, choice, nvidia)

    say("[4/5] compiling, and sslbook itself, in place")
    site = asked(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
    # Some packages ship files that no Python can compile on purpose, so the status says nothing.
    skip = r"[/\\](tests?|testing|idlelib)[/\\]"
    subprocess.run([str(python), "-m", "compileall", "-qq", "-j", "0", "-x", skip, site], stdout=subprocess.DEVNULL)
    # The lock holds setuptools, so building the package needs no download.
    pip_install(python, "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(ROOT))
    settings = folder / "share/jupyter/lab/settings/overrides.json"  # Lab asks nothing of the network
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(LAB_SETTINGS, indent=2) + "\n", encoding="utf-8")

    say("[5/5] trying it out")
    done = asked(python, "import sslbook, papermill, jupytext, jupyter_book")
    if done.returncode != 0:
        stop(f"the environment does not work:\n{done.stderr}")
    say(f"The environment is ready: {folder.name}, torch {torch}, {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main(sys.argv[1:])
