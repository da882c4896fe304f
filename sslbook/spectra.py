r"""Trace, effective rank and density of the spectrum of an operator that is known by its products, each with its error.

Estimates over random signs :math:`g`, for which :math:`E\, g^T f(A) g = \mathrm{tr} f(A)`.  The errors are standard errors over the
probes.  (The libraries that have these estimators come with compilers, or with six packages, and without the errors.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sslbook.arguments import require_number, require_whole


class Operator(Protocol):
    """A square matrix by its products with matrices ``(size, k)``."""

    @property
    def shape(self) -> tuple[int, int]: ...  # noqa: D102
    @property
    def dtype(self) -> torch.dtype: ...  # noqa: D102
    @property
    def device(self) -> torch.device: ...  # noqa: D102
    def matmat(self, matrix: Tensor) -> Tensor: ...  # noqa: D102


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class MeanOperator:
    """The mean of one layer's operators over batches, which stands for their expectation, by its products.

    It takes the place of an operator in this module; errors over batches are those of :meth:`forms`.  Raises ValueError for fewer
    than two parts, and for parts of different shapes.
    """

    parts: tuple[Operator, ...]

    def __post_init__(self) -> None:
        require_whole("the number of parts", len(self.parts), least=2)
        shapes = sorted({part.shape for part in self.parts})
        if len(shapes) > 1:
            raise ValueError(f"parts must be operators of one layer, got shapes {' and '.join(map(str, shapes))}")

    @property
    def shape(self) -> tuple[int, int]:
        """``(size, size)``."""
        return self.parts[0].shape

    @property
    def dtype(self) -> torch.dtype:
        """That of the first part."""
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        """That of the first part."""
        return self.parts[0].device

    def matmat(self, matrix: Tensor) -> Tensor:
        """The mean of the products with ``(size, k)``."""
        first, *others = self.parts
        total = first.matmat(matrix)
        for part in others:
            total = total + part.matmat(matrix)
        return total / len(self.parts)

    def forms(self, directions: Tensor) -> list[Estimate]:
        r""":math:`v^\top A v` of directions ``(size, k)`` that know nothing of these batches: means over them, with errors.

        (A direction that was found in these batches, as an eigenvector is, has a form that is too large, and an error too small.)
        """
        each = torch.stack([(directions * part.matmat(directions)).sum(0) for part in self.parts]).double()
        return [_mean(column) for column in each.T]


def trace_estimate(op: Operator, *, products: int = 48, batch: int = 8, seed: int = 0) -> Estimate:
    r"""The trace by Hutch++ (Meyer et al. 2021): exact on a sketch of the leading range, over random signs on the rest.

    products: with the operator, symmetric or not; a third each for the sketch, its trace and the probes.  batch: products at once,
    which bounds the memory and leaves the result as it is but for rounding.  Where the sketch has the whole range, the error is
    rounding.

    Raises ValueError for fewer than 6 products, TypeError for numbers that aren't whole.
    """
    require_whole("products", products, least=6)
    size = op.shape[0]
    draw = torch.Generator().manual_seed(seed)
    sketch = _times(op, _signs(op, min(products // 3, size), draw), batch)
    # In float64: LAPACK's single-precision sums over a million weights lose three digits.
    basis = torch.linalg.qr(sketch.double())[0]
    image = _times(op, basis.to(op.dtype), batch).double()
    probes = _signs(op, products // 3, draw).double()
    rest = probes - basis @ (basis.T @ probes)
    forms = (rest * _times(op, rest.to(op.dtype), batch).double()).sum(0)
    return _mean((basis * image).sum() + forms)


@dataclass(frozen=True)
class SpectralDensity:
    r"""Gauss quadratures of a symmetric operator's spectrum, one a probe: :math:`\mathrm{tr} f(A) \approx \sum_i w_i f(\theta_i)`.

    nodes, weights: ``(probes, steps)``, float64, on the processor; the weights of a probe sum to ``size``.
    """

    nodes: Tensor
    weights: Tensor
    resolution: float
    """Of what lies below it, relative to the largest, nothing is known."""

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        r""":math:`\mathrm{tr} f(A)`; exact, but for the probes, for polynomials of a degree below twice the steps."""
        return _mean((self.weights * function(self.nodes)).sum(1))

    def effective_rank(self) -> Estimate:
        r""":math:`\exp(-\sum_i p_i \log p_i)`, :math:`p_i = \lambda_i / \sum_j \lambda_j`.

        As :func:`sslbook.representations.effective_rank` has it, of the covariance whose eigenvalues these are.
        The error is of first order in the probes'.  Raises ValueError for an operator with an eigenvalue below zero, and for zero.
        """
        largest = self.nodes.abs().max()
        if bool((self.weights * (self.nodes < -self.resolution * largest)).sum() > 0) or not largest:
            raise ValueError(
                "an effective rank is that of a positive operator that isn't zero; this one has other eigenvalues"
            )
        values = self.nodes.clamp(min=0)
        total = (self.weights * values).sum(1)
        entropic = (self.weights * torch.special.xlogy(values, values)).sum(1)
        mean, ratio = total.mean(), entropic.mean() / total.mean()
        rank = (mean.log() - ratio).exp()
        slopes = ((1 + ratio) * total - entropic) / mean  # of the entropy, in each probe's two sums
        return Estimate(float(rank), float(rank) * _mean(slopes).error)

    def at(self, points: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Share of the eigenvalues per unit of length, through Gaussians of that ``width``, and its errors: like ``points``."""
        require_number("width", width, above=0)
        centres = points.double().cpu()
        bells = torch.exp(-0.5 * ((self.nodes[..., None] - centres) / width).square()) / (
            width * math.sqrt(2 * math.pi)
        )
        each = (self.weights[..., None] * bells).sum(1) / self.weights.sum(1, keepdim=True)
        return each.mean(0), each.std(0) / math.sqrt(len(each))


