"""Hierarchical latent trees against their bars: a printed table at full size, the slow way beside it, replicas, rates.

1. Table 6 of A, all of it: 60 trials of 50 epochs of 64,000 triplets, measured after 0, 1 and 49 of them.
2. The same work done the way of the released experiments, in a short run of its own: one process a trial, a walk over the
   tree in Python, samples drawn one by one with one call for each variable, one linear layer for each part, autograd, and
   a pass of statistics before every epoch, as they have it; the ratio without that is printed too.
3. Replica r of a batch of R against the same replica trained alone.
4. Steps and samples a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sslbook.bench._report import Row, parser, report
from sslbook.bench._timing import mean_seconds
from sslbook.chapters.hltm import tables
from sslbook.chapters.hltm.gradients import EPSILON
from sslbook.chapters.hltm.training import (
    CACHE_UNITS,
    FORMULAS,
    Protocol,
    minibatches,
    start,
    step,
    train,
    train_chunks,
)
from sslbook.machine import cores, process_pool
from sslbook.streams import Streams
from sslbook.tables.printed import printed
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree
from sslbook.trees.network import TreeNetwork

MINUTES_BAR = 12.0
RATIO_BAR = 1000.0
ALONE_BARS = {torch.float32: 1e-6, torch.float64: 1e-12}

TRIALS, EPOCHS, MEASURED = 10, 50, (0, 1, 49)
PROTOCOL = Protocol()


def run(*, quick: bool = False, processes: int | None = None) -> list[Row]:
    """All measurements; ``quick`` extrapolates the table from two short runs of it."""
    processes = processes or cores()
    ours = extrapolated(processes) if quick else table_seconds(PROTOCOL.epoch_size, range(1, TRIALS + 1), processes)
    how = "two short runs" if quick else "measured"
    part = f"Table 6 of A, 60 trials of {EPOCHS} epochs, {processes} processes ({how})"
    with process_pool(1) as pool:  # threads would share out the sums of a batch otherwise than those of one replica
        single = pool.submit(alone, 200).result()
    return [
        Row(part, "minutes", ours / 60, "min", MINUTES_BAR),
        *_slow_way(ours, processes),
        *single,
        *rates(20 if quick else 200),
    ]


# -- 1: the table -------------------------------------------------------------------------------------------------------


def table_seconds(epoch_size: int, seeds: Sequence[int], processes: int, epochs: int = EPOCHS) -> float:
    """Seconds for all cells of Table 6 of A with ``epoch_size`` samples an epoch and a measurement."""
    target = printed("A-Tab6")
    protocols = [
        replace(PROTOCOL, lower=lower, width=width, epoch_size=epoch_size)
        for lower in target.axes["lower"]
        for width in target.axes["widths"]
    ]
    measure = tables.Measurement(target.axes["latents"], epoch_size)
    begun = time.perf_counter()
    train_chunks(protocols, list(seeds), epochs, measure, [e for e in MEASURED if e <= epochs], processes=processes)
    return time.perf_counter() - begun


def extrapolated(processes: int, sizes: tuple[int, int] = (640, 6400)) -> float:
    """Seconds for the table at full size, on the line through two runs with few samples an epoch; trials and epochs are all."""
    short, long = (table_seconds(size, range(1, TRIALS + 1), processes) for size in sizes)
    return long + (long - short) / (sizes[1] - sizes[0]) * (PROTOCOL.epoch_size - sizes[1])


# -- 2: the slow way ----------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A variable of one tree: its layer (None for a leaf), its children and the tables to them; what it found for statistics."""

    layer: nn.Linear | None
    children: list[Node]
    tables: list[Tensor]
    value: int = 0
    values: list[int] = field(default_factory=list)
    pre: Tensor | None = None
    sums: list[Tensor] = field(default_factory=list)


