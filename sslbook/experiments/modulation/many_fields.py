r"""How many fields it takes to learn the class together: Theorem 5 of [tian2023] followed from random starts, in two dimensions.

Each of ``K`` fields sees noise on its first coordinate and the class, two equal ones, on its second: within the classes the
coordinates have the variances ``within``, and the class moves the mean of the second by 1.  Filters are linear and keep the
length 1, and the top layer has converged, :math:`S = ss^\top` with the leading eigenvector of :math:`V[f_1]`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sslbook.experiments.modulation.reference import DTYPE

WITHIN = (1.0, 0.2)

PQ = 0.25
""":math:`p_0 p_1` of two equal classes."""


def random_filters(count: int, fields: int, seed: int) -> Tensor:
    """``count`` starts, ``(count, fields, 2)``, uniform on the circle."""
    draw = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, fields, 2, generator=draw, dtype=DTYPE), dim=-1)


def turned(w: Tensor, theory: str = "true", within: tuple[float, float] = WITHIN) -> Tensor:
    r"""One step of all filters ``(..., K, 2)``.

    theory: ``true``; ``deaf``, where every field is left with its own class term, :math:`\delta_k = 0`; ``printed``, with the
    second form that the proof of Theorem 5 gives for :math:`\delta_k`, which lacks a factor.
    """
    spread, b, top, s = _top(w, within)
    pull = s.square()[..., None] * torch.tensor(within, dtype=w.dtype) * w
    own = PQ * s.square() * b
    if theory == "true":
        own = PQ * s * (s * b).sum(-1, keepdim=True)
    elif theory == "printed":
        own = own + (1 - PQ * b.square() / (top - spread)) * b
    pull[..., 1] += own
    return torch.nn.functional.normalize(w + 0.5 * pull, dim=-1)


def _top(w: Tensor, within: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:math:`d_k`, :math:`b_k`, the largest eigenvalue of the units' covariance, ``(..., 1)``, and its eigenvector."""
    d, b = (torch.tensor(within, dtype=w.dtype) * w.square()).sum(-1), w[..., 1]
    values, vectors = torch.linalg.eigh(torch.diag_embed(d) + PQ * b[..., None] * b[..., None, :])
    return d, b, values[..., -1:], vectors[..., -1]


def course(w: Tensor, steps: int, theory: str = "true", within: tuple[float, float] = WITHIN) -> list[Tensor]:
    """The filters before the first step and after each."""
    path = [w]
    for _ in range(steps):
        path.append(turned(path[-1], theory, within))
    return path


def heard(w: Tensor, within: tuple[float, float] = WITHIN) -> tuple[Tensor, Tensor]:
    """What the output takes from each field, :math:`s_k^2`, and of this what it takes from the class's coordinate: ``(..., K)``,
    ``(...)``."""
    taken = _top(w, within)[3].square()
    return taken, (taken * w[..., 1].square()).sum(-1)


@functools.cache  # the exercise asks again and again
def fewest(within: tuple[float, float], most: int = 12) -> int:
    """The least number of fields that learn the class from every start, up to ``most``; by simulation.

    Raises ValueError where not even ``most`` fields do.
    """
    for fields in range(1, most + 1):
        end = course(random_filters(10, fields, fields), 1500, within=within)[-1]
        if bool((heard(end, within)[1] > 0.99).all()):
            return fields
    raise ValueError(f"most must be larger, got {most}: so many fields do not learn the class")
