"""Inspections: numbers against matrices, and controls on populations whose truth is known."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from inspection_cases import network, pictures
from torch import Tensor, nn

from sslbook.inspect import measure
from sslbook.inspect.measure import Seen, inspect_network, look, mixing_of, sizes
from sslbook.inspect.report import ALL, BETWEEN, KINDS, RANDOM, UNTRAINED, WITHIN
from sslbook.losses.pairs import contrastive
from sslbook.networks.small import mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator, relative_gap
from sslbook.operator.layer import OpenedLayer, open_layer, unvec, vec
from sslbook.operator.view_weights import Mixing
from sslbook.training.augment import Pipeline

POPULATION = (12, 3)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("layer", "dtype"), [("0", torch.float32), ("2", torch.float64)])
def test_views_that_are_copies_have_no_modes_whatever_rounding_leaves(layer: str, dtype: torch.dtype) -> None:
    net, x = mlp((4, 10, 7, 3), seed=0).to(dtype), drawn(12, 1, 4).expand(*POPULATION, 4).to(dtype)
    with pytest.raises(ValueError, match="must vary within"):
        look(open_layer(net, layer, x.flatten(0, 1)), POPULATION, 3)


@pytest.mark.parametrize("layer", ["0", "2"])  # through all directions, and through those that ARPACK asks about
def test_modes_and_sizes_are_those_of_the_matrix(layer: str) -> None:
    net = mlp((4, 10, 7, 3), "leaky_relu", seed=0)
    x = drawn(*POPULATION, 4) + 3 * drawn(POPULATION[0], 1, 4, seed=1)
    opened = open_layer(net, layer, x.flatten(0, 1))
    seen = look(opened, POPULATION, 3)
    assert (seen.basis.shape[1] == opened.weight.numel()) == (layer == "0")
    for kind in KINDS:
        matrix = CovarianceOperator(opened, POPULATION, mixing_of(kind, *POPULATION)).dense()
        values, vectors = torch.linalg.eigh(matrix)
        found = seen.modes(kind, 3)[0]
        torch.testing.assert_close(found, values.flip(0)[:3], rtol=2e-2 if layer == "2" else 1e-10, atol=0)
        w = vec(opened.weight)
        share = (vectors[:, -3:].T @ w).square().sum() / w.square().sum()
        torch.testing.assert_close(
            seen.share(kind, 3, w[:, None])[0], share, rtol=5e-2 if layer == "2" else 1e-8, atol=0
        )
        size = sizes(seen, 64, 0)[kind]
        trace, rank = float(matrix.trace()), float(matrix.trace() ** 2 / matrix.square().sum())
        assert size.trace == pytest.approx(trace, abs=4 * size.trace_error + 1e-9 * trace)
        assert size.rank == pytest.approx(rank, abs=4 * size.rank_error + 1e-9 * rank)
        assert (size.trace_error == 0) == (layer == "0")
        assert size.trace_error < 0.1 * trace


def through(opened: OpenedLayer, population: tuple[int, int], basis: Tensor) -> Seen:
    """The layer through these directions, whatever a search would have asked about."""
    fields = [opened.jvp(unvec(v, opened.weight.shape)).unflatten(0, population) for v in basis.T]
    return Seen(opened, population, basis, torch.stack(fields, dim=-1))


def test_sizes_count_what_lies_beside_the_directions() -> None:
    """Through ten directions at random, which the operator mixes with the others: on average over few probes, with their errors."""
    net, x = mlp((4, 10, 7, 3), "leaky_relu", seed=0), drawn(*POPULATION, 4) + 3 * drawn(POPULATION[0], 1, 4, seed=1)
    opened = open_layer(net, "2", x.flatten(0, 1))
    basis = torch.linalg.qr(drawn(opened.weight.numel(), 10))[0]
    matrix = CovarianceOperator(opened, POPULATION, mixing_of(BETWEEN, *POPULATION)).dense()
    seen = through(opened, POPULATION, basis)
    found = [sizes(seen, 4, seed)[BETWEEN] for seed in range(300)]
    traces, squares = (torch.tensor(each) for each in ([s.trace for s in found], [s.trace**2 / s.rank for s in found]))
    assert float(traces.mean()) == pytest.approx(float(matrix.trace()), rel=0.03)
    assert float(squares.mean()) == pytest.approx(float(matrix.square().sum()), rel=0.1)
    assert sum(s.trace_error**2 for s in found) / 300 == pytest.approx(float(traces.var()), rel=0.2)


def test_repeated_images_weigh_as_their_shares_say() -> None:
    """A redraw by weights is the population with images repeated: all but the views' noise, which the same views share."""
    net, x, times = mlp((4, 6, 2), seed=0), drawn(4, 3, 4), torch.tensor([2, 0, 1, 1])
    seen, p = look(open_layer(net, "0", x.flatten(0, 1)), (4, 3), 2), times.double() / 4
    matrix = covariance_operator(net, "0", x.repeat_interleave(times, dim=0)).dense()
    noise = torch.stack([intra_operator(net, "0", each[None]).dense() for each in x])  # one image's, with 1/V
    wanted = matrix - torch.einsum("i,imn->mn", p - p.square(), noise) / 2
    found = seen.basis @ seen.matrices(BETWEEN, p[None])[0] @ seen.basis.T
    assert relative_gap(found, wanted) < 1e-12


