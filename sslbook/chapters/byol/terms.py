r"""The terms of BYOL's update, from dense connections (Eqs. 11, 13 and 14 of [tian2021iclr]).

With the mean over views :math:`\bar K(x) = E_{x'}[K(x')]` and :math:`w = vec(W_l)`,

    sym        = -E_x V_{x'}[K] w
    variance   =  V_x[\bar K] w
    covariance =  Cov_x[\bar K, \bar K'] w'
    correction =  E_x[\bar K] {E_x[\bar K]^T w - E_x[\bar K']^T w'}

and Theorem 8 says that the corrected update is sym - variance + covariance.  Connections are ``(R, N, V, m k, o)``, the terms
``(R, m k)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.chapters.byol.towers import Norm, Pair, vec


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
    k = k - k.mean(2, keepdim=True)
    f = torch.einsum("rnvpo,rp->rnvo", k, w)
    return torch.einsum("rnvpo,rnvo->rp", k, f) / (k.shape[1] * k.shape[2])


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
