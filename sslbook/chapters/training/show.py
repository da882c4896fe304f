"""``sslbook train`` and the tables of full runs: ``sslbook table A-Tab2``, ``sslbook table B-Tab3-stl10``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sslbook.arguments import counted, positive, seed
from sslbook.chapters.training import cluster
from sslbook.chapters.training.presets import Sheet, presets, sheets
from sslbook.chapters.training.runs import Line, Run, lines, origins, preset_of, record_of, run_of, runs_folder, runs_of
from sslbook.training.runs.resources import Refused, join, load_data
from sslbook.training.runs.settings import values_of

SEEDS = 5
"""Runs of each cell, as the papers have them."""


def main(arguments: Sequence[str]) -> int:
    """``sslbook train``: run a preset, or list them; exit status 1 if the run diverges, 2 for what can't be run."""
    parser = argparse.ArgumentParser(
        prog="sslbook train", description="Train a preset from the papers' tables, or go on with it."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a preset; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the presets; with NAME, say what it is and stop")
    parser.add_argument("--epochs", type=positive, metavar="N", help="epochs in all (default: the preset's)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of everything random (default: 0)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="changes",
        help="change a setting: --set rate=0.1",
    )
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes that share each batch")
    parser.add_argument("--again", action="store_true", help="begin anew, although there are checkpoints")
    parser.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard too")
    _common(parser)
    options = parser.parse_args(arguments)
    if options.list or options.name is None:
        if options.name is None and not options.list:
            parser.error("NAME is missing; --list shows the presets")
        return _list(parser, options.name)
    try:
        run = run_of(options.name, seed=options.seed, epochs=options.epochs, changes=options.changes)
        if options.download and "LOCAL_RANK" not in os.environ:
            load_data(run.settings, download=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.workers > 1 and "LOCAL_RANK" not in os.environ:
        _spread(options.workers, arguments)
    return _train(parser, run, runs_folder(options.folder), options)


def table(
    name: str, arguments: Sequence[str], records: Callable[[str], Any], save: Callable[..., Path] | None = None
) -> int:
    """``sslbook table``: the paper's numbers beside those of our finished runs; ``--run`` makes what is missing.

    records, save: read and write what was recorded; a cell that no run is here for is shown as recorded.
    """
    sheet = sheets()[name]
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {name}", description="Full runs beside the paper's numbers; what is missing is said."
    )
    parser.add_argument("--run", action="store_true", help="make the runs that are missing, one after the other")
    parser.add_argument("--cluster", choices=cluster.CLUSTERS, help="make them through submitit instead")
    parser.add_argument("--workers", type=positive, metavar="N", help="runs at once on a cluster (default: 1)")
    parser.add_argument("--hours", type=positive, metavar="N", help="the longest that a job may take (Slurm: 24)")
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="OPTION", help="an option of sbatch: --slurm partition=gpu"
    )
    parser.add_argument("--seeds", type=positive, default=SEEDS, metavar="N", help=f"seeds 1 to N (default: {SEEDS})")
    parser.add_argument("--epochs", type=positive, metavar="N", help="epochs at most (default: the table's)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help="change a setting of all runs"
    )
    parser.add_argument("--dry-run", action="store_true", help="name the runs that are missing, and make none")
    parser.add_argument("--json", action="store_true", help="as JSON, with every seed")
    parser.add_argument("--record", action="store_true", help="write the finished runs' numbers to data/results")
    _common(parser)
    options = parser.parse_args(arguments)
    as_printed = not options.changes and options.epochs is None
    if options.record and (save is None or not as_printed):
        parser.error("--record is of the table as it is printed, without --set and --epochs")
    for option in ("workers", "hours"):
        if getattr(options, option) and not options.cluster:
            parser.error(f"--{option} is for a cluster: add --cluster local")
    if options.slurm and options.cluster != "slurm":
        parser.error("--slurm is for a cluster: add --cluster slurm")
    seeds, root = range(1, options.seeds + 1), runs_folder(options.folder)
    chosen = {"epochs": options.epochs, "changes": options.changes}
    try:
        wanted = runs_of(sheet, seeds, **chosen)
        missing = [run for run in wanted if not run.finished(root)]
    except ValueError as error:
        parser.error(str(error))
    if options.dry_run:
        return _name(missing, root)
    failed: list[str] = []
    if missing and (options.run or options.cluster):
        try:
            failed = _make(missing, root, options)
        except (Refused, OSError) as error:
            parser.error(str(error))
    if options.record and save is not None:
        here = origins(wanted, root)
        if not here:
            parser.error(f"there is nothing to record: no run of {name} is finished in {root}")
        values = record_of(lines(sheet, seeds, root), here)
        seconds = sum(origin.get("seconds") or 0 for origin in here.values())
        file = save(
            name, values, seeds=seeds, seconds=seconds, command=shlex.join(["sslbook", "table", name, *arguments])
        )
        print(f"Written: {file}", file=sys.stderr)
    record = _recorded(name, records) if as_printed else None
    found = lines(sheet, seeds, root, recorded=record["runs"] if record is not None else None, **chosen)
    if options.json:
        print(json.dumps(as_json(sheet, found), indent=2, ensure_ascii=False))
        return 1 if failed else 0
    print(f"{name}: {sheet.source}.")
    if options.changes:
        print(f"Changed: {', '.join(options.changes)}.")
    print("Accuracy of the linear protocol in percent; best: over its epochs, by the test images, as released.\n")
    print(block(found))
    if record is not None and any(row.recorded for row in found):
        print(f"\nr: recorded, {record.provenance}")
    left = [run for run in wanted if not run.finished(root)]
    if left:
        again = shlex.join(["sslbook", "table", name, *_given(options), "--run"])
        print(f"\n{counted(len(left), 'run')} of {len(wanted)} not made yet: {again} makes them.")
        print("".join(f"{sentence}\n" for sentence in cluster.fates(left, root)), end="")
    return 1 if failed else 0


