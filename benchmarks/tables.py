"""The theory's printed tables at full size: minutes that they take, against their bars.

Table 6 of A: 60 trials of 49 epochs of 64,000 triplets, measured after 0, 1 and 49 of them.  Table 1 of C: 192 runs of 5,000
minibatches.  With ``--quick`` a hundredth of each.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

from benchmarks import Row
from sslbook._machine import cores
from sslchapters.audit import hltm
from sslchapters.hltm.runs import TreeRun
from sslchapters.modulation.records import cells
from sslchapters.modulation.runs import TokenRun, train_cells
from sslchapters.tables import printed


def run(options: argparse.Namespace) -> list[Row]:
    """Minutes of each table, against those that the whole may take."""
    share, processes, axes, rows = 100 if options.quick else 1, cores(), printed("A-Tab6").axes, []
    size = TreeRun.epoch_size // share  # of an epoch and a measurement
    trees = [TreeRun(lower=lower, width=width, epoch_size=size) for lower in axes["lower"] for width in axes["widths"]]
    table_6 = partial(hltm.rerun, trees, range(1, 11), latents=axes["latents"], epochs=(0, 1, 49))
    table_1 = partial(train_cells, TokenRun(steps=TokenRun.steps // share), list(cells("C-Tab1").values()), (1, 2, 3))
    for name, call, bar in (("Table 6 of A", table_6, 12.0), ("Table 1 of C", table_1, 20.0)):
        begun = time.perf_counter()
        call(processes=processes)
        minutes = (time.perf_counter() - begun) / 60
        rows.append(Row(f"{processes} processes", name, minutes, "min", None if options.quick else bar))
    return rows
