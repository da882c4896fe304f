"""The operator of any loss of inner products, against autograd through all towers, on random networks.

Tolerances: 1e-12 for steps and 1e-13 for symmetry, the bars of the project, in float64; a variant that is wrong stays above 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from losses_cases import bound
from torch import Tensor, nn

from benchmarks.covariance import population
from sslbook.losses import batch as batch_losses
from sslbook.operator.covariance import covariance_operator, relative_gap
from sslbook.operator.layer import Layer
from sslbook.operator.view_weights import gram_weights
from sslchapters.instances import random_network

SAMPLES = 5
NAMES = ("info_nce", "decoupled", "clip", "spectral_contrastive", "supervised_contrastive", "sigmoid_pairs")
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: bound(batch_losses.LOSSES[name]) for name in NAMES},
    "of lengths too": partial(batch_losses.info_nce, normalize=False, temperature=0.3),
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
    """By the name of a loss, and by a function, which give the same operator."""
    loss = LOSSES[name]
    for seed in range(6):
        net, views = batch(seed)
        for layer in [name for name, module in net.named_modules() if isinstance(module, Layer)]:
            op = covariance_operator(net, layer, views, loss=loss)
            step, dense, mixed = -gradient(net, layer, views, loss), op.dense(), op.mixing.matrix.norm()
            size = step.norm() + 1e-3 * mixed  # a batch that hardly moves
            assert float((op.exact_update() - step).norm()) < 1e-12 * float(size)
            if op.euler_gap() < 1e-12:
                assert float((op.update() - step).norm()) < 1e-12 * float(size)
            assert float((dense - dense.T).norm()) < 1e-13 * float(dense.norm() + 1e-3 * mixed)
            probe = torch.randn(op.shape[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            assert float((op.matvec(probe) - dense @ probe).norm()) < 1e-12 * float(dense.norm() * probe.norm())
            assert op.trace() == pytest.approx(float(dense.trace()), rel=1e-10, abs=1e-12 * float(dense.norm()))
            if name in ("info_nce", "decoupled", "clip", "spectral_contrastive"):
                named = covariance_operator(net, layer, views, loss=name, **getattr(loss, "keywords", {}))
                assert torch.equal(named.dense(), dense)
                assert repr(named) == repr(op)
                assert f"loss {name}" in repr(op)


@pytest.mark.parametrize("outputs", [3, 40])
def test_weights_are_the_derivative_in_the_gram_matrix(outputs: int) -> None:
    """Of a loss written as a function of G, with more views than outputs and with fewer: one solution of many won't do."""
    z = torch.randn(SAMPLES, 2, outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def of_gram(gram: Tensor) -> Tensor:
        scale = gram.diagonal().rsqrt()
        logits = (gram * scale[:, None] * scale / 0.3).masked_fill(torch.eye(len(gram), dtype=torch.bool), -torch.inf)
        return torch.nn.functional.cross_entropy(logits, torch.arange(len(gram)) ^ 1)

    weights = gram_weights(LOSSES["info_nce"], z)
    assert relative_gap(weights, gram_weights(of_gram, z, of_gram=True)) < 1e-13
    assert torch.equal(weights, weights.T)