def spectral_density(
    op: Operator, *, probes: int = 16, steps: int = 20, batch: int = 4, seed: int = 0
) -> SpectralDensity:
    r"""The spectrum of a symmetric operator by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

    probes: random starts, of ``steps`` products each.  batch: of them at once; memory is ``batch * steps`` vectors, and the result
    does not depend on it but for rounding.  Errors, of all that is asked of the result, are over the probes: what too few steps
    leave unseen isn't in them.

    Raises ValueError for fewer than 2 probes or 1 step, TypeError for numbers that aren't whole.
    """
    for name, given, least in (("probes", probes, 2), ("steps", steps, 1), ("batch", batch, 1)):
        require_whole(name, given, least=least)
    draw = torch.Generator().manual_seed(seed)
    starts = _signs(op, probes, draw).split(batch, dim=1)
    alphas, betas = zip(*(_lanczos(op, start, min(steps, op.shape[0])) for start in starts), strict=True)
    alpha, beta = torch.cat(alphas), torch.cat(betas)
    small = torch.diag_embed(alpha) + torch.diag_embed(beta, 1) + torch.diag_embed(beta, -1)
    nodes, vectors = torch.linalg.eigh(small)
    return SpectralDensity(nodes, op.shape[0] * vectors[:, 0].square(), 100 * torch.finfo(op.dtype).eps)


def _lanczos(op: Operator, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Diagonals ``(k, steps)`` and ``(k, steps - 1)`` of the tridiagonal matrices that k starts lead to, orthogonalised twice."""
    basis = [start / start.norm(dim=0)]
    alphas, betas = [], []
    for step in range(steps):
        image = op.matmat(basis[-1])
        alphas.append((image * basis[-1]).sum(0, dtype=torch.float64))
        if step + 1 == steps:
            break
        length = image.norm(dim=0)
        for vector in basis + basis:
            image = image - (vector * image).sum(0) * vector
        beta = image.norm(dim=0)
        # what is rounding is no direction: the space is invariant, and what follows has no weight
        beta = torch.where(beta > 10 * torch.finfo(op.dtype).eps * length, beta, 0)
        basis.append(torch.where(beta > 0, image / beta, 0))
        betas.append(beta.double())
    off = torch.stack(betas, dim=1) if betas else torch.zeros(start.shape[1], 0, dtype=torch.float64)
    return torch.stack(alphas, dim=1).cpu(), off.cpu()


def _signs(op: Operator, count: int, draw: torch.Generator) -> Tensor:
    """Random signs ``(size, count)``, the same on every device."""
    signs = torch.stack([torch.randint(0, 2, (op.shape[0],), generator=draw) for _ in range(count)], dim=1)
    return (2 * signs - 1).to(op.device, op.dtype)


def _times(op: Operator, matrix: Tensor, batch: int) -> Tensor:
    require_whole("batch", batch, least=1)
    return torch.cat([op.matmat(columns) for columns in matrix.split(batch, dim=1)], dim=1)


def _mean(samples: Tensor) -> Estimate:
    return Estimate(float(samples.mean()), float(samples.std()) / math.sqrt(len(samples)))