def _recorded(name: str, records: Callable[[str], Any]) -> Any:
    """The record of a table; None if there is none."""
    try:
        return records(name)
    except ValueError:
        return None


def _given(options: argparse.Namespace) -> list[str]:
    """The options that say which runs are meant, as they were given."""
    given = [part for change in options.changes for part in ("--set", change)]
    if options.seeds != SEEDS:
        given += ["--seeds", str(options.seeds)]
    if options.epochs is not None:
        given += ["--epochs", str(options.epochs)]
    return given + (["--folder", str(options.folder)] if options.folder is not None else [])


def block(found: Sequence[Line]) -> str:
    """A row a cell: the paper's accuracy, ours, the difference; and ours at the end of the linear protocol."""
    wide = max(len(row.label) for row in found) + 2
    out = [f"{'':{wide}}{'paper':<14}{'best':<14}{'diff.':<9}{'final':<14}n"]
    for row in found:
        mean, std = row.printed
        theirs = "–" if mean is None else entry(mean, std)
        if not row.best:
            out.append(f"{row.label:<{wide}}{theirs:<14}{'; '.join(dict.fromkeys(row.diverged)) or 'no run'}")
            continue
        best, final = ([100 * value for value in values] for values in (row.best, row.final))
        apart = "–" if mean is None or not row.comparable else f"{statistics.mean(best) - mean:+.2f}"
        count = (
            f"{len(best)}"
            + (" r" if row.recorded else "")
            + (f", {len(row.diverged)} diverged" if row.diverged else "")
        )
        out.append(f"{row.label:<{wide}}{theirs:<14}{ours(best):<14}{apart:<9}{ours(final):<14}{count}")
    return "\n".join(out)


