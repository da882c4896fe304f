"""``sslbook train``: run a preset, or list them."""

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

from sslbook._check import folded, nearest, positive, seed
from sslbook._files import runs_folder
from sslbook._machine import GOES_ON, asked_to_stop, cores, free
from sslbook.training.presets.sheets import Run, preset_of, presets, run_of, values_of
from sslbook.training.run import distributed
from sslbook.training.run.checkpoints import Diverged
from sslbook.training.run.data import load_data
from sslbook.training.run.settings import Refused, known_keys
from sslbook.training.run.trainer import train

# A process among several would go on waiting for the others if who started it were killed.
_PROCESS = """
import sys
from sslbook._machine import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
from sslbook.cli import main
raise SystemExit(main(["train", *sys.argv[1:]]))
"""
_GRACE_SECONDS = 5.0
"""How long a process that has lost another one waits to be ended with it."""


def main(arguments: Sequence[str]) -> int:
    """``sslbook train``: run a preset, or list them.

    Exit status 1 if the run diverges or one of its processes is lost, 2 for what can't be run, 128 and its number for a signal.
    """
    parser = argparse.ArgumentParser(
        prog="sslbook train", description="Train a preset from the papers' tables, or go on with it."
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a preset, or with --list words of presets or of a table")
    add("--list", action="store_true", help="list the presets by table, or say what one is, and stop")
    add("--epochs", type=positive, metavar="N", help="epochs in all (default: the preset's)")
    add("--seed", type=seed, default=0, metavar="N", help="seed of everything random (default: 0)")
    changing: dict[str, Any] = {"action": "append", "default": [], "dest": "changes", "metavar": "KEY=VALUE"}
    add("--set", **changing, help="change a setting: --set lr=0.1")
    add("--ranks", type=positive, default=1, metavar="N", help="processes that share each batch")
    add("--again", action="store_true", help="begin anew, although there are checkpoints")
    add("--tensorboard", action="store_true", help="write curves for TensorBoard too")
    add("--folder", type=Path, metavar="DIR", help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    add("--device", metavar="D", help="cpu, cuda or cuda:N (default: cuda if there is one)")
    add("--download", action="store_true", help="fetch the images if they are not here")
    add("--quiet", action="store_true", help="say nothing while it runs")
    options, rest = parser.parse_known_args(arguments)
    if (rest and not options.list) or any(word.startswith("-") for word in rest):
        name, _, value = rest[0].lstrip("-").partition("=")
        near = nearest(name, known_keys(), 0.6) if rest[0].startswith("--") else []
        value = value or next((word for word in rest[1:] if not word.startswith("-")), "VALUE")
        hint = f"; a setting is given by --set {near[0]}={value}" if near else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if options.name is None and not options.list:
        parser.error("NAME is missing; --list shows the presets")
    try:
        if options.list:
            print(_listing(*filter(None, (options.name, *rest))))
            return 0
        run = run_of(options.name, seed=options.seed, epochs=options.epochs, changes=options.changes)
        if options.download and "LOCAL_RANK" not in os.environ:
            load_data(run.settings, download=True)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.ranks > 1 and "LOCAL_RANK" not in os.environ:
        return _spread(options.ranks, arguments)
    try:
        return _train(run, runs_folder(options.folder), options)
    except BrokenPipeError:
        raise
    except (Refused, OSError) as error:
        parser.error(str(error))


def _listing(*words: str) -> str:
    """The presets, those with all words in their own name or their table's, a line each; or the one, with what can be changed."""
    if len(words) == 1 and words[0] in presets():
        preset = preset_of(words[0])
        values = {key: value for key, value in values_of(preset.settings).items() if key not in ("seed", "epochs")}
        head = f"  To train it: sslbook train {preset.name} --seed 1\n  What --set KEY=VALUE changes, and its values:"
        return "\n".join([preset.text(), head, *(f"    {key}={value}" for key, value in values.items())])
    tables: dict[str, list[str]] = {}
    wide = max(map(len, presets()))
    for preset in presets().values():
        table = preset.cells[0][0] if preset.cells else "small runs"
        if all(folded(word) in folded(f"{table} {preset.name}") for word in words):
            tables.setdefault(f"{table}:", []).append(f"{preset.name:<{wide}}  {preset.what}")
    if words and not tables:
        preset_of(" ".join(words))
    told = "For a run's printed accuracies, time and settings: sslbook train NAME --list"
    return "\n".join([*(line for table, below in tables.items() for line in (table, *below)), told])


def _spread(ranks: int, arguments: Sequence[str]) -> int:
    """This command in so many processes, begun as ``torchrun`` does; the exit status of the one that failed first."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the processes speak for themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // ranks)))
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(number.name for number in free())
    meeting: dict[str, Any] = {"run_id": str(uuid.uuid4()), "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, max_restarts=0, **meeting)
    try:
        elastic_launch(config, sys.executable)("-c", _PROCESS, str(os.getpid()), *arguments)
    except ChildFailedError as error:
        ended = (-signal.SIGTERM, 128 + signal.SIGTERM)  # stopped because one has failed; times are in whole seconds
        first = min(
            error.failures.values(), key=lambda failure: (failure.timestamp, failure.exitcode in ended)
        ).exitcode
        if first >= 0:
            return first
        name = signal.Signals(-first).name
        print(f"sslbook train: {name} has ended one of the {ranks} processes; {GOES_ON}", file=sys.stderr)
        return 128 - first
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _train(run: Run, root: Path, options: argparse.Namespace) -> int:
    """The run on this process; errors of :func:`sslbook.training.run.trainer.train` but for one that diverges."""
    first = os.environ.get("RANK", "0") == "0"
    folder = run.folder(root)
    ended = False
    try:
        if not options.again and _finished(run, root, options.device):
            ended = True
            if first:
                print(f"Finished already: {folder} (--again begins anew)")
            return 0
        with asked_to_stop():
            if first and not options.quiet:
                changed = f"\n  Changed: {', '.join(options.changes)}." if options.changes else ""
                print(f"{preset_of(run.name).text()}{changed}\nIn {folder}", flush=True)
            result = train(
                run.settings,
                folder,
                resume=not options.again,
                device=options.device,
                download=options.download,
                tensorboard=options.tensorboard,
                quiet=options.quiet,
                name=run.name,
            )
        ended = True
    except Diverged as error:
        print(f"sslbook train: {error} (in {folder})", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if not distributed.lost_another(error):
            raise
        time.sleep(_GRACE_SECONDS)
        print(f"sslbook train: another process of this run has ended ({error}); {GOES_ON}", file=sys.stderr)
        return 1
    finally:
        distributed.leave(together=ended)
    if first:
        print(summary(result.rows))
    return 0


def _finished(run: Run, root: Path, device: str | None) -> bool:
    """Whether the run is finished, in the folders of all machines that take part: no process may leave the others waiting."""
    try:
        if "WORLD_SIZE" in os.environ:
            distributed.join(device)
        ended = run.finished(root) and run.rows(root)[-1]["epoch"] <= run.settings.epochs  # the weights too are its own
        return all(distributed.of_all(ended))
    except ValueError as error:
        raise Refused(str(error)) from None


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """First and last numbers of a run, in a line or two."""
    begun, ended = rows[0], rows[-1]
    parts = []
    if begun.get("knn") is not None and ended.get("knn") is not None and ended is not begun:
        parts.append(
            f"k-NN {100 * begun['knn']:.2f} % before, {100 * ended['knn']:.2f} % after {ended['epoch']} epochs"
        )
    if ended.get("linear") is not None:
        parts.append(f"linear {100 * ended['linear']:.2f} % (best {100 * ended['linear_best']:.2f} %)")
    return "; ".join([*parts, f"{ended['seconds']:.0f} s"])
