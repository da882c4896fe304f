"""What grows: the law's formulas against autograd over all pairs of views, and what is measured of planted directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sslbook._random import Streams
from sslbook.images.datasets import Dataset
from sslbook.training.augment import PIPELINES, apply
from sslbook.training.run.data import Batches
from sslchapters.growth import dose, order, photographs, records, worlds, zero
from sslchapters.intervals import Interval


def draw(seed: int, count: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Shares and amplitudes of attributes, and weights with orthogonal columns of any length."""
    some = torch.Generator().manual_seed(seed)
    shares, sizes, lengths = torch.rand(3, count, generator=some, dtype=torch.float64).mul(0.9).add(0.1)
    turn = torch.linalg.qr(torch.randn(count + 1, count, generator=some, dtype=torch.float64))[0]
    return shares, sizes, turn * lengths


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [0.1, 0.5, 3.0])
def test_attributes_that_flip_grow_as_the_law_says(seed: int, tau: float) -> None:
    shares, sizes, weights = draw(seed)
    views, chance = worlds.flipped(shares, sizes)
    losses = worlds.pair_losses(chance, tau, beta=0.3)
    part = worlds.parts_of(weights, sizes**2)
    of = {name: worlds.rates(loss, views, weights) for name, loss in losses.items()}
    square = weights.square().sum(0) * sizes**2
    wanted = {
        "simple": square * shares,
        "root mean square": worlds.rate_of_share(part, shares),
        "cosines": worlds.rate_of_share(part, shares),
        "InfoNCE": worlds.rate_of_info_nce(part, shares, tau),
        "spectral": 2 * square * (shares - square),
        "BYOL": 0.3 / 2 * square * (shares - 0.3),
    }
    for name, rate in wanted.items():
        torch.testing.assert_close(of[name], rate, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("seed", range(5))
def test_the_law_needs_no_length_and_no_orthogonal_weights_without_cosines(seed: int) -> None:
    some = torch.Generator().manual_seed(seed)
    views = torch.randn(6, 5, 3, generator=some, dtype=torch.float64) @ torch.randn(3, 3, generator=some).double()
    views = torch.cat([views, worlds.jittered(0.7)[:, :, :1].repeat(2, 2, 1)[:6, :5]], 2)
    views[..., 3] = torch.tensor([1.0, -1, 1, -1, 1, -1])[:, None] + torch.tensor([0.3, -0.3, 0.3, -0.3, 0.0])
    views = views - views.mean((0, 1))
    others, planted = views[..., :3].flatten(0, 1), views[..., 3]
    basis = torch.stack(
        [planted.mean(1, keepdim=True).expand(6, 5).flatten(), (planted - planted.mean(1, keepdim=True)).flatten()]
    )
    views[..., :3] = (others - torch.linalg.pinv(basis) @ (basis @ others)).unflatten(0, (6, 5))
    between, within = worlds.moments(views)
    weights = torch.randn(2, 4, generator=some, dtype=torch.float64)
    assert between[3, :3].abs().max() < 1e-12 > within[3, :3].abs().max()
    c = worlds.output_share(between, within, weights)
    total = torch.einsum("od,de,oe->", weights, between + within, weights)
    s2, u2 = between[3, 3], within[3, 3]
    law = weights[:, 3].square().sum() * (s2 + u2) / total * (s2 / (s2 + u2) - c)
    found = worlds.rates(worlds.pair_losses()["root mean square"], views, weights)[3]
    torch.testing.assert_close(found, law, rtol=1e-9, atol=1e-12)


def test_the_flow_raises_the_output_s_share_and_each_direction_turns_once() -> None:
    shares, sizes, weights = draw(5, 6)
    squares, course = worlds.flow(shares, sizes**2, weights.square().sum(0), 4000, 0.05)
    assert (course.diff() >= -1e-12).all()
    for path in squares.T:
        moves = path.diff()
        turns = torch.sign(moves[moves.abs() > 1e-12])
        assert (turns.diff() <= 0).all(), "up, then down"


@pytest.mark.parametrize("tau", [0.2, 0.5, 5.0])
def test_info_nce_rests_where_it_says_and_those_that_are_lost_would_shrink(tau: float) -> None:
    shares = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0], dtype=torch.float64)
    part = worlds.settled(shares, tau)
    assert worlds.rate_of_info_nce(part, shares, tau).abs().max() < 1e-9
    excess = shares - torch.tanh(part / tau)
    assert (excess[part == 0] <= excess[part > 0].min() + 1e-9).all()


def test_the_zero_of_growth_tends_to_the_layer_s_share() -> None:
    assert worlds.zero_through(lambda x: x, 0.4, 9) == pytest.approx(0.4)
    gaps = [abs(worlds.zero_through(torch.exp, 0.4, n) - 0.4) for n in (8, 32, 128)]
    assert gaps[2] < gaps[1] / 3 < gaps[0] / 9
    gaps = [abs(worlds.zero_of_gaussians(0.4, n) - 0.4) for n in (8, 32)]
    assert gaps[1] < gaps[0] / 3