@pytest.mark.parametrize("loss", ["simple", "info_nce"])
def test_the_step_of_a_loss_by_name_is_that_of_its_pairs_of_views(loss: str) -> None:
    """Simple: all pairs of different views; SimCLR's: disjoint pairs, so that the fifth view has no partner."""
    net, x = mlp((4, 3)), drawn(4, 5, 4)
    z = net(x)
    rows = list(product(range(4), range(5)))
    pairs = [(a[0] == b[0], 0.5 * (z[a] - z[b]).square().sum()) for a, b in combinations(rows, 2)]
    near, far = (torch.stack([r for same, r in pairs if same == which]).mean() for which in (True, False))
    entropy = sum(contrastive(z[:, v], z[:, v + 1], temperature=0.5) for v in (0, 2)) / 2
    (gradient,) = torch.autograd.grad(near - far if loss == "simple" else entropy, net[0].weight)
    torch.testing.assert_close(measure.loss_steps(net, x, loss)["0"], -gradient, rtol=1e-12, atol=1e-12)


def test_the_step_is_the_corrected_operator_on_the_weights() -> None:
    net, x, count = mlp((4, 6, 5), "relu", seed=0), drawn(*POPULATION, 4), POPULATION[0]
    for name, step in measure.loss_steps(net, x, "simple").items():
        opened, scale = open_layer(net, name, x.flatten(0, 1)), 2 * count / (count - 1)
        for mixing, right in ((mixing_of(BETWEEN, *POPULATION), True), (Mixing(), False)):
            gap = relative_gap(step, scale * CovarianceOperator(opened, POPULATION, mixing).update())
            assert gap < 1e-12 if right else gap > 0.1


class Axes(nn.Module):
    """A linear network on two numbers of a picture: its mean, and how much brighter its left half is than its right one."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight.data = weight

    def forward(self, x: Tensor) -> Tensor:
        mean, left, right = x.mean((1, 2, 3)), x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))
        return self.linear(torch.stack([mean, left - right], dim=1))


def test_controls_on_images_that_differ_along_one_axis_and_views_along_another() -> None:
    """Images differ in brightness; a mirror image, in which the other half is the brighter one, by much more."""
    bright = torch.arange(60, 196, 9, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    left = bright + torch.tensor([60] * 4 + [-60] * 4)
    flips = Pipeline(8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5, grey=0.0)
    along = Axes(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))  # weights along brightness alone
    report = inspect_network(along, left.byte(), pipeline=flips, views=16, k=2, untrained=Axes(torch.eye(2)))
    (layer,) = report.layers
    assert layer.weights[BETWEEN].value > 0.95
    assert max(layer.weights[ALL].value, layer.weights[WITHIN].value) < 0.05
    assert layer.weights[UNTRAINED].value == pytest.approx(0.5, abs=0.05)
    assert layer.step[BETWEEN].value > 0.95 > 0.05 > layer.step[WITHIN].value
    assert layer.weights[RANDOM].value == pytest.approx(2 / 4, abs=0.1)
    assert layer.euler_gap < 1e-5


def test_targets_at_random_find_the_leading_modes_as_often_as_the_trace_says() -> None:
    """One view an image, twice: nothing varies within, so that the expectation is the trace's share, up to its ratio."""
    net, scale = mlp((5, 4, 3), seed=0), torch.tensor([3.0, 2, 1, 1, 1], dtype=torch.float64)
    x = (drawn(40, 1, 5) * scale + 2).expand(-1, 2, -1)  # off the origin, as targets must not be
    seen = look(open_layer(net, "0", x.flatten(0, 1)), (40, 2), 2, (BETWEEN,))
    draw = torch.Generator().manual_seed(0)
    steps = torch.cat([measure.towards_targets(seen, draw) for _ in range(200)], dim=1)
    values, turn = seen.modes(BETWEEN, 2)
    share = float(((seen.basis @ turn).T @ steps).square().sum() / steps.square().sum())
    assert share == pytest.approx(float(values.sum()) / sizes(seen, 8, 0)[BETWEEN].trace, abs=0.03)
    assert share > 3 * 2 / 20, "far above a random direction's"


