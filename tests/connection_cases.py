"""Answers that share no code with what is tested: plain autograd, one sample and one output at a time; sums as they are defined."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call


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
