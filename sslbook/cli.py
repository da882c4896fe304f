"""The command ``sslbook``: train, inspect, and what other packages add by the entry points ``sslbook.commands``.

An entry point is named as its command and leads to a function that takes the rest of the command line and returns the exit status;
the first line of its docstring says what it does. So the library imports nothing of the book, and the book's commands are there
where the book is: in a copy of its repository.

Exit status: 0 if all is well; 1 if a check, a chapter or a page failed; 2 if the command itself can't be used as given; 3 if for
`regression` numbers moved, but nothing failed; 130 after Ctrl-C, and 128 with its number for another signal that ends a run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import sslbook
from sslbook import _machine
from sslbook._check import InputError, unknown

GROUP = "sslbook.commands"
EXTRAS = {**dict.fromkeys(("pooch", "tqdm", "tensorboard", "submitit"), "train"), "jupyterlab": "book,lab"}
"""The extra, or extras, that a package is of; what else may be missing is of ``book``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Both streams show another letter for one that the terminal lacks, and go nowhere where they are closed.  What went wrong is
    told in one line on standard error: bad input, a file that can't be used, a package that isn't installed, a stop by a signal.
    """
    with _machine.heard():
        try:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is None:
                    setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (to the end)
                elif isinstance(stream, io.TextIOWrapper):  # not a notebook's
                    stream.reconfigure(errors="replace")
            try:
                status = _run(sys.argv[1:] if arguments is None else list(arguments))
            except SystemExit:  # argparse's way out
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # what can't be written is told below, not by Python at its end
            return status
        except InputError as error:
            return _ended(2, str(error))
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # whoever reads has had enough, as head has
                return _ended(128 + 13)  # SIGPIPE by number, as Windows has none
            where = f"{error.filename}: " if error.filename is not None else ""
            return _ended(2, f"{where}{error.strerror or error}")
        except ModuleNotFoundError as error:
            package = (error.name or "sslbook").partition(".")[0]
            if package in ("sslbook", "sslchapters", "bookbuild", "benchmarks"):
                raise
            # No registry is asked for sslbook: a name that isn't ours is anybody's.
            needed = f"pip install '.[{EXTRAS.get(package, 'book')}]' in a checkout of the book"
            return _ended(2, f"{error.name} is not installed; this command needs: {needed}")
        except KeyboardInterrupt as error:  # as a shell has it: 128 and the signal's number
            return _ended(128 + getattr(error, "number", signal.SIGINT), str(error) or "stopped")


def _run(arguments: list[str]) -> int:
    """Find the command and give it the rest of the line.

    Commands are what the installed packages declare, and of these what is here: the folder of a checkout is searched for their
    modules too.  Raises InputError, with the nearest names, for one that there is not.
    """
    if (source := str(Path(__file__).resolve().parents[1])) not in sys.path:
        sys.path.append(source)
    declared = {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
    commands = {name: point for name, point in declared.items() if find_spec(point.module.partition(".")[0])}
    parser = argparse.ArgumentParser("sslbook", "sslbook COMMAND …", (sslbook.__doc__ or "").partition("\n")[0])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"sslbook {sslbook.__version__}")
    if not arguments or arguments[0].startswith("-"):
        if not arguments or arguments[0] in ("-h", "--help"):
            does = {name: (point.load().__doc__ or "").partition("\n")[0] for name, point in commands.items()}
            parser.epilog = "\n".join(["commands:", *(f"  {name:<11} {line}" for name, line in does.items())])
        parser.parse_args(arguments)
        parser.error(f"a command is needed: {', '.join(commands)}")
    name, *rest = arguments
    if name not in commands:
        if name in declared:
            raise InputError(f"sslbook {name} works on the book's sources: run it in a copy of its repository")
        raise unknown("command", name, commands)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the cores to others; torch reads it
    return int(commands[name].load()(rest) or 0)


def _later(module: str, name: str, does: str) -> Callable[[Sequence[str]], int]:
    """A function of a module as a command: imported when it is run, so that `sslbook --help` needs no seconds of PyTorch's."""

    def run(arguments: Sequence[str]) -> int:
        return int(getattr(importlib.import_module(module), name)(arguments))

    run.__doc__ = does
    return run


train = _later("sslbook.training.papers", "train_command", "Train a preset of the image tables.")
runs = _later(
    "sslbook.training.papers",
    "runs_command",
    "List the runs in a folder, a line each: what differs in their settings, and how they stand.",
)
inspect = _later("sslbook.inspect.report", "main", "Report on a trained network, layer by layer.")


def _ended(status: int, sentence: str = "") -> int:
    """Tell why a command ends, and return its status, whatever can't be written any more.

    Python, at its end, would try to write again what a closed terminal hasn't taken, and end with a status of its own.
    """
    with contextlib.suppress(OSError):
        if sentence:
            print(f"sslbook: {sentence}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status
