r"""Homogeneous activations, the gradient of one filter, and what holding the weights fixed hides (Section 2 of [tian2023])."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.arguments import require_whole
from sslbook.contrast import contrastive_covariance, energy, loss_value, project, square_distances, weights
from sslbook.gaps import Gaps, over_instances, relative
from sslbook.streams import Streams


@dataclass(frozen=True)
class Activation:
    """``h(u) = gate(u) u``: ``u`` above zero and ``slope * u`` below for ``degree = 1``, else ``u ** degree``.

    ``slope`` 1 is linear, 0 the ReLU, -1 the absolute value.  As ``h'(u) = degree * gate(u)``, Assumption 1 of [tian2023] holds
    as printed for ``degree = 1`` and up to the constant ``degree`` else.
    """

    slope: float = 0.0
    degree: int = 1

    def __post_init__(self) -> None:
        require_whole("degree", self.degree, least=1)
        if self.degree > 1 and self.slope != 1:
            raise ValueError(
                f"slope is for degree 1; a monomial of degree {self.degree} takes slope=1, got {self.slope}"
            )

    def gate(self, u: Tensor) -> Tensor:
        """What multiplies the input: the slope at ``u``, with the lower one at zero; or ``u ** (degree - 1)``."""
        if self.degree > 1:
            return u ** (self.degree - 1)
        return torch.where(u > 0, torch.ones_like(u), torch.full_like(u, self.slope))

    def __call__(self, u: Tensor) -> Tensor:
        """``h(u)``."""
        return self.gate(u) * u


LINEAR, RELU = Activation(1.0), Activation(0.0)


def monomial(degree: int) -> Activation:
    """``h(u) = u ** degree``."""
    return Activation(1.0, degree)


# -- checks -------------------------------------------------------------------------------------------------------------


def energy_gaps(loss: str, count: int = 128, seed: int = 0, *, epsilon: float = 0.0) -> Gaps:
    r"""Eq. 2: :math:`\nabla_\theta` of the energy with :math:`\alpha` held fixed against :math:`-\nabla_\theta L / (2 N^2)`.

    ``count`` random networks with one hidden layer of ReLUs, batches of 7 pairs of views, random temperatures; the worst relative
    error in all weights.  Broken: the diagonal of InfoNCE's weights as the formula gives it for i = j; its weights without
    epsilon; a gradient that runs through the weights too.
    """
    draw = Streams(range(seed, seed + count), "energy")
    x = draw.normal((7, 5))
    x2 = x + 0.5 * draw.normal((7, 5))
    # The replica axis leads everywhere, so one temperature has to serve all; three runs use three.
    first, second = draw.normal((5, 8)), draw.normal((8, 3)) / 3
    parts = []
    for tau in (0.3, 1.0, 3.0):
        theta = [first.clone().requires_grad_(), second.clone().requires_grad_()]
        f, f2 = ((v @ theta[0]).relu() @ theta[1] for v in (x, x2))
        setting = {"tau": tau, "epsilon": epsilon, "margin": 0.2}
        wanted = _flat_grad(-loss_value(loss, f, f2, **setting) / (2 * 7**2), theta)
        alpha = weights(loss, f, f2, **setting)
        variants = {"energy": alpha}
        if loss == "info_nce":
            own = torch.diagonal(square_distances(f), dim1=-2, dim2=-1)
            total = torch.where(torch.eye(7, dtype=torch.bool), torch.inf, square_distances(f)) / tau
            diagonal = (-own / tau).exp() / (-total).exp().sum(-1)
            variants["broken: diagonal as printed"] = alpha + torch.diag_embed(diagonal).detach()
            if epsilon:
                variants["broken: epsilon left out"] = weights(loss, f, f2, tau=tau)
        else:
            variants["broken: diagonal"] = alpha + (torch.eye(7) if loss != "quadratic" else -torch.eye(7))
        alive = wanted.norm(dim=1) > 0  # all hinges of a triplet loss may be closed, all units silent
        found = {name: _flat_grad(energy(f, f2, weight), theta) for name, weight in variants.items()}
        parts.append({name: relative(gradient[alive], wanted[alive]) for name, gradient in found.items()})
    return over_instances(*parts)


def _flat_grad(value: Tensor, theta: list[Tensor]) -> Tensor:
    parts = torch.autograd.grad(value.sum(), theta, retain_graph=True)
    return torch.cat([part.flatten(1) for part in parts], 1)


def filter_matrix(w: Tensor, x: Tensor, x2: Tensor, alpha: Tensor, act: Activation) -> Tensor:
    r""":math:`A(w) = C_\alpha[\mathrm{gate}(w^T x)\, x]`: ``w (..., d)``, views ``(..., N, d)`` -> ``(..., d, d)``."""
    gated, gated2 = (act.gate((v @ w[..., None])[..., 0])[..., None] * v for v in (x, x2))
    return contrastive_covariance(gated, gated2, alpha)


def filter_gaps(act: Activation, count: int = 128, seed: int = 0) -> Gaps:
    r"""Lemma 3 of [tian2023]: the energy's gradient at :math:`w / \|w\|` by autograd against :math:`p\, P^\perp_w A(w) w`.

    p is the degree; random filters of unit length, batches of 9 pairs of views, weights of InfoNCE.  Broken: not projected; the
    activation in place of the gate; and for a monomial the constant p left out.
    """
    draw = Streams(range(seed, seed + count), "filter")
    x, w = draw.normal((9, 4)), draw.normal((4,))
    x2, w = x + 0.4 * draw.normal((9, 4)), w / w.norm(dim=-1, keepdim=True)

    def response(v: Tensor, unit: Tensor) -> Tensor:
        return act((v @ unit[..., None])[..., 0])[..., None]

    alpha = weights("info_nce", response(x, w), response(x2, w), tau=0.5, epsilon=1.0)
    free = w.clone().requires_grad_()
    unit = free / free.norm(dim=-1, keepdim=True)
    (wanted,) = torch.autograd.grad(energy(response(x, unit), response(x2, unit), alpha).sum(), free)
    raw = act.degree * (filter_matrix(w, x, x2, alpha, act) @ w[..., None])[..., 0]
    flat = contrastive_covariance(response(x, w) * x, response(x2, w) * x2, alpha)
    found = {
        "filter": project(w, raw),
        "broken: not projected": raw,
        "broken: activation for gate": project(w, (flat @ w[..., None])[..., 0]),
    }
    if act.degree > 1:
        found["broken: degree left out"] = project(w, raw / act.degree)
    alive = wanted.norm(dim=1) > 0  # a silent filter has no gradient to compare with
    return over_instances({name: relative(gradient[alive], wanted[alive]) for name, gradient in found.items()})


def stop_gradient_gaps(loss: str, count: int = 128, seed: int = 0) -> Gaps:
    r"""What holding the weights fixed hides: the Hessian of :math:`-L / (2 N^2)` less that of the energy, for one filter.

    Minus the loss is a concave function of the gaps :math:`d_{ij}^2 - d_i^2` (InfoNCE, triplet), so the difference has no positive
    eigenvalue: ``positive`` is the largest one over the norm of the loss's Hessian, ``size`` the least norm of the difference.
    Broken: minus the difference.
    """
    epsilon = 1.0
    draw = Streams(range(seed, seed + count), "hessian")
    x, w = draw.normal((7, 3)), draw.normal((3,))
    x2 = x + 0.4 * draw.normal((7, 3))
    tau, margin = 0.5, 0.1

    def outputs(v: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ v[..., None]).relu(), (x2 @ v[..., None]).relu()

    alpha = weights(loss, *outputs(w), tau=tau, epsilon=epsilon, margin=margin)

    def objective(v: Tensor) -> Tensor:
        return -loss_value(loss, *outputs(v), tau=tau, epsilon=epsilon, margin=margin) / (2 * 7**2)

    true = _hessian(objective, w)
    fixed = _hessian(lambda v: energy(*outputs(v), alpha), w)
    alive = true.flatten(1).norm(dim=1) > 1e-9  # a silent filter has no curvature
    true, fixed = true[alive], fixed[alive]
    values = torch.linalg.eigvalsh(true - fixed) / true.flatten(1).norm(dim=1)[:, None]
    return {
        "positive": float(values[:, -1].max()),
        "size": float(values.norm(dim=1).min()),
        "broken: sign": float((-values[:, 0]).min()),
        "instances": float(alive.sum()),
    }


def _hessian(value: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Second derivatives of ``value (R,)`` by ``w (R, d)``: ``(R, d, d)``."""
    free = w.clone().requires_grad_()
    (first,) = torch.autograd.grad(value(free).sum(), free, create_graph=True)
    rows = [torch.autograd.grad(first[:, k].sum(), free, retain_graph=True)[0] for k in range(w.shape[1])]
    return torch.stack(rows, 1)
