r"""The papers' own runs by name: what each changes of the released code, in ``papers.tsv``; one on disk; and two commands.

Settings are those of the released code: SimCLR with Adam, no shuffling and the miscounted cosine (`released` in
:mod:`sslbook.training.run.settings`); BYOL with SGD at a constant rate, a target that starts from weights of its own, and a plain
predictor where the released default is a symmetric one.  Each row of ``papers.tsv`` has a name, the papers' tables with a cell
for it, what it is in words, and what it changes of these two, as ``sslbook train --set`` would.
``sslbook train`` makes a run, or goes on with it; ``sslbook runs`` shows those of a folder beside each other.

>>> presets()["cifar10-byol-nobn"].settings.networks.predictor_norm is None
True
>>> run_of("cifar10-byol", seed=3, changes=["lr=0.1"]).settings.lr
0.1
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from sslbook._check import positive, seed, unknown
from sslbook._files import runs_folder
from sslbook._machine import GOES_ON, cores, device, end_with_parent, free
from sslbook.networks.siamese import Networks
from sslbook.training.objectives import TAKES
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.checkpoints import Diverged, Row, read_result
from sslbook.training.run.settings import Settings, flat, with_values
from sslbook.training.run.step import load_data
from sslbook.training.run.trainer import curves, train

EPOCHS = (100, 300, 500)
"""Epochs after which SimCLR's tables have a column."""
IMAGES = {"cifar10": "CIFAR-10", "stl10": "STL-10"}
SECONDS = {"cifar10": 3.0, "stl10": 3.8}
"""Estimated seconds of an epoch on one H200: for CIFAR-10 what we ask of it, for STL-10 that by its arithmetic."""
with Path(__file__).with_name("papers.tsv").open(encoding="utf-8") as _rows:
    ROWS = list(csv.DictReader(_rows, delimiter="\t"))
"""The rows of the papers' tables on either data set: ``name``, ``tables``, ``what`` and ``changes``."""


TOWERS: dict[str, Any] = {"predictor": 2, "target": "ema", "target_init": "own"}
BYOL: dict[str, Any] = {"objective": "byol", "loss_kwargs": {}, "shuffle": True, "drop_last": False}
BYOL |= {"optimizer": "sgd", "lr": 0.03, "weight_decay": 4e-4, "schedule": "constant", "epochs": 100, "probes": (100,)}
"""What the released BYOL, but for its symmetric predictor, changes of SimCLR on the same images with the same encoder."""
TINY = Networks(width=8, projector_hidden=64, projector_out=32, channels=1)
SHORT: dict[str, Any] = {"loss_kwargs": {"temperature": 0.5}, "shuffle": True}
DIGITS = Settings(dataset="digits", pipeline="digits", networks=TINY, lr=5e-3, schedule="cosine", epochs=20, **SHORT)
# the released SGD at a rate of 0.1 ended with an effective rank of 1.4, and k-NN at 34 %
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 2e-3, "weight_decay": 0.0, "batch": 64, "ema": 0.97}
DIGITS_BYOL = replace(DIGITS, networks=replace(TINY, **TOWERS), **{**BYOL, **ADAM, "epochs": 20, "probes": ()})
# the released rate of full runs, 0.01, learns half as much in so few steps
SMALL = Settings(subset=5000, networks=Networks(width=16), lr=1e-3, schedule="constant", epochs=10, **SHORT)


