"""``sslbook bench modulation``: Table 1 of [tian2023] at full size, beside how the released code would train it.

Seconds of the two are CPU seconds of one thread, measured in one run on processes side by side.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbook.bench._report import Row, parser, report
from sslbook.bench._timing import mean_seconds
from sslbook.chapters.modulation import decomposition, dynamics, tables
from sslbook.chapters.modulation.tokens import WILDCARD, make_world
from sslbook.chapters.modulation.training import Cell, Protocol, Replica, run, train
from sslbook.machine import cores, process_pool
from sslbook.normalization import BatchNorm

MINUTES_BAR, RATIO_BAR, SMALL_BAR, GAP_BAR = 20.0, 15.0, 30.0, 1e-9
SMALL = 25
"""Filters in a field up to which the second bar counts."""
ALONE_BARS = {torch.float32: 1e-5, torch.float64: 1e-12}

PROTOCOL, SEEDS = Protocol(), (1, 2, 3)
CELLS = tables.wanted_cells(["C-Tab1"])


def bench(*, quick: bool = False, processes: int | None = None) -> list[Row]:
    """All measurements; ``quick`` extrapolates the table from two short runs of it."""
    processes = processes or cores()
    wall, cpu = extrapolated(processes) if quick else table_seconds(PROTOCOL.steps, processes)
    how = "two short runs" if quick else "measured"
    part = (
        f"Table 1 of C, {len(CELLS) * len(SEEDS)} runs of {PROTOCOL.steps} minibatches, {processes} processes ({how})"
    )
    return [
        Row(part, "minutes", wall / 60, "min", MINUTES_BAR),
        Row(part, "CPU seconds a run", cpu / (len(CELLS) * len(SEEDS)), "s"),
        *_slow_way(cpu, processes),
        *alone(100),
        *identities(120),
    ]


# -- 1: the table -------------------------------------------------------------------------------------------------------


def table_seconds(steps: int, processes: int) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds of the processes, for Table 1 with so many minibatches a run."""
    begun, used = time.perf_counter(), _children()
    with process_pool(processes) as pool:  # also one is a process of its own, so that its seconds are counted apart
        calls = [pool.submit(run, replace(PROTOCOL, steps=steps), part, SEEDS) for part in _shares()]
        for call in calls:
            call.result()
    return time.perf_counter() - begun, _children() - used


def _shares() -> list[list[Cell]]:
    """The table's cells of one shape each, the largest first."""
    shapes = sorted({cell.filters for cell in CELLS}, reverse=True)
    return [[cell for cell in CELLS if cell.filters == filters] for filters in shapes]