def test_intervals_hold_what_other_images_give() -> None:
    """Redraws among the directions that were asked about are as wide as those of whole matrices, within a factor of two."""
    net, scale = mlp((6, 12, 4), seed=0), torch.linspace(3, 1, 6, dtype=torch.float64)
    opened = open_layer(net, "0", (drawn(24, 3, 6) + drawn(24, 1, 6, seed=1) * scale).flatten(0, 1))
    whole = through(opened, (24, 3), torch.eye(opened.weight.numel(), dtype=torch.float64))
    share, truth = (
        measure.redrawn(seen, BETWEEN, 3, vec(opened.weight)[:, None], 0)[0]
        for seen in (look(opened, (24, 3), 3), whole)
    )
    assert share.value == pytest.approx(truth.value, rel=0.02)
    assert share.low + 0.01 < share.high
    assert 0.5 < (share.high - share.low) / (truth.high - truth.low) < 2


def test_statistics_that_were_never_counted_come_from_the_views() -> None:
    net, views = network(), drawn(20, 1, 8, 8) * 5 + 2
    measure.settle(net, views)
    between = net[1](net[0](views)).detach()
    assert float(between.mean((0, 2, 3)).abs().max()) < 1e-6
    kept = net[1].running_mean.clone()
    measure.settle(net, views * 3)
    assert torch.equal(net[1].running_mean, kept)
    assert not net[1].training
    assert net[1].momentum == 0.1


def test_without_a_step_no_layer_is_measured() -> None:
    still = inspect_network(network().to(torch.bfloat16), pictures(), views=2, loss=lambda z: 0 * z.sum())
    assert (still.about["precision"], still.about["modes"]) == ("float32", 5)
    assert set(still.refused) == {"0", "4", "6"}


@pytest.mark.parametrize("layer", ["0", "2"])
def test_a_layer_s_report_has_what_its_matrix_has(layer: str) -> None:
    net, x = mlp((4, 10, 7, 3), "leaky_relu", seed=0), drawn(*POPULATION, 4) + 3 * drawn(POPULATION[0], 1, 4, seed=1)
    steps, opened = measure.loss_steps(net, x, "simple"), open_layer(net, layer, x.flatten(0, 1))
    found = measure._layer(layer, [(net, x, steps)], 2, 0)
    matrix, seen = (
        CovarianceOperator(opened, POPULATION, mixing_of(BETWEEN, *POPULATION)).dense(),
        look(opened, POPULATION, 2),
    )
    values, vectors = torch.linalg.eigh(seen.matrices(BETWEEN))
    leading = seen.basis @ vectors[:, -2:]
    assert found.lowest == pytest.approx(float(values[0]), abs=1e-12)
    gaps = (matrix @ leading - leading * values[-2:]).norm(dim=0)
    assert found.residual == pytest.approx(float(gaps.max() / values[-1]), rel=1e-6, abs=1e-12)
    for shares, direction in ((found.weights, vec(opened.weight)), (found.step, vec(steps[layer]))):
        wanted = (leading.T @ direction).square().sum() / direction.square().sum()
        assert shares[BETWEEN].value == pytest.approx(float(wanted), rel=1e-9)
        assert shares[BETWEEN].low < shares[BETWEEN].value < shares[BETWEEN].high
