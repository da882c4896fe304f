r"""The papers' tables of normalised correlation, rerun: Tables 4 and 6 of [tian2020], Table 2 of [tian2021iclr].

A trial is a random tree with a random network; the normalised correlation of a variable is the largest absolute correlation
of a unit of its part with it, over the part's units.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslbook.experiments.hltm.runs import FORMULAS, TreeRun, start, train_chunks
from sslbook.records import data_files
from sslbook.records.filled import Filled, fill
from sslbook.records.printed import PARTS, Printed, printed
from sslbook.records.store import Record
from sslbook.records.table_command import PROCESSES, Table, choice, option, processes_of
from sslbook.stats.replica_rng import Streams, to_device
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree, joint
from sslbook.trees.network import TreeNetwork, forward

# ---------------------------------------------------------------------------------------------------------------------
# Correlation from samples, accumulated centred in float64 or as the released code does it; and the largest there is


@dataclass
class CentredCorrelation:
    """Correlation of units with their latent variable over all blocks added, merged by means and centred sums in float64.

    Units that are constant, up to the rounding of the activations that are added, count as uncorrelated.
    """

    count: int = 0
    _sums: list[Tensor] = field(default_factory=list)
    _scale: Tensor | None = None
    _eps: float = 0.0

    def add(self, latent: Tensor, units: Tensor) -> None:
        """Add a block: ``latent`` of shape ``(R, nodes, B)``, ``units`` ``(R, nodes, width, B)``."""
        self._eps = torch.finfo(units.dtype).eps
        z, f = latent.double()[:, :, None], units.double()
        mean_z, mean_f = z.mean(-1, keepdim=True), f.mean(-1, keepdim=True)
        dz, df = z - mean_z, f - mean_f
        block = [mean_z[..., 0], mean_f[..., 0], (dz * dz).sum(-1), (df * df).sum(-1), (dz * df).sum(-1)]
        largest = f.abs().amax(-1)
        if not self.count:
            self._sums, self._scale, self.count = block, largest, f.shape[-1]
            return
        assert self._scale is not None
        more, total = f.shape[-1], self.count + f.shape[-1]
        gap_z, gap_f = block[0] - self._sums[0], block[1] - self._sums[1]
        weight = self.count * more / total
        gaps = (gap_z * gap_z, gap_f * gap_f, gap_z * gap_f)
        merged = [a + b + weight * gap for a, b, gap in zip(self._sums[2:], block[2:], gaps)]
        self._sums = [self._sums[0] + gap_z * more / total, self._sums[1] + gap_f * more / total, *merged]
        self._scale, self.count = torch.maximum(self._scale, largest), total

    def result(self) -> Tensor:
        """The correlations, ``(R, nodes, width)``."""
        assert self._scale is not None, "nothing was added"
        _, _, zz, ff, zf = self._sums
        constant = ff <= self.count * (4 * self._eps * self._scale) ** 2
        return torch.where(constant | (zz == 0), 0.0, zf / (zz * ff).sqrt())


@dataclass
class RawCorrelation:
    """The same from raw sums in float32, minibatch by minibatch, as the released code accumulates them.

    :math:`E[zf] - E[z]E[f]` over the roots of :math:`E[z^2] - E[z]^2` and :math:`E[f^2] - E[f]^2`, each clamped at 0; set to 0
    where the norms' product *and* the covariance lie below 1e-6, then clamped to [-1, 1].
    """

    batch: int = 128
    count: int = 0
    _sums: list[Tensor] = field(default_factory=list)

    def add(self, latent: Tensor, units: Tensor) -> None:
        """Add a block of whole minibatches, shapes as in :class:`CentredCorrelation`."""
        z, f = latent.float()[:, :, None].unflatten(-1, (-1, self.batch)), units.float().unflatten(-1, (-1, self.batch))
        partial = [part.sum(-1) for part in (z, f, z * z, f * f, z * f)]
        for minibatch in range(z.shape[-2]):
            terms = [part[..., minibatch] for part in partial]
            self._sums = [a + b for a, b in zip(self._sums, terms)] if self._sums else terms
        self.count += latent.shape[-1]

    def result(self) -> Tensor:
        """The correlations, ``(R, nodes, width)``, float32."""
        z, f, zz, ff, zf = (total / self.count for total in self._sums)
        covariance = zf - z * f
        norms = (zz - z * z).clamp_min(0).sqrt() * (ff - f * f).clamp_min(0).sqrt()
        corr = covariance / norms
        return torch.where((norms < 1e-6) & (covariance.abs() < 1e-6), 0.0, corr).clamp(-1, 1)


def best_linear(tree: LatentTree) -> Tensor:
    r"""The largest correlation with the root that a linear unit over the leaves can have, ``(R,)``.

    :math:`\sqrt{1 - E[r^2] / V[z_0]}`, with r the residual of the regression of :math:`z_0` on the leaves and a constant:
    least squares over all assignments.
    """
    assignments, chance = joint(tree)
    z, leaves = assignments[0][0, 0].to(chance.dtype), assignments[-1][0].to(chance.dtype)
    root = chance.sqrt()[..., None]
    design, target = root * torch.cat([torch.ones_like(z)[None], leaves]).T, root * z[:, None]
    residual = target - design @ torch.linalg.lstsq(design, target).solution
    centred = z - (chance @ z)[:, None]
    left: Tensor = residual.square().sum((1, 2)) / (chance * centred.square()).sum(1)
    return (1 - left).clamp_min(0).sqrt()


# ---------------------------------------------------------------------------------------------------------------------
# The measurements of the tables

STATISTICS = ("exact", "released", "population")
"""``exact``: centred, float64, on fresh samples; ``released``: raw sums in float32 on the same; ``population``: enumerated."""


def best_correlations(
    tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int, latents: Sequence[str], samples: int
) -> dict[str, Tensor]:
    """Normalised correlation of the named variables by each of the :data:`STATISTICS`, ``(R, latents)``.

    samples: fresh ones, a multiple of 128, from streams of their own.
    """
    places = [trees.place(tree, name) for name in latents]
    depths = [depth for depth, _ in places]
    index = [node for _, node in places]
    centred, raw = CentredCorrelation(), RawCorrelation()
    streams = Streams(seeds, f"statistics {epoch}")
    dtype = net.weights[0].dtype
    edges = trees.thresholds(tree, dtype)
    for done in range(0, samples, 3200):
        count = min(3200, samples - done)
        u = to_device(streams.uniform((1 + trees.numbers_needed(tree), count), dtype), tree.root.device)
        drawn = trees.descend(tree, trees.draw_root(tree, u[:, 0]), u[:, 1:], edges)
        seen = forward(net, drawn[-1])
        latent = torch.stack([drawn[d][:, i] for d, i in zip(depths, index)], 1)
        units = torch.stack([seen.pre[d][:, i] for d, i in zip(depths, index)], 1)
        centred.add(latent, units)
        raw.add(latent, units)
    population = exact.latent_correlations(tree, net)
    whole = torch.stack([population[d][:, i] for d, i in zip(depths, index)], 1)
    found = {"exact": centred.result(), "released": raw.result().double(), "population": whole}
    return {name: corr.abs().amax(-1).cpu() for name, corr in found.items()}


def untrained(protocol: TreeRun, seeds: Sequence[int], latents: Sequence[str], block: int = 4) -> Tensor:
    """Normalised correlation of the named variables before training, over the whole population: ``(R, latents)``."""
    shape, _ = start(protocol, seeds[:1])
    places, found = [trees.place(shape, name) for name in latents], []
    for first in range(0, len(seeds), block):
        corr = exact.latent_correlations(*start(protocol, seeds[first : first + block]))
        found.append(torch.stack([corr[d][:, i].abs().amax(-1) for d, i in places], 1))
    return torch.cat(found)


@dataclass(frozen=True)
class Measurement:
    """What :func:`train_chunks` measures for a table; a class so that worker processes can receive it."""

    latents: tuple[str, ...]
    samples: int

    def __call__(self, tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
        """:func:`best_correlations` after ``epoch`` epochs."""
        return best_correlations(tree, net, seeds, epoch, self.latents, self.samples)


def rerun(
    protocols: Sequence[TreeRun],
    seeds: Sequence[int],
    *,
    latents: Sequence[str],
    epochs: Sequence[int],
    processes: int = 2,
    samples: int = 64_000,
    device: torch.device | str = "cpu",
) -> list[dict[str, Tensor]]:
    """Trials of several protocols side by side: for each, a statistic's name to ``(epochs, R, latents)``.

    epochs: after how many epochs to measure; the last one ends the training.  samples: of each measurement.
    """
    measure = Measurement(tuple(latents), samples)
    runs = train_chunks(protocols, seeds, max(epochs), measure, epochs, processes=processes, device=device)
    return [{name: torch.stack([found[epoch][name] for epoch in epochs]) for name in STATISTICS} for found in runs]


def epochs_of(target: Printed) -> tuple[int, ...]:
    """After how many epochs each column of a printed table stands."""
    raw = data_files.printed_file(PARTS.get(target.name, (target.name, {}))[0])
    known = dict(zip(raw["columns"], raw["epochs"], strict=True))
    return tuple(known[column] for column in target.columns)


def table(
    target: Printed,
    seeds: Sequence[int],
    *,
    loss: str = "released",
    processes: int = 2,
    base: TreeRun | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Rerun a printed table: a statistic's name to ``(latents, lower, widths, columns, trials)``."""
    base = base or TreeRun(loss=loss)
    latents, lower, widths, _ = target.axes.values()
    cells = [replace(base, lower=low, width=width) for low in lower for width in widths]
    size = base.epoch_size
    runs = rerun(
        cells, seeds, latents=latents, epochs=epochs_of(target), processes=processes, samples=size, device=device
    )
    shape = (len(lower), len(widths))
    return {s: torch.stack([run[s] for run in runs]).unflatten(0, shape).permute(4, 0, 1, 2, 3) for s in STATISTICS}