def grow(tree: LatentTree, width: int, depth: int = 0, index: int = 0) -> Node:
    """The first tree of ``tree`` as nodes, with PyTorch's own layers."""
    if depth == tree.depth:
        return Node(None, [], [])
    b = tree.branching[depth]
    children = [grow(tree, width, depth + 1, index * b + k) for k in range(b)]
    layer = nn.Linear(b if depth == tree.depth - 1 else b * width, width)
    return Node(layer, children, [tree.tables[depth][0, index * b + k].float() for k in range(b)])


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def draw(node: Node, value: int, leaves: list[int]) -> None:
    """Draw everything below a node whose value is given, one variable after the other."""
    node.value = value
    if not node.children:
        leaves.append(value)
    for child, table in zip(node.children, node.tables):
        draw(child, int(torch.multinomial(table[value], 1)), leaves)


def draw_leaves(root: Node, value: int) -> Tensor:
    """The leaves of one sample."""
    leaves: list[int] = []
    draw(root, value, leaves)
    return torch.tensor(leaves, dtype=torch.float32)


def _activity(node: Node, leaves: Iterator[Tensor]) -> Tensor:
    """Pre-activations ``(B, width)`` of a part, from the leaves' columns; a leaf gives its own."""
    if node.layer is None:
        return next(leaves)[:, None]
    read = [_activity(child, leaves) for child in node.children]
    out: Tensor = node.layer(torch.cat([x.relu() for x in read], 1))
    node.pre = out
    return out


def embed(root: Node, samples: Tensor) -> Tensor:
    """Output of the network on ``(B, leaves)``, divided by its length."""
    out = _activity(root, iter(samples.T))
    length: Tensor = out.norm(dim=1, keepdim=True)
    return out / (length + EPSILON)


def slow_loss(root: Node, triplets: Sequence[Tensor], tau: float) -> Tensor:
    """The released loss of anchors, positives and negatives, ``(B, leaves)`` each."""
    anchor, positive, negative = (embed(root, samples) for samples in triplets)
    p, n = (anchor - positive).square().mean(), (anchor - negative).square().mean()
    near, far = (-p / tau).exp(), (-n / tau).exp()
    loss: Tensor = -near / (near + far)
    return loss


def slow_triplets(root: Node, prior: Tensor, batch: int) -> list[Tensor]:
    """A minibatch of triplets, drawn one by one."""
    triplets: list[list[Tensor]] = [[], [], []]
    for _ in range(batch):
        kept, other = int(torch.multinomial(prior, 1)), int(torch.multinomial(prior, 1))
        for samples, value in zip(triplets, (kept, kept, other)):
            samples.append(draw_leaves(root, value))
    return [torch.stack(samples) for samples in triplets]


def slow_statistics(root: Node, prior: Tensor, batch: int) -> None:
    """A minibatch of the statistics pass: fresh samples, and raw sums at every part."""
    nodes, samples = list(walk(root)), []
    for node in nodes:
        node.values = []
    for _ in range(batch):
        samples.append(draw_leaves(root, int(torch.multinomial(prior, 1))))
        for node in nodes:
            node.values.append(node.value)
    with torch.no_grad():
        embed(root, torch.stack(samples))
        for node in nodes:
            if node.pre is not None:
                z, f = torch.tensor(node.values, dtype=torch.float32)[:, None], node.pre
                terms = [part.sum(0) for part in (z, f, z * z, f * f, z * f)]
                node.sums = [a + b for a, b in zip(node.sums, terms)] if node.sums else terms


def _slow_seconds(width: int, seed: int, count: int, batch: int = PROTOCOL.batch) -> tuple[float, float]:
    """Seconds of one minibatch of training, and of one of statistics; means over ``count``, after one to warm up."""
    torch.manual_seed(seed)
    tree, _ = start(replace(PROTOCOL, width=width), [seed])
    root, prior = grow(tree, width), tree.root[0].float()
    optimizer = torch.optim.SGD(
        [p for node in walk(root) if node.layer for p in node.layer.parameters()], PROTOCOL.rate
    )

    def training() -> None:
        optimizer.zero_grad()
        slow_loss(root, slow_triplets(root, prior, batch), PROTOCOL.tau).backward()
        optimizer.step()

    return mean_seconds(training, count), mean_seconds(lambda: slow_statistics(root, prior, batch), count)


