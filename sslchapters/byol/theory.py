r"""The formulas of Section 5 of [tian2021iclr]: Eqs. 11, 13 and 14, the deviation, Corollary 2, Theorem 9.

The terms of BYOL's update come from dense connections.  With the mean over views :math:`\bar K(x) = E_{x'}[K(x')]` and
:math:`w = vec(W_l)`,

    sym        = -E_x V_{x'}[K] w
    variance   =  V_x[\bar K] w
    covariance =  Cov_x[\bar K, \bar K'] w'
    correction =  E_x[\bar K] {E_x[\bar K]^T w - E_x[\bar K']^T w'}

and Theorem 8 says that the corrected update is sym - variance + covariance.  Connections are ``(R, N, V, m k, o)``, the terms
``(R, m k)``.

Without a moving average :math:`K' = K_{base}`, and with a linear predictor :math:`K = K_{base} W_p^T`, so that Eq. 14 becomes
Corollary 2,

    sym(W) + E_x[\hat K_{base}\, W_p^T (I - W_p)\, \hat K_{base}^T] w,      \hat K = \bar K - E_x \bar K,

and with the gradient through both towers :math:`sym(W) + sym(W') - V_x[\bar K_{base} (I - W_p)^T] w`, where sym(W) has the
predictor inside and sym(W') has not.

The moving average of Theorem 9, with the target ``v`` and ``eta = 1 - gamma_ema``, is solved exactly:

    w(t+1) = w(t) + alpha (-w(t) + (1 + lambda) v(t)),          v(t+1) = (1 - eta) v(t) + eta w(t)

Eq. 15 prints ``1 - lambda``, which is ``sign=-1`` here; the statement's rate

    kappa = ((eta + alpha) / 2) (sqrt(1 + 4 alpha eta lambda / (eta + alpha)^2) - 1)

belongs to ``sign=+1``.  Code that trains updates the target *after* the step, with ``w(t+1)`` (``order="after"``).
These functions take floats or float64 tensors, which broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sslchapters.byol.instances import Norm, Pair, Tower, vec


@dataclass(frozen=True)
class Terms:
    """The four terms, and the update without BatchNorm, ``(R, m k)`` each."""

    sym: Tensor
    variance: Tensor
    covariance: Tensor
    correction: Tensor
    plain: Tensor

    @property
    def corrected(self) -> Tensor:
        """Eq. 14."""
        return self.sym - self.variance + self.covariance


def terms(pair: Pair) -> Terms:
    """All terms of a pair of towers without output normalisation, from their connections alone: no loss, no autograd step."""
    k, other = pair.online.connections(), pair.target.connections()
    w, v = vec(pair.online.weight), vec(pair.target.weight)
    mean, mean_other = k.mean(2), other.mean(2)
    centre, centre_other = mean.mean(1), mean_other.mean(1)
    f, f_other = _lower(mean, w), _lower(mean_other, v)  # K^T w, (R, N, o)
    shift = _lower(centre[:, None], w)[:, 0] - _lower(centre_other[:, None], v)[:, 0]
    return Terms(
        sym=-intra(k, w),
        variance=_raise(mean - centre[:, None], f - f.mean(1, keepdim=True)),
        covariance=_raise(mean - centre[:, None], f_other - f_other.mean(1, keepdim=True)),
        correction=torch.einsum("rpo,ro->rp", centre, shift),
        plain=-intra(k, w) - _raise(mean, f - f_other),
    )


def intra(k: Tensor, w: Tensor) -> Tensor:
    r""":math:`E_x V_{x'}[K] w`: the covariance within augmentations, applied."""
    return torch.einsum("rpq,rq->rp", intra_matrix(k), w)


def intra_matrix(k: Tensor) -> Tensor:
    """The same as a matrix, ``(R, p, p)``."""
    k = k - k.mean(2, keepdim=True)
    return torch.einsum("rnvpo,rnvqo->rpq", k, k) / (k.shape[1] * k.shape[2])


def inter_matrix(k: Tensor, middle: Tensor | None = None) -> Tensor:
    r""":math:`E_x[\hat K M \hat K^T]` with :math:`\hat K = \bar K - E \bar K`, ``(R, p, p)``; ``M (R, o, o)`` is the identity
    unless given, and then this is :math:`V_x[\bar K]`."""
    mean = k.mean(2)
    mean = mean - mean.mean(1, keepdim=True)
    right = mean if middle is None else mean @ middle.mT[:, None]
    return torch.einsum("rnpo,rnqo->rpq", mean, right) / k.shape[1]


def predicted(pair: Pair, norm: Norm | None = None, *, target_norm: Norm | None = None) -> Tensor:
    r"""Eq. 14 for any tower, ``(R, m k)``: minus the covariance of the output's Jacobian and the residual.

    With :math:`G = (\partial f_L / \partial vec(W_l))^T` and :math:`e = f_L(x_1) - f_{L'}(x_2)` over all pairs of views it is
    :math:`-E[G e] + E[G] E[e]`: the second term is Eq. 13 wherever :math:`f_L = K_l^T vec(W_l)`.  G and e are those of the
    forward pass with ``norm``, whose statistics count as constants.
    """
    g = pair.online.connections(norm)
    e = pair.online.output(norm=norm)
    t = pair.target.output(norm=norm if target_norm is None else target_norm)
    e = e - t.mean(2, keepdim=True)  # given the image, x_2 is independent of x_1
    e = e - e.mean((1, 2), keepdim=True)
    return -torch.einsum("rnvpo,rnvo->rp", g, e) / (e.shape[1] * e.shape[2])


def _lower(k: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("rnpo,rp->rno", k, w)


def _raise(k: Tensor, f: Tensor) -> Tensor:
    return torch.einsum("rnpo,rno->rp", k, f) / k.shape[1]


def solved(tower: Tower, steps: int, rate: float) -> Tensor:
    r"""A single linear layer after so many steps: :math:`W (I - \alpha E_x V_{x'}[f_0])^t`, ``(R, k, m)``."""
    one = replace(tower, weight=tower.weight[:, :1])  # one row's connection is its input
    decay = torch.eye(tower.weight.shape[-1], dtype=torch.float64) - rate * intra_matrix(one.connections())
    return tower.weight @ torch.linalg.matrix_power(decay, steps)


def scaled_step(pair: Pair) -> Tensor:
    r"""Eq. 14 where BatchNorm also divides by :math:`\sigma`, a constant for the gradient, ``(R, k, m)``.

    Division belongs to the layers above, so it is Eq. 14 for :math:`W_l / \sigma`, and each row once more over its sigma.
    """
    scales = [t.lift(t.weight).flatten(1, 2).std(1, correction=0)[..., None] for t in (pair.online, pair.target)]
    online, target = (replace(t, weight=t.weight / s) for t, s in zip((pair.online, pair.target), scales, strict=True))
    found = terms(Pair(online, target)).corrected
    return found.unflatten(1, (-1, pair.online.weight.shape[1])).mT / scales[0]


def middle(predictor: Tensor) -> Tensor:
    """:math:`W_p^T (I - W_p)`, ``(R, o, o)``."""
    return predictor.mT @ (torch.eye(predictor.shape[-1], dtype=predictor.dtype) - predictor)


def without_predictor(pair: Pair) -> Tower:
    """The tower without its predictor, with the online weights."""
    return replace(pair.online, above=pair.online.above[:-1])


def rate_law(beta: Tensor | float, between: Tensor | float, within: Tensor | float) -> Tensor:
    r""":math:`\beta (a - \beta (a + b))`: growth of :math:`\log\|w\|` under :math:`W_p = \beta I`.

    between, within: a and b, the variances of the base network's output between images and within augmentations, over
    :math:`\|w\|^2`.  Positive for :math:`0 < \beta < a / (a + b)`, largest at half of that.
    """
    return torch.as_tensor(beta * (between - beta * (between + within)))


Number = float | Tensor

ORDERS = ("before", "after")
"""Which weight the target averages in: that from before the step (the paper's), or from after it (what code does)."""


def kappa(alpha: Number, eta: Number, lam: Number, order: str = "before") -> Tensor:
    r"""Theorem 9's rate as stated; NaN where the roots are complex.

    If the target is updated after the step and alpha is at most 1, it is the larger root of
    :math:`u^2 + (\alpha + \eta - \alpha\eta(1 + \lambda)) u = \alpha\eta\lambda`.
    """
    alpha, eta, lam = _tensors(alpha, eta, lam)
    if order == "after":
        half = (alpha + eta - alpha * eta * (1 + lam)) / 2
        return (half**2 + alpha * eta * lam).sqrt() - half
    half = (alpha + eta) / 2
    # the difference of the root and half without its cancellation
    return alpha * eta * lam / ((half**2 + alpha * eta * lam).sqrt() + half)


def kappa_bound(alpha: Number, eta: Number, lam: Number, order: str = "before") -> Tensor:
    r"""Upper bound on the rate for :math:`\lambda \ge 0`: :math:`\lambda / (1/\alpha + 1/\eta)` (Theorem 9).

    If the target is updated after the step it is :math:`\lambda / (1/\alpha + 1/\eta - 1)`, for alpha and eta of at most 1.
    """
    alpha, eta, lam = _tensors(alpha, eta, lam)
    return lam / (1 / alpha + 1 / eta - float(order == "after"))


def ema_matrix(alpha: Number, eta: Number, lam: Number, *, sign: int = 1, order: str = "before") -> Tensor:
    """The recurrence as a matrix on ``(w, v)``, ``(..., 2, 2)``."""
    alpha, eta, lam = _tensors(alpha, eta, lam)
    one = torch.ones_like(alpha)
    online = torch.stack([1 - alpha, alpha * (1 + sign * lam)], -1)
    old, new = torch.stack([one, 0 * one], -1), torch.stack([0 * one, one], -1)
    read = old if order == "before" else online
    return torch.stack([online, eta[..., None] * read + (1 - eta)[..., None] * new], -2)


def iterate(m: Tensor, start: Tensor, steps: int) -> Tensor:
    """The recurrence run: ``(steps + 1, ..., 2)`` from ``start (..., 2)``."""
    states = [start.expand(*m.shape[:-2], 2)]
    for _ in range(steps):
        states.append((m @ states[-1][..., None])[..., 0])
    return torch.stack(states)


def measured_growth(alpha: Number, eta: Number, lam: Number, *, sign: int = 1, steps: int = 4000) -> Tensor:
    """Growth per step of the recurrence once the smaller root has died out: geometric mean over the last quarter of the steps.

    Where the roots are complex it is how fast the swings grow or fade.
    """
    m = ema_matrix(alpha, eta, lam, sign=sign)
    state = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(*m.shape[:-2], 2)
    total = torch.zeros(m.shape[:-2], dtype=torch.float64)
    for t in range(steps):
        state = (m @ state[..., None])[..., 0]
        size = state.norm(dim=-1, keepdim=True)
        state = state / size
        if t >= steps - steps // 4:
            total = total + size[..., 0].log()
    return torch.expm1(total / (steps // 4))


def ema_path(
    alpha: Number, eta: Number, lam: Number, steps: int, *, target: Number = 0.0, order: str = "before"
) -> Tensor:
    r"""Online weight at times ``0 .. steps``, from :math:`w(0) = 1`, ``(steps + 1, ...)``, in closed form.

    With the roots :math:`z_\pm`, :math:`w(t) = A z_+^t + (1 - A) z_-^t` and :math:`A = (w(1) - z_-) / (z_+ - z_-)`: the theorem's
    :math:`(1 + \kappa)^t` is the larger term, and the only one after a while, if :math:`\alpha + \eta < 2`.  target: the target's
    weight at time 0.
    """
    alpha, eta, lam, v = _tensors(alpha, eta, lam, target)
    top = 1 + kappa(alpha, eta, lam, order)
    m = ema_matrix(alpha, eta, lam, order=order)
    low = m.diagonal(dim1=-2, dim2=-1).sum(-1) - top
    first = m[..., 0, 0] + m[..., 0, 1] * v
    share = (first - low) / (top - low)
    time = torch.arange(steps + 1, dtype=torch.float64).view(-1, *(1,) * share.ndim)
    return share * top**time + (1 - share) * low**time


def _tensors(*values: Number) -> list[Tensor]:
    return list(torch.broadcast_tensors(*(torch.as_tensor(v, dtype=torch.float64) for v in values)))