def recorded_trials(values: Mapping[str, Any], target: Printed, loss: str, statistic: str) -> Tensor:
    """What the record has of a printed table, ``(latents, lower, widths, columns, trials)``."""
    found = torch.tensor(values[loss][statistic], dtype=torch.float64)
    wanted = {**target.axes, "epochs": epochs_of(target)}
    for axis, name in enumerate(("latents", "lower", "widths", "epochs")):
        labels = list(values[name])
        found = found.index_select(axis, torch.tensor([labels.index(label) for label in wanted[name]]))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The tables of ``sslbook table``


def _filled(name: str, options: argparse.Namespace, trials: Tensor | None, **more: Any) -> Filled:
    found = {} if trials is None else {"correlation": trials}
    facts = {"loss": options.loss, "statistic": options.statistic, **more.pop("facts", {})}
    return fill(printed(name), found, {"correlation": 2}, facts=facts, **more)


def _recall(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return _filled(name, options, None)
    trials = recorded_trials(record.values, printed(name), options.loss, options.statistic)
    facts = {"samples an epoch": record["samples"]}
    return _filled(name, options, trials, facts=facts, seeds=record.provenance.seeds)


def _run(name: str, options: argparse.Namespace) -> Filled:
    base = TreeRun(loss=options.loss, epoch_size=options.epoch_size or TreeRun.epoch_size)
    processes, device = processes_of(options), options.device or "cpu"
    found = table(printed(name), options.seeds, processes=processes, base=base, device=device)
    return _filled(name, options, found[options.statistic], facts={"samples an epoch": base.epoch_size})


def _epoch(text: str) -> int:
    batch = RawCorrelation.batch
    if not text.isdigit() or int(text) < batch or int(text) % batch:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive multiple of the minibatch, {batch}")
    return int(text)


OPTIONS = (
    PROCESSES,
    choice("--loss", "whose formula", *reversed(FORMULAS)),
    choice("--statistic", "how correlations are taken", *STATISTICS),
    option("--epoch-size", "samples an epoch (default: 64000)", running=True, type=_epoch, metavar="N"),
)
TITLE = "Normalised correlation of latent variables with the best unit of their part"
TABLES = {
    name: Table(name, TITLE, "hltm-tables", tuple(range(1, 11)), partial(_recall, name), partial(_run, name), OPTIONS)
    for name in ("A-Tab4", "A-Tab6", "B-Tab2")
}

# ---------------------------------------------------------------------------------------------------------------------
# Could a printed column be a draw of ours?


@dataclass(frozen=True)
class Column:
    """Printed means and standard deviations of some cells, ``(latents, lower)``, over so many trials."""

    mean: Tensor
    std: Tensor
    trials: int


def distance(own: Tensor, column: Column) -> Tensor:
    """Root mean square distance of the means of ``own``, ``(latents, lower, trials)``, from a column, in standard errors."""
    error = own.var(-1) / own.shape[-1] + column.std.square() / column.trials
    return ((own.mean(-1) - column.mean).square() / error).mean().sqrt()


def chance_of_column(own: Tensor, column: Column, draws: int, seed: int) -> float:
    """How often trials drawn from ``own`` in the column's place lie at least as far from the rest as the column does.

    The same trials are drawn for all cells, because the cells of a trial share a tree and a network; a score that took
    them for independent would reject too often.
    """
    observed, generator, far = distance(own, column), torch.Generator().manual_seed(seed), 0
    for _ in range(draws):
        order = torch.randperm(own.shape[-1], generator=generator)
        drawn, rest = own[..., order[: column.trials]], own[..., order[column.trials :]]
        far += bool(distance(rest, Column(drawn.mean(-1), drawn.std(-1), column.trials)) >= observed)
    return far / draws