def _slow_way(ours: float, processes: int, count: int = 2) -> list[Row]:
    """What Table 6 would take the slow way, with as many trials at once as processes, beside ``ours``, in seconds."""
    steps, widths = PROTOCOL.steps, printed("A-Tab6").axes["widths"]
    trials = TRIALS * len(printed("A-Tab6").axes["lower"])  # of each width
    training = statistics = 0.0
    with process_pool(processes) as pool:
        for width in widths:
            calls = [pool.submit(_slow_seconds, width, seed, count) for seed in range(1, processes + 1)]
            times = [call.result() for call in calls]
            training += trials * EPOCHS * steps * sum(t for t, _ in times) / processes**2
            statistics += trials * steps * sum(s for _, s in times) / processes**2  # of one pass
    released, fewer = training + EPOCHS * statistics, training + len(MEASURED) * statistics
    part = f"the released way, extrapolated from {count} minibatches of training and of statistics a process and width"
    return [
        Row(part, "one epoch of training of one trial", training * processes / (TRIALS * 6 * EPOCHS), "s"),
        Row(part, "one pass of statistics of one trial", statistics * processes / (TRIALS * 6), "s"),
        Row(part, "Table 6, measured before every epoch", released / 3600, "h"),
        Row(part, "ours is faster by", released / ours, "x", RATIO_BAR, at_least=True),
        Row(part, "had it measured only as often as ours", fewer / ours, "x"),
    ]


# -- 3: replicas ----------------------------------------------------------------------------------------------------------


def parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
    """All weights and biases, ``(R, count)``."""
    return torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1)


def alone(steps: int, replicas: int = 6) -> list[Row]:
    """The largest difference of any parameter between a replica in a batch and the same replica alone."""
    part = f"replica r of a batch of {replicas} against itself alone, after {steps} steps"
    rows = []
    for dtype, bar in ALONE_BARS.items():
        gaps = []
        for loss in FORMULAS:
            for width in (2, 5, 10):
                protocol = replace(PROTOCOL, width=width, loss=loss, epoch_size=steps * PROTOCOL.batch)
                seeds = list(range(1, replicas + 1))
                together = train(protocol, seeds, 1, parameters, [1], dtype=dtype)[1]
                r = width % replicas
                single = train(protocol, [seeds[r]], 1, parameters, [1], dtype=dtype)[1]
                gaps.append((together[r] - single[0]).abs().max())
        rows.append(Row(part, str(dtype).removeprefix("torch."), float(torch.stack(gaps).max()), bar=bar))
    return rows


# -- 4: rates -------------------------------------------------------------------------------------------------------------


def _step_seconds(width: int, count: int) -> float:
    """Seconds of one step of one replica, in a chunk as long as training makes it."""
    protocol = replace(PROTOCOL, width=width)
    seeds = list(range(1, 1 + max(1, min(CACHE_UNITS // width, TRIALS // 2))))
    tree, net = start(protocol, seeds)
    streams = Streams(seeds, "minibatches")
    for leaves in minibatches(tree, streams, protocol.batch, 3, torch.float32):
        step(net, leaves, protocol)
    begun = time.perf_counter()
    for leaves in minibatches(tree, streams, protocol.batch, count, torch.float32):
        step(net, leaves, protocol)
    return (time.perf_counter() - begun) / (count * len(seeds))


def rates(count: int) -> list[Row]:
    """Steps of replicas, and samples in them, a second, in one process with one thread."""
    part = f"rates in one process, depth {PROTOCOL.depth}, minibatches of {PROTOCOL.batch} triplets"
    rows = []
    with process_pool(1) as pool:
        for width in (2, 10):
            rate = 1 / pool.submit(_step_seconds, width, count).result()
            rows.append(Row(part, f"{width} units: steps of one replica", rate, "/s"))
            rows.append(Row(part, f"{width} units: samples", 3 * PROTOCOL.batch * rate, "/s"))
            variables = 3 * PROTOCOL.batch * trees.numbers_needed(start(PROTOCOL, [1])[0]) * rate
            rows.append(Row(part, f"{width} units: variables drawn", variables, "/s"))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """``sslbook bench hltm``: print the table; exit status 1 if a bar is missed."""
    options = parser("hltm", __doc__).parse_args(arguments)
    return report(run(quick=options.quick, processes=options.processes), as_json=options.json)
