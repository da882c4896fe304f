"""The operator of any loss of inner products, against autograd through all towers, on random networks.

Tolerances: 1e-12 for steps and 1e-13 for symmetry, the bars of the project, in float64; a variant that is wrong stays above 1e-2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from test_batch_losses_contracts import bound
from torch import Tensor, nn

import sslbook
from sslbook.bench.covariance import population
from sslbook.losses import batch as batch_losses
from sslbook.losses.batch import BATCH_LOSSES, barlow_twins, info_nce, vicreg
from sslbook.networks.small import mlp, random_network
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.operator.inner_products import gram_weights
from sslbook.operator.layer import Layer, vec
from sslbook.operator.view_weights import PairMixing
from sslbook.stats.checks import relative_gap

SAMPLES = 5
OURS = {name: bound(loss.value) for name, loss in BATCH_LOSSES.items()}
OF_PRODUCTS = [name for name, loss in BATCH_LOSSES.items() if loss.inner_products]


def batch(seed: int, outputs: int = 3) -> tuple[nn.Sequential, Tensor]:
    """A random network without a view whose ReLUs are all silent: cosines have no derivative there."""
    net, shape = random_network(seed, outputs=outputs)
    views = population(shape, SAMPLES, 2, seed=seed, dtype=torch.float64)[1]
    alive = bool((net(views.flatten(0, 1)).flatten(1).norm(dim=1) > 0).all())
    return (net, views) if alive else batch(seed + 20, outputs)


def gradient(net: nn.Module, layer: str, views: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """By autograd, through all towers; it knows nothing of connections."""
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (found,) = torch.autograd.grad(loss(outputs), net.get_parameter(f"{layer}.weight"))
    return found


def layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, Layer)]


def homogeneous(op: CovarianceOperator) -> bool:
    return op.euler_gap() < 1e-12


@pytest.mark.parametrize("name", OF_PRODUCTS)
@pytest.mark.parametrize("seed", range(20))
def test_the_step_is_that_of_autograd(seed: int, name: str) -> None:
    net, views = batch(seed)
    for layer in layers(net):
        op = covariance_operator(net, layer, views, loss=OURS[name])
        step = -gradient(net, layer, views, OURS[name])
        size = step.norm() + 1e-3 * op.mixing.matrix.norm()  # type: ignore[union-attr]  # a batch that hardly moves
        assert float((op.exact_update() - step).norm()) < 1e-12 * float(size)
        if homogeneous(op):
            assert float((op.update() - step).norm()) < 1e-12 * float(size)
        dense = op.dense()
        assert float((dense - dense.T).norm()) < 1e-13 * float(dense.norm())
        probe = torch.randn(op.shape[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert float((op.matvec(probe) - dense @ probe).norm()) < 1e-12 * float(dense.norm() * probe.norm())
        assert op.trace() == pytest.approx(float(dense.trace()), rel=1e-10, abs=1e-12 * float(dense.norm()))


@pytest.mark.parametrize("name", OF_PRODUCTS)
def test_wrong_operators_are_told_apart(name: str) -> None:
    """Without the diagonal, through the anchors' towers alone, of another loss: each misses the step."""
    net, views = mlp((6, 8, 5, 4), seed=3), population((6,), SAMPLES, 2, seed=3, dtype=torch.float64)[1]
    op = covariance_operator(net, "2", views, loss=OURS[name])
    step, matrix = -gradient(net, "2", views, OURS[name]), op.mixing.matrix  # type: ignore[union-attr]
    diagonal = torch.diag(matrix.diagonal())
    first = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(SAMPLES)[:, None]
    another = covariance_operator(net, "2", views, loss=OURS["clip" if name != "clip" else "info_nce"])
    wrong = [PairMixing(matrix - diagonal), PairMixing(first * matrix), another.mixing]
    assert bool(diagonal.any()) == (name != "spectral_contrastive")  # whose pairs are of different views, undivided
    for mixing in wrong[name == "spectral_contrastive" :]:
        missed = CovarianceOperator(op.opened, op.population, mixing).update()
        assert relative_gap(vec(missed), vec(step)) > 1e-2


