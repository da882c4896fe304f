"""The theory's printed tables at full size: minutes that they take, against their bars.

Table 6 of A: 60 trials of 49 epochs of 64,000 triplets, measured after 0, 1 and 49 of them.  Table 1 of C: 192 runs of 5,000
minibatches.  ``--quick`` extrapolates each from two short runs.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import Row
from sslbook._machine import cores
from sslchapters.audit import hltm
from sslchapters.hltm.runs import TreeRun
from sslchapters.modulation.records import cells
from sslchapters.modulation.runs import TokenRun, train_cells
from sslchapters.tables import printed


def trees(epoch_size: int, processes: int) -> None:
    """All cells of Table 6 of A with ``epoch_size`` samples an epoch and a measurement."""
    axes = printed("A-Tab6").axes
    cells = [
        TreeRun(lower=lower, width=width, epoch_size=epoch_size) for lower in axes["lower"] for width in axes["widths"]
    ]
    hltm.rerun(cells, range(1, 11), latents=axes["latents"], epochs=(0, 1, 49), processes=processes)


def tokens(steps: int, processes: int) -> None:
    """Table 1 of C with so many minibatches a run."""
    train_cells(TokenRun(steps=steps), list(cells("C-Tab1").values()), (1, 2, 3), processes=processes)


TABLES = (  # a name, what runs it at a size, two short sizes and the whole, and the bar in minutes
    ("Table 6 of A", trees, (640, 6400), TreeRun.epoch_size, 12.0),
    ("Table 1 of C", tokens, (16, 112), TokenRun.steps, 20.0),
)


def run(options: argparse.Namespace) -> list[Row]:
    """Minutes of each table."""
    processes, rows = cores(), []
    for name, call, short, whole, bar in TABLES:
        taken = []
        for size in short if options.quick else (whole,):
            begun = time.perf_counter()
            call(size, processes)
            taken.append(time.perf_counter() - begun)
        slope = (taken[-1] - taken[0]) / (short[1] - short[0])  # 0 where the whole was measured
        minutes = (taken[-1] + slope * (whole - short[1])) / 60
        how = "from two short runs" if options.quick else "measured"
        rows.append(Row(f"{processes} processes, {how}", f"minutes of {name}", minutes, "min", bar))
    return rows
