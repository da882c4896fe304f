r"""The two-layer network and its losses as one would write them for autograd: what the fast step must agree with.

:math:`f(x) = V^\top \mathrm{BN}[h(W_k^\top x_k)]`, one after the other over ``K`` disjoint receptive fields with ``M``
filters each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sslbook.normalization import batch_normalize

SLOPE = 0.05
"""Of the leaky ReLU below 0."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, SLOPE),
    "quadratic": torch.square,
    "sigmoid": torch.sigmoid,
}
r"""The activations of Figure 9.  The first three satisfy :math:`h(x) = h'(x)\,x`; the square misses it by a factor of 2."""

REFERENCES = ("info_nce", "quadratic")
FORMS = ("released", "printed")
GROUPS = ("view", "batch")


def hidden(x: Tensor, weights: Tensor, activation: str, mean: str, std: str) -> Tensor:
    """Normalised activations ``(..., N, K, M)`` of ``x (..., N, K, d)``; statistics over the ``N``. ``weights``: ``(..., K,
    d, M)``."""
    h = ACTIVATIONS[activation](torch.einsum("...nkd,...kdm->...nkm", x, weights))
    return batch_normalize(h, mean=mean, std=std, dims=h.ndim - 3)


def outputs(
    x: Tensor, weights: Tensor, top: Tensor, *, activation: str, mean: str, std: str, group: str = "view"
) -> Tensor:
    """Outputs of unit length ``(..., 2, B, O)`` of two views ``(..., 2, B, K, d)``; ``top`` is ``(..., K, M, O)``.

    group: BatchNorm's statistics are those of each ``view``, as in the released code, or of the whole ``batch``, as in Eqs.
    164 and 165.
    """
    one, two = x.unbind(-4)
    if group == "view":
        parts = [hidden(view, weights, activation, mean, std) for view in (one, two)]
    else:
        parts = list(hidden(torch.cat([one, two], -3), weights, activation, mean, std).chunk(2, dim=-3))
    f = torch.stack([torch.einsum("...nkm,...kmo->...no", part, top) for part in parts], -3)
    return functional.normalize(f, dim=-1)


def loss(z: Tensor, kind: str, form: str, tau: float) -> Tensor:
    r"""Contrastive loss of unit outputs ``(..., 2, B, O)``.

    With :math:`s_{ij} = z_i^\top z_j` between first views and :math:`s_{ii} = z_i^\top z_i'` on the diagonal, ``info_nce`` is
    the mean over ``i`` of :math:`-\log(e^{s_{ii}/\tau}/\sum_j e^{s_{ij}/\tau})`, and ``quadratic`` is
    :math:`(-(1 + \frac1B)\,\mathrm{mean}_i\, s_{ii} + \mathrm{mean}_{ij}\, s_{ij})/\tau`.  These are the ``released`` forms.
    The ``printed`` ones are Eq. 1 with :math:`\epsilon = 1`, which is :math:`\tau B` times the former because
    :math:`d_{ij}^2 = 1 - s_{ij}`, and minus the energy with :math:`\alpha \equiv 1`, whose gradient is :math:`\tau/2` times
    the latter's.
    """
    one, two = z.unbind(-3)
    s = one @ one.mT
    own = (one * two).sum(-1)
    s = torch.where(torch.eye(s.shape[-1], dtype=torch.bool, device=s.device), own[..., None], s) / tau
    batch = s.shape[-1]
    if kind == "info_nce":
        released = (s.logsumexp(-1) - own / tau).mean(-1)
    else:
        released = -(1 + 1 / batch) * own.mean(-1) / tau + s.mean((-1, -2))
    return released * printed_factor(kind, tau, batch) if form == "printed" else released


def printed_factor(kind: str, tau: float, batch: int) -> float:
    """What the printed form of a loss is, in units of the released one."""
    return tau * batch if kind == "info_nce" else tau / 2
