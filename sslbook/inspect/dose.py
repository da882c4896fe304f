"""Which planted features does a training amplify: those of which much survives augmentation, or a large share?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sslbook._ambient import copied, default_device_of, seeded, with_gradients
from sslbook._check import require_number
from sslbook._machine import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Tensor], Tensor]
DOSES = tuple(product((1 / 8, 1 / 4, 1 / 2, 1.0), repeat=2))


@dataclass(frozen=True)
class DoseResponse:
    r"""What a training did to sixteen planted directions, of variances ``shared`` between images and ``unshared`` within views.

    growth: by how much the logarithm of each direction's weight in the outputs rose; see :func:`dose`.
    told_apart: how many of the directions the network told apart before training, from 1, if it gave the same mean response to
    all but for its size, to 16, if responses stood at right angles: :math:`16^2 / \sum_{jk} \cos^2(r_j, r_k)`.

    >>> amount, noise = np.array(DOSES).T
    >>> print(str(DoseResponse(amount, noise, np.log(amount / (amount + noise)))).partition(" (")[0])
    This training ranks features by the share that survives
    """

    shared: np.ndarray
    unshared: np.ndarray
    growth: np.ndarray
    told_apart: float = float(len(DOSES))

    @property
    def share(self) -> np.ndarray:
        """The share of each direction's variance that survives augmentation."""
        return self.shared / (self.shared + self.unshared)

    @property
    def slopes(self) -> tuple[float, float]:
        """Of the growth in the logarithms of the shared and of the unshared variance, by least squares."""
        known = np.stack([np.log(self.shared), np.log(self.unshared), np.ones(len(self.growth))], 1)
        by_shared, by_unshared, _ = np.linalg.lstsq(known, self.growth, rcond=None)[0]
        return float(by_shared), float(by_unshared)

    @property
    def ranks(self) -> tuple[float, float]:
        """Rank correlations of the growth with the amount, ``shared``, and with the share."""
        amount, share = (_spearman(self.growth, of) for of in (self.shared, self.share))
        return float(amount), float(share)

    def __str__(self) -> str:
        """Say in a sentence whether this training ranks features by amount, by share, by neither, or why that is not known.

        Intervals of 95 % come from 2,000 redraws of the sixteen directions.  A training amplifies what survives if a rank
        correlation is positive by its interval, and neither if both are below 1/2 by theirs; amount and share are told apart by
        the interval of the correlations' difference.  That nothing was amplified is laid to a training only if the network told
        half of the directions apart before; if it told fewer than three, nothing is said of the training at all.
        """
        if np.ptp(self.growth) < 1e-9:
            return "This training moved no direction more than another: does it train the network that it is given?"
        drawn = np.random.default_rng(0).integers(len(self.growth), size=(2000, len(self.growth)))
        amounts, shares = (_spearman(self.growth[drawn], of[drawn]) for of in (self.shared, self.share))
        (low, high), (low_share, high_share), (behind, ahead) = (
            np.quantile(of, (0.025, 0.975)) for of in (amounts, shares, shares - amounts)
        )
        (amount, share), (by_shared, by_unshared) = self.ranks, self.slopes
        numbers = f"rank correlation {amount:.2f} ({low:.2f} to {high:.2f}) with the amount"
        numbers += f", {share:.2f} ({low_share:.2f} to {high_share:.2f}) with the share"
        amplifies = by_shared > 0 and max(low, low_share) > 0
        if self.told_apart < (3 if amplifies else len(self.growth) / 2):
            return (
                f"Your network cannot tell these directions apart: it answers all as if they were {self.told_apart:.1f}, so "
                f"that this is no verdict on the training ({numbers}). One that ends in an average over positions answers a "
                "pattern's mean colour alone: put nn.Flatten() in its place; else give it more outputs, or other directions=."
            )
        if amplifies and behind <= 0 <= ahead:
            return f"This training amplifies what survives, undecided whether by amount or by share ({numbers}): try more seeds."
        if amplifies:
            kind = "share" if behind > 0 else "amount"
            return f"This training ranks features by the {kind} that survives ({numbers}; theta {-by_unshared / by_shared:.2f})."
        if by_shared <= 0 or max(high, high_share) < 0.5:
            return f"This training amplifies neither what survives nor its share ({numbers})."
        return f"Undecided ({numbers}): train longer, or repeat it with other seeds."

    def plot(self) -> Figure:
        """Draw the growth of the sixteen directions: rows of equal amount, diagonals of equal share.

        Colours are red above the mean of all growths and blue below it, white at the mean, and as strong on both sides.
        """
        drawn = figure(figsize=(3.6, 3.0))
        axes = drawn.subplots()
        order = np.lexsort((self.unshared, self.shared))
        grid = (self.growth - self.growth.mean())[order].reshape(4, 4)
        most = float(np.abs(grid).max()) or 1.0
        shown = axes.imshow(grid, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most)
        drawn.colorbar(shown, label="growth less its mean")
        axes.set(xticks=[], yticks=[], xlabel="unshared variance →", ylabel="shared variance →")
        return drawn


