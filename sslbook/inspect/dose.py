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
from sslbook._check import require_floating, require_number, require_whole
from sslbook._machine import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Tensor], Tensor]
LEVELS = (1 / 8, 1 / 4, 1 / 2, 1.0)
DOSES = tuple(product(LEVELS, LEVELS))
LOOKED_AT = 512
"""So many images are enough for a mean derivative."""


@dataclass(frozen=True)
class DoseResponse:
    """What a training did to sixteen planted directions, of variances ``shared`` between images and ``unshared`` within views.

    growth: by how much the logarithm of each direction's weight in the outputs rose; see :func:`dose`.
    """

    shared: np.ndarray
    unshared: np.ndarray
    growth: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The share of each direction's variance that survives augmentation."""
        share: np.ndarray = self.shared / (self.shared + self.unshared)
        return share

    @property
    def slopes(self) -> tuple[float, float]:
        """Of the growth in the logarithms of the shared and of the unshared variance, by least squares."""
        known = np.stack([np.log(self.shared), np.log(self.unshared), np.ones(len(self.growth))], 1)
        by_shared, by_unshared, _ = np.linalg.lstsq(known, self.growth, rcond=None)[0]
        return float(by_shared), float(by_unshared)

    @property
    def ranks(self) -> tuple[float, float]:
        """Rank correlations of the growth with the amount, ``shared``, and with the share."""
        from scipy import stats

        amount, share = (stats.spearmanr(self.growth, of).statistic for of in (self.shared, self.share))
        return float(amount), float(share)

    def __str__(self) -> str:
        """Say in a sentence whether this training ranks features by amount, by share, or by neither."""
        (by_shared, by_unshared), (amount, share) = self.slopes, self.ranks
        numbers = f"rank correlation {amount:.2f} with the amount, {share:.2f} with the share"
        if not max(amount, share) > 0.5 or by_shared <= 0:
            return f"This training amplifies neither what survives nor its share ({numbers})."
        kind = "amount" if amount > share else "share"
        return f"This training ranks features by the {kind} that survives ({numbers}; theta {-by_unshared / by_shared:.2f})."

    def plot(self) -> Figure:
        """Draw the growth of the sixteen directions: rows of equal amount, diagonals of equal share."""
        drawn = figure(figsize=(3.6, 3.0))
        axes = drawn.subplots()
        order = np.lexsort((self.unshared, self.shared))
        grid = (self.growth - self.growth.mean())[order].reshape(4, 4)
        most = float(np.abs(grid).max()) or 1.0
        drawn.colorbar(
            axes.imshow(grid, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most), label="growth less its mean"
        )
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
    given.  directions: sixteen patterns ``(16, ...)`` of an image's shape, for networks that see no white noise; by default
    random and orthogonal.  strength: the largest variance along a pattern of length one, as a part of the images' total variance.

    Growth is the rise of :math:`\log(\|\partial z/\partial q_k\|^2 / \mathrm{Var}\, z)`, with the mean derivative over images, in
    evaluation mode.  *Limits.* A trained network alone can't be asked, since it never saw the features: start from it, and train
    on.  Sixteen directions of one run are one run: repeat it with other seeds before you believe a small difference.  The mean
    derivative misses what a network learns with either sign.  Labels that don't depend on the features amplify neither.

    Raises TypeError or ValueError for images that are no floating ``(N, ...)`` with 32 or more that differ, or other directions.

    >>> def train(net, draw):  # one step of the simple loss: the covariance of two views
    ...     one, two = (x - x.mean(0) for x in (draw(torch.arange(512)), draw(torch.arange(512))))
    ...     net.weight.data += 0.05 * net.weight.data @ one.mT @ two / 512
    >>> images = torch.randn(512, 24, generator=torch.Generator().manual_seed(0))
    >>> print(str(dose(nn.Linear(24, 8, bias=False), images, train)).partition(" (")[0])
    This training ranks features by the amount that survives
    """
    require_floating(images=images)
    if not callable(train):
        raise TypeError(
            f"train must be a function of a network and of what draws its views, got {type(train).__name__}"
        )
    if images.ndim < 2 or len(images) < 32 or images[0].numel() < len(DOSES) or not images.isfinite().all():
        raise ValueError(
            f"images must be 32 or more finite ones of 16 or more numbers, (N, ...), got {tuple(images.shape)}"
        )
    images = images.to(next(net.parameters(), images))
    most = require_number("strength", strength, above=0) * float(images.double().flatten(1).var(0).sum())
    random = torch.Generator().manual_seed(require_whole("seed", seed, least=0))
    shape = (len(DOSES), *images.shape[1:])
    if directions is None:
        drawn = torch.randn(images[0].numel(), len(DOSES), generator=random, dtype=torch.float64)
        directions = torch.linalg.qr(drawn)[0].T.reshape(shape)
    elif tuple(directions.shape) != shape or not (directions.flatten(1).norm(dim=1) > 0).all():
        raise ValueError(f"directions must be {shape}, none of them zero, got {tuple(directions.shape)}")
    patterns = nn.functional.normalize(directions.double().flatten(1)).reshape(shape).to(images)
    s2, u2 = most * torch.tensor(DOSES, dtype=torch.float64)[torch.randperm(len(DOSES), generator=random)].T
    a = torch.randn(len(images), len(DOSES), generator=random, dtype=torch.float64)
    a = (a - a.mean(0)) / a.std(0, correction=0)

    def draw(numbers: Tensor) -> Tensor:
        batch = images[numbers.to(images.device)]
        seen = batch if view is None else view(batch)
        noise = torch.randn(len(batch), len(DOSES), generator=random, dtype=torch.float64, device="cpu")
        coordinates = a[numbers.cpu()] * s2.sqrt() + noise * u2.sqrt()
        planted: Tensor = seen + torch.tensordot(coordinates.to(seen), patterns.to(seen), 1)
        return planted

    trained = copied(net)
    with default_device_of(images), seeded(seed):
        x = draw(torch.arange(min(len(images), LOOKED_AT)))
        step = 0.5 * most**0.5
        before = _carried(net, x, patterns, step)
        train(trained, draw)
        growth = _carried(trained, x, patterns, step) - before
    if not np.isfinite(growth).all():
        raise ValueError(
            "train must leave a network with finite outputs that differ: this one has collapsed or diverged"
        )
    return DoseResponse(s2.numpy(), u2.numpy(), growth)


@torch.no_grad()
def _carried(net: nn.Module, x: Tensor, patterns: Tensor, step: float) -> np.ndarray:
    """Log of the squared norm of the outputs' mean derivative along each pattern, over the outputs' variance."""
    net = copied(net).eval()
    outputs = net(x).double().flatten(1)
    change = [(net(x + step * q) - net(x - step * q)).double().flatten(1).mean(0) / (2 * step) for q in patterns]
    carried: np.ndarray = (torch.stack(change).square().sum(1) / outputs.var(0).sum()).log().cpu().numpy()
    return carried
