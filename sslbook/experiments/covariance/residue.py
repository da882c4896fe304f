r"""The residue :math:`\theta` of Theorem 4: what augmentation adds to the weighted covariance, exactly, and the bounds on it.

With one negative, the expected one-tower step is ``OP vec(W)`` with

    OP = E[F K(x1) (K(x+) - K(x-))^T] = 1/2 V^xi[Kbar(x) - Kbar(x')] + theta,      F = -dL/dr_- at the augmented distances.

Both terms are matrices over a finite population, so that theta is a difference of two known matrices.  The paper's bound
(Eq. 79) is computed beside a corrected one: its proof bounds :math:`E\|f(x_1) - f(x)\|^2` by the variance
:math:`\mathrm{tr} V_{aug}[f|x]` and forgets the squared bias :math:`c_0(x)^2`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.experiments.covariance.reference import (
    TupleLoss,
    all_tuples,
    expected_gradient,
    nce_loss,
    triplet_loss,
    tuple_losses,
)
from sslbook.networks.small import mlp
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import vec
from sslbook.stats.checks import Gaps, relative_gap, worst


@dataclass(frozen=True)
class Residue:
    r"""Theorem 4's two terms and the bounds on the second; operators by their spectral norm.

    main: :math:`\|\frac12 V^\xi\|`.  theta: :math:`\|\theta\|`.
    step_rest: what the main term leaves unexplained of the expected step through both towers,
    :math:`\|\Delta W - 2\,main\,vec(W)\| / \|2\,main\,vec(W)\|`.
    printed, corrected: Eq. 79 as printed, and as it should be (with the sharper :math:`|\partial F| \le 1/(4\tau^2)`, and
    :math:`1/(4\tau)` for the triplet loss).  unbiased: the same with :math:`c_0 = 0`, a proof that forgets the bias altogether.
    spread: :math:`E_x[\sigma^2_{aug}(x)]`.  bias: :math:`E_x[c_0(x)^2]`.
    """

    main: float
    theta: float
    step_rest: float
    printed: float
    corrected: float
    unbiased: float
    spread: float
    bias: float

    @property
    def relative(self) -> float:
        r""":math:`\|\theta\| / \|\frac12 V^\xi\|`."""
        return self.theta / self.main


def residue(
    net: nn.Module,
    layer: str,
    views: Tensor,
    clean: Tensor,
    *,
    tau: float,
    loss: str = "info_nce",
    margin: float = 0.0,
) -> Residue:
    """Measure theta and its bounds on the population ``views (N, V, ...)`` of ``clean (N, ...)``, by enumeration."""
    n, v = views.shape[:2]
    op = covariance_operator(net, layer, views, loss=loss, tau=tau, margin=margin, clean=clean)
    k, y = op.opened.connections(), op.opened.output
    coefficients = _coefficients(y, n, v, loss, tau, margin)
    full, both = (torch.einsum("ano,ab,bmo->nm", k, c, k) for c in coefficients)
    main, weight = op.dense(), vec(op.opened.weight)
    step = main @ weight
    with torch.no_grad():
        y0 = net(clean).flatten(1)
    norm = float(torch.linalg.matrix_norm(k, 2).max())
    slope = 1 / tau**2 if loss == "info_nce" else 1 / tau
    grouped = y.unflatten(0, (n, v))
    variance = (grouped - grouped.mean(1, keepdim=True)).square().sum(2).mean(1)  # tr V_aug[f | x]
    bias = (grouped.mean(1) - y0).norm(dim=1)  # c_0(x)
    apart = (y0[:, None] - y0[None]).norm(dim=2).mean(1)  # E_x' || f(x) - f(x') ||
    first = float((apart * (variance.sqrt() + bias)).mean())
    second = float((apart * (variance + bias**2).sqrt()).mean())
    centred = float((apart * variance.sqrt()).mean())
    spread, squared = float(variance.mean()), float((bias**2).mean())
    return Residue(
        main=float(torch.linalg.matrix_norm(main, 2)),
        theta=float(torch.linalg.matrix_norm(full - main, 2)),
        step_rest=float((both @ weight - 2 * step).norm() / (2 * step).norm()),
        printed=2 * norm**2 * slope * (2 * first + 3 * spread),
        corrected=2 * norm**2 * (slope / 4) * (2 * second + 3 * spread + 2 * squared),
        unbiased=2 * norm**2 * (slope / 4) * (2 * centred + 3 * spread),
        spread=spread,
        bias=squared,
    )


def _coefficients(y: Tensor, n: int, v: int, loss: str, tau: float, margin: float) -> tuple[Tensor, Tensor]:
    r"""The expected step as ``sum_ab C_ab K_a K_b^T vec(W)``: ``C`` through one tower and through both, ``(N V, N V)`` each.

    One tower: :math:`E[F K(x_1)(K(x_+) - K(x_-))^T]`.  Both: :math:`E[F \{(K_1 - K_-)(K_1 - K_-)^T - (K_1 - K_+)(K_1 - K_+)^T\}]`.
    """
    r = 0.5 * (y[:, None] - y[None]).square().sum(2).unflatten(0, (n, v))
    same = r.unflatten(2, (n, v)).diagonal(dim1=0, dim2=2).movedim(2, 0)  # (N, V, V): r+ of the views of one sample
    exponent = (same[:, :, :, None] - r[:, :, None, :]) / tau  # (N, V anchors, V positives, N V negatives)
    force = torch.sigmoid(exponent + margin / tau) * (1.0 if loss == "soft_triplet" else 1 / tau)
    force = force / force.numel()
    attract = torch.zeros(n, v, n, v, dtype=y.dtype, device=y.device)
    index = torch.arange(n, device=y.device)
    attract[index, :, index, :] = force.sum(3)
    attract, repel = attract.reshape(n * v, n * v), force.sum(2).reshape(n * v, n * v)
    one = attract - repel
    return one, one + one.T + torch.diag(repel.sum(0) - attract.sum(0))


def population_with_strength(
    strength: float, *, symmetric: bool, seed: int = 0
) -> tuple[nn.Sequential, Tensor, Tensor]:
    r"""A network, clean samples and their views ``x + s noise``: four directions, and their opposites if ``symmetric``."""
    samples = 5
    net = mlp((4, 8, 3), "leaky_relu", seed=seed)
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(samples, 4, generator=draw, dtype=torch.float64)
    noise = torch.randn(samples, 4, 4, generator=draw, dtype=torch.float64)
    noise = torch.cat([noise, -noise], 1) if symmetric else noise
    return net, clean, clean[:, None] + strength * noise


def residue_curve(strengths: tuple[float, ...], *, symmetric: bool = False, seed: int = 0) -> list[Residue]:
    """The residue as the augmentation grows, on one network and one set of directions."""
    found = []
    for s in strengths:
        net, clean, views = population_with_strength(s, symmetric=symmetric, seed=seed)
        found.append(residue(net, "0", views, clean, tau=1.0))
    return found


def look_alikes(strength: float, seed: int = 0) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network, five clean samples that differ by a thousandth, and one fixed view of each, ``x + s noise``.

    Nothing varies within an augmentation, which yet moves every sample: all there is is bias.
    """
    net = mlp((4, 8, 3), "leaky_relu", seed=seed)
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(1, 4, generator=draw, dtype=torch.float64) + 1e-3 * torch.randn(
        5, 4, generator=draw, dtype=torch.float64
    )
    noise = torch.randn(5, 1, 4, generator=draw, dtype=torch.float64)
    return net, clean, clean[:, None] + strength * noise


