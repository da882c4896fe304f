"""Networks of every kind, and answers that share no code with what is tested: plain autograd, sums as they are defined."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sslbook.operator.covariance import relative_gap
from sslbook.operator.layer import open_layer, vec

Make = Callable[[], nn.Module]
TOL = 1e-12
"""Both sides are sums of at most a thousand products in float64, and errors are measured against the batch's largest item."""


def connections(net: nn.Module, layer: str, x: Tensor) -> Tensor:
    """``d f_o(x_b) / d vec(W)``, ``(B, n, n_L)``: vec stacks the columns of the weight, read as ``(out, in * taps)``."""
    params = {name: p.detach() for name, p in net.named_parameters()}
    key = f"{layer}.weight"
    weight = params[key].clone().requires_grad_(True)
    out = []
    for sample in x:
        y = functional_call(net, params | {key: weight}, (sample[None],)).flatten()
        rows = [torch.autograd.grad(value, weight, retain_graph=True)[0] for value in y]
        out.append(torch.stack([row.reshape(len(row), -1).T.flatten() for row in rows], 1))
    return torch.stack(out)


def operator(k: Tensor, y: Tensor, *, inter: float, intra: float, xi: Tensor | None, normalize: bool) -> Tensor:
    """The operator by its definition, from connections ``k (N, V, n, o)`` and outputs ``y (N, V, o)``, pair by pair."""
    n, v, size, _ = k.shape
    left = right = k
    if normalize:
        right = k / y.norm(dim=2)[:, :, None, None]
        unit = y / y.norm(dim=2, keepdim=True)
        eye = torch.eye(y.shape[2], dtype=y.dtype)
        left = right @ (eye - unit[..., :, None] * unit[..., None, :])
    lm, rm = left.mean(1), right.mean(1)
    total = torch.zeros(size, size, dtype=k.dtype)
    for i in range(n):
        for j in range(n):
            weight = 1.0 if xi is None else float(xi[i, j])
            total += inter * 0.5 * weight / n**2 * (lm[i] - lm[j]) @ (rm[i] - rm[j]).T
        for a in range(v):
            total += intra / (n * v) * (left[i, a] - lm[i]) @ (right[i, a] - rm[i]).T
    return total


def require_right(
    net: nn.Module, layer: str, x: Tensor, plain: Callable[[nn.Module], nn.Module] = lambda net: net
) -> None:
    """All that an opened layer computes is that of the plain Jacobian; plain: makes the same network without parametrisations."""
    opened, net = open_layer(net, layer, x), plain(net)
    k = connections(net, layer, x)
    draw, weight, output = torch.Generator().manual_seed(2), opened.weight, opened.output
    directions = torch.randn(2, *weight.shape, generator=draw, dtype=weight.dtype)
    cotangents = torch.randn(2, *output.shape, generator=draw, dtype=weight.dtype)
    forward, backward = opened.jvp(directions), opened.vjp(cotangents)
    first, pulled = cotangents[0], [torch.einsum("bno,bo->n", k, each) for each in cotangents]
    for found, wanted in (
        (opened.weight, net.get_submodule(layer).weight),
        (opened.output, net(x).detach().flatten(1)),
        (opened.connections(), k),
        *((forward[i], k.mT @ vec(directions[i])) for i in range(2)),
        *((vec(backward[i]), pulled[i]) for i in range(2)),
        (opened.jvp(directions[0]), forward[0]),
        (vec(opened.vjp(first)), pulled[0]),
        (opened.kernel()(first), torch.einsum("ano,bnp,bp->ao", k, k, first)),
        (opened.sample_gradients(first), torch.einsum("bno,bo->bn", k, first)),
    ):
        assert relative_gap(found, wanted) < TOL
    assert opened.jacobian().shape == (len(x), output.shape[1], opened.preactivation[0].numel())


def worn(net: nn.Module) -> nn.Module:
    """BatchNorm with statistics that aren't 0 and 1."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.copy_(torch.linspace(-0.3, 0.4, module.num_features))
            module.running_var.copy_(torch.linspace(0.5, 2.0, module.num_features))
    return net


NETS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "conv1d, stride, groups": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3, 2, 1, groups=2), nn.ReLU(), nn.Conv1d(6, 2, 2), nn.Flatten()),
        (4, 9),
    ),
    "conv2d, strides that miss the last rows": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(3, 4, (2, 3), (3, 2), (0, 1)),
            nn.Flatten(),
            nn.Linear(32, 2),
        ),
        (2, 7, 8),
    ),
    "conv2d of every padding": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding="same", dilation=2),
            nn.Tanh(),
            nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Conv2d(2, 2, (3, 1), padding="same", padding_mode="reflect"),
            nn.Tanh(),
            nn.Conv2d(2, 2, 3, padding=2, dilation=2),
            nn.Flatten(),
            nn.Linear(50, 2),
        ),
        (2, 5, 5),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2, padding=1), nn.ELU(), nn.Conv3d(2, 2, 2, 2), nn.Flatten()),
        (1, 3, 4, 3),
    ),
    "batch norm and pooling": (
        lambda: worn(
            nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1, bias=False),
                nn.BatchNorm2d(4),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
                nn.Conv2d(4, 4, 3, padding=1, groups=4),
                nn.GroupNorm(2, 4),
                nn.SiLU(),
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.Linear(4, 3),
            )
        ),
        (1, 4, 4),
    ),
    "transformer": (
        lambda: nn.Sequential(
            nn.Linear(5, 8), nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), nn.Flatten(), nn.Linear(32, 2)
        ),
        (4, 5),
    ),
}