def test_outputs_of_length_one_leave_no_growth() -> None:
    """A loss of cosines is of degree 0 in the outputs: w^T OP w = 0, and OP has eigenvalues of both signs."""
    net, views = mlp((6, 8, 5, 4), seed=3), population((6,), SAMPLES, 2, seed=3, dtype=torch.float64)[1]
    op = covariance_operator(net, "2", views, loss="info_nce", temperature=0.3)
    values = torch.linalg.eigvalsh(op.dense())
    w = vec(op.opened.weight)
    assert abs(float(w @ op.matvec(w))) < 1e-14 * float(values.abs().max() * w @ w)
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


def test_distances_make_a_laplacian() -> None:
    """Of a loss of distances each row of Gamma adds up to zero, and off its diagonal stands minus the pair's slope."""
    z = torch.randn(SAMPLES, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def of_distances(r: Tensor) -> Tensor:
        off = ~torch.eye(len(r), dtype=torch.bool)
        return (r[off].reshape(len(r), -1) / -0.5).logsumexp(1).mean() + r.diagonal(1).square().sum()

    rows = z.flatten(0, 1)
    r = (0.5 * (rows[:, None] - rows).square().sum(-1)).requires_grad_()
    (slope,) = torch.autograd.grad(of_distances(r), r)
    slope = 0.5 * (slope + slope.T)

    def loss(z: Tensor) -> Tensor:
        y = z.flatten(0, 1)
        return of_distances(0.5 * (y[:, None] - y).square().sum(-1))

    weights = gram_weights(loss, z)
    assert relative_gap(weights, torch.diag(slope.sum(1)) - slope) < 1e-13
    cosines = gram_weights(partial(info_nce, temperature=0.5), z)  # distances of the outputs' directions: no Laplacian
    assert float(cosines.sum(1).norm()) > 0.1 * float(cosines.norm())


@pytest.mark.parametrize(
    "loss",
    [
        partial(barlow_twins, weight=0.01),
        vicreg,
        lambda z: z.abs().sum(),
        lambda z: z.sum().square(),
        lambda z: (z[:, 0] * z[:, 1].detach()).sum(),
    ],
    ids=["barlow_twins", "vicreg", "absolute", "sum", "stop-gradient"],
)
def test_a_loss_that_sees_more_is_found_out(loss: Callable[[Tensor], Tensor]) -> None:
    net, views = mlp((6, 8, 5, 4)), population((6,), SAMPLES, 2, seed=0, dtype=torch.float64)[1]
    with pytest.raises(ValueError, match="one of inner products"):
        covariance_operator(net, "2", views, loss=loss)


def test_a_mean_over_outputs_asks_for_their_number() -> None:
    """(1/d) sum of squares is one of inner products at one width alone: refused as well, in the same sentence."""
    z = torch.randn(3, 2, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="of any width"):
        gram_weights(lambda z: z.square().mean(), z)
    assert torch.allclose(gram_weights(lambda z: z.square().sum(), z), torch.eye(6, dtype=torch.float64))


X = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


CALLED = {"labels": torch.arange(4) % 2, "scale": 5.0, "bias": -2.0, "temperature": 0.5}
"""What stands for the dots of a call that is suggested."""


@pytest.mark.parametrize("tau", [None, 0.5])
@pytest.mark.parametrize("name", BATCH_LOSSES)
def test_every_loss_by_name_works_as_it_is_told_or_says_why_not(name: str, tau: float | None) -> None:
    def made(**given: object) -> object:
        return covariance_operator(mlp((6, 8, 5, 4), seed=3), "2", X, **given)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="loss must be one of simple, soft_triplet, info_nce, ") as told:
        made(loss="none of these")
    offered = str(told.value).partition("one of ")[2].partition(", got")[0].split(", ")
    assert (name in offered) == BATCH_LOSSES[name].inner_products
    if name not in offered:
        with pytest.raises(
            ValueError, match=f"'{name}' has no such operator: .*spectral_contrastive.*vjp of its gradient"
        ):
            made(loss=name, temperature=tau)
        return
    try:
        made(loss=name, temperature=tau)
    except ValueError as error:
        advice = str(error).partition(": give ")[2]
        advice = advice or str(error).replace(f"temperature has no use with loss='{name}', got it", "temperature=None")
        asked = re.sub(r"(\w+)=\.\.\.", r"\1=CALLED['\1']", advice)
        given = eval(f"dict({asked})", {"CALLED": CALLED, "partial": partial, "sslbook": sslbook})
        made(**{"loss": name, **given})