@dataclass(frozen=True)
class Preset:
    """Settings with a name, what they are in words, and the names of the papers' tables with a cell for them."""

    name: str
    what: str
    settings: Settings
    tables: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """The estimate of its minutes on one H200, epochs times :data:`SECONDS`; 0 for small networks, which need no such machine.

        A target tower, whose forward passes come on top, makes an epoch 4/3 times as long.

        >>> [round(presets()[name].minutes) for name in ("cifar10-simclr-nce", "cifar10-byol", "digits-byol")]
        [25, 7, 0]
        """
        if self.settings.networks.width < 64:
            return 0.0
        more = 4 / 3 if self.settings.networks.target else 1.0
        return SECONDS.get(self.settings.dataset, 0.0) * more * self.settings.epochs / 60

    def text(self) -> str:
        """What it is, in lines: its name and words; the commands that show its tables; epochs and minutes.

        Small runs have no table, and need no H200, so only the first line:

        >>> print(presets()["digits-byol"].text())
        digits-byol: BYOL on scikit-learn's digits, with a small network, in a minute
        """
        shows = " and ".join(f"sslbook table {table}" for table in self.tables)
        lines = [f"{self.name}: {self.what}"]
        lines += [f"{shows}: the paper's accuracy, beside those of finished runs."] if shows else []
        lines += [f"{self.settings.epochs} epochs: {self.minutes:.0f} minutes on one H200."] if self.minutes else []
        return "\n  ".join(lines)


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name: three small runs, and for either data set the rows of the papers' tables.

    Made when first asked for, since each checks its settings.
    """
    digits = "on scikit-learn's digits, with a small network, in a minute"
    small = "SimCLR with InfoNCE and a small network on 5,000 images of CIFAR-10, in minutes on two CPU cores"
    found = [Preset("digits-simclr-nce", f"SimCLR with InfoNCE {digits}", DIGITS)]
    found += [Preset("digits-byol", f"BYOL {digits}", DIGITS_BYOL), Preset("cifar10-small", small, SMALL)]
    for data, title in IMAGES.items():
        split, stem, lr = ("train+unlabeled", "stl", 1e-3) if data == "stl10" else ("train", "cifar", 1e-2)
        images: dict[str, Any] = {"dataset": data, "split": split, "pipeline": data, "networks": Networks(stem=stem)}
        simclr = Settings(**images, loss_kwargs={"temperature": 0.5}, lr=lr, epochs=EPOCHS[-1], probes=EPOCHS)
        byol = replace(simclr, networks=Networks(stem=stem, **TOWERS), **BYOL)
        for row in ROWS:
            tables = [f"{table}-{data}-resnet18" if table[0] == "B" else table for table in row["tables"].split()]
            released = byol if row["name"].startswith("byol") else simclr
            settings = with_changes(released, row["changes"].split())
            found.append(Preset(f"{data}-{row['name']}", f"{row['what']}, on {title}", settings, tuple(tables)))
    return {preset.name: preset for preset in found}


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Settings with the name of the preset that they come from, and what lies of it below a folder of runs, ``root``.

    title: how one speaks of it, ``cifar10-byol seed 1``.
    slug: how its folder is called, by the name, the seed and the settings' hash: ``cifar10-byol-s1-0a1b2c3d4e``.
    """

    name: str
    settings: Settings
    title: str = field(init=False, repr=False)
    slug: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", f"{self.name} seed {self.settings.seed}")
        object.__setattr__(self, "slug", f"{self.name}-s{self.settings.seed}-{self.settings.hash()}")

    def folder(self, root: Path) -> Path:
        """Where its files lie, which are those of :mod:`sslbook.training.run.checkpoints`."""
        return root / self.slug

    def rows(self, root: Path) -> list[Row]:
        """Its rows, one an epoch, if it was ever finished, also if with fewer epochs; none otherwise."""
        return list((read_result(self.folder(root)) or {"rows": []})["rows"])

    def finished(self, root: Path) -> bool:
        """Whether a table could show it: the linear protocol was run after its last epoch and after all that ``probes`` names."""
        measured = {row["epoch"] for row in self.rows(root) if row.get("linear") is not None}
        return measured >= {self.settings.epochs, *self.settings.probes}

    def diverged(self, root: Path) -> str:
        """Where it diverged, such as ``diverged at step 12``; empty if it did not, as far as one knows."""
        path = self.folder(root) / checkpoints.DIVERGED
        return path.read_text(encoding="utf-8").strip() if path.is_file() and not self.finished(root) else ""


def run_of(name: str, *, seed: int, epochs: int | None = None, changes: Iterable[str] = ()) -> Run:
    """The run of a preset with some ``key=value`` changed; fewer epochs than the preset's leave out its later probes.

    Raises ValueError for an unknown name, with the nearest, and for changes that are not allowed: ``--seed 1 --set seed=2`` would
    have to mean one of them.
    """
    if name not in presets():
        raise unknown("preset", name, presets())
    changes = list(changes)
    taken = {"seed", "epochs"} if epochs else {"seed"}
    if twice := taken & {change.partition("=")[0].strip() for change in changes}:
        raise ValueError(f"{min(twice)} is given by --{min(twice)}, not by --set")
    settings = presets()[name].settings
    settings = with_changes(replace(settings, epochs=epochs or settings.epochs), changes)
    kept = tuple(epoch for epoch in settings.probes if epoch <= settings.epochs)
    return Run(name, replace(settings, seed=seed, probes=kept))


