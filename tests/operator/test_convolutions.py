"""Convolutions that are differentiated twice, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.operator.frozen import PlainConvolutions

CALLS = {
    "one dimension": (F.conv1d, (2, 4, 7), (6, 2, 3), {"stride": 2, "padding": 1, "groups": 2}),
    "two, strides that miss rows": (F.conv2d, (2, 2, 8, 7), (3, 2, 3, 2), {"stride": (3, 2), "dilation": (1, 2)}),
    "three": (F.conv3d, (2, 1, 4, 4, 3), (2, 1, 2, 2, 2), {"padding": 1}),
}


def draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("name", CALLS)
def test_values_and_both_derivatives(name: str) -> None:
    call, size, kernel, options = CALLS[name]
    x, weight = draws(size, kernel)
    found = []
    for mode in (PlainConvolutions(), torch.enable_grad()):
        x = x.detach().requires_grad_()
        with mode:
            y = call(x, weight, None, **options)
        cotangent = torch.ones_like(y).cumsum(-1).requires_grad_()
        (down,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
        found.append((y, down, torch.autograd.grad(down, cotangent, x.detach())[0]))
        assert (type(y.grad_fn).__name__ == "_ConvBackward") is (len(found) == 1)
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max()


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_by_its_statistics_keeps_no_input(affine: bool) -> None:
    x, mean, scale, weight, bias = draws((4, 3, 2), (3,), (3,), (3,), (3,))
    given = {"weight": weight, "bias": bias} if affine else {}
    kept: list[Tensor] = []

    def normalized(training: bool) -> Tensor:
        return F.batch_norm(x.requires_grad_(), mean, scale.exp(), **given, training=training)

    with PlainConvolutions(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = normalized(training=False)
    assert all(tensor.numel() <= 3 for tensor in kept)
    assert torch.equal(found, normalized(training=False))
    cotangent = torch.ones_like(x).cumsum(0).requires_grad_()
    pulls = [torch.autograd.grad(y, x, cotangent, create_graph=True)[0] for y in (found, normalized(training=False))]
    assert (pulls[0] - pulls[1]).abs().max() <= 1e-14 * pulls[1].abs().max()
    (twice,) = torch.autograd.grad(pulls[0], cotangent, x.detach())
    assert (twice - pulls[1].detach() / cotangent.detach() * x.detach()).abs().max() <= 1e-13
    several = torch.stack([cotangent.detach(), torch.ones_like(x)])
    alone = [torch.autograd.grad(found, x, each, retain_graph=True)[0] for each in several]
    (batched,) = torch.autograd.grad(found, x, several, is_grads_batched=True)
    assert (batched - torch.stack(alone)).abs().max() <= 1e-15
    with PlainConvolutions():
        assert torch.equal(normalized(training=True), F.batch_norm(x, mean, scale, **given, training=True))


@pytest.mark.parametrize("which", [0, 1])
def test_weights_and_biases_that_want_gradients_get_them(which: int) -> None:
    x, weight, bias = draws((2, 3, 5), (4, 3, 2), (4,))
    x.requires_grad_()
    wanted = (weight, bias)[which].requires_grad_()
    with PlainConvolutions():
        y = F.conv1d(x, weight, bias)
    assert torch.autograd.grad(y.sum(), wanted, allow_unused=True)[0] is not None


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2), (4, 3, 2, 2, 2)])
def test_batch_norm_of_any_dimension(shape: tuple[int, ...]) -> None:
    x, mean, scale = draws(shape, (3,), (3,))
    found = []
    for mode in (PlainConvolutions(), torch.enable_grad()):
        with mode:
            y = F.batch_norm(x.requires_grad_(), mean, scale.exp())
        cotangent = torch.ones_like(y).requires_grad_()
        (down,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
        found.append(torch.autograd.grad(down, cotangent, x.detach())[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("padding", ["same", "valid", 0])
def test_what_is_left_to_pytorch(padding: str | int) -> None:
    x, weight = draws((2, 3, 5), (4, 3, 3))
    for given in (x, x[0]):
        with PlainConvolutions():
            found = F.conv1d(given, weight, padding=padding)
        assert torch.equal(found, F.conv1d(given, weight, padding=padding))