class OfTwo(nn.Module):
    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return (one * two).sum()


def unpacked(z: Tensor) -> Tensor:
    one, two = z
    return (one * two).sum()


OWN: dict[str, object] = {
    "of two arguments": lambda z1, z2: (z1 * z2).sum(),
    "of a keyword": lambda z, *, temperature: z.square().sum() / temperature,
    "a class": OfTwo,
    "a class of one argument": partial,
    "a module of two": OfTwo(),
    "torch's": nn.MSELoss(),
    "partly given": partial(lambda tau, z1, z2: (z1 * z2).sum() / tau, 0.5),
    "None": lambda z: None,
    "a float": lambda z: float(z.detach().sum()),
    "NumPy's": lambda z: z.detach().numpy().sum(),
    "one a sample": lambda z: z.square().sum((1, 2)),
    "without a graph": lambda z: z.detach().square().sum(),
    "of three views": lambda z: (z[:, 0] * z[:, 2]).sum(),
    "of views first": unpacked,
    "of one width": lambda z: (z @ torch.ones(2, 2, dtype=z.dtype)).square().sum(),
    "NumPy's, of a graph": lambda z: z.numpy().sum(),
}


@pytest.mark.parametrize("where", ["outputs", "products", "inspection"])
@pytest.mark.parametrize("which", OWN)
def test_what_a_loss_must_be_is_said_with_every_other_thing(which: str, where: str) -> None:
    loss: Any = OWN[which]
    form = r"a loss is a function of the " + (
        r"inner products \(N V, N V\)"
        if where == "products"
        else r"outputs \(N, V, d\).*; two views: z\[:, 0\], z\[:, 1\]"
    )
    if where == "products" and which in ("of three views", "of views first"):
        return
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    asked = {
        "inspection": partial(sslbook.inspect_network, net, torch.rand(4, 1, 8, 8), views=2),
        "products": partial(covariance_operator, mlp((6, 8, 5, 4)), "2", X, of_gram=True),
    }.get(where, partial(covariance_operator, mlp((6, 8, 5, 4)), "2", X))
    with pytest.raises((TypeError, ValueError), match=form):
        asked(loss=loss)


def test_names_and_functions_are_one() -> None:
    net = mlp((6, 8, 5, 4), seed=3)
    named = covariance_operator(net, "2", X, loss="decoupled", temperature=0.4)
    given = covariance_operator(net, "2", X, loss=partial(batch_losses.decoupled, temperature=0.4))
    assert torch.equal(named.dense(), given.dense())
    assert "loss decoupled" in repr(named)
    assert repr(named) == repr(given)
    assert "symmetric" in repr(named)
    assert "5 x 8" in repr(named)


@pytest.mark.parametrize("loss", ["simple", "info_nce"])
def test_in_chunks_it_is_the_same(loss: str) -> None:
    net = mlp((6, 8, 5, 4), seed=3)
    given = {"loss": loss, "temperature": 0.4 if loss == "info_nce" else None}
    whole = covariance_operator(net, "2", X, **given)  # type: ignore[arg-type]
    parts = covariance_operator(net, "2", X, chunk=3, **given)  # type: ignore[arg-type]
    assert relative_gap(parts.dense(), whole.dense()) < 1e-13
    assert relative_gap(parts.update(), whole.update()) < 1e-12
    assert parts.trace() == pytest.approx(whole.trace(), rel=1e-12)
    assert torch.allclose(parts.top_eigenpairs(2).values, whole.top_eigenpairs(2).values, rtol=1e-9)
    inside = (intra_operator(net, "2", X, chunk=chunk).dense() for chunk in (None, 5))
    assert relative_gap(*inside) < 1e-13
