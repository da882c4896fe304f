"""``sslbook runs``: the runs of a folder beside each other, of ``sslbook train`` and of ``pretrain``, finished or not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbook._files import runs_folder
from sslbook.training.run import checkpoints
from sslbook.training.run.checkpoints import Row
from sslbook.training.run.settings import flat
from sslbook.training.run.trainer import curves

MEASURED = {
    "loss": ("loss", ".4f"),
    "knn": ("k-NN", ".2%"),
    "linear": ("linear", ".2%"),
    "embedding_cosine": ("cosine", ".3f"),
    "embedding_rank": ("rank of embeddings", ".1f"),
    "feature_rank": ("of features", ".1f"),
}
"""What is shown of a run's last row, or of the last one that has it, under which head: accuracies in per cent."""


def main(arguments: Sequence[str]) -> int:
    """Print the table, and draw the curves if asked to."""
    parser = argparse.ArgumentParser(prog="sslbook runs", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    told = "draw their curves over one another, as .png, .svg or .pdf"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=told)
    options = parser.parse_args(arguments)
    root = runs_folder(options.folder)
    try:
        found = read_runs(root)
        if not found:
            parser.error(f"{root} holds no run: a folder with result.json or a checkpoint, itself or below it")
        print("\n".join(table(found)))
        if options.plot is not None:
            curves({name: rows for name, (_, rows, _) in found.items()}).savefig(options.plot, bbox_inches="tight")
    except ValueError as error:  # a checkpoint that is damaged, or another ending of a picture
        parser.error(str(error))
    return 0


def read_runs(root: Path) -> dict[str, tuple[dict[str, Any], list[Row], str]]:
    """Each run in or below a folder, by its name there: its settings without nesting, its rows, and its state in a word."""
    found = {}
    there = {
        path.parent
        for pattern in (checkpoints.RESULT, checkpoints.STEPS, checkpoints.DIVERGED)
        for path in root.rglob(pattern)
    }
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


def table(runs: Mapping[str, tuple[Mapping[str, Any], list[Row], str]]) -> list[str]:
    """A line for each run under a line of heads: its name, the settings that differ, epochs, what was measured, and its state."""
    every = {name: None for settings, _, _ in runs.values() for name in settings}
    differ = [name for name in every if len({json.dumps(settings.get(name)) for settings, _, _ in runs.values()}) > 1]
    known = {name for _, rows, _ in runs.values() for row in rows for name in row if row[name] is not None}
    measured = [name for name in MEASURED if name in known]
    lines = [["run", *differ, "done", *(MEASURED[name][0] for name in measured), "state"]]
    for run, (settings, rows, state) in runs.items():
        last = {name: next((row[name] for row in rows[::-1] if row.get(name) is not None), None) for name in measured}
        values = [f"{last[name]:{MEASURED[name][1]}}" if last[name] is not None else "-" for name in measured]
        done = str(rows[-1]["epoch"] if rows else 0)
        words = [str("-" if settings.get(name) is None else settings[name]) for name in differ]
        chosen = [word[: 7 if len(word) == 64 else 20] for word in words]  # of a digest its first digits
        lines.append([run, *chosen, done, *values, state])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
