"""What there is to compute with: the device, its driver, the versions; and which packages a step would miss."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sslbook.arguments import InputError
from sslbook.machine import cores

NEEDED = ("torch", "numpy", "scipy", "matplotlib", "sklearn")
"""What every step needs."""
OLDEST_TORCH = (2, 5)


@dataclass(frozen=True)
class Machine:
    """Where a plan is worked through; ``driver`` and ``cuda`` are empty on a processor, memory is in GiB."""

    device: str
    name: str
    memory: float
    driver: str
    cuda: str
    cores: int
    system: str
    python: str
    torch: str

    def __str__(self) -> str:
        """A line of text."""
        gpu = [f"driver {self.driver}", f"CUDA {self.cuda}"] if self.device == "cuda" else []
        facts = [f"{self.memory:.0f} GiB", *gpu, f"{self.cores} cores", f"Python {self.python}", f"torch {self.torch}"]
        return f"{self.name}: {', '.join(facts)}"


def find(device: str) -> Machine:
    """This machine, for steps on ``device`` (cpu or cuda).

    Raises InputError, saying what is missing, without the packages that every step needs, or without a GPU that torch can use.
    """
    absent = missing(NEEDED)
    if absent:
        raise InputError(f"{', '.join(absent)} must be installed here first; Python is {sys.executable}")
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        raise InputError(f"torch must be at least {'.'.join(map(str, OLDEST_TORCH))}, and here is {torch.__version__}")
    if device == "cuda" and not torch.cuda.is_available():
        build = "is built without CUDA" if torch.version.cuda is None else "finds no GPU and driver that it can use"
        raise InputError(f"no GPU: torch {torch.__version__} {build}; --device cpu works through the same plan, slowly")
    from sslbook.machine import device_name

    name = device_name(torch.device(device))
    common = (cores(), f"{platform.system()} {platform.machine()}", platform.python_version(), torch.__version__)
    if device == "cpu":
        return Machine(device, name, _memory(), "", "", *common)
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return Machine(device, name, memory, _driver(), torch.version.cuda or "", *common)


def missing(modules: Sequence[str]) -> list[str]:
    """Those of ``modules`` that can't be imported here, found without importing them."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _memory() -> float:
    """GiB of this machine's memory; 0 where the system doesn't tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return 0.0


def _driver() -> str:
    """The version of NVIDIA's driver, as its own tool tells it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.partition("\n")[0].strip()
