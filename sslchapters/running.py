"""How a chapter runs: its scales and devices, and the variables by which its kernel is told from a reader's."""

from __future__ import annotations

from importlib.metadata import version

from sslbook._check import InputError

LIVE = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")
"""Variables of a kernel in which a person runs cells: Jupyter's server, VS Code and Colab set them, papermill does not."""

LENIENT = "SSLBOOK_LENIENT"
"""The variable under which a check that fails is published as failed, and the chapter runs on: set while the book is built."""

SCALES = ("quick", "paper")
"""The two sizes of every experiment: under a minute a chapter on two CPU cores, and the papers' own."""

DEVICES = ("auto", "cpu", "cuda")

BOOK = ("quick", 0)
"""The scale and the seed of the numbers on the pages."""


def device_kind(device: str) -> str:
    """``auto`` resolved to the kind of device that there is; raises InputError for ``cuda`` where there is none.

    Imports torch, which takes seconds, only where its build might know CUDA.
    """
    if device == "cpu" or (device == "auto" and version("torch").endswith("+cpu")):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise InputError("device: got 'cuda', but torch finds no CUDA device here; allowed are 'auto' and 'cpu'")
    return "cpu"
