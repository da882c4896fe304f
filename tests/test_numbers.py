"""Every promised name under any unit, in half precision, in strange layouts and of nothing: the plain answer, or a sentence."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_batch_losses_contracts import GIVEN as BATCH_GIVEN
from test_hostile_calls import PACKAGE, numbers_in
from test_losses_contracts import GIVEN, parameters
from torch import Tensor, nn

import sslbook
from sslbook.losses.batch import BATCH_LOSSES
from sslbook.losses.pairs import LOSSES
from sslbook.networks.siamese import Outputs
from sslbook.training.objectives import OBJECTIVES, objective

DRAW = torch.Generator().manual_seed(0)
LABELS, PIPELINE = torch.tensor([2, 0, 2, 1, 0, 1]), sslbook.Pipeline(8)
SCALES = (1e-30, 1e-19, 1e-13, 1e-5, 1e5, 1e13, 1e19, 1e30)
TREE = sslbook.symmetric_binary([torch.full((1, 2), 0.5), torch.full((1, 4), 0.7)])


def drawn(*shape: int) -> Tensor:
    """Numbers that float32 and half precision hold, too."""
    return torch.randn(shape, generator=DRAW).bfloat16().double()


@dataclass(frozen=True)
class Case:
    """A call of tensors, which are scaled together; ``s`` is told to it.

    degree: of the answer in the scale; None: the answer in float64 is right.  gradient: whether there is one.
    """

    call: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    degree: float | None = 0
    gradient: bool = True


def bare(widths: tuple[int, ...], like: Tensor) -> nn.Module:
    return sslbook.mlp(widths, seed=0).to(like.dtype)


def operator(x: Tensor, ask: Callable[[Any], Any] = lambda op: op.dense(), **given: Any) -> Any:
    loss = given.get("loss")
    if loss in ("info_nce", "soft_triplet"):
        given.setdefault("clean", x[:, 0].contiguous())
    return ask(sslbook.covariance_operator(bare((4, 5, 3), x), "0", x, **given))


def ones(op: Any) -> Tensor:
    return torch.ones_like(op.opened.weight)


def trained(module: nn.Module, x: Tensor, *, train: bool = False) -> Tensor:
    out: Tensor = copy.deepcopy(module).to(x.dtype).train(train)(x)
    return out


def head(weight: Tensor, pixels: Tensor) -> tuple[Tensor, ...]:
    """Shares of an inspected network whose last layer has that weight."""
    net = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 3), seed=0)[0], nn.ReLU(), nn.Linear(3, 4, bias=False)).to(
        weight
    )
    net[3].weight.data = weight.clone()
    (layer,) = sslbook.inspect_network(net, pixels, views=2, k=1, layers=["1"]).layers
    return tuple(
        torch.tensor([share.value for share in part.values()], dtype=torch.float32)
        for part in (layer.weights, layer.step)
    )


def correlations(s: float) -> Any:
    net = sslbook.initial_network((0,), (2, 2), 3, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0].mul_(s), net.biases[0].mul_(s)
    return sslbook.latent_correlations(TREE, net)


RESNET, NORM = sslbook.ResNet18(width=2, channels=1), sslbook.BatchNorm(4)
Z, PAIR, VIEWS = drawn(6, 4), (drawn(6, 4), drawn(6, 4)), drawn(6, 2, 4)
R = (drawn(6).abs(), drawn(6, 3).abs())
IMAGES = torch.rand(4, 1, 8, 8, generator=DRAW).bfloat16().double()
CASES: dict[str, Case] = {
    **{
        f"contrastive: {name}": Case(
            lambda z1, z2, s=1, name=name, asked=asked: sslbook.contrastive(
                z1, z2, name, clean=z1 if name == "exact" else None, **asked
            ),
            PAIR,
        )
        for name, asked in {n: GIVEN if "temperature" in parameters(LOSSES[n]) else {} for n in LOSSES}.items()
    },
    "contrastive, lengths": Case(lambda z1, z2, s=1: sslbook.contrastive(z1, z2, "simple", normalize=False), PAIR, 2),
    "pair_distances": Case(lambda z1, z2, s=1: sslbook.pair_distances(z1, z2), PAIR, 2),
    "pair_distances, normalize": Case(lambda z1, z2, s=1: sslbook.pair_distances(z1, z2, normalize=True), PAIR),
    "info_nce": Case(lambda p, n, s=1: sslbook.info_nce(p, n, temperature=0.5 * s), R),
    "soft_triplet": Case(lambda p, n, s=1: sslbook.soft_triplet(p, n, temperature=0.5 * s), R, 1),
    "partials": Case(
        lambda p, n, s=1: sslbook.partials(partial(sslbook.info_nce, temperature=0.5 * s), p, n), R, -1, gradient=False
    ),
    **{
        f"loss {name}": Case(
            lambda z, s=1, name=name: BATCH_LOSSES[name].value(
                z,
                **{
                    key: LABELS if key == "labels" else value
                    for key, value in BATCH_GIVEN.items()
                    if key in inspect.signature(BATCH_LOSSES[name].value).parameters
                },
            ),
            (VIEWS,),
            {"spectral_contrastive": None, "barlow_twins": None, "vicreg": None}.get(name, 0),
        )
        for name in BATCH_LOSSES
    },
    **{
        f"objective {name}": Case(
            lambda a, b, c, d, s=1, name=name: objective(name)(Outputs(a, b, c, d, b, a, labels=LABELS)),
            (*PAIR, *(drawn(6, 4) for _ in range(2))),
            None if name in ("barlow_twins", "vicreg") else 0,
        )
        for name in OBJECTIVES
    },
    "effective_rank": Case(lambda z, s=1: sslbook.effective_rank(z), (Z,)),
    "knn_accuracy": Case(lambda a, b, s=1: sslbook.knn_accuracy(a, LABELS, b, LABELS, k=3), PAIR, gradient=False),
    "linear_probe": Case(
        lambda a, b, s=1: sslbook.linear_probe(a, LABELS, b, LABELS, epochs=3, lr=0.1), PAIR, gradient=False
    ),
    "mlp": Case(lambda x, s=1: bare((4, 5, 3), x)(x), (Z,), 1),
    "BatchNorm": Case(lambda x, s=1: trained(NORM, x, train=True), (Z,), None),
    "ResNet18": Case(lambda x, s=1: trained(RESNET, x), (IMAGES,), None),
    "shifts": Case(lambda x, s=1: sslbook.shifts(x, 1), (IMAGES,), 1),
    "embed": Case(
        lambda w, s=1: sslbook.embed(lambda x: x.flatten(1).to(w) @ w, sslbook.read_images(IMAGES), PIPELINE),
        (drawn(64, 3),),
        1,
        gradient=False,
    ),
    "random_view": Case(lambda x, s=1: sslbook.random_view(x, PIPELINE), (IMAGES,), None, gradient=False),
    "read_images": Case(lambda x, s=1: sslbook.read_images(x).pixels.float(), (IMAGES,), None, gradient=False),
    "symmetric_binary": Case(
        lambda p, s=1: sslbook.symmetric_binary([p.tanh()]).tables, (torch.full((1, 2), 0.5),), None, gradient=False
    ),
    "latent_correlations": Case(lambda x, s=1: correlations(s), (Z,), gradient=False),
    "inspect_network": Case(lambda w, s=1: head(w, IMAGES), (drawn(4, 3),), gradient=False),
    "covariance_operator": Case(lambda x, s=1: operator(x), (VIEWS,), 2, gradient=False),
    "covariance_operator, normalize": Case(lambda x, s=1: operator(x, normalize=True), (VIEWS,), 0, gradient=False),
    **{
        f"CovarianceOperator.{name}": Case(
            lambda x, s=1, ask=ask, more=more: operator(x, ask, loss="info_nce", temperature=0.5, **more),
            (VIEWS,),
            gradient=False,
        )
        for name, ask, more in (
            ("dense, info_nce", lambda op: op.dense(), {"normalize": True}),
            ("dense, info_nce of a batch", lambda op: op.dense(), {"clean": None}),
            ("trace, info_nce of a batch", lambda op: op.trace(), {"clean": None}),
            (
                "apply_transpose, info_nce",
                lambda op: op.apply_transpose(ones(op)),
                {"normalize": True},
            ),
        )
    },
    "intra_operator": Case(
        lambda x, s=1: sslbook.intra_operator(bare((4, 5, 3), x), "0", x).dense(), (VIEWS,), 2, gradient=False
    ),
    **{
        f"CovarianceOperator.{name}": Case(lambda x, s=1, ask=ask: operator(x, ask), (VIEWS,), degree, gradient=False)
        for name, ask, degree in (
            ("apply", lambda op: op.apply(ones(op)), 2),
            ("exact_update", lambda op: op.exact_update(), 2),
            ("trace", lambda op: op.trace(), 2),
            ("euler_gap", lambda op: op.euler_gap(), 0),
            ("top_eigenpairs", lambda op: op.top_eigenpairs(2).values, 2),
        )
    },
}
NONE = {
    **dict.fromkeys(("Dataset", "load_dataset", "Settings", "Pipeline"), "settings and files"),
    **dict.fromkeys(("train", "pretrain", "load_run"), "images as bytes; what is computed of them are the objectives"),
    **dict.fromkeys(("LatentTree", "random_categorical", "initial_network"), "made of seeds and probabilities"),
    "Networks": "sizes and words",
    "EigenPairs": "made by top_eigenpairs, or of what was saved",
}
"""Promised names that take no numbers of any unit, and why."""
GIVEN_SHAPES = {
    **dict.fromkeys(("mlp", "ResNet18"), "modules of PyTorch, whose layers ask for the shape"),
    **dict.fromkeys(("embed", "inspect_network"), "a network without weights is the caller's own"),
    **dict.fromkeys(
        ("objective byol", "objective spectral_contrastive"), "networks give embeddings of a number or more"
    ),
    "random_view": "images come from a Dataset or are refused for their shape; of no pixels there are none",
}
"""Where nothing can't be given, and why."""
over = pytest.mark.parametrize("name", CASES)


