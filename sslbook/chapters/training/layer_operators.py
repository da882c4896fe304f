r"""The covariance operator of [tian2020] on the layers of a ResNet in training, without its matrix.

The network that is opened is encoder and projector, as the loss sees it, with BatchNorm by its running statistics: in a batch's own
statistics one sample's connection would depend on the others.  Then a layer's operator is
:math:`\mathrm{OP}_l = \mathbb V_x[\bar K_l(x)]`, and BatchNorm is part of what stands above.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbook.chapters.training.experiments import SMALL, settings_of
from sslbook.chapters.training.recorded import each
from sslbook.connection import vec
from sslbook.datasets import Dataset
from sslbook.inspection.command import encoder_and_projector as opened
from sslbook.inspection.measure import layers_of
from sslbook.machine import cores
from sslbook.operators import covariance_operator
from sslbook.training.networks.siamese import build
from sslbook.training.runs.determinism import load_data, steps_per_epoch
from sslbook.training.runs.distributed import device_of
from sslbook.training.runs.trainer import train
from sslbook.training.views.augment import PIPELINES, apply, draws


@dataclass(frozen=True)
class Modes:
    r"""A row a layer, in the order of the network.

    sizes: weights.  values: the leading eigenvalues ``(L, k)``.  trace ``(L,)``: these, and an estimate of the others' sum;
    error ``(L,)``: its standard error, relative.
    residual ``(L,)``: the largest :math:`\|\mathrm{OP} v - \lambda v\| / \lambda` of the eigenpairs.
    share ``(L,)``: of :math:`\|\operatorname{vec}(W)\|^2` within the leading eigenvectors; a random weight has ``k / sizes`` there.
    gain ``(L,)``: :math:`w^\top \mathrm{OP}\, w / \|w\|^2` of :math:`w = \operatorname{vec}(W)`, over the mean eigenvalue; a random
    weight has 1 on average.
    """

    names: tuple[str, ...]
    sizes: Tensor
    values: Tensor
    trace: Tensor
    error: Tensor
    residual: Tensor
    share: Tensor
    gain: Tensor


def views_of(dataset: Dataset, pipeline: str, count: int, each: int, seed: int) -> Tensor:
    """``each`` views of the first ``count`` images, ``(count, each, C, size, size)``."""
    plan, pixels = PIPELINES[pipeline], dataset.pixels[:count]
    return torch.stack([apply(pixels, plan, draws(plan, count, seed, 0, view)) for view in range(each)], dim=1)


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # convolutions of three digits would be no eigenproblem
def modes(
    net: nn.Module, views: Tensor, k: int, names: Sequence[str] | None = None, *, tol: float = 1e-4, probes: int = 16
) -> Modes:
    """The leading ``k`` modes of the operator of each layer; raises ValueError for a layer with fewer than ``k`` weights.

    probes: random directions for the estimate, of which each costs one product with the operator.
    """
    chosen = tuple(names) if names is not None else layers_of(net)
    rows: list[tuple[Any, ...]] = []
    for name in chosen:
        operator = covariance_operator(net, name, views)
        found = operator.top_eigenpairs(k, tol=tol)
        weight = vec(operator.opened.weight).double()
        draw = torch.Generator().manual_seed(len(rows))
        signs = torch.randint(0, 2, (operator.shape[0], probes), generator=draw).to(operator.opened.weight) * 2 - 1
        beside = signs - found.vectors @ (found.vectors.T @ signs)
        rest = (beside * operator.matmat(beside)).sum(0).double()
        trace = found.values.double().sum() + rest.mean()
        error = rest.std() / probes**0.5 / trace
        length = weight.square().sum()
        share = (found.vectors.double().T @ weight).square().sum() / length
        seen = weight @ operator.matvec(weight.to(operator.dtype)).double() / length
        gain = seen * operator.shape[0] / trace
        rows.append(
            (operator.shape[0], found.values.double(), trace, error, found.residuals.max().double(), share, gain)
        )
    sizes, *columns = zip(*rows, strict=True)
    stacked = (torch.stack(part).cpu() for part in columns)
    return Modes(chosen, torch.tensor(sizes), *stacked)


# -- along a real run -------------------------------------------------------------------------------------------------

EPOCHS = (0, 2, 10)
IMAGES, VIEWS, LEADING = 24, 4, 8
FULL = ("epochs=10", "probes=10", "evaluate=0", "shuffle=true", "drop_last=true")
"""The run of full width, on all images: as long as the small one, which sees a tenth of them."""
MEASURED = ("values", "trace", "error", "residual", "share", "gain")


def operator_values(
    seeds: Sequence[int],
    *,
    changes: Sequence[str] = SMALL,
    epochs: Sequence[int] = EPOCHS,
    images: int = IMAGES,
    processes: int | None = None,
    device: str = "cpu",
    folder: Path | None = None,
) -> dict[str, Any]:
    """The modes of every layer along the run ``info_nce`` of :mod:`sslbook.chapters.training.recorded`, after each of ``epochs``.

    On test images, which the network has not seen.  folder: where the runs lie, to go on there if they are stopped; else they
    lie in one that goes away.  Raises FileNotFoundError without the data.
    """
    jobs = [(seed, tuple(changes), tuple(epochs), images, device, folder) for seed in seeds]
    found = each(along, jobs, (processes or cores()) if device == "cpu" else 1)
    first = found[0][0]
    return {
        "axes": "measure[seed][epoch][layer]; values with one axis more, of modes",
        "epochs": list(epochs),
        "names": list(first.names),
        "sizes": first.sizes.tolist(),
        "images": images,
        "views": VIEWS,
        **{name: [[getattr(part, name).tolist() for part in run] for run in found] for name in MEASURED},
    }


def full_values(
    seeds: Sequence[int], *, changes: Sequence[str] = FULL, device: str | None = None, **options: Any
) -> dict[str, Any]:
    """The same for a ResNet-18 of full width on all images, on a GPU where there is one; options as there."""
    return operator_values(seeds, changes=changes, device=str(device_of(device)), processes=1, **options)


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Values of :func:`operator_values` for some epochs after the other, of the same seeds, as one."""
    first = parts[0]
    measured = {m: [[row for part in parts for row in part[m][s]] for s in range(len(first[m]))] for m in MEASURED}
    return {**first, "epochs": [epoch for part in parts for epoch in part["epochs"]], **measured}


def along(
    seed: int, changes: Sequence[str], epochs: Sequence[int], images: int, device: str, folder: Path | None
) -> list[Modes]:
    """One run, stopped to measure after each of ``epochs``."""
    settings = settings_of("info_nce", seed, changes)
    data = load_data(settings)
    views = views_of(data[1], settings.pipeline, images, VIEWS, seed).to(device)
    steps = steps_per_epoch(settings, len(data[0].pixels))
    found = []
    with tempfile.TemporaryDirectory() as passing:
        for epoch in epochs:
            model = build(settings.networks, seed).to(device)
            if epoch:
                # Of runs that stay, each has its own: one that went on can't be taken back to measure it earlier.
                place = Path(passing) if folder is None else folder / f"operator-s{seed}-{settings.hash()}-e{epoch}"
                model = train(settings, place, stop_after=epoch * steps, data=data, device=device, quiet=True).model
            found.append(modes(opened(model), views, LEADING))
    return found