# --- settings as a command line writes them --------------------------------------------------------------------------


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """The settings with ``key=value`` set, as ``--set`` gives them: ``lr=0.03``, ``networks.width=16``, ``temperature=0.2``.

    A value is read as JSON, or else as a word; ``none`` is nothing, and a list has commas: ``probes=100,300``.
    Raises ValueError for what is not of that form, an unknown key (with the nearest ones), or a value that is not allowed.

    >>> with_changes(SMALL, ["networks.width=32", "betas=0.9,0.99"]).betas
    (0.9, 0.99)
    """
    found: dict[str, Any] = {}
    words = {"none": None, "null": None, "true": True, "false": False}  # in any case
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"a change must be of the form key=value, got {change!r}")
        if key in ("networks", "loss_kwargs"):
            raise ValueError(f"{key} can't be set as a whole, but by parts: networks.width=16, or temperature=0.2")
        values = []
        for part in [text] if text.startswith("[") else filter(str.strip, text.split(",")):
            word = part.strip()
            try:
                values.append(words[word.lower()] if word.lower() in words else json.loads(word))
            except json.JSONDecodeError:
                values.append(word)
        found[key] = values[0] if len(values) == 1 else tuple(values)
    return with_values(settings, found)


# --- the command `sslbook train` -------------------------------------------------------------------------------------

PARENT = "SSLBOOK_PARENT"
"""The variable with the number of the process that began this one as one of several."""


def train_command(arguments: Sequence[str]) -> int:
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
    """This command in so many processes, begun as ``torchrun`` does; the exit status of the one that failed first.

    They share the cores, unless OMP_NUM_THREADS is set, and end with this process.
    """
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
        time.sleep(5.0)  # to be ended with the lost one by whoever began both
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


# --- the command `sslbook runs` --------------------------------------------------------------------------------------

MEASURED = {
    "loss": ("loss", ".4f"),
    "knn": ("k-NN", ".2%"),
    "linear": ("linear", ".2%"),
    "embedding_cosine": ("cosine", ".3f"),
    "embedding_rank": ("rank of embeddings", ".1f"),
    "feature_rank": ("of features", ".1f"),
}
"""What is shown of a run's last row, or of the last one that has it, under which head: accuracies in per cent."""


def runs_command(arguments: Sequence[str]) -> int:
    """Print a line for each run: its name, the settings that differ, the epochs done, what was measured last, and its state."""
    does = "The runs of a folder beside each other, of `sslbook train` and of `pretrain`, finished or not."
    parser = argparse.ArgumentParser(prog="sslbook runs", description=does)
    parser.add_argument("folder", nargs="?", type=Path, help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    told = "draw their curves over one another, as .png, .svg or .pdf"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=told)
    options = parser.parse_args(arguments)
    root = runs_folder(options.folder)
    try:
        found = read_runs(root)
        if not found:
            parser.error(f"{root} holds no run: a folder with result.json or a checkpoint, itself or below it")
        every = {name: None for settings, _, _ in found.values() for name in settings}
        kinds = {name: {json.dumps(settings.get(name)) for settings, _, _ in found.values()} for name in every}
        differ = [name for name in every if len(kinds[name]) > 1]
        known = {name for _, rows, _ in found.values() for row in rows for name in row if row[name] is not None}
        measured = [name for name in MEASURED if name in known]
        lines = [["run", *differ, "done", *(MEASURED[name][0] for name in measured), "state"]]
        for run, (settings, rows, state) in found.items():
            last = {
                name: next((row[name] for row in rows[::-1] if row.get(name) is not None), None) for name in measured
            }
            values = [f"{last[name]:{MEASURED[name][1]}}" if last[name] is not None else "-" for name in measured]
            done = str(rows[-1]["epoch"] if rows else 0)
            words = [str("-" if settings.get(name) is None else settings[name]) for name in differ]
            chosen = [word[: 7 if len(word) == 64 else 20] for word in words]  # of a digest its first digits
            lines.append([run, *chosen, done, *values, state])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print("\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines))
        if options.plot is not None:
            curves({name: rows for name, (_, rows, _) in found.items()}).savefig(options.plot, bbox_inches="tight")
    except ValueError as error:  # a checkpoint that is damaged, or another ending of a picture
        parser.error(str(error))
    return 0


def read_runs(root: Path) -> dict[str, tuple[dict[str, Any], list[Row], str]]:
    """Each run in or below a folder, by its name there: its settings without nesting, its rows, and its state in a word."""
    found = {}
    patterns = (checkpoints.RESULT, checkpoints.STEPS, checkpoints.DIVERGED)
    there = {path.parent for pattern in patterns for path in root.rglob(pattern)}
    for folder in sorted(there):
        content = checkpoints.read_result(folder)
        state = "finished" if content else "stopped"
        if content is None and (content := checkpoints.latest(folder)) is not None:
            content = {**content, **{part: json.loads(content[part]) for part in ("settings", "rows")}}
        if (folder / checkpoints.DIVERGED).exists():
            state = "diverged"
        if content is not None:
            last = next((row["collapsed"] for row in content["rows"][::-1] if "collapsed" in row), "")
            name = str(folder.relative_to(root)) if folder != root else folder.name
            found[name] = flat(content["settings"]), content["rows"], f"{state}, collapsed" if last else state
    return found
