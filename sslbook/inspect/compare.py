"""Two augmentations, or two checkpoints, through one layer: what each keeps that the other loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sslbook._ambient import with_gradients
from sslbook._check import counted
from sslbook.inspect.measure import redraws
from sslbook.inspect.report import Share
from sslbook.operator.covariance import CovarianceOperator, covariance_operator
from sslbook.operator.eigen import EigenPairs
from sslbook.operator.layer import vec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    r"""How much two operators of one layer keep of each other's leading space, of ``k`` dimensions.

    directions: two tensors ``(k, *shape)``: of the first's leading space, the direction that the second keeps least comes first;
    and of the second's, the one that the first keeps least.  kept: of each of them, its share of the trace in the other operator
    over that in its own, :math:`(v^T B v / \mathrm{tr} B) / (v^T A v / \mathrm{tr} A)`, with its interval of 95 % over images: 1
    where both keep it alike, 0 where the other averages it away, whatever the scale of the two networks' outputs.  lost: how many
    of each have a whole interval below 1/2.  total: the second's trace over the first's.  overlap: of the leading spaces, 0 to 1.
    ceiling: of each with itself on other images.
    """

    directions: tuple[Tensor, ...]
    kept: tuple[tuple[Share, ...], ...]
    lost: tuple[int, ...]
    total: float
    overlap: float
    ceiling: float

    def plot(self, which: int = 0, image: tuple[int, int, int] | None = None) -> Figure:
        """Draw the directions of the first's space (``which=0``) or the second's (1) as :meth:`EigenPairs.plot` does."""
        found, values = self.directions[which], torch.tensor([share.value for share in self.kept[which]])
        vectors = torch.stack([vec(direction) for direction in found], dim=1)
        return EigenPairs(values, vectors, 0 * values, tuple(found.shape[1:])).plot(image=image)

    def __str__(self) -> str:
        """Say what is lost, with the numbers behind it, and what they are."""
        lines = [
            "Kept is a direction's share of the trace in the other operator over that in its own; below 1/2 it is lost."
        ]
        for one, other, kept, lost in zip(("first", "second"), ("second", "first"), self.kept, self.lost, strict=True):
            told = ", ".join(f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f})" for share in kept)
            leading = counted(len(kept), "leading direction")
            lines.append(f"Of the {one}'s {leading}, the {other} loses {lost or 'none'}: it keeps {told}.")
        spaces = (
            f"Overlap of the leading spaces {self.overlap:.2f}, of each with itself on other images {self.ceiling:.2f}"
        )
        return "\n".join([*lines, f"{spaces}; trace of the second over that of the first {self.total:.3g}."])

    __repr__ = __str__


@with_gradients
def compare(
    net: nn.Module, layer: str | nn.Module, first: Tensor | np.ndarray, second: Tensor | np.ndarray,
    *, other: nn.Module | None = None, k: int = 5, seed: int = 0,
) -> Comparison:  # fmt: skip
    r"""Compare two augmentations, or two checkpoints, through the covariance operator of one layer.

    first, second: views ``(N, V, ...)`` and ``(N, V', ...)`` of the same images, by two augmentations; or the same views twice, and
    with ``other`` a second checkpoint of the network, to which the second views go.  ``k``: the dimension of each leading space,
    in which directions are told apart by the generalised eigenvalues of the two operators.

    Each operator is divided by its trace, so that what counts is a direction's *share*: eigenvalues grow with the outputs' scale,
    from checkpoint to checkpoint or from one augmentation to another, and a scale is no loss.

    Directions :math:`v` are sought on every other image, and their Rayleigh quotients :math:`v^T OP\, v` measured on the rest: on
    the images on which it was sought, a direction would look better kept than it is.  Intervals are the bootstrap's over those
    images, the same draws for both.  Operators are those of :func:`~sslbook.operator.covariance.covariance_operator`: with V random
    views, each holds 1/V of the covariance within views, so take many, and as many in both.  It takes as long as four calls of
    ``top_eigenpairs`` on half of the images.

    Raises ValueError or TypeError for views of fewer than eight images, or of others, and for a last layer, whose directions come
    once for each output, so that no few of them lead.

    >>> import sslbook
    >>> digits = sslbook.load_dataset("digits", "train").pixels[:64] / 255
    >>> net = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 3, 2), "linear"))
    >>> shifted = sslbook.shifts(digits.double())
    >>> found = sslbook.compare(net, "1.0", shifted, torch.cat([shifted, shifted.flip(-1)], 1), k=3)
    >>> found.lost  # with mirror images as views, a direction that is odd
    (1, 0)
    """
    if len(first) < 8 or len(first) != len(second):
        raise ValueError(f"first and second must hold views of eight images or more, got {len(first)}, {len(second)}")
    each = ((net, first), (net if other is None else other, second))
    sought, rest = ([covariance_operator(one, layer, views[start::2]) for one, views in each] for start in (0, 1))
    if sought[0].opened.copies > 1:
        raise ValueError(f"layer must not be the last: each direction of {layer!r:.60} comes once for each output")
    pairs = [[op.top_eigenpairs(k, tol=1e-4, seed=seed) for op in half] for half in (sought, rest)]
    (same, across), (back, too) = (
        [float((one.vectors.double().T @ two.vectors.double()).square().sum()) / k for two in pairs[1]]
        for one in pairs[0]
    )
    one, two = (op.trace(samples=16, seed=seed) for op in rest)
    # All images that measure, each with the same share, and then the redraws of them.
    p = torch.cat([torch.ones(1, count := len(first) // 2).double() / count, redraws(count, seed)])

    directions, kept, lost = [], [], []
    for found, mine, yours, total in ((pairs[0][0], 0, 1, two / one), (pairs[0][1], 1, 0, one / two)):
        space = found.directions().double()
        here, there = (
            torch.einsum("iko,ilo->kl", mean, mean) for mean in (means(sought[at], space) for at in (mine, yours))
        )
        values, turn = torch.linalg.eigh(here)
        white = turn / values.clamp_min(1e-12 * values[-1]).sqrt()  # in its own quotient all directions are of length 1
        least = torch.einsum("kj,k...->j...", white @ torch.linalg.eigh(white.T @ there @ white)[1], space)
        directions.append(nn.functional.normalize(least.flatten(1)).view_as(least))
        at_rest = [means(rest[at], directions[-1]).cpu() for at in (mine, yours)]
        own, others = (
            torch.tensordot(p, mean.square().sum(2), 1) - torch.tensordot(p, mean, 1).square().sum(2)
            for mean in at_rest
        )
        ratio = others / own.clamp_min(torch.finfo(own.dtype).tiny) / total
        ends = ratio[1:].quantile(torch.tensor([0.025, 0.975]).to(ratio), dim=0)
        kept.append(tuple(Share(*numbers) for numbers in torch.cat([ratio[:1], ends]).T.tolist()))
        lost.append(int((ends[1] < 0.5).sum()))
    return Comparison(tuple(directions), tuple(kept), tuple(lost), two / one, (across + back) / 2, (same + too) / 2)


def means(op: CovarianceOperator, directions: Tensor) -> Tensor:
    r"""Return :math:`\bar K_i^T v` of each image and direction, its views' mean less all images': ``(N, k, n_L)``.

    The mean over images of the squares, summed over the ``n_L`` outputs, is :math:`v^T \mathbb V_i[\bar K_i]\, v`.
    """
    along = (op.opened.jvp(one.to(op.opened.weight)) for one in directions)
    found = torch.stack([outputs.unflatten(0, op.population).double().mean(1) for outputs in along], dim=1)
    return found - found.mean(0)
