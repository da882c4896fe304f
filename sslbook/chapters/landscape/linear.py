r"""Linear filters in training: where they go if the weights stay as they are, and if each step computes them anew (Section 3).

With weights that are held fixed, the energy of a linear filter is :math:`\frac12 w^T C_\alpha[x] w`; its only maxima on the
sphere are plus and minus the leading eigenvector.  With the weights of InfoNCE at the filter's own outputs, :math:`C_\alpha[x]`
moves with w.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.arguments import require_number
from sslbook.chapters.landscape.kernel import gaussian
from sslbook.contrast import contrastive_covariance, project, weights
from sslbook.streams import Streams


@dataclass(frozen=True)
class Filters:
    """Ends ``w (R, S, d)`` of linear filters on R batches, and the leading eigenvector of the fixed matrix, ``lead (R, d)``."""

    w: Tensor
    lead: Tensor
    still: Tensor

    @property
    def cosine(self) -> Tensor:
        """``|w^T lead|``, ``(R, S)``."""
        return (self.w @ self.lead[..., None])[..., 0].abs()

    def directions(self) -> Tensor:
        """The number of different ends up to sign on each batch, of filters that stand still, ``(R,)``."""
        near = (self.w @ self.w.mT).abs() > 1 - 1e-4
        settled = self.still[:, :, None] & self.still[:, None]
        return (self.still & ~(near & settled).tril(-1).any(-1)).sum(-1)


def train(
    replicas: int, filters: int = 64, *, anew: bool, tau: float = 0.1, steps: int = 800, seed: int = 0, size: int = 3
) -> Filters:
    """Projected ascent of linear filters from random starts, on batches of 10 points without augmentation.

    ``anew``: InfoNCE weights (epsilon 0) at each filter's own outputs in every step; else Gaussian weights of the points.
    """
    require_number("tau", tau, above=0)
    draw = Streams(range(seed, seed + replicas), "linear")
    x = draw.normal((10, size))
    x = x / x.norm(dim=-1, keepdim=True)
    w = draw.normal((filters, size))
    w = w / w.norm(dim=-1, keepdim=True)
    fixed = gaussian(x, 1.0)
    matrix = contrastive_covariance(x, x, fixed)
    lead = torch.linalg.eigh(matrix)[1][..., -1]
    step = 0.2 / torch.linalg.matrix_norm(matrix, ord=2)[:, None, None]
    data = x[:, None].expand(-1, filters, -1, -1)
    rate = step * 10  # a row of InfoNCE weights sums to one, a row of the others to some ten
    v = w
    for _ in range(steps):
        if anew:
            f = data @ w[..., None]
            alpha = weights("info_nce", f, f, tau=tau)
            v = rate * contrastive_covariance(data, data, alpha, f, f)[..., 0]
        else:
            v = step * (w @ matrix)
        w = w + project(w, v)
        w = w / w.norm(dim=-1, keepdim=True)
    return Filters(w, lead, project(w, v).norm(dim=-1) < 1e-6)
