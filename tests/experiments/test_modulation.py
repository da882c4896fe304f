"""Global modulation: who wins, and a step of many fields."""

from __future__ import annotations

import math

import pytest
import torch

from sslbook.experiments.modulation import instances, theory
from sslbook.experiments.modulation.instances import on_circle


def test_starts_on_the_circle_end_on_their_side_of_the_edge() -> None:
    unit, _ = theory.edge_of_two(0.5, 2.0)
    assert theory.edge_of_two(1.0, 2.0)[0] == pytest.approx(math.pi / 2)
    around, won = on_circle(0.5, 2.0)
    assert (won[(around > 0) & (around < 1.5)] == (around[(around > 0) & (around < 1.5)] > unit).int()).all()
    assert (won[(around > 3.2) & (around < 4.6)] == -1).all(), "both components negative"


def test_a_step_of_the_crowd_climbs_the_largest_eigenvalue() -> None:
    w = instances.random_filters(5, 4, 0).requires_grad_()
    d, b = (torch.tensor(instances.WITHIN, dtype=torch.float64) * w.square()).sum(-1), w[..., 1]
    spread = torch.diag_embed(d) + instances.PQ * b[..., None] * b[..., None, :]
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(spread)[..., -1].sum() / 2, w)
    w = w.detach()
    stepped = torch.nn.functional.normalize(w + 0.5 * slope, dim=-1)
    assert torch.allclose(instances.turned(w), stepped, atol=1e-12)
    assert not torch.allclose(instances.turned(w, "deaf"), stepped, atol=1e-3)
    assert not torch.allclose(instances.turned(w, "printed"), stepped, atol=1e-3)
    alone = instances.random_filters(5, 1, 0)
    assert torch.allclose(instances.turned(alone), instances.turned(alone, "deaf"), atol=1e-12), (
        "nobody else to listen to"
    )
