"""Eigenpairs of a symmetric operator from products alone: Lanczos' method, and the best pairs in the span that it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.nn.functional import pad

from sslbook._ambient import methods_anywhere
from sslbook._machine import figure
from sslbook.operator.layer import unvec, vec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Estimate(float):
    """A number with the standard error of its estimate, ``error``, which is 0 where it is exact.

    >>> Estimate(1.5, 0.02), Estimate(1.5).error
    (1.5 ± 0.02, 0.0)
    """

    error: float

    def __new__(cls, value: float, error: float = 0.0) -> Estimate:  # noqa: D102
        made = super().__new__(cls, value)
        made.error = error
        return made

    def __repr__(self) -> str:
        return f"{float(self):.4g} ± {self.error:.2g}" if self.error else float.__repr__(self)


@methods_anywhere
@dataclass(frozen=True)
class EigenPairs:
    r"""Eigenpairs of an operator are sorted from one end of its spectrum: the largest first, or the smallest first.

    values: the eigenvalues, ``(k,)``.  vectors: the orthonormal eigenvectors, ``(size, k)``, with their entries in the
    order of :func:`sslbook.operator.layer.vec`, which is ``weight.flatten(1).T.flatten()``.
    residuals: :math:`\|OP v - \lambda v\| / |\lambda|`, ``(k,)``.  shape: the shape of the layer's weight.
    copies: how often each value comes by construction: in a last linear layer once for each output, so that ``k`` of
    these are no few leading directions.  They are iterated as pairs of a value and its direction.

    >>> pairs = EigenPairs(torch.tensor([2.0, 1.0]), torch.eye(6)[:, :2], torch.zeros(2), (3, 2))
    >>> pairs
    EigenPairs(values 2, 1; largest residual 0.0e+00)
    >>> pairs.directions()[0]
    tensor([[1., 0.],
            [0., 0.],
            [0., 0.]])
    >>> [(value, tuple(direction.shape)) for value, direction in pairs]
    [(2.0, (3, 2)), (1.0, (3, 2))]
    >>> pairs.share(torch.ones(3, 2))  # two of six equal numbers
    0.333...
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    shape: tuple[int, ...]
    copies: int = 1

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.3g}" for value in self.values.tolist())
        last = f"; each value comes {self.copies} times, once an output" * (self.copies > 1)
        return f"EigenPairs(values {values}; largest residual {self.residuals.max().item():.1e}{last})"

    def __iter__(self) -> Iterator[tuple[float, Tensor]]:
        return zip(self.values.tolist(), self.directions(), strict=True)

    def directions(self) -> Tensor:
        """Return the eigenvectors in the weight's shape, ``(k, *shape)``."""
        return torch.stack([unvec(v, self.shape) for v in self.vectors.T])

    def share(self, step: Tensor) -> float:
        r"""Return the share :math:`\|V^T vec(s)\|^2 / \|s\|^2` of a step's squared length in the eigenvectors' span.

        step: a tensor in the weight's shape, such as its ``.grad``.  The share is 1 for a step in the span, and about
        ``k / size`` for a random one, with which a large share is to be compared.  Neither the step's length nor its sign
        matters.  Sums are in float64, on the eigenvectors' device; a step of zeros has the share NaN.  Raises ValueError
        for another shape.
        """
        if step.shape != self.shape:
            raise ValueError(f"step must have the shape of the layer's weight, {self.shape}, got {tuple(step.shape)}")
        whole = vec(step.detach()).to(self.vectors.device, torch.float64)
        return float((self.vectors.T.double() @ (whole / whole.norm())).square().sum())

    def plot(self, image: tuple[int, int, int] | None = None) -> Figure:
        """Draw, for each eigenvector as a matrix with a row per output, the input pattern with the largest response.

        This pattern is the matrix's first right singular vector.  Three input channels are shown as colours; any
        other number of channels are drawn side by side, all in one scale.

        image: the shape ``(C, H, W)`` of a linear layer's inputs; for a convolution, the kernel's shape is used.
        """
        directions = self.directions().cpu()
        inputs = tuple(directions.shape[2:])
        channels = tuple(image or inputs)
        if len(channels) != 3 or math.prod(channels) != math.prod(inputs):
            raise ValueError(f"image must be (C, H, W) of the layer's {math.prod(inputs)} inputs, got {channels}")
        patterns = torch.linalg.svd(directions.flatten(2), full_matrices=False).Vh[:, 0].unflatten(1, channels)
        drawn = figure(figsize=(1.3 * len(patterns), 1.6))
        places = drawn.subplots(1, len(patterns), squeeze=False)[0]
        across = math.isqrt(channels[0] - 1) + 1
        for axes, value, pattern in zip(places, self.values, patterns, strict=True):
            grey = 0.5 + 0.5 * pattern / pattern.abs().max()
            if len(grey) == 3:
                picture = grey.permute(1, 2, 0)
            else:  # rows of channels, with a gap after each but for a single one
                gap = int(len(grey) > 1)
                tiles = pad(grey, (0, gap, 0, gap, 0, -len(grey) % across), value=math.nan)
                picture = tiles.unflatten(0, (-1, across)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axes.set_title(f"{value:.3g}", fontsize=9)
            axes.set_axis_off()
        if self.copies > 1:
            drawn.supxlabel(f"a last layer: each value comes {self.copies} times, once an output", fontsize=8)
        return drawn


def lanczos(
    product: Callable[[Tensor], Tensor], like: Tensor, k: int, *, tol: float, seed: int = 0, restarts: int | None = None,
) -> Tensor:  # fmt: skip
    r"""Return eigenvectors ``(size, k)`` of the ``k`` largest eigenvalues of a symmetric operator, the largest first.

    Lanczos' method (ARPACK, by :func:`scipy.sparse.linalg.eigsh`) multiplies one direction after the other.  Together they span
    the Krylov space :math:`v, OP v, OP^2 v, \dots`, in which the leading eigenvectors are found first.  A caller that needs more
    than these, as :mod:`sslbook.inspect.measure` does, keeps what its product has been given.

    product: of the operator with a vector ``(size,)``, of the size, dtype and device of ``like``.
    tol: of the eigenvalues, relative.  restarts: give up after so many, with fewer eigenvectors, in a smaller Krylov space; by
    default, it goes on.  Raises ArpackNoConvergence where it doesn't end then.

    >>> matrix = torch.diag(torch.arange(20.0))
    >>> lanczos(lambda v: matrix @ v, torch.zeros(20), 2, tol=1e-6).abs().argmax(0)
    tensor([19, 18])
    """
    size, real = like.numel(), np.dtype(torch.finfo(like.dtype).dtype)
    start = (np.random.default_rng(seed).standard_normal(size) / size**0.5).astype(real)
    if not bool(product(torch.from_numpy(start.copy()).to(like)).any()):  # a zero operator, on which ARPACK can't start
        return torch.eye(size, k, dtype=like.dtype, device=like.device)
    options = {} if restarts is None else {"maxiter": restarts, "ncv": min(size, max(2 * k + 1, 16))}

    def multiply(v: np.ndarray) -> np.ndarray:
        return np.asarray(product(torch.from_numpy(v.reshape(-1).copy()).to(like)).cpu())

    operator = LinearOperator((size, size), matvec=multiply, dtype=real)
    try:
        values, vectors = eigsh(operator, k=k, which="LA", tol=tol, v0=start, **options)
    except ArpackNoConvergence as stopped:
        if restarts is None:
            raise
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
    return torch.from_numpy(vectors[:, np.argsort(values)[::-1]]).to(like)