def _children() -> float:
    """CPU seconds of processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def extrapolated(processes: int, steps: tuple[int, int] = (16, 112)) -> tuple[float, float]:
    """Both seconds for the table at full length, on the line through two short runs."""
    short, long = (torch.tensor(table_seconds(count, processes), dtype=torch.float64) for count in steps)
    wall, cpu = (long + (long - short) / (steps[1] - steps[0]) * (PROTOCOL.steps - steps[1])).tolist()
    return wall, cpu


# -- 2: the slow way ----------------------------------------------------------------------------------------------------


class SlowNetwork(nn.Module):
    """A layer a field, BatchNorm over all of them, a layer on top; PyTorch's own initial weights."""

    def __init__(self, cell: Cell, protocol: Protocol) -> None:
        super().__init__()
        self.fields = nn.ModuleList(
            nn.Linear(protocol.tokens, cell.filters, bias=False) for _ in range(protocol.fields)
        )
        self.norm = BatchNorm(protocol.fields * cell.filters, mean=cell.mean, std=cell.std)
        self.top = nn.Linear(protocol.fields * cell.filters, protocol.outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of unit length of ``(B, K, d)``."""
        hidden = torch.stack([layer(x[:, k]) for k, layer in enumerate(self.fields)], 1).relu()
        out: Tensor = self.top(self.norm(hidden.flatten(1)))
        return functional.normalize(out, dim=1)


def slow_views(generators: list[list[int]], vectors: Tensor, protocol: Protocol) -> tuple[Tensor, Tensor]:
    """A minibatch of positive pairs, drawn and embedded one token after the other; ``vectors``: the tokens', in columns."""
    patterns = random.choices(generators, k=protocol.batch)
    views = []
    for _ in range(2):
        x = torch.zeros(protocol.batch, protocol.fields, protocol.tokens)
        for i, pattern in enumerate(patterns):
            for k, token in enumerate(pattern):
                a = random.randint(0, protocol.tokens - 1) if token == WILDCARD else token
                x[i, k] = vectors[:, a]
        views.append(x)
    return views[0], views[1]


def _slow_seconds(cell: Cell, seed: int, count: int) -> float:
    """CPU seconds of one minibatch of one run the released way, the mean over ``count``, after one to warm up."""
    torch.manual_seed(seed)
    random.seed(seed)
    world = make_world([seed], [cell.patterns], zeta=[cell.zeta])
    generators, vectors = world.generators[0].tolist(), world.lengths[0].float().diag()
    net = SlowNetwork(cell, PROTOCOL)
    optimizer = torch.optim.SGD(net.parameters(), PROTOCOL.rate, PROTOCOL.momentum, weight_decay=PROTOCOL.decay)
    label = torch.arange(PROTOCOL.batch)

    def minibatch() -> None:
        one, two = slow_views(generators, vectors, PROTOCOL)
        optimizer.zero_grad()
        z1, z2 = net(one), net(two)
        s = z1 @ z1.T
        s[label, label] = (z1 * z2).sum(1)
        functional.cross_entropy(s / PROTOCOL.tau, label).backward()
        optimizer.step()

    return mean_seconds(minibatch, count, clock=time.process_time)


def _our_seconds(replicas: Sequence[Replica], count: int) -> float:
    """CPU seconds of one minibatch of one run of ours, trained side by side; the mean over ``count`` minibatches."""
    train(replace(PROTOCOL, steps=16), replicas)
    begun = time.process_time()
    train(replace(PROTOCOL, steps=count), replicas)
    return (time.process_time() - begun) / (count * len(replicas))


def _slow_way(ours: float, processes: int, count: int = 12) -> list[Row]:
    """What Table 1 would take the released way, in CPU seconds, beside ``ours``; and step by step where fields have few filters."""
    shapes = {cell.filters: cell for cell in CELLS}
    beside = {m: [(cell, seed) for cell in CELLS if cell.filters == m for seed in SEEDS][:12] for m in shapes}
    with process_pool(processes) as pool:
        slow = {m: pool.submit(_slow_seconds, cell, 1, count) for m, cell in shapes.items()}
        fast = {m: pool.submit(_our_seconds, beside[m], 8 * count) for m in shapes}
        theirs, mine = ({m: call.result() for m, call in calls.items()} for calls in (slow, fast))
    released = len(SEEDS) * PROTOCOL.steps * sum(theirs[cell.filters] for cell in CELLS)
    ratios = {m: theirs[m] / mine[m] for m in shapes}
    small = [m for m in shapes if m <= SMALL]
    part = f"the released way, extrapolated from {count} minibatches a shape; CPU seconds"
    return [
        Row(part, "a run, mean over the table", released / (len(CELLS) * len(SEEDS)), "s"),
        Row(part, "Table 1", released / 3600, "h"),
        Row(part, "ours is faster over the table by", released / ours, "x", RATIO_BAR, at_least=True),
        Row(
            part,
            f"and with up to {SMALL} filters a field by at least",
            min(ratios[m] for m in small),
            "x",
            SMALL_BAR,
            at_least=True,
        ),
        Row(part, f"with {max(shapes)} filters a field by", ratios[max(shapes)], "x"),
    ]


# -- 3: replicas and identities -------------------------------------------------------------------------------------------


def alone(steps: int) -> list[Row]:
    """The largest difference of any weight between a replica in a batch and the same replica alone."""
    replicas = [(Cell(p, 15 // p, a), seed) for a in ("linear", "relu") for p in (1, 3, 5) for seed in SEEDS]
    part = f"replica r of a batch of {len(replicas)} against itself alone, after {steps} steps"
    rows = []
    for dtype, bar in ALONE_BARS.items():
        protocol = replace(PROTOCOL, steps=steps)
        together, _ = train(protocol, replicas, dtype=dtype)
        gaps = []
        for r in (0, 7, 17):
            single, _ = train(protocol, [replicas[r]], dtype=dtype)
            gaps += [
                (together.weights[r] - single.weights[0]).abs().max(),
                (together.top[r] - single.top[0]).abs().max(),
            ]
        rows.append(Row(part, str(dtype).removeprefix("torch."), float(torch.stack(gaps).max()), bar=bar))
    return rows


def identities(count: int, seed: int = 0) -> list[Row]:
    """The largest relative error of each identity over so many random instances."""
    part = f"identities, float64, {count} random instances each: largest relative error"
    found = {
        "Lemma 4": dynamics.lemma4_gaps(count, seed),
        "Lemma 5": decomposition.lemma5_gaps(count, seed),
        "Lemma 6": dynamics.lemma6_gaps(count, seed),
        "Theorem 4": dynamics.theorem4_gaps(count, seed),
        "Theorem 5": decomposition.theorem5_gaps(count, seed),
        "Corollary 3": decomposition.corollary3_gaps(count, seed),
    }
    rows = []
    for name, gaps in found.items():
        held = [gap for key, gap in gaps.items() if key != "instances" and not key.startswith("broken:")]
        rows.append(Row(part, name, max(held), bar=GAP_BAR))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """``sslbook bench modulation``: print the table; exit status 1 if a bar is missed."""
    options = parser("modulation", __doc__).parse_args(arguments)
    return report(bench(quick=options.quick, processes=options.processes), as_json=options.json)