BOUNDS = ("corrected", "printed", "unbiased")


def bound_margins(
    instances: int, *, tau: float = 1.0, loss: str = "info_nce", margin: float = 0.0, seed: int = 0, alike: bool = False
) -> dict[str, Tensor]:
    r"""Each of :data:`BOUNDS` over theta on random networks, populations and augmentation strengths, ``(instances,)`` each.

    1 would be tight, and less is no bound.  alike: the populations are :func:`look_alikes`.
    """
    rows = []
    for s in range(seed, seed + instances):
        strength = 10 ** float(torch.empty(1).uniform_(-2, 0.3, generator=torch.Generator().manual_seed(s)))
        if alike:
            net, clean, views = look_alikes(strength, s)
        else:
            net, clean, views = population_with_strength(strength, symmetric=bool(s % 2), seed=s)
        found = residue(net, "0", views, clean, tau=tau, loss=loss, margin=margin)
        rows.append([getattr(found, name) / found.theta for name in BOUNDS])
    return dict(zip(BOUNDS, torch.tensor(rows, dtype=torch.float64).T, strict=True))


def deterministic_augmentation() -> Residue:
    r"""The counterexample to Eq. 79 as printed: a linear neuron, two samples with equal outputs, one fixed view each.

    The view of ``(1, 0)`` is ``(1 + a, 0)``, that of ``(0, 1)`` is ``(0, 1 - a)``; :math:`w = (1, 1)`.  Nothing varies within an
    augmentation (:math:`\sigma_{aug} = 0`) and un-augmented outputs coincide, so the printed bound is 0; theta isn't.
    """
    shift = 0.5
    neuron = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(neuron.weight)
    net = nn.Sequential(neuron)
    clean = torch.eye(2, dtype=torch.float64)
    views = clean * torch.tensor([[1 + shift], [1 - shift]], dtype=torch.float64)
    return residue(net, "0", views[:, None], clean, tau=0.5)


