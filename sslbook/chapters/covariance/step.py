r"""Real images: how closely the operator predicts a real SimCLR step, and what it says will be learned.

The population is ``N`` images with all their translations (or flips and brightness levels) as views, so that the operator is
exact; a SimCLR step draws a batch of images and two views of each, back-propagates through both towers and steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sslbook import images, losses
from sslbook.arguments import require_whole
from sslbook.chapters.covariance.residue import ResidueRun, train_and_measure
from sslbook.connection import vec
from sslbook.networks import convnet, mlp
from sslbook.operators import CovarianceOperator, covariance_operator

Device = torch.device | str


@dataclass(frozen=True)
class Scene:
    """A finite population of real images: ``views (N, V, C, H, W)``, un-augmented ``clean (N, C, H, W)``, ``labels (N,)``."""

    views: Tensor
    clean: Tensor
    labels: Tensor
    name: str

    def to(self, device: Device) -> Scene:
        """The same population on another device."""
        return Scene(self.views.to(device), self.clean.to(device), self.labels.to(device), self.name)


def digits_scene(samples: int = 256, radius: int = 1, seed: int = 0, device: Device = "cpu") -> Scene:
    """Handwritten digits with all translations by up to ``radius`` pixels; the mean image is subtracted."""
    data = images.digits(samples, seed, dtype=torch.float64)
    mean = data.pixels.mean(0)
    return Scene(images.shifts(data.pixels, radius) - mean, data.pixels - mean, data.labels, "digits").to(device)


def cifar10_scene(samples: int = 256, seed: int = 0, device: Device = "cpu") -> Scene:
    """CIFAR-10 test images, each with its mirror image at three levels of brightness (6 views); the mean image is subtracted."""
    data = images.read("cifar10", "test", samples, seed, dtype=torch.float64)
    mean = data.pixels.mean(0)
    augmented = images.views(data.pixels, [images.flips, images.brightness])
    return Scene(augmented - mean, data.pixels - mean, data.labels, "cifar10").to(device)


def faded(scene: Scene, strength: float) -> Scene:
    """The same images with weaker augmentation: views ``x + strength (x' - x)``."""
    clean = scene.clean[:, None]
    return replace(scene, views=clean + strength * (scene.views - clean))


def scene_network(scene: Scene, seed: int = 0) -> nn.Sequential:
    """The small conv net of these experiments: two convolutions (8 and 16 channels) and a linear head of 16 outputs."""
    channels, size = scene.clean.shape[1], scene.clean.shape[2]
    return convnet((channels, 8, 16), size, 16, seed=seed).to(scene.views.device)


def scene_operator(
    net: nn.Module, layer: str, scene: Scene, *, loss: str = "simple", tau: float = 0.5
) -> CovarianceOperator:
    """The operator that belongs to ``loss``: plain for ``"simple"``, weighted and l2-normalised for ``"info_nce"`` as in SimCLR."""
    if loss == "simple":
        return covariance_operator(net, layer, scene.views)
    return covariance_operator(net, layer, scene.views, loss=loss, tau=tau, normalize=True, clean=scene.clean)


@dataclass(frozen=True)
class Agreement:
    """Cosines between the mean of ``batches`` SimCLR gradients and the operator's prediction: mean and spread."""

    batches: tuple[int, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]
    length: float
    """Length of the mean gradient over all batches, over that of the prediction."""


def simclr_agreement(
    op: CovarianceOperator,
    *,
    size: int = 64,
    batches: tuple[int, ...] = (1, 4, 16, 64),
    loss: str = "simple",
    tau: float = 0.5,
    replicates: int = 4,
    seed: int = 0,
) -> Agreement:
    r"""Compare ``2 OP vec(W)`` with minus the mean gradient of ``m`` SimCLR batches (both towers), for each ``m`` of ``batches``.

    One batch is noisy; what remains when many are averaged is the expected step, which is what the theorems are about.
    """
    predicted = 2 * op.update().flatten()
    drawn = [
        -simclr_gradients(op, size, loss=loss, tau=tau, replicates=max(batches), seed=seed + r).flatten(1)
        for r in range(replicates)
    ]
    steps = torch.stack(drawn)
    means, spreads = [], []
    for m in batches:
        groups = steps[:, : steps.shape[1] // m * m].unflatten(1, (-1, m)).mean(2).flatten(0, 1)
        cosine = groups @ predicted / (groups.norm(dim=1) * predicted.norm())
        means.append(float(cosine.mean()))
        spreads.append(float(cosine.std()) if len(cosine) > 1 else 0.0)
    overall = steps.flatten(0, 1).mean(0)
    return Agreement(batches, tuple(means), tuple(spreads), float(overall.norm() / predicted.norm()))


def simclr_gradients(
    op: CovarianceOperator, size: int, *, loss: str = "simple", tau: float = 0.5, replicates: int = 16, seed: int = 0
) -> Tensor:
    """Gradients of ``replicates`` SimCLR batches of ``size`` distinct images in the operator's layer, ``(R, *weight)``."""
    n, v = op.population
    require_whole("size", size, least=2, most=n)
    draw = torch.Generator().manual_seed(seed)
    sample = torch.rand(replicates, n, generator=draw).argsort(1)[:, :size]
    y = op.opened.output.detach()
    # drawn on the CPU, so that every device sees the same batches
    first, second = ((sample * v + torch.randint(v, sample.shape, generator=draw)).to(y.device) for _ in range(2))
    pair = [y[index].requires_grad_(True) for index in (first, second)]
    if loss == "info_nce":
        value = losses.contrastive(pair[0], pair[1], loss=loss, normalize=True, tau=tau)
    else:
        value = losses.contrastive(pair[0], pair[1], loss=loss, normalize=False)
    pulls = torch.autograd.grad(value.sum(), pair)
    cotangent = torch.zeros(replicates * n * v, y.shape[1], dtype=y.dtype, device=y.device)
    row = n * v * torch.arange(replicates, device=y.device)[:, None]
    for index, pull in zip((first, second), pulls, strict=True):
        cotangent.index_add_(0, (index + row).flatten().to(y.device), pull.flatten(0, 1))
    return op.opened.vjp(cotangent.unflatten(0, (replicates, n * v)))


@dataclass(frozen=True)
class Snapshot:
    """One moment of a SimCLR run: the step, the loss of its batch, top eigenvalues of the operator, its trace, and alignments.

    step_inside, weights_inside: share of the expected SimCLR step, and of the weights, that lies in the span of the plain
    operator's top ``k`` eigenvectors (squared norms).  chance: what a random direction has on average, ``k / size``.
    """

    step: int
    loss: float
    values: Tensor
    trace: float
    step_inside: float
    weights_inside: float
    chance: float


def simclr_run(
    net: nn.Sequential,
    layer: str,
    scene: Scene,
    *,
    steps: int,
    every: int,
    size: int = 64,
    rate: float = 0.5,
    tau: float = 0.5,
    k: int = 8,
    seed: int = 0,
) -> list[Snapshot]:
    """Train ``net`` in place by SGD on SimCLR's InfoNCE (l2-normalised, both towers), measuring the operator on the way."""
    draw = torch.Generator().manual_seed(seed)
    (n, v), flat = scene.views.shape[:2], scene.views.flatten(0, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    found: list[Snapshot] = []
    for step in range(steps + 1):
        sample = torch.randperm(n, generator=draw)[:size]
        shown = [v * sample + torch.randint(v, (size,), generator=draw) for _ in range(2)]
        one, two = (flat[index] for index in torch.stack(shown).to(flat.device))
        loss = losses.contrastive(net(one), net(two), tau=tau)
        if step % every == 0:
            op = scene_operator(net, layer, scene)
            pairs = op.top_eigenpairs(k, tol=1e-6)
            move = scene_operator(net, layer, scene, loss="info_nce", tau=tau).update()
            found.append(
                Snapshot(
                    step,
                    float(loss.detach()),
                    pairs.values.cpu(),
                    op.trace(),
                    step_inside=_inside(pairs.vectors, move),
                    weights_inside=_inside(pairs.vectors, op.opened.weight),
                    chance=k / op.shape[0],
                )
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def _inside(basis: Tensor, direction: Tensor) -> float:
    """Share of the squared norm of ``direction`` in the span of the orthonormal columns of ``basis``."""
    unit = vec(direction) / direction.norm()
    return float((basis.T @ unit).square().sum())


def surviving_modes(scene: Scene, k: int = 6) -> tuple[Tensor, Tensor, float]:
    r"""Eigenvalues ``(k,)``, eigenvectors ``(k, C, H, W)`` and trace of a linear neuron's operator, :math:`V_x[\bar x]`.

    The connection of one linear neuron is its input, so the operator is the covariance of the view-averaged images.
    """
    size = scene.clean[0].numel()
    net = nn.Sequential(nn.Flatten(), nn.Linear(size, 1, bias=False, dtype=scene.views.dtype)).to(scene.views.device)
    op = covariance_operator(net, "1", scene.views)
    pairs = op.top_eigenpairs(k)
    return pairs.values.cpu(), pairs.vectors.T.reshape(k, *scene.clean.shape[1:]).cpu(), op.trace()


def residue_on_digits(
    seed: int, *, samples: int = 10, steps: int = 120, every: int = 10, rate: float = 0.1, tau: float = 1.0
) -> ResidueRun:
    """Theorem 4's residue along a run on a few digits with five views (the image, and one pixel to each side), MLP 64-16-8."""
    data = images.digits(samples, seed, dtype=torch.float64)
    mean = data.pixels.mean(0)
    grid = images.shifts(data.pixels, 1)  # identity first, then the 3 x 3 grid row by row without its centre
    sides = torch.stack([grid[:, i] for i in (0, 2, 4, 5, 7)], 1) - mean
    net = nn.Sequential(nn.Flatten(), *mlp((64, 16, 8), seed=seed))
    return train_and_measure(net, "3", sides, data.pixels - mean, tau=tau, steps=steps, every=every, rate=rate)


def cifar10_values(seeds: tuple[int, ...] = (0, 1, 2)) -> dict[str, object]:
    """The record ``covariance-cifar10``: how well the operator predicts SimCLR steps of a conv net on 256 real CIFAR-10 images."""
    rows: dict[str, list[tuple[float, ...]]] = {"simple": [], "info_nce": []}
    lengths, shares = [], []
    for seed in seeds:
        scene = cifar10_scene(256, seed)
        net = scene_network(scene, seed)
        for loss, row in rows.items():
            op = scene_operator(net, "2", scene, loss=loss)
            found = simclr_agreement(op, loss=loss, replicates=2, seed=seed)
            row.append(found.mean)
            if loss == "simple":
                lengths.append(found.length)
                unaugmented = replace(scene, views=scene.clean[:, None])
                shares.append(surviving_modes(scene, 1)[2] / surviving_modes(unaugmented, 1)[2])
    return {"batches": [1, 4, 16, 64], "cosine": rows, "length": lengths, "surviving_share": shares}
