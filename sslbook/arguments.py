"""What is asked of an argument, and how one that can't be used is answered."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What the caller gave can't be used; the message says what was given and what is allowed (CLI: exit status 2)."""


def positive(text: str) -> int:
    """A whole number of at least 1; raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def device(text: str) -> str:
    """``cpu``, or a GPU that is here, ``cuda`` or ``cuda:N``; raises ArgumentTypeError for anything else."""
    import torch  # seconds, which a list of options does not need

    here = ["cpu"]
    if torch.cuda.is_available():
        here += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if text not in here:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of this machine's devices, {', '.join(here)}")
    return text


def seed(text: str) -> int:
    """A whole number from 0 to 2**32 - 1; raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**32 - 1")
    return int(text)


def counted(number: int, what: str) -> str:
    """``1 trial``, ``2 trials``, ``3 batches``."""
    plural = what + ("es" if what.endswith(("s", "ch")) else "s")
    return f"{number} {what if number == 1 else plural}"


def unknown(what: str, given: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that doesn't exist, with the nearest that do (all of them if none is near)."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    if near:
        return InputError(f"{what}: got {given!r}; did you mean {', '.join(near)}?")
    return InputError(f"{what}: got {given!r}; there are {', '.join(names) or 'none'}")
