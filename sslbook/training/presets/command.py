"""``sslbook train``: train a preset, go on with it, or list them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslbook._check import positive, seed, unknown
from sslbook._files import runs_folder
from sslbook._machine import GOES_ON, cores, device, end_with_parent, free
from sslbook.training.objectives import TAKES
from sslbook.training.presets.papers import Run, presets, run_of
from sslbook.training.run import distributed
from sslbook.training.run.checkpoints import Diverged
from sslbook.training.run.settings import flat
from sslbook.training.run.step import load_data
from sslbook.training.run.trainer import train

PARENT = "SSLBOOK_PARENT"
"""The variable with the number of the process that began this one as one of several."""
GRACE_SECONDS = 5.0
"""How long a process that has lost another one waits to be ended with it."""


def main(arguments: Sequence[str]) -> int:
    """Train a preset, go on with it, or list them; returns the exit status.

    1: the run diverged, or one of its processes was lost; 2: it can't be run as requested; 128 and its number: a signal.
    """
    parser = argparse.ArgumentParser(
        prog="sslbook train", description="Train a preset from the papers' tables, or go on with it."
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="a preset, or with --list words of presets or of a table")
    add("--list", action="store_true", help="list the presets by table, or say what one is, and stop")
    add("--epochs", type=positive, metavar="N", help="epochs in all (default: the preset's)")
    add("--seed", type=seed, default=0, metavar="N", help="seed of everything random (default: 0)")
    changing: dict[str, Any] = {"action": "append", "default": [], "dest": "changes", "metavar": "KEY=VALUE"}
    add("--set", **changing, help="change a setting: --set lr=0.1")
    add("--ranks", type=positive, default=1, metavar="N", help="processes that share each batch")
    add("--again", action="store_true", help="begin anew, although there are checkpoints")
    add("--tensorboard", action="store_true", help="write curves for TensorBoard too")
    add("--folder", type=Path, metavar="DIR", help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    add("--device", type=device, metavar="D", help="cpu, cuda or cuda:N (default: cuda if there is one)")
    add("--download", action="store_true", help="fetch the images if they are not here")
    add("--quiet", action="store_true", help="say nothing while it runs")
    options = parser.parse_args(arguments)
    alone = "WORLD_SIZE" not in os.environ
    try:
        if options.list:
            print(listing(options.names))
            return 0
        if len(options.names) != 1:
            parser.error("one NAME is needed; --list shows the presets")
        run = run_of(options.names[0], seed=options.seed, epochs=options.epochs, changes=options.changes)
        root = runs_folder(options.folder)
        # a run that went further has these epochs too, but its weights are not this one's: training tells
        if alone and not options.again and run.finished(root) and run.rows(root)[-1]["epoch"] <= run.settings.epochs:
            print(f"Finished already: {run.folder(root)} (--again begins anew)")
            return 0
        if options.ranks > 1 and alone:
            if options.download:
                load_data(run.settings, download=True)
            return start_processes(options.ranks, arguments)
        return train_one(run, root, options)
    except ValueError as error:
        parser.error(str(error))


def listing(words: Sequence[str]) -> str:
    """A line for each preset that has all words in its name or its table's; of one preset, what it is and what can be changed.

    That is all that ``--set`` can change, as it takes it, with the present values.
    """
    if len(words) == 1 and (preset := presets().get(words[0])):
        lines = [preset.text(), f"  To train it: sslbook train {preset.name} --seed 1"]
        lines += ["  What --set KEY=VALUE changes, and its values:"]
        for name, value in {**TAKES[preset.settings.objective], **flat(preset.settings.as_json())}.items():
            parts = value if isinstance(value, list) else [value]
            texts = (str(part).lower() if part is None or isinstance(part, bool) else str(part) for part in parts)
            lines += [f"    {name}={','.join(texts) or 'none'}"] if name not in ("seed", "epochs") else []
        return "\n".join(lines)
    tables: dict[str, list[str]] = {}
    wide = max(map(len, presets()))
    for preset in presets().values():
        table = preset.tables[0] if preset.tables else "small runs"
        if all(word.casefold() in f"{table} {preset.name}".casefold() for word in words):
            tables.setdefault(f"{table}:", []).append(f"{preset.name:<{wide}}  {preset.what}")
    if not tables:
        raise unknown("preset", " ".join(words), presets())
    last = "For a run's settings and time: sslbook train NAME --list"
    return "\n".join([*(line for table, below in tables.items() for line in (table, *below)), last])


def start_processes(ranks: int, arguments: Sequence[str]) -> int:
    """This command in so many processes, begun as ``torchrun`` does; the exit status of the one that failed first."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the processes speak for themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // ranks)))
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(number.name for number in free())
    os.environ[PARENT] = str(os.getpid())
    meeting: dict[str, Any] = {"run_id": str(uuid.uuid4()), "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, max_restarts=0, **meeting)
    try:
        elastic_launch(config, sys.executable)("-m", "sslbook", "train", *arguments)
    except ChildFailedError as error:
        # the others were stopped because one has failed; times are in whole seconds
        ended = (-signal.SIGTERM, 128 + signal.SIGTERM)
        status = min(error.failures.values(), key=lambda one: (one.timestamp, one.exitcode in ended)).exitcode
        if status >= 0:
            return status
        name = signal.Signals(-status).name
        print(f"sslbook train: {name} has ended one of the {ranks} processes; {GOES_ON}", file=sys.stderr)
        return 128 - status
    except SignalException as error:
        return 128 + error.sigval
    return 0


def train_one(run: Run, root: Path, options: argparse.Namespace) -> int:
    """Train in this process, which may be one of several; errors of :func:`~sslbook.training.run.trainer.train`, but Diverged."""
    first, folder, ended = os.environ.get("RANK", "0") == "0", run.folder(root), False
    if PARENT in os.environ:  # it would go on waiting for the others if who started it were killed
        end_with_parent(int(os.environ[PARENT]))
    try:
        if first and not options.quiet:
            changed = f"\n  Changed: {', '.join(options.changes)}." if options.changes else ""
            print(f"{presets()[run.name].text()}{changed}\nIn {folder}", flush=True)
        how = {name: getattr(options, name) for name in ("device", "download", "tensorboard", "quiet")}
        result = train(run.settings, folder, resume=not options.again, name=run.name, **how)
        ended = True
    except Diverged as error:
        print(f"sslbook train: {error} (in {folder})", file=sys.stderr)
        return 1
    except distributed.Lost as error:
        time.sleep(GRACE_SECONDS)
        print(f"sslbook train: {error}", file=sys.stderr)
        return 1
    finally:
        distributed.leave(together=ended)
    if first:
        begun, last = result.rows[0], result.rows[-1]
        if "knn" in begun and "knn" in last and last is not begun:
            before, after = 100 * begun["knn"], 100 * last["knn"]
            print(f"k-NN {before:.2f} % before, {after:.2f} % after {last['epoch']} epochs", end="; ")
        if last.get("linear") is not None:
            print(f"linear {100 * last['linear']:.2f} % (best {100 * last['linear_best']:.2f} %)", end="; ")
        print(f"{last['seconds']:.0f} s")
    return 0