def step_gaps(seed: int = 0, tau: float = 0.7) -> Gaps:
    """The coefficients of the two terms against autograd on the enumerated loss, for both losses, one tower and both."""
    margin = 0.2
    rows: list[Gaps] = []
    net, clean, views = population_with_strength(0.5, symmetric=False, seed=seed)
    op = covariance_operator(net, "0", views)
    k, weight = op.opened.connections(), vec(op.opened.weight)
    tuples = all_tuples(*op.population)
    for name, loss in (("info_nce", nce_loss(tau)), ("soft_triplet", triplet_loss(tau, margin))):
        shift = margin if name == "soft_triplet" else 0.0
        found = _coefficients(op.opened.output, *op.population, name, tau, shift)
        main = covariance_operator(net, "0", views, loss=name, tau=tau, margin=shift, clean=clean)
        for c, both in zip(found, (False, True), strict=True):
            truth = -vec(expected_gradient(net, "0", views, loss, tuples, clean=clean, both=both))
            rows.append(
                {
                    "step": relative_gap(torch.einsum("ano,ab,bmo,m->n", k, c, k, weight), truth),
                    "broken: main term alone": relative_gap((1 + both) * main.matvec(weight), truth),
                }
            )
    return worst(rows)


@dataclass(frozen=True)
class ResidueRun:
    """The residue along a training run: gradient-descent ``steps``, the ``loss`` and the :class:`Residue` there."""

    steps: tuple[int, ...]
    loss: tuple[float, ...]
    residues: tuple[Residue, ...]


def train_and_measure(
    net: nn.Sequential,
    layer: str,
    views: Tensor,
    clean: Tensor,
    *,
    tau: float,
    steps: int,
    every: int,
    rate: float,
) -> ResidueRun:
    """Gradient descent on the enumerated InfoNCE loss (H = 1, both towers), measuring theta on the way; trains ``net`` in place."""
    tuples = all_tuples(*views.shape[:2])
    loss: TupleLoss = nce_loss(tau)
    names = [name for name, module in net.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    at, values, found = [], [], []
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                values.append(
                    float(tuple_losses(net(views.flatten(0, 1)).flatten(1), loss, tuples, net(clean).flatten(1)).mean())
                )
            at.append(step)
            found.append(residue(net, layer, views, clean, tau=tau))
        gradients = {name: expected_gradient(net, name, views, loss, tuples, clean=clean, both=True) for name in names}
        with torch.no_grad():
            for name, gradient in gradients.items():
                weight = net.get_submodule(name).weight
                assert isinstance(weight, Tensor)
                weight -= rate * gradient
    return ResidueRun(tuple(at), tuple(values), tuple(found))