def test_planted_directions_have_their_doses_and_seeds_their_own_streams() -> None:
    data = dose.Images(Streams((0, 1), "test"))
    x = torch.cat([data.batch(600)[0].unflatten(1, (2, -1))[..., dose.PIXELS :] for _ in range(8)], 2)
    s2, u2 = torch.tensor(dose.DOSES).T
    torch.testing.assert_close((x[:, 0] * x[:, 1]).mean((0, 1))[:16], s2, rtol=0.1, atol=0.004)
    torch.testing.assert_close((x[:, 0] - x[:, 1]).square().mean((0, 1))[:16] / 2, u2, rtol=0.05, atol=0)
    for name in ("InfoNCE, τ = 0.5", "BYOL"):
        together, alone = dose.train(name, (3, 4), (2, 3)), dose.train(name, (4,), (2, 3))
        torch.testing.assert_close(together["growth"][1], alone["growth"][0], rtol=1e-4, atol=1e-6)


def test_a_response_tells_amount_from_share() -> None:
    s2, u2 = np.array(dose.DOSES).T
    amount, share = (dose.response(np.tile(each, (3, 1))) for each in (s2, s2 / (s2 + u2)))
    assert amount.amount == pytest.approx(1) == pytest.approx(share.share[0])
    assert amount.lead.mean < 0 < share.lead.mean
    power = dose.response(np.log(s2 / u2**0.7)[None] * np.array([[1.0], [2.0]]))
    assert power.theta.mean == pytest.approx(0.7)


def test_records_hold_every_cell_and_a_linear_network_s_zero_is_its_share(tmp_path: Path) -> None:
    found = records.doses((0, 1), (1, 2), parts=tmp_path)
    assert {np.shape(of) for of in found["growth"].values()} == {(2, 2, 22)}
    assert set(found["growth"]) == set(dose.METHODS)
    linear = zero.measured(range(6), "linear", batches=20)
    assert float((linear["zero"] - linear["output"]).abs().mean()) < 0.08


def test_gratings_have_unit_size_and_their_doses_and_a_probe_reads_what_is_there() -> None:
    waves = torch.cat([photographs.gratings(photographs.WAVES, 3), photographs.gratings(photographs.NEW, 3)])
    products = torch.einsum("aij,bij->ab", waves, waves) / 32**2
    torch.testing.assert_close(products, torch.eye(len(waves)), atol=1e-5, rtol=0)
    pixels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = Dataset(pixels, torch.arange(64) % 10, "noise", 10)
    planted, batches = photographs.Planted(images, 5), Batches(64, 64, 5)
    coordinates = []
    for step in range(40):
        index, one, two = planted.batch(batches, step)
        plain_ = [apply(pixels[index], PIPELINES["cifar10"], drawn) for drawn in batches.at(step)[1:]]
        seen = [
            ((x - y).mean(1)[:, None] * planted.waves).mean((2, 3)) for x, y in zip((one, two), plain_, strict=True)
        ]
        coordinates.append(torch.stack(seen) / photographs.SIZE - photographs.MEAN)
    x = torch.stack(coordinates)
    doses = torch.tensor([*(photographs.DOSES[place] for place in planted.order), *photographs.CONTROLS])
    torch.testing.assert_close((x[:, 0] * x[:, 1]).mean((0, 1)), doses[:, 0], atol=0.12, rtol=0)
    torch.testing.assert_close((x[:, 0] - x[:, 1]).square().mean((0, 1)) / 2, doses[:, 1], atol=0.06, rtol=0)
    z = torch.randn(3000, 8, generator=torch.Generator().manual_seed(1))
    read = photographs.r_squared(z, torch.stack([z[:, 0] + z[:, 3], torch.randn(3000)], 1))
    assert read[0] > 0.98 > 0.1 > read[1]


def test_gains_stand_in_the_order_of_doses_and_the_rule_is_the_committed_one() -> None:
    places = torch.randperm(12, generator=torch.Generator().manual_seed(2)).tolist()
    s2 = [photographs.DOSES[place][0] for place in places] + [0.0] * 4
    row = {"order": places, "r2": {"features": s2}}
    of = {
        "untrained": {"r2": [{"features": [0.0] * 16}] * 2},
        "labels": {name: [part] * 2 for name, part in row.items()},
    }
    np.testing.assert_allclose(photographs.gains({"of": of}, "labels")[0, :12], np.array(photographs.DOSES)[:, 0])
    found = photographs.responses({"of": of}, "labels")
    assert found.amount == pytest.approx(1)
    assert (found.by_unshared < 1e-9).all()
    intervals = {
        "share wins": (0.2, 0.5),
        "share leads": (0.1, 0.5),
        "not decided": (-0.1, 0.5),
        "amount leads": (-0.5, -0.1),
    }
    for said, (low, high) in intervals.items():
        assert photographs.verdict([Interval((low + high) / 2, low, high, 3)] * 2) == said


def test_the_order_of_learning_is_ranked_within_a_tree() -> None:
    block = np.random.default_rng(0).random((5, 4))
    start = 0.9 - 0.5 * block
    course = start[:, None] + block[:, None] * np.linspace(0, 0.1, 10)[:, None]
    found = order.ranked({"block 2": block, "rate 2": -block, "correlation 2": course}, 2)
    assert [found[name].mean for name in order.PREDICTORS] == pytest.approx([1, -1, 1])