def asked(name: str, inputs: tuple[Tensor, ...], s: float = 1.0) -> list[Tensor] | None:
    """The numbers of the answer, and those of the gradients of their sum; None where it is refused by us."""
    case = CASES[name]
    leaves = [x.detach().requires_grad_() if case.gradient else x for x in inputs]
    try:
        found = list(numbers_in(case.call(*leaves, s=s)))
    except (ValueError, TypeError) as error:
        if not Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(PACKAGE):
            raise  # no sentence of ours
        return None
    if not case.gradient:
        return found
    whole = sum((part.double().flatten() * torch.arange(1, part.numel() + 1).cos()).sum() for part in found)
    slopes = torch.autograd.grad(whole, leaves, allow_unused=True, materialize_grads=True)
    return [*(part.detach() for part in found), *slopes]


def test_every_promised_name_is_here() -> None:
    named = {name.partition(":")[0].partition(",")[0].partition(".")[0] for name in CASES}
    assert set(sslbook.__all__) - named - set(NONE) == set()
    assert set(NONE) <= set(sslbook.__all__) - named


BOUNDED = ("random_view", "read_images", "info_nce", "soft_triplet", "partials")
"""Pixels are in [0, 1], and the temperature goes with the distances: another unit may be refused."""


@pytest.mark.parametrize("s", SCALES)
@over
def test_the_unit_of_the_numbers_does_not_matter(name: str, s: float) -> None:
    """float32 against float64: the same answer in the other unit; a sentence or no finite numbers where float32 can't hold it."""
    case = CASES[name]
    found = asked(name, tuple((s * x).float() for x in case.inputs), s)
    plain = asked(
        name,
        tuple((s * x) for x in case.inputs) if case.degree is None else case.inputs,
        s if case.degree is None else 1,
    )
    if plain is None:
        assert found is None
        return
    answers, limit = len(plain) - len(case.inputs) * case.gradient, torch.finfo(torch.float32)
    degrees = [0 if case.degree is None else case.degree - (place >= answers) for place in range(len(plain))]
    wanted = [part.double() * s**degree for part, degree in zip(plain, degrees, strict=True)]
    held = all(part.abs().max() < limit.max for part in wanted)
    if found is None:
        assert not held or not 1e-13 <= s <= 1e13 or name in BOUNDED
        return
    if not (held and 1e-13 <= s <= 1e13) and not all(part.isfinite().all() for part in found):
        return  # what overflows on the way is seen
    for one, other in zip(found, wanted, strict=True):
        small = 100 * limit.tiny + 1e-4 * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=small)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@over
