"""How features emerge: one neuron on the ring, the networks that are trained, and their record."""

from __future__ import annotations

import pytest
import torch

from sslchapters.emergence import runs, theory


def test_the_networks_gradient_is_autograd_through_a_convolution() -> None:
    """The einsum network equals torch's circular convolution, so that what is trained is what the chapter names."""
    draw = torch.Generator().manual_seed(0)
    filters = torch.randn(1, 3, 3, dtype=torch.float64, generator=draw)
    x = torch.randn(1, 7, 6, dtype=torch.float64, generator=draw)
    conv = torch.nn.Conv1d(1, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.copy_(filters[0, :, None, :2])
        conv.bias.copy_(filters[0, :, 2])
        wanted = conv(torch.cat([x[0], x[0, :, :1]], 1)[:, None]).relu().sum(-1)
    assert torch.allclose(runs.Network(filters, None).pooled(x)[0], wanted)


@pytest.mark.parametrize(
    ("loss", "dtype", "tol"), [("simple", torch.float32, 1e-6), ("info_nce", torch.float64, 1e-12)]
)
def test_a_replica_is_the_same_alone(loss: str, dtype: torch.dtype, tol: float) -> None:
    many = runs.train_nodes([3, 4, 5, 6], loss, True, steps=150, dtype=dtype)
    alone = runs.train_nodes([5], loss, True, steps=150, dtype=dtype)
    for mine, theirs in ((many.end.w1[2], alone.end.w1[0]), (many.end.w2[2], alone.end.w2[0])):
        assert torch.allclose(mine, theirs, rtol=tol, atol=tol)
    assert not torch.allclose(many.end.w2[1], alone.end.w2[0], rtol=1e-3)


def test_responses_at_equal_angles_follow_the_weights() -> None:
    """The flow of the responses is that of a unit on the mixture without noise, the origin one of its centres."""
    n, cosine = 4, 0.3
    gram = (1 - cosine) * torch.eye(n, dtype=torch.float64) + cosine
    centres = torch.cat([torch.linalg.cholesky(gram), torch.zeros(1, n, dtype=torch.float64)])
    w = torch.randn(50, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = torch.where((w @ centres.T).max(1, keepdim=True).values > 0, w, -w)
    h = w @ centres[:n].T
    moved = theory.node_step(w[None], theory.Mixture(centres[None], 1e-9))[0] @ centres[:n].T * (n + 1)
    wanted = h + 1e-6 * moved
    found = theory.settle(h, 1, cosine, steps=1, rate=1e-6)
    assert torch.allclose(found, wanted / wanted.max(1, keepdim=True).values, atol=1e-9, rtol=0)