@with_gradients
def dose(
    net: nn.Module,
    images: Tensor,
    train: Callable[[nn.Module, Draw], object],
    *,
    view: Draw | None = None,
    directions: Tensor | None = None,
    strength: float = 0.16,
    seed: int = 0,
) -> DoseResponse:
    r"""Plant sixteen features of known amount and share in your images, train, and see which of them your network learns.

    Along the direction :math:`q_k` every view of image i gets :math:`s_k a_{ik} + u_k n`, where n is drawn anew for each view.
    ``train(network, draw)`` trains a copy of ``net`` in place, as you would; in it, ``draw(numbers)`` returns a new random view
    of each image whose number is given, ``(B, ...)``.  view: your augmentation, from a batch to one view of each; none if not
    given.  directions: sixteen patterns ``(16, ...)`` of an image's shape; by default random and orthogonal, so give your own
    if your network does not respond to white noise.  strength: the largest variance along a unit pattern, over the total variance.

    Growth is the rise of :math:`\log(\|\partial z/\partial q_k\|^2 / \mathrm{Var}\, z)`, with the mean derivative over images, in
    evaluation mode.  *Limits.* A trained network alone can't be asked, since it never saw the features: start from it, and train
    on.  Sixteen directions of one run are one run: repeat it with other seeds before you believe a small difference.  The mean
    derivative misses what a network learns with either sign.  Labels that don't depend on the features amplify neither.

    A network that ends in an average over positions (global average pooling) answers a pattern by hardly more than its mean
    colour, trained or not: such responses are nearly parallel, and the answer then says this, and nothing of the training.  Plant
    the features below the pooling: give the network with ``nn.Flatten()`` in its place.

    Raises ValueError for fewer than 32 images, and where training diverged.

    >>> import sslbook
    >>> def train(net, draw):  # one step of the simple loss: the covariance of two views
    ...     one, two = (x - x.mean(0) for x in (draw(torch.arange(512)), draw(torch.arange(512))))
    ...     net.weight.data += 0.05 * net.weight.data @ one.mT @ two / 512
    >>> images = torch.randn(512, 24, generator=torch.Generator().manual_seed(0))
    >>> print(str(dose(sslbook.mlp((24, 24))[0], images, train)).partition(" (")[0])
    This training ranks features by the amount that survives
    """
    if len(images) < 32:
        raise ValueError(f"images must be 32 or more, got {len(images)}")
    images = images.to(next(net.parameters(), images))
    most = require_number("strength", strength, above=0) * float(images.double().flatten(1).var(0).sum())
    random = torch.Generator().manual_seed(int(seed))
    shape = (len(DOSES), *images.shape[1:])
    if directions is None:
        drawn = torch.randn(images[0].numel(), len(DOSES), generator=random, dtype=torch.float64)
        directions = torch.linalg.qr(drawn)[0].T.reshape(shape)
    patterns = nn.functional.normalize(directions.double().flatten(1)).reshape(shape).to(images)
    s2, u2 = most * torch.tensor(DOSES, dtype=torch.float64)[torch.randperm(len(DOSES), generator=random)].T
    a = torch.randn(len(images), len(DOSES), generator=random, dtype=torch.float64)
    a = (a - a.mean(0)) / a.std(0, correction=0)

    def draw(numbers: Tensor) -> Tensor:
        batch = images[numbers.to(images.device)]
        seen = batch if view is None else view(batch)
        noise = torch.randn(len(batch), len(DOSES), generator=random, dtype=torch.float64, device="cpu")
        coordinates = a[numbers.cpu()] * s2.sqrt() + noise * u2.sqrt()
        return seen + torch.tensordot(coordinates.to(seen), patterns.to(seen), 1)

    trained = copied(net)
    with default_device_of(images), seeded(seed):
        x = draw(torch.arange(min(len(images), 512)))  # enough for a mean derivative
        step = 0.5 * most**0.5
        before = _responses(net, x, patterns, step)
        train(trained, draw)
        after = _responses(trained, x, patterns, step)
    growth = (after.square().sum(1) / before.square().sum(1)).log().numpy()
    if not np.isfinite(growth).all():
        raise ValueError("train must leave a network with finite outputs that differ: this one collapsed or diverged")
    angles = nn.functional.normalize(before)
    told_apart = len(DOSES) ** 2 / float((angles @ angles.mT).square().sum())
    return DoseResponse(s2.numpy(), u2.numpy(), growth, told_apart)


@torch.no_grad()
def _responses(net: nn.Module, x: Tensor, patterns: Tensor, step: float) -> Tensor:
    r"""The outputs' mean derivative along each pattern over the outputs' size, :math:`\sqrt{\mathrm{Var}\, z}`: ``(16, n_L)``."""
    net = copied(net).eval()
    size = net(x).double().flatten(1).var(0).sum().sqrt()
    change = [(net(x + step * q) - net(x - step * q)).double().flatten(1).mean(0) / (2 * step) for q in patterns]
    return (torch.stack(change) / size).cpu()


def _spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis, of many draws at once; 0 where one of the two is constant."""
    from scipy import stats

    first, second = (stats.rankdata(of, axis=-1) for of in (one, other))
    first, second = (of - of.mean(-1, keepdims=True) for of in (first, second))
    size = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
    return (first * second).sum(-1) / np.where(size > 0, size, 1.0)