def test_half_precision_with_a_row_of_zeros_is_finite(name: str, dtype: torch.dtype) -> None:
    halves = tuple(x.to(dtype, copy=True) for x in CASES[name].inputs)
    for x in halves:
        x[0] = 0
    for part in asked(name, halves) or []:
        assert part.isfinite().all()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@over
def test_layout_changes_nothing(name: str, layout: str) -> None:
    strange = tuple(LAYOUTS[layout](x.float()) for x in CASES[name].inputs)
    found, plain = (
        asked(name, strange),
        asked(name, tuple(x.clone(memory_format=torch.contiguous_format) for x in strange)),
    )
    assert (found is None) == (plain is None)
    for one, other in zip(found or [], plain or [], strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("cut", [lambda x: x[:0], lambda x: x[..., :0]], ids=["none", "of no numbers"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in GIVEN_SHAPES])
def test_nothing_is_refused_or_right(name: str, cut: Callable[[Tensor], Tensor]) -> None:
    for part in asked(name, tuple(cut(x.float()) for x in CASES[name].inputs)) or []:
        assert part.isfinite().all()


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("constant", [0.0, 1.0, 1000.1])
def test_a_constant_coordinate_has_no_gradient_in_half_precision(dtype: torch.dtype, constant: float) -> None:
    z = drawn(6, 2, 4).to(dtype)
    z[..., 0] = constant
    z.requires_grad_()
    (slope,) = torch.autograd.grad(BATCH_LOSSES["barlow_twins"].value(z, weight=0.005), z)
    assert slope.isfinite().all()


@pytest.mark.parametrize("offset", [0.0, 1.1, 1000.1, 1e4 + 0.1, 1e6 + 0.1])
def test_a_constant_coordinate_correlates_with_nothing(offset: float) -> None:
    z = torch.full((7, 2, 4), offset)
    assert BATCH_LOSSES["barlow_twins"].value(z, weight=0.005).item() == pytest.approx(4)


def test_sums_over_a_batch_fit_half_precision() -> None:
    z = drawn(200, 2, 16)
    half, full = (BATCH_LOSSES["spectral_contrastive"].value(x).item() for x in (z.half(), z))
    assert half == pytest.approx(full, rel=0.02)


def test_operators_of_vanishing_outputs_are_refused_and_not_zero() -> None:
    net = bare((4, 5, 3), VIEWS.float())
    net[2].weight.data.mul_(1e-30)
    op = sslbook.covariance_operator(net, "0", VIEWS.float())
    for ask in (op.exact_update, op.dense, lambda: op.apply(torch.ones_like(op.opened.weight))):
        with pytest.raises(ValueError, match="products float32 can hold"):
            ask()


TAUS = (1e-320, 1e-45, 1e-40, 1e-37, 1e-31, 1e-20, 1e-7, 1e-4)
SHARP: dict[str, Callable[[Tensor, Tensor, float], Any]] = {
    "info_nce": lambda a, b, tau: sslbook.info_nce(a.square().mean(-1), b.square(), temperature=tau),
    "soft_triplet": lambda a, b, tau: sslbook.soft_triplet(a.square().mean(-1), b.square(), temperature=tau),
    **{
        f"loss {name}": lambda a, b, tau, name=name: BATCH_LOSSES[name].value(
            torch.stack([a, b], 1), temperature=tau, **({"labels": LABELS} if name == "supervised_contrastive" else {})
        )
        for name in ("info_nce", "supervised_contrastive", "decoupled", "clip")
    },
    "knn_accuracy": lambda a, b, tau: (
        sslbook.knn_accuracy(a.detach(), LABELS, b.detach(), LABELS, k=3, temperature=tau) + 0 * a.sum()
    ),
    "covariance_operator": lambda a, b, tau: (
        operator(VIEWS.to(a), loss="info_nce", temperature=tau, clean=None) + 0 * a.sum()
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHARP)
def test_a_tiny_temperature_is_right_or_refused(name: str, dtype: torch.dtype) -> None:
    a, b = (z.to(dtype).requires_grad_() for z in PAIR)
    answered = []
    for tau in TAUS:
        try:
            found = SHARP[name](a, b, tau)
        except ValueError as error:
            if "temperature must be " not in str(error):
                raise
            continue
        answered.append(tau)
        slope = torch.autograd.grad(found.double().sum(), a)[0]
        assert found.isfinite().all()
        assert slope.isfinite().all() or dtype == torch.float16  # whose largest number is 65504
        if dtype in (torch.float32, torch.float64):
            torch.testing.assert_close(
                found.double(), SHARP[name](a.double(), b.double(), tau), rtol=1e-3, atol=1e-5 / tau
            )
    assert 1e-4 in answered


@pytest.mark.parametrize("numbers", [lambda y: y * 10**9, lambda y: y + 2**62, lambda y: 5 * y + 3])
def test_classes_are_as_many_as_occur(numbers: Callable[[Tensor], Tensor]) -> None:
    """Whatever their numbers are: with a column for each number up to the largest, memory would end here."""
    x, y = drawn(40, 3), torch.arange(40) % 4
    named = numbers(y)
    assert sslbook.knn_accuracy(x, named, x, named, k=5) == sslbook.knn_accuracy(x, y, x, y, k=5)
    assert sslbook.linear_probe(x, named, x, named, epochs=3) == sslbook.linear_probe(x, y, x, y, epochs=3)
    z = drawn(40, 2, 3)
    loss = partial(BATCH_LOSSES["supervised_contrastive"].value, z, temperature=0.1)
    assert loss(labels=named) == loss(labels=y)
    for dtype in (torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.uint64):
        assert loss(labels=y.to(dtype)) == loss(labels=y)
        assert sslbook.knn_accuracy(x, y.to(dtype), x, y.to(dtype), k=5) == sslbook.knn_accuracy(x, y, x, y, k=5)
