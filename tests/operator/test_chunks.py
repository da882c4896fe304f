"""A layer opened chunk by chunk is the layer opened at once."""

from __future__ import annotations

import weakref

import connection_cases as reference
import pytest
import torch
from torch import Tensor, nn

from sslbook.networks.small import mlp
from sslbook.operator.chunked import open_in_chunks
from sslbook.operator.covariance import CovarianceOperator
from sslbook.operator.layer import Layer, open_layer, vec
from sslbook.operator.view_weights import Mixing
from sslbook.stats.checks import relative_gap

TOL = 1e-12
"""Sums of some hundred terms in float64, in another order."""


def build(name: str, batch: int = 7) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = reference.NETS[name]
    net = make().double().eval()
    return net, torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", ["batch norm and pooling", "attention", "conv3d", "one layer"])
@pytest.mark.parametrize("chunk", [2, 3, 7, 100])
def test_every_product_is_that_of_the_whole(name: str, chunk: int) -> None:
    net, x = build(name)
    draw = torch.Generator().manual_seed(2)
    for layer in [n for n, m in net.named_modules() if isinstance(m, Layer) and not n.endswith("out_proj")]:
        whole, parts = open_layer(net, layer, x), open_in_chunks(net, layer, x, chunk)
        directions = torch.randn(2, *whole.weight.shape, generator=draw, dtype=x.dtype)
        cotangents = torch.randn(2, *whole.output.shape, generator=draw, dtype=x.dtype)
        pairs = [(getattr(whole, field), getattr(parts, field)) for field in ("weight", "output", "below")]
        pairs += [(o.jvp(directions), p.jvp(directions)) for o, p in [(whole, parts)]]
        pairs += [(getattr(whole, f)(), getattr(parts, f)()) for f in ("connections", "jacobian")]
        given = cotangents[0]
        pairs += [
            (getattr(whole, f)(given), getattr(parts, f)(given)) for f in ("kernel", "sample_gradients", "pulled_back")
        ]
        pairs += [(whole.vjp(c), parts.vjp(c)) for c in (cotangents, given)]
        assert all(relative_gap(b, a) < TOL for a, b in pairs)
        assert (whole.name, whole.module, whole.size) == (parts.name, parts.module, parts.size)


def test_an_operator_on_chunks() -> None:
    net, x = build("batch norm and pooling", 12)
    ops = [CovarianceOperator(o, (4, 3), Mixing()) for o in (open_layer(net, "0", x), open_in_chunks(net, "0", x, 5))]
    with torch.no_grad():
        net[0].weight.mul_(3)  # what was opened stays what it was
    whole, parts = ops
    assert relative_gap(parts.dense(), whole.dense()) < TOL
    assert relative_gap(parts.matmat(torch.eye(whole.shape[0], dtype=x.dtype)), whole.dense()) < TOL
    assert abs(parts.trace() / whole.trace() - 1) < TOL
    assert relative_gap(vec(parts.exact_update()), vec(whole.exact_update())) < TOL
    assert relative_gap(parts.top_eigenpairs(3).values, whole.top_eigenpairs(3).values) < TOL


def test_memory_is_that_of_one_chunk() -> None:
    net = mlp((4, 6, 3))
    seen: list[weakref.ref[Tensor]] = []

    def watch(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        assert len(out) <= 8
        assert not any(earlier() is not None for earlier in seen), "the chunk before is still there"
        seen.append(weakref.ref(out))

    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opened = open_in_chunks(net, "0", x, 8)
    net[1].register_forward_hook(watch)
    opened.vjp(opened.jvp(opened.weight))
    opened.connections()
    assert len(seen) == 15


class Rows(nn.Module):
    """Divides by zero for one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.detach()[:, :1] != 5)


def test_a_later_chunk_is_looked_at_too() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), Rows()).double()
    nn.init.eye_(net[0].weight)
    x = torch.ones(6, 2, dtype=torch.float64)
    assert open_in_chunks(net, "0", x, 2).output.isfinite().all()
    x[5] = 5
    with pytest.raises(ValueError, match="the output of net must be finite"):
        open_in_chunks(net, "0", x, 2)
    opened = open_in_chunks(net, "0", x[:5], 2)
    with pytest.raises(ValueError, match=r"cotangent must have shape \(5, 2\)"):
        opened.vjp(torch.ones(4, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="direction must have shape"):
        opened.jvp(torch.ones(3, dtype=torch.float64))
