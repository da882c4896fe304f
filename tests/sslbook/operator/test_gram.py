"""The operator of any loss of inner products, against autograd through all towers, on random networks.

Tolerances: 1e-12 for steps and 1e-13 for symmetry, the bars of the project, in float64; a variant that is wrong stays above 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from operator_cases import population
from torch import Tensor, nn

from sslbook.losses import batch as batch_losses
from sslbook.losses.batch import info_nce
from sslbook.networks.small import mlp
from sslbook.operator.covariance import covariance_operator, relative_gap
from sslbook.operator.layer import Layer, vec
from sslbook.operator.view_weights import gram_weights
from sslchapters.instances import random_network

SAMPLES = 5
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "info_nce": partial(batch_losses.info_nce, temperature=0.3),
    "supervised": partial(batch_losses.supervised_contrastive, labels=torch.tensor([0, 1, 0, 1, 1]), temperature=0.3),
    "decoupled": partial(batch_losses.decoupled, temperature=0.3),
    "clip": partial(batch_losses.clip, temperature=0.3),
    "sigmoid_pairs": partial(batch_losses.sigmoid_pairs, scale=5.0, bias=-2.0),
    "spectral_contrastive": batch_losses.spectral_contrastive,
    "own": lambda z: (z[:, 0] @ z[:, 1].T).sigmoid().mean(),
}


def batch(seed: int) -> tuple[nn.Sequential, Tensor]:
    """A random network without a view whose ReLUs are all silent: cosines have no derivative there."""
    net, shape = random_network(seed, outputs=3)
    views = population(shape, SAMPLES, 2, seed=seed, dtype=torch.float64)[1]
    alive = bool((net(views.flatten(0, 1)).flatten(1).norm(dim=1) > 0).all())
    return (net, views) if alive else batch(seed + 20)


def gradient(net: nn.Module, layer: str, views: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """By autograd, through all towers; it knows nothing of connections."""
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (found,) = torch.autograd.grad(loss(outputs), net.get_parameter(f"{layer}.weight"))
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_the_step_is_that_of_autograd(name: str) -> None:
    for seed in range(6):
        net, views = batch(seed)
        for layer in [name for name, module in net.named_modules() if isinstance(module, Layer)]:
            op = covariance_operator(net, layer, views, loss=LOSSES[name])
            step = -gradient(net, layer, views, LOSSES[name])
            mixed = op.mixing.matrix.norm()  # type: ignore[union-attr]
            size = step.norm() + 1e-3 * mixed  # a batch that hardly moves
            assert float((op.exact_update() - step).norm()) < 1e-12 * float(size)
            if op.euler_gap() < 1e-12:
                assert float((op.update() - step).norm()) < 1e-12 * float(size)
            dense = op.dense()
            assert float((dense - dense.T).norm()) < 1e-13 * float(dense.norm() + 1e-3 * mixed)
            probe = torch.randn(op.shape[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            assert float((op.matvec(probe) - dense @ probe).norm()) < 1e-12 * float(dense.norm() * probe.norm())
            assert op.trace() == pytest.approx(float(dense.trace()), rel=1e-10, abs=1e-12 * float(dense.norm()))


def test_outputs_of_length_one_leave_no_growth() -> None:
    """A loss of cosines is of degree 0 in the outputs: w^T OP w = 0, and OP has eigenvalues of both signs."""
    net, views = mlp((6, 8, 5, 4), seed=3), population((6,), SAMPLES, 2, seed=3, dtype=torch.float64)[1]
    op = covariance_operator(net, "2", views, loss="info_nce", temperature=0.3)
    values = torch.linalg.eigvalsh(op.dense())
    w = vec(op.opened.weight)
    assert abs(float(w @ op.matvec(w))) < 1e-13 * float(values.abs().max() * w @ w)
    assert float(values[0]) < -0.05 * float(values[-1]) < 0
    plain = covariance_operator(net, "2", views, loss=partial(info_nce, temperature=0.3, normalize=False))
    assert abs(float(w @ plain.matvec(w))) > 1e-3 * float(w @ w)
    assert op.bottom_eigenpairs(2).values == pytest.approx(values[:2], rel=1e-9)
    assert op.top_eigenpairs(2).values == pytest.approx(values.flip(0)[:2], rel=1e-9)


@pytest.mark.parametrize("outputs", [3, 40])
def test_weights_are_the_derivative_in_the_gram_matrix(outputs: int) -> None:
    """Of a loss written as a function of G, with more views than outputs and with fewer; one solution of many won't do."""
    z = torch.randn(SAMPLES, 2, outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def of_gram(gram: Tensor) -> Tensor:
        scale = gram.diagonal().rsqrt()
        logits = (gram * scale[:, None] * scale / 0.3).masked_fill(torch.eye(len(gram), dtype=torch.bool), -torch.inf)
        partner = torch.arange(len(gram)) ^ 1
        return torch.nn.functional.cross_entropy(logits, partner)

    weights = gram_weights(partial(info_nce, temperature=0.3), z)
    assert relative_gap(weights, gram_weights(of_gram, z, of_gram=True)) < 1e-13
    assert torch.equal(weights, weights.T)
    rows = z.flatten(0, 1)
    least = torch.linalg.lstsq(rows.T, (2 * weights @ rows).T).solution.T / 2  # solves 2 Gamma Z = dL/dZ, too
    assert (relative_gap(least, weights) > 0.1) == (outputs < len(rows))


def test_names_and_functions_are_one() -> None:
    net, views = mlp((6, 8, 5, 4), seed=3), population((6,), SAMPLES, 2, seed=3, dtype=torch.float64)[1]
    named = covariance_operator(net, "2", views, loss="decoupled", temperature=0.4)
    given = covariance_operator(net, "2", views, loss=partial(batch_losses.decoupled, temperature=0.4))
    assert torch.equal(named.dense(), given.dense())
    assert "loss decoupled" in repr(named)
    assert repr(named) == repr(given)