def ours(values: Sequence[float]) -> str:
    """Mean and sample deviation over the seeds; the mean alone of one."""
    return entry(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def entry(mean: float, std: float | None) -> str:
    """``84.20±0.09``, or the mean alone."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f}±{std:.2f}"


def as_json(sheet: Sheet, found: Sequence[Line]) -> dict[str, Any]:
    """The table with every seed, for a program to read."""
    cells = [
        {
            "cell": row.label,
            "preset": row.preset,
            "epochs": row.epochs,
            "printed": {"mean": row.printed[0], "std": row.printed[1]},
            "best": row.best,
            "final": row.final,
            "comparable": row.comparable,
            "recorded": row.recorded,
            "diverged": list(row.diverged),
        }
        for row in found
    ]
    return {"name": sheet.name, "source": sheet.source, "cells": cells}


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N (default: cuda if there is one)")
    parser.add_argument("--download", action="store_true", help="fetch the images if they are not here")
    parser.add_argument("--quiet", action="store_true", help="say nothing while it runs")


def _list(parser: argparse.ArgumentParser, name: str | None) -> int:
    if name is not None:
        try:
            preset = preset_of(name)
        except ValueError as error:
            parser.error(str(error))
        print(f"{preset.text()}\n  What --set KEY=VALUE changes, and its values:")
        values = {key: value for key, value in values_of(preset.settings).items() if key not in ("seed", "epochs")}
        print("\n".join(f"    {key}={value}" for key, value in values.items()))
        return 0
    known = presets()
    wide = max(map(len, known))
    for preset in known.values():
        printed = [f"{table} {cell.mean:.2f} %" for table, cell in preset.cells if cell.mean is not None]
        also = [table for table, cell in preset.cells if cell.mean is None]
        time = [f"about {preset.minutes:.0f} min on one H200"] if preset.minutes else []
        more = "; ".join(dict.fromkeys([*printed, *also, *time]))
        print(f"{preset.name:<{wide}}  {preset.what}{f' ({more})' if more else ''}")
    return 0


def _spread(workers: int, arguments: Sequence[str]) -> None:
    """Become torchrun with so many processes of this command; doesn't return."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    os.execv(sys.executable, [*command, "-m", "sslbook", "train", *arguments])


def _train(parser: argparse.ArgumentParser, run: Run, root: Path, options: argparse.Namespace) -> int:
    from sslbook.training.runs import distributed
    from sslbook.training.runs.state import Diverged
    from sslbook.training.runs.trainer import train

    first = os.environ.get("RANK", "0") == "0"
    folder = run.folder(root)
    try:
        if not options.again and _finished(parser, run, root, options.device):
            if first:
                print(f"Finished already: {folder} (--again begins anew)")
            return 0
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
    except BrokenPipeError:
        raise
    except (Refused, OSError) as error:
        parser.error(str(error))
    except Diverged as error:
        print(f"sslbook train: {error} (in {folder})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sslbook train: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    finally:
        distributed.leave()
    if first:
        print(summary(result.rows))
    return 0


def _finished(parser: argparse.ArgumentParser, run: Run, root: Path, device: str | None) -> bool:
    """Whether the run is finished, in the folders of all machines that take part: no process may leave the others waiting."""
    from sslbook.training.runs import distributed

    try:
        if "WORLD_SIZE" in os.environ:
            join(device)
        return distributed.everywhere(run.finished(root))
    except ValueError as error:
        parser.error(str(error))


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


def _name(missing: Sequence[Run], root: Path) -> int:
    for run in missing:
        print(run.folder(root))
    print(f"{counted(len(missing), 'run')} missing.")
    return 0


def _make(missing: Sequence[Run], root: Path, options: argparse.Namespace) -> list[str]:
    """Make runs here or on a cluster; returns a sentence for each that came to no end."""
    if options.download:
        for settings in {(run.settings.dataset, run.settings.split): run.settings for run in missing}.values():
            load_data(settings, download=True)
    chosen = {"device": options.device, "quiet": options.quiet}
    if options.cluster is None:
        failed = []
        for number, run in enumerate(missing, 1):
            if not options.quiet:
                print(f"Run {number} of {len(missing)}: {run.folder(root).name}", flush=True)
            failed += cluster.work([run], root, chosen)
        return failed
    asked = {"hours": options.hours, "parameters": cluster.for_sbatch(options.slurm)}
    jobs = cluster.submit(missing, root, options.cluster, workers=options.workers or 1, **asked, **chosen)
    print(f"{counted(len(jobs), 'job')} handed over; their logs are in {root / 'jobs'}", flush=True)
    return [] if options.cluster == "slurm" else cluster.collect(jobs)
