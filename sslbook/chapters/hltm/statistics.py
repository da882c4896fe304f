"""Normalised correlation from samples, accumulated centred in float64 or as the released code does it; and the largest there is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sslbook.trees.latent import LatentTree, joint


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
    least squares over all assignments.  Raises ValueError for a tree that has too many of them to list.
    """
    assignments, chance = joint(tree)
    z, leaves = assignments[0][0, 0].to(chance.dtype), assignments[-1][0].to(chance.dtype)
    root = chance.sqrt()[..., None]
    design, target = root * torch.cat([torch.ones_like(z)[None], leaves]).T, root * z[:, None]
    residual = target - design @ torch.linalg.lstsq(design, target).solution
    centred = z - (chance @ z)[:, None]
    left: Tensor = residual.square().sum((1, 2)) / (chance * centred.square()).sum(1)
    return (1 - left).clamp_min(0).sqrt()
