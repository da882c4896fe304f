"""A result doesn't depend on the unit of the numbers where mathematics says so, nor on their layout in memory, nor on the dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import sslbook
from sslbook.losses import batch
from sslbook.networks.siamese import Outputs
from sslbook.training.objectives import objective

DRAW = torch.Generator().manual_seed(0)
LABELS, PIPELINE = torch.tensor([2, 0, 2, 1, 0, 1]), sslbook.Pipeline(8)


class Case(NamedTuple):
    """A call of tensors.  degree: of the answer in their unit, None where it has another meaning in other units."""

    call: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    degree: float | None = 0


def drawn(*shape: int) -> Tensor:
    """Numbers that half precision holds, too."""
    return torch.randn(shape, generator=DRAW).bfloat16().double()


def bare(x: Tensor) -> nn.Module:
    return sslbook.mlp((4, 12, 3), seed=0).to(x.dtype)


def operator(x: Tensor, **given: Any) -> Any:
    return sslbook.covariance_operator(bare(x), "0", x, **given)


def inspected(weight: Tensor, pixels: Tensor) -> list[float]:
    """Shares of a network whose last layer has that weight."""
    net = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 3), seed=0)[0], nn.ReLU(), nn.Linear(3, 4, bias=False)).to(
        weight
    )
    net[3].weight.data = weight.clone()
    (layer,) = sslbook.inspect_network(net, pixels, views=2, k=1, layers=["1"]).layers
    return [share.value for share in layer.step.values()]


PAIR, VIEWS = (drawn(6, 4), drawn(6, 4)), drawn(6, 2, 4)
PIXELS = torch.rand(4, 1, 8, 8, generator=DRAW).bfloat16().double()
COSINES = {"info_nce": {"temperature": 0.3}, "decoupled": {"temperature": 0.3}, "clip": {"temperature": 0.3}}
COSINES["sigmoid_pairs"] = {"scale": 4.0, "bias": -2.0}
COSINES["supervised_contrastive"] = {"temperature": 0.3, "labels": LABELS}  # type: ignore[dict-item]
CASES: dict[str, Case] = {
    "contrastive": Case(partial(sslbook.contrastive, temperature=0.3), PAIR),
    "pair_distances": Case(sslbook.pair_distances, PAIR, 2),
    **{name: Case(partial(batch.LOSSES[name], **asked), (VIEWS,)) for name, asked in COSINES.items()},
    "spectral_contrastive": Case(batch.spectral_contrastive, (VIEWS,), None),
    "barlow_twins": Case(partial(batch.barlow_twins, weight=0.1), (VIEWS,), None),
    "vicreg": Case(batch.vicreg, (VIEWS,), None),
    "byol": Case(lambda *z: objective("byol")(Outputs(*z, z[1], z[0])), (*PAIR, drawn(6, 4), drawn(6, 4))),
    "effective_rank": Case(sslbook.effective_rank, PAIR[:1]),
    "mean_cosine": Case(sslbook.mean_cosine, PAIR[:1]),
    "knn_accuracy": Case(lambda a, b: sslbook.knn_accuracy(a, LABELS, b, LABELS, k=3), PAIR),
    "linear_probe": Case(lambda a, b: sslbook.linear_probe(a, LABELS, b, LABELS, epochs=3, lr=0.1), PAIR),
    "mlp": Case(lambda x: bare(x)(x), PAIR[:1], 1),
    "BatchNorm": Case(lambda x: sslbook.BatchNorm(4, dtype=x.dtype)(x), PAIR[:1], None),
    "ResNet18": Case(lambda x: copy.deepcopy(RESNET).to(x.dtype).eval()(x), (PIXELS,), None),
    "shifts": Case(partial(sslbook.shifts, radius=1), (PIXELS,), 1),
    "random_view": Case(partial(sslbook.random_view, pipeline=PIPELINE), (PIXELS,), None),
    "inspect_network": Case(lambda w: inspected(w, PIXELS), (drawn(4, 3),)),
    "operator": Case(lambda x: operator(x).dense(), (VIEWS,), 2),
    "operator, normalize": Case(lambda x: operator(x, normalize=True).dense(), (VIEWS,)),
    "operator, info_nce": Case(
        lambda x: operator(x, normalize=True, loss="info_nce", temperature=0.5, clean=x[:, 0].contiguous()).dense(), (VIEWS,)
    ),
}  # fmt: skip
RESNET = sslbook.ResNet18(width=2, channels=1)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}


def numbers_in(found: Any) -> Iterator[Tensor]:
    """The floating tensors of an answer."""
    if isinstance(found, Tensor):
        yield from [found.detach()] if found.is_floating_point() or found.is_complex() else []
    elif isinstance(found, float):
        yield torch.tensor(found, dtype=torch.float64)
    elif isinstance(found, nn.Module):
        yield from (p.detach() for p in found.parameters())
    elif is_dataclass(found) and not isinstance(found, type):
        yield from (t for part in fields(found) for t in numbers_in(getattr(found, part.name)))
    elif isinstance(found, tuple | list):
        yield from (t for part in found for t in numbers_in(part))


def test_each_loss_of_a_batch_is_a_case() -> None:
    assert {loss.__name__ for loss in batch.WHOLE} <= CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_neither_unit_nor_dtype_nor_layout_matters(name: str) -> None:
    call, inputs, degree = CASES[name]
    wanted = [part.double() for part in numbers_in(call(*inputs))]
    assert wanted
    for s in (1e-4, 1e4) if degree is not None else (1.0,):
        found = [part.double() for part in numbers_in(call(*(s * x.float() for x in inputs)))]
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one / s ** (degree or 0), other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
    for strange in LAYOUTS.values():
        for one, other in zip(numbers_in(call(*map(strange, inputs))), wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["contrastive", "barlow_twins", "spectral_contrastive", "info_nce", "clip"])
def test_half_precision_with_a_row_of_zeros_has_a_finite_gradient(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        halves = [x.to(dtype, copy=True) for x in CASES[name].inputs]
        for x in halves:
            x[..., 0], x[0] = 1.1, 0
        value = CASES[name].call(*(x.requires_grad_() for x in halves))
        assert value.isfinite()
        assert all(slope.isfinite().all() for slope in torch.autograd.grad(value, halves))


def test_classes_are_as_many_as_occur() -> None:
    """Whatever their numbers are: with a column for each number up to the largest, memory would end here."""
    x, y = drawn(40, 3), torch.arange(40) % 4
    for named in (y * 10**9, y + 2**62, y.to(torch.uint8), y.to(torch.uint32)):
        assert sslbook.knn_accuracy(x, named, x, named, k=5) == sslbook.knn_accuracy(x, y, x, y, k=5)
        probes = [sslbook.linear_probe(x, labels, x, labels, epochs=3) for labels in (named, y)]
        assert probes[0] == probes[1]
