"""The experiments of the chapter: identities with their rivals, and what a theory explains of a step, on few instances."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from held import hold
from torch import nn

from sslbook import batch_losses
from sslbook.chapters.operators_today import coordinates, explained, identities, recorded, towers
from sslbook.connection import open_layer
from sslbook.training.networks.siamese import Networks, build


@pytest.mark.parametrize("name", identities.LOSSES)
def test_steps_and_the_nearest_wrong_operators(name: str) -> None:
    gaps = identities.step_gaps(name, 7, seed=1)
    hold(gaps)
    broken = {key: gap for key, gap in gaps.items() if key.startswith("broken:")}
    assert len(broken) == (2 if name == "spectral_contrastive" else 3)
    assert max(gaps["step"], gaps["operator"]) < 1e-12
    assert gaps["symmetric"] < 1e-13
    assert min(broken.values()) > 1e-3


def test_cosines_leave_no_growth() -> None:
    assert identities.growth_gaps("clip", 7)["growth"] < 1e-11
    assert identities.growth_gaps("spectral_contrastive", 7)["growth"] > 0.1
    assert identities.growth_gaps("spectral_contrastive", 7)["negative"] > 0.01


def test_xi_and_alpha_are_weights_of_pairs() -> None:
    gaps = identities.laplacian_gaps(seed=3)
    hold(gaps)
    assert max(gaps["xi"], gaps["alpha"], gaps["rows"]) < 1e-13
    assert min(gaps["broken: one tower"], gaps["broken: alpha of one anchor"]) > 0.1


def test_between_samples_distances_make_a_positive_operator() -> None:
    plain = partial(batch_losses.nt_xent, tau=0.3, normalize=False)
    assert identities.lowest_between(plain, 5, seed=4) > -1e-13
    assert identities.lowest_between(identities.LOSSES["nt_xent"], 5, seed=4) < -1e-3
    matrix = torch.arange(16.0).reshape(4, 4)
    assert identities.between(matrix).tolist() == [[10.0, 18.0], [42.0, 50.0]]


@pytest.mark.parametrize("name", coordinates.LOSSES)
def test_each_coordinate_has_a_table(name: str) -> None:
    gaps = coordinates.table_gaps(name, 6, seed=2)
    hold(gaps)
    assert max(gaps[key] for key in ("value", "step", "operator", "symmetric")) < 1e-12
    broken = [gap for key, gap in gaps.items() if key.startswith("broken:")]
    assert len(broken) == 3
    assert min(broken) > 1e-2


def test_turning_finds_out_who_sees_coordinates() -> None:
    z = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert identities.turned(identities.LOSSES["nt_xent"], z) < 1e-14
    assert identities.turned(batch_losses.vicreg, z) > 1e-3


def test_held_keys_and_two_networks() -> None:
    held, two = towers.stop_gradient_gaps(5, seed=2), towers.two_network_gaps(5, seed=2)
    assert max(held["held"], held["through both"], two["first"], two["second"], two["pairs"]) < 1e-12
    assert min(held["broken: half of both"], held["broken: transposed"], two["broken: its own weights"]) > 0.1
    assert 0.01 < held["lost"] < 1
    hold(held)
    hold(two)


def test_what_each_theory_explains() -> None:
    data = explained.digits(96)
    found = explained.explained(explained.network(), "2", data, tau=0.5, batches=3, size=24)
    assert found.error < 1e-12
    assert found.interval("this chapter").mean == pytest.approx(1, abs=1e-12)
    paper = found.interval("cross-covariance")
    assert paper.low < paper.mean < paper.high
    assert found.interval("unbiased").mean > max(paper.high, found.interval("no cosines").mean)
    again = explained.explained(explained.network(), "2", data, tau=0.5, batches=3, size=24)
    assert all(torch.equal(found.cosines[name], again.cosines[name]) for name in found.cosines)


def test_the_unbiased_operator_is_the_simple_loss_of_the_batch() -> None:
    """Distinct views in a positive pair, distinct images in a negative one: 2 N / (N - 1) times shorter, and nothing else."""
    data = explained.digits(96)
    views, clean, every = data.batch(64, torch.Generator().manual_seed(0))
    steps = explained.steps_of(explained.network(), "0", views, clean, 0.5, every)
    assert float((2 * 64 / 63 * steps["unbiased"] - steps["all pairs alike"]).norm()) < 1e-12 * float(
        steps["all pairs alike"].norm()
    )
    for other in ("cross-covariance", "all nine shifts"):
        assert float((steps[other] - steps["unbiased"]).norm()) > 0.1 * float(steps["unbiased"].norm())


def test_biases_take_part_in_the_operator() -> None:
    gaps = identities.bias_gaps(5, seed=1)
    hold(gaps)
    assert gaps["step"] < 1e-12
    assert gaps["broken: weights alone"] > 0.05


def test_spread_of_a_push() -> None:
    even = -torch.ones(5, 5, dtype=torch.float64)
    assert explained.pair_shares(even) == pytest.approx([4.0] * 5)
    one = torch.eye(5, dtype=torch.float64).roll(1, 0) * -2
    assert explained.pair_shares(one) == pytest.approx([1.0] * 5)


def test_a_resnet_in_float32() -> None:
    """Each layer's step against one ``.backward()``: what rounding leaves, which ``.backward()`` itself has against float64."""
    net = build(Networks(width=8, projector_hidden=32, projector_out=16), 0)
    model = nn.Sequential(net.encoder, net.projector).eval()
    views = torch.randn(12, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loss = partial(batch_losses.nt_xent, tau=0.5)
    outputs = model(views.flatten(0, 1))
    loss(outputs.unflatten(0, (12, 2))).backward()
    (pull,) = torch.autograd.grad(loss((z := outputs.detach().requires_grad_()).unflatten(0, (12, 2))), z)
    for name in (
        "0.conv1",
        "0.layer2.0.downsample.0",
        "1.linears.1",
    ):  # one gradient at the outputs, and not a bit apart
        assert torch.equal(
            open_layer(model, name, views.flatten(0, 1)).vjp(pull), model.get_parameter(f"{name}.weight").grad
        )
    errors, rounding = recorded.backward_errors(model, views), recorded.rounding(model, views)
    assert [*errors] == ["error", "double", "mixed"]
    assert {len(each) for each in (*errors.values(), rounding)} == {22}
    worst = {name: max(each.values()) for name, each in errors.items()}
    assert worst["double"] < 1e-7 < min(worst["error"], worst["mixed"]) <= max(worst["error"], worst["mixed"]) < 5e-6
    assert max(rounding.values()) > 1e-7
    cosines = recorded.held(model, views)
    assert len(cosines) == 22
    assert all(-1 < cosine < 0.999 for cosine in cosines.values())
    assert not model.training
