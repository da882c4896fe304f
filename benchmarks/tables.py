"""Printed tables of the theory against their bars: minutes at full size, replicas in a batch and alone, steps a second.

1. Table 6 of A: 60 trials of 49 epochs of 64,000 triplets, measured after 0, 1 and 49 of them; Table 1 of C, 192 runs.
2. Replica r of a batch of R against the same replica trained alone.
3. Steps of the trees' networks, and samples in them, a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks import Row, parser, report
from sslbook._check import positive
from sslbook._machine import cores
from sslbook._random import Streams
from sslbook.trees.exact import TreeNetwork
from sslbook.trees.latent import LatentTree
from sslchapters.hltm import records as trials
from sslchapters.hltm import runs as hltm
from sslchapters.modulation import records as tokens
from sslchapters.modulation.runs import TableCell, TokenRun, train_cells, train_tokens
from sslchapters.sweep import process_pool
from sslchapters.tables import printed

MINUTES_BARS = {"Table 6 of A": 12.0, "Table 1 of C": 20.0}
ALONE_BARS = {
    "trees": {torch.float32: 1e-6, torch.float64: 1e-12},
    "tokens": {torch.float32: 1e-5, torch.float64: 1e-12},
}
TRIALS, MEASURED = tuple(range(1, 11)), (0, 1, 49)
PROTOCOL, TOKENS = hltm.TreeRun(), TokenRun()
SEEDS = (1, 2, 3)


def run(*, quick: bool, processes: int) -> list[Row]:
    """All measurements; ``quick`` extrapolates each table from two short runs of it."""
    how = "two short runs" if quick else "measured"
    sizes: dict[str, tuple[Callable[[int, int], float], tuple[int, int], int]] = {
        "Table 6 of A": (trees_seconds, (640, 6400), PROTOCOL.epoch_size),
        "Table 1 of C": (tokens_seconds, (16, 112), TOKENS.steps),
    }
    rows = []
    for name, (taken, short, whole) in sizes.items():
        if quick:
            one, other = (taken(size, processes) for size in short)
            found = other + (other - one) / (short[1] - short[0]) * (whole - short[1])
        else:
            found = taken(whole, processes)
        rows.append(Row(f"{processes} processes ({how})", f"minutes of {name}", found / 60, "min", MINUTES_BARS[name]))
    with process_pool(1) as pool:  # threads would share out the sums of a batch otherwise than those of one replica
        for call in (_trees_alone, _tokens_alone, rates):
            rows += pool.submit(call, 20 if quick else 100).result()
    return rows


# -- the tables ---------------------------------------------------------------------------------------------------------


def trees_seconds(epoch_size: int, processes: int) -> float:
    """Seconds for all cells of Table 6 of A with ``epoch_size`` samples an epoch and a measurement."""
    axes, begun = printed("A-Tab6").axes, time.perf_counter()
    base = replace(PROTOCOL, epoch_size=epoch_size)
    protocols = [replace(base, lower=lower, width=width) for lower in axes["lower"] for width in axes["widths"]]
    trials.rerun(protocols, TRIALS, latents=axes["latents"], epochs=MEASURED, processes=processes)
    return time.perf_counter() - begun


def tokens_seconds(steps: int, processes: int) -> float:
    """Seconds for Table 1 of C with so many minibatches a run."""
    cells, begun = tokens.wanted_cells(["C-Tab1"]), time.perf_counter()
    train_cells(replace(TOKENS, steps=steps), cells, SEEDS, processes=processes)
    return time.perf_counter() - begun


# -- replicas -----------------------------------------------------------------------------------------------------------


def _parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
    """All weights and biases, ``(R, count)``."""
    return torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1)


def _trees_alone(steps: int) -> list[Row]:
    """The largest difference of any parameter between a replica of six in a batch and the same replica alone."""
    seeds, rows = [1, 2, 3, 4, 5, 6], []
    for dtype, bar in ALONE_BARS["trees"].items():
        gaps = []
        for loss in hltm.FORMULAS:
            for width in (2, 5, 10):
                protocol = replace(PROTOCOL, width=width, loss=loss, epoch_size=steps * PROTOCOL.batch)
                together = hltm.train_trees(protocol, seeds, 1, _parameters, [1], dtype=dtype)[1]
                r = width % len(seeds)
                single = hltm.train_trees(protocol, [seeds[r]], 1, _parameters, [1], dtype=dtype)[1]
                gaps.append((together[r] - single[0]).abs().max())
        rows.append(_apart("trees", dtype, gaps, bar, steps))
    return rows


def _tokens_alone(steps: int) -> list[Row]:
    """The largest difference of any weight between a replica of eighteen in a batch and the same replica alone."""
    protocol, rows = replace(TOKENS, steps=steps), []
    cells = [TableCell(p, 15 // p, a) for a in ("linear", "relu") for p in (1, 3, 5)]
    replicas = [(cell, seed) for cell in cells for seed in SEEDS]
    for dtype, bar in ALONE_BARS["tokens"].items():
        together, _ = train_tokens(protocol, replicas, dtype=dtype)
        gaps = []
        for r in (0, 7, 17):
            single, _ = train_tokens(protocol, [replicas[r]], dtype=dtype)
            gaps += [
                (together.weights[r] - single.weights[0]).abs().max(),
                (together.top[r] - single.top[0]).abs().max(),
            ]
        rows.append(_apart("tokens", dtype, gaps, bar, steps))
    return rows


def _apart(what: str, dtype: torch.dtype, gaps: Sequence[Tensor], bar: float, steps: int) -> Row:
    part = f"replica r of a batch of {what} against itself alone, after {steps} steps"
    return Row(part, f"{what}, {dtype}", float(torch.stack(list(gaps)).max()), bar=bar)


# -- rates --------------------------------------------------------------------------------------------------------------


def rates(count: int) -> list[Row]:
    """Steps of one replica, and samples in them, a second, in chunks as long as training makes them."""
    part = f"rates in one process, trees of depth {PROTOCOL.depth}, minibatches of {PROTOCOL.batch} triplets"
    rows = []
    for width in (2, 10):
        protocol = replace(PROTOCOL, width=width)
        seeds = TRIALS[: max(1, min(hltm.CACHE_UNITS // width, len(TRIALS) // 2))]
        tree, net = hltm.start(protocol, seeds)
        streams = Streams(seeds, "minibatches")
        for steps in (3, count):  # those of the first are not counted
            begun = time.perf_counter()
            for leaves in hltm.minibatches(tree, streams, protocol.batch, steps, torch.float32):
                hltm.step(net, leaves, protocol)
        rate = count * len(seeds) / (time.perf_counter() - begun)
        rows.append(Row(part, f"{width} units: steps of one replica", rate, "/s"))
        rows.append(Row(part, f"{width} units: samples", 3 * PROTOCOL.batch * rate, "/s"))
    return rows


def main(arguments: Sequence[str]) -> int:
    """``sslbook bench tables``: print the table; exit status 1 if a bar is missed."""
    asked = parser("tables", __doc__, "extrapolate the tables' minutes from two short runs")
    asked.add_argument("--processes", type=positive, metavar="N", help="processes (default: one a core)")
    options = asked.parse_args(arguments)
    return report(run(quick=options.quick, processes=options.processes or cores()), as_json=options.json)
