"""Two layers: Eq. 65 and Eq. 8, what is conserved, mixtures of Gaussians, and the trainer of Figures 7 and 8."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
import torch
from gap_cases import assert_gaps
from held import hold

from sslbook import losses
from sslbook.chapters.emergence import flow, mixture, two_layer


@pytest.mark.parametrize("seed", [0, 5])
def test_the_flow_is_the_enumerated_gradient(seed: int) -> None:
    holds = [f"Eq. 65, {k}, {t}" for k in ("ReLU", "linear") for t in ("one tower", "both, doubled")]
    broken = ("not doubled", "the other nodes left out", "u not centred", "w2 without its square")
    assert_gaps(flow.flow_gaps(50, seed), [*holds, "Eq. 8, ReLU", "Eq. 8, linear"], broken)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_what_the_flow_conserves(diagonal: bool, linear: bool) -> None:
    start = flow.random_start(4, diagonal=diagonal)
    time = flow.horizon(start, linear=linear)
    w1, w2 = flow.integrate(start, time, linear=linear, points=3)
    assert float(w1[-1].norm() / w1[0].norm()) > 1.1
    kept = flow.excess(w1, w2)
    assert float((kept - kept[0]).abs().max()) < 1e-8
    assert float((w1.square().sum(-1) - w1[0].square().sum(-1)).abs().max()) > 0.1
    with pytest.raises(ValueError, match=r"time must be shorter than .* where the weights explode"):
        flow.integrate(start, 100 * time, linear=linear)


def test_the_discrete_step_moves_the_conserved_quantity() -> None:
    start = flow.random_start(4)
    right, wrong = flow.step_gap(start)
    assert right < 1e-9
    assert wrong > 0.1
    time = flow.horizon(start, 1.3)
    coarse, fine = flow.drift(start, time, (time / 100, time / 400))
    assert math.log(coarse / fine) / math.log(4) == pytest.approx(1, abs=0.1)


def test_sampled_steps_follow_the_flow() -> None:
    start = flow.random_start(4)
    time = flow.horizon(start, 1.5, towers=2)
    found = flow.sampled_training(start, time, (time / 50, time / 800))
    assert found.distance[1] < found.distance[0]
    assert found.distance[1] < 0.05 < found.undoubled


def test_the_second_layer_leaves_the_diagonal() -> None:
    share = flow.off_diagonal_share(50)
    assert share.shape == (50,)
    assert float(share.min()) > 1e-3
    assert float(flow.off_diagonal_share(50, masked=True).abs().max()) < 1e-12
    for linear in (False, True):
        assert float(flow.leave_diagonal(replicas=4, growth=2.0, linear=linear).min()) > 1e-4
    with pytest.raises(ValueError, match=r"growth=1e\+300 is out of reach of some replica in 4000 steps"):
        flow.leave_diagonal(replicas=1, growth=1e300)


@pytest.mark.parametrize("seed", [0, 1])
def test_truncated_means(seed: int) -> None:
    found, short = mixture.gated_mean_gap(seed)
    assert found < 1e-12
    assert short > 0.01


def test_truncated_means_without_noise_are_gates() -> None:
    mix = mixture.random_mixture(2, 4, 3, 0.0)
    w = torch.randn(2, 5, 3, dtype=torch.float64)
    gate = torch.einsum("rkd,rnd->rkn", mix.centres, w) >= 0
    assert torch.allclose(mix.gated_means(w), gate[..., None] * mix.centres[:, :, None])


def test_samples_of_a_mixture() -> None:
    mix = mixture.random_mixture(2, 3, 4, 0.1)
    x, kind = mix.sample(5000, torch.Generator().manual_seed(0))
    for r in range(2):
        for k in range(3):
            assert torch.allclose(x[r][kind[r] == k].mean(0), mix.centres[r, k], atol=0.02)


def test_linear_nodes_share_one_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 2, 5, dtype=torch.float64, generator=draw)
    end = mixture.grow(
        torch.randn(10, 6, 5, dtype=torch.float64, generator=draw), mixture.Mixture(centres, 0.3), linear=True
    )
    gap = centres[:, 0] - centres[:, 1]
    assert float((end * (gap / gap.norm(dim=1, keepdim=True))[:, None]).sum(-1).abs().min()) > 0.999


def test_specialisation_depends_on_the_angles() -> None:
    even = mixture.specialise(mixture.equiangular_mixture(5, 6, 8, 0.1))
    acute = mixture.specialise(mixture.equiangular_mixture(5, 6, 8, 0.1, cosine=0.6))
    for ends in (even, acute):
        hold({"single": ends.single.double().mean().item(), "cosine": ends.cosine.mean().item()})
    finer = mixture.specialise(mixture.equiangular_mixture(5, 6, 8, 0.1), steps=2000, rate=0.25)
    assert torch.equal(even.active, finer.active)
    assert float(even.single.double().mean()) > 0.95
    assert float(even.first.double().mean()) > 0.95
    assert float(acute.single.double().mean()) < 0.1
    gram = mixture.equiangular_mixture(1, 6, 8, 0.1, cosine=0.6).centres[0, 1:]
    assert torch.allclose(gram @ gram.T, 0.4 * torch.eye(5, dtype=torch.float64) + 0.6)
    assert torch.allclose(
        mixture.equiangular_mixture(3, 6, 8, 0.1, cosine=0.6).closest(), torch.full((3,), 0.6, dtype=torch.float64)
    )


# -- the trainer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", two_layer.COMPARED)
@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_autograds(loss: str, normalize: bool) -> None:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    w1, w2, one, two = normal(3, 6, 5), normal(3, 6), normal(3, 9, 5), normal(3, 9, 5)
    floor = 1.5  # between the lengths of the outputs, so that both branches are tested
    found = two_layer.gradients(w1, w2, one, two, loss, normalize, 0.3, floor)
    leaves = [w.clone().requires_grad_(True) for w in (w1, w2)]
    y = [(v @ leaves[0].mT).relu() * leaves[1][:, None] for v in (one, two)]
    if normalize:
        assert (y[0].norm(dim=-1) < floor).any()
        assert (y[0].norm(dim=-1) > floor).any()
        y = [v / v.norm(dim=-1, keepdim=True).clamp_min(floor) for v in y]
    near = losses.half_squared_distance(y[0], y[1])
    far = losses.half_squared_distance(y[0], y[0].roll(1, 1))[..., None]
    value = losses.simple(near, far) if loss == "simple" else losses.info_nce(near, far, tau=0.3)
    wanted = torch.autograd.grad(value.mean(1).sum(), leaves)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("loss", two_layer.COMPARED)
def test_a_replica_is_the_same_alone(loss: str, dtype: torch.dtype, tol: float) -> None:
    many = two_layer.train([3, 4, 5, 6], loss, True, steps=150, dtype=dtype)
    alone = two_layer.train([5], loss, True, steps=150, dtype=dtype)
    for mine, theirs in ((many.end.w1[2], alone.end.w1[0]), (many.end.w2[2], alone.end.w2[0])):
        assert torch.allclose(mine, theirs, rtol=tol, atol=tol)
    assert not torch.allclose(many.end.w2[1], alone.end.w2[0], rtol=1e-3)


def test_a_replica_stops_at_its_cap_and_stays() -> None:
    run = two_layer.train(range(3), "simple", steps=400)
    assert bool((run.stopped < 400).all())
    for r in range(3):
        tail = run.norms[r, int(run.stopped[r]) :]
        assert torch.equal(tail, tail[:1].expand_as(tail))
        assert float(tail[0, 0] / run.norms[r, 0, 0]) > 100
    assert bool(torch.isfinite(run.norms).all())


def test_growth_is_faster_than_exponential_for_the_simple_loss_alone() -> None:
    simple = two_layer.train(range(3), "simple", steps=400)
    assert float(two_layer.acceleration(simple).min()) > 2
    foretold = two_layer.foretold_steps(range(3))
    assert torch.allclose(two_layer.steps_to(simple.norms, 10).double(), foretold.double(), rtol=0.15)
    steady = two_layer.train(range(3), "info_nce", steps=400)
    assert bool((steady.stopped == 401).all())
    assert float(two_layer.acceleration(steady).max()) < 1
    exponential = torch.exp(0.01 * torch.arange(401.0))[None, :, None].expand(1, -1, 2)
    plain = two_layer.Run(simple.start, simple.end, exponential, torch.tensor([401]))
    assert two_layer.acceleration(plain)[0, 0] == pytest.approx(1, abs=0.02)


def test_counts_and_correlations() -> None:
    centres = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    net = two_layer.TwoLayers(
        torch.tensor([[[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]]), torch.tensor([[-2.0, 1.0, 3.0]]), centres
    )
    assert net.active().tolist() == [[1, 2, 0]]
    assert two_layer.rank_correlation(net) == pytest.approx(-1)
    assert two_layer.by_count(net) == {0: (1, 3.0), 1: (1, 2.0), 2: (1, 1.0)}
    assert two_layer.selective_share(net) == pytest.approx(2 / 3)
    assert two_layer.fan_out(net, 1, 2) == (2.0, 1.0)  # torch's median of two is the lower


def test_a_node_without_a_centre_responds_most_to_the_origin() -> None:
    centres = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]]])
    net = two_layer.TwoLayers(torch.tensor([[[-1.0, -1.0], [1.0, 1.0]]]), torch.ones(1, 2), centres)
    second = two_layer.second_response(net, two_layer.Protocol(size=2, nodes=2, components=3))[0]
    assert float(second[0]) < 1e-6
    assert float(second[1]) == pytest.approx(1)


def test_the_record_of_a_short_run() -> None:
    values = two_layer.two_layer_values([0, 1], steps=3)
    assert len(values["foretold"]) == 2
    assert set(values["others"]) >= {"2 by 20", "floor 1e-12"}
    assert values["nodes-simple"]["correlation_start"] == values["nodes-info_nce"]["correlation_start"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: two_layer.train([0], "nce"),
            "loss must be one of simple, info_nce, got 'nce'; did you mean 'info_nce'",
        ),
        (lambda: two_layer.train([]), "seeds must be one or more whole numbers"),
        (lambda: two_layer.train([0], steps=0), "steps must be at least 1, got 0"),
        (lambda: two_layer.Protocol(nodes=0), "nodes must be at least 1, got 0"),
        (lambda: two_layer.Protocol(tau=0.0), "tau must be above 0, got 0.0"),
        (lambda: two_layer.Protocol(variance=-1.0), "variance must be at least 0, got -1.0"),
        (lambda: two_layer.Protocol(cap=1.0), "cap must be above 1, got 1.0"),
        (lambda: mixture.Mixture(torch.zeros(2, 3), 1.0), r"centres must have shape \(R, K, d\)"),
        (lambda: mixture.random_mixture(1, 3, 2, -0.5), "sigma must be at least 0, got -0.5"),
        (lambda: mixture.equiangular_mixture(1, 9, 4, 0.1), "need size >= 8, got 4"),
        (
            lambda: mixture.equiangular_mixture(1, 4, 4, 0.1, cosine=-0.9),
            r"cosine must lie in \[-0.5, 1\) for 3 centres, got -0.9",
        ),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_starts_are_uniform_about_zero() -> None:
    protocol = two_layer.Protocol(size=16, nodes=50)
    start = two_layer.begin(range(20), protocol, torch.float64)
    for weights, inputs in ((start.w1, 16), (start.w2, 50)):
        scaled = weights * inputs**0.5
        assert float(scaled.abs().max()) <= 1
        assert float(scaled.mean()) == pytest.approx(0, abs=4 / (3 * scaled.numel()) ** 0.5), "four standard errors"
        assert float(scaled.square().mean()) == pytest.approx(1 / 3, rel=0.1)


def test_sizes_of_a_run() -> None:
    assert astuple(two_layer.Protocol()) == (20, 20, 10, 0.1, 128, 0.01, 0.05, 1e-3, 100.0)
