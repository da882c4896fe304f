"""Theorems 3 and 4, Eq. 56, 7, 80 and Corollary 1 on finite populations; the residue and its bounds; a SimCLR step."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gap_cases import assert_gaps
from torch import Tensor

from sslbook import images, losses
from sslbook.connection import open_layer, relative_gap, unvec, vec
from sslbook.covariance import covariance_operator, identities, intra_operator, population, residue, step
from sslbook.covariance.population import (
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    random_tuples,
    simple_loss,
    triplet_loss,
)
from sslbook.networks import mlp
from sslbook.operators import pair_weights

FAMILIES: dict[str, tuple[Callable[..., identities.Gaps], tuple[str, ...], tuple[str, ...]]] = {
    "A-Thm3": (
        identities.theorem3_gaps,
        ("one tower", "both towers, doubled", "distinct negatives, N/(N-1)", "dense"),
        ("not centred", "views not averaged", "both towers, not doubled"),
    ),
    "A-Thm3, biases": (identities.affine_gaps, ("exact update",), ("operator",)),
    "A-Eq56": (
        identities.normalized_gaps,
        ("one tower", "both towers, doubled", "step along the weights"),
        ("projection left out", "output not normalised", "transpose"),
    ),
    "A-Thm4": (
        identities.weighted_gaps,
        (
            *("soft_triplet, one tower", "soft_triplet, both towers, doubled"),
            *("info_nce, one tower", "info_nce, both towers, doubled", "dense"),
        ),
        ("constant weight", "half forgotten"),
    ),
    "A-Eq7": (
        identities.exact_loss_gaps,
        ("H = 1, one tower", "H = 2, one tower", "H = 3, one tower", "both towers, doubled"),
        ("weights from augmented distances", "gradient through the weights"),
    ),
    "A-Cor1": (
        identities.extended_gaps,
        ("corollary", "sum of its parts", "dense"),
        ("sign of beta", "EV left out"),
    ),
}


@pytest.mark.parametrize("seed", [0, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_theorems_hold_and_broken_variants_do_not(name: str, seed: int) -> None:
    gaps, holds, broken = FAMILIES[name]
    assert_gaps(gaps(seed=seed), holds, broken)


def test_worst_takes_the_largest_identity_and_the_smallest_break() -> None:
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0, "c": 0.5}]
    assert identities.worst(rows) == {"a": 2.0, "broken: b": 3.0, "c": 0.5}


def test_eigenvalues() -> None:
    assert identities.eigenvalue_margin() > -1e-13
    assert identities.eigenvalue_margin(beta=-1.0) > -1e-13
    assert identities.eigenvalue_margin(beta=0.5) < -0.1
    size, indefinite = identities.asymmetry()
    assert size > 0.05
    assert indefinite > 0.5


def test_monte_carlo_goes_down_as_the_root_of_the_batch() -> None:
    curve = identities.monte_carlo((32, 128, 512, 2048), replicates=64)
    assert curve.rate == pytest.approx(-0.5, abs=0.05)
    assert curve.error[0] > 5 * curve.error[-1]
    exact = identities.Curve((1, 10, 100), (3.0, 0.3, 0.03))
    assert exact.rate == pytest.approx(-1.0)


def test_a_batch_of_the_monte_carlo_run_is_a_gradient() -> None:
    """On all tuples in place of random ones, the same gradient is the operator's, exactly."""
    net = mlp((6, 10, 8, 4))
    views = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    op = covariance_operator(net, "2", views)
    t = random_tuples(4, 2, 200, seed=1)
    drawn = -expected_gradient(net, "2", views, simple_loss(), t)
    y = op.opened.output
    cotangent = torch.zeros_like(y).index_add_(0, t.anchor, (y[t.positive] - y[t.negative[:, 0]]) / len(t))
    assert relative_gap(vec(op.opened.vjp(cotangent)), vec(drawn)) < 1e-12
    assert relative_gap(vec(op.update()), vec(drawn)) > 1e-2


@pytest.mark.parametrize("negatives", [1, 2, 3])
def test_several_negatives(negatives: int) -> None:
    found = identities.several_negatives(negatives)
    assert found.negatives == negatives
    assert found.one_tower < 1e-12
    assert found.both_towers < 1e-12
    if negatives == 1:
        assert max(found.symmetrised, found.asymmetry) < 1e-12
    else:
        assert min(found.symmetrised, found.asymmetry) > 0.02


def test_joint_weights_by_listing_the_draws() -> None:
    r = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r = (r + r.T) * (1 - torch.eye(3, dtype=torch.float64))
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i, a, b in itertools.product(range(3), repeat=3):
        weight = (-torch.stack([r[i, a], r[i, b]]) / 0.5).exp()
        weight = weight / (1 + weight.sum()) / 0.5
        wanted[i, a] += weight[0] * 3 / 9
        wanted[i, b] += weight[1] * 3 / 9
    assert relative_gap(identities.joint_weights(r, 2, 0.5), wanted) < 1e-13
    single = identities.joint_weights(r, 1, 0.5)
    assert relative_gap(single, losses.pair_weight(r, "info_nce", tau=0.5)) < 1e-13


def test_the_operator_is_not_the_kernel() -> None:
    found = identities.kernel_comparison(4)
    assert (found.operator_size, found.kernel_size) == (24, 8)
    assert found.operator_rank == 6  # (N - 1) n_L: centring takes one sample away
    assert 6 < found.kernel_rank <= 8
    assert found.spectrum_gap < 1e-12
    assert found.uncentred_gap > 0.05


# -- populations ---------------------------------------------------------------------------------------------------------------


def test_all_tuples_are_all() -> None:
    t = all_tuples(3, 2, 2)
    rows = {tuple(row) for row in torch.cat([t.anchor[:, None], t.positive[:, None], t.negative], 1).tolist()}
    assert len(t) == len(rows) == 3 * 2 * 2 * 6**2
    assert all(a // 2 == b // 2 for a, b, _, _ in rows)
    apart = all_tuples(3, 2, 2, distinct=True)
    assert len(apart) == 3 * 2 * 2 * 4**2
    assert bool((apart.negative // 2 != (apart.anchor // 2)[:, None]).all())
    with pytest.raises(ValueError, match="too many to enumerate; draw them with random_tuples"):
        all_tuples(100, 10, 3)


def test_random_tuples_are_uniform() -> None:
    t = random_tuples(3, 2, 60_000, 2, seed=0)
    assert torch.equal(t.anchor // 2, t.positive // 2)
    for index in (t.anchor, t.positive, t.negative[:, 0], t.negative[:, 1]):
        share = torch.bincount(index, minlength=6) / len(t)
        assert float((share - 1 / 6).abs().max()) < 0.008  # five standard deviations
    assert torch.equal(random_tuples(3, 2, 10, seed=4).anchor, random_tuples(3, 2, 10, seed=4).anchor)
    assert not torch.equal(random_tuples(3, 2, 10, seed=4).anchor, random_tuples(3, 2, 10, seed=5).anchor)


def test_the_expected_gradient_by_a_loop_over_tuples() -> None:
    net = mlp((3, 4, 2), "leaky_relu")
    views = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clean = views.mean(1)
    weight = net[0].weight
    assert isinstance(weight, Tensor)
    for make, both, normalize in itertools.product(
        (simple_loss(0.3), triplet_loss(0.5, 0.1), nce_loss(0.5), exact_loss(0.5)), (False, True), (False, True)
    ):
        unit = torch.nn.functional.normalize if normalize else (lambda y: y)
        total: Tensor = torch.zeros((), dtype=torch.float64)
        for i, a, b, j, c in itertools.product(range(3), range(2), range(2), range(3), range(2)):
            anchor, other, negative = (unit(net(x[None])) for x in (views[i, a], views[i, b], views[j, c]))
            if not both:
                other, negative = other.detach(), negative.detach()
            clean_pair = [unit(net(clean[s][None])).detach() for s in (i, j)]
            r = [0.5 * (p - q).square().sum(1) for p, q in ((anchor, other), (anchor, negative), clean_pair)]
            total = total + make(r[0], r[1][:, None], r[2][:, None]).sum() / (3 * 2 * 2 * 6)
        (wanted,) = torch.autograd.grad(total, weight)
        found = expected_gradient(net, "0", views, make, all_tuples(3, 2), clean=clean, both=both, normalize=normalize)
        assert relative_gap(vec(found), vec(wanted)) < 1e-11


# -- the residue -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.2)])
def test_both_terms_of_theorem_4_make_the_step(loss: str, margin: float) -> None:
    """The matrix whose distance from the main term is theta does give the enumerated gradient, with augmentation."""
    net, clean, views = residue.population_with_strength(0.4, symmetric=False)
    n, v = views.shape[:2]
    opened = open_layer(net, "0", views.flatten(0, 1))
    k = opened.connections()
    c = residue._coefficients(opened.output, n, v, loss, 0.7, margin)
    full = torch.einsum("ano,ab,bmo->nm", k, c, k)
    enumerated = nce_loss(0.7) if loss == "info_nce" else triplet_loss(0.7, margin)
    truth = -expected_gradient(net, "0", views, enumerated, all_tuples(n, v))
    assert relative_gap(full @ vec(opened.weight), vec(truth)) < 1e-12
    main = covariance_operator(net, "0", views, loss=loss, tau=0.7, margin=margin, clean=clean)
    assert relative_gap(main.matvec(vec(opened.weight)), vec(truth)) > 1e-2
    found = residue.residue(net, "0", views, clean, tau=0.7, loss=loss, margin=margin)
    assert found.theta == pytest.approx(float(torch.linalg.matrix_norm(full - main.dense(), 2)))
    assert found.main == pytest.approx(float(torch.linalg.matrix_norm(main.dense(), 2)))
    assert found.relative == found.theta / found.main


def test_no_augmentation_no_residue() -> None:
    net, clean, _ = residue.population_with_strength(0.0, symmetric=False)
    for views in (clean[:, None], clean[:, None].repeat(1, 3, 1)):
        found = residue.residue(net, "0", views, clean, tau=0.5)
        assert found.theta < 1e-14 * found.main
        assert found.spread < 1e-28
        assert found.corrected < 1e-13


def test_spread_and_bias_by_hand() -> None:
    net = mlp((1, 1))
    net[0].weight.detach().fill_(2.0)
    clean = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    views = torch.tensor([[[1.0], [3.0]], [[1.0], [1.0]]], dtype=torch.float64)  # outputs 2, 6 and 2, 2; clean 0 and 2
    found = residue.residue(net, "0", views, clean, tau=1.0)
    assert found.spread == pytest.approx((4 + 0) / 2)
    assert found.bias == pytest.approx((16 + 0) / 2)
    # f(x) and f(x') are 2 apart with probability one half; M_K = 3
    assert found.printed == pytest.approx(2 * 9 * (2 * (1 * (2 + 4)) / 2 + 3 * 2))
    assert found.corrected == pytest.approx(2 * 9 / 4 * (2 * (1 * 20**0.5) / 2 + 3 * 2 + 2 * 8))


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.3)])
def test_the_corrected_bound_is_a_bound(loss: str, margin: float) -> None:
    margins = residue.bound_margins(25, tau=0.5, loss=loss, margin=margin, seed=100)
    assert margins.shape == (25,)
    assert float(margins.min()) >= 1


def test_the_printed_bound_fails() -> None:
    found = residue.deterministic_augmentation()
    assert found.printed == 0.0
    assert found.spread == 0.0
    assert found.theta > 0.1
    assert found.corrected >= found.theta


def test_the_residue_grows_with_the_augmentation() -> None:
    strengths = (0.01, 0.02, 0.04)
    rates = []
    for symmetric in (False, True):
        found = residue.residue_curve(strengths, symmetric=symmetric)
        rates.append(identities.Curve(strengths, tuple(r.theta for r in found)).rate)
    assert rates[0] == pytest.approx(1, abs=0.15)  # views off centre: first order
    assert rates[1] > 1.6  # views in opposite pairs: the first order drops out, kinks apart


def test_training_lowers_the_loss_and_measures_on_the_way() -> None:
    net, clean, views = residue.population_with_strength(0.2, symmetric=False)
    before = net[0].weight.detach().clone()
    found = residue.train_and_measure(net, "0", views, clean, tau=0.5, steps=10, every=5, rate=0.05)
    assert found.steps == (0, 5, 10)
    assert found.loss[0] > found.loss[1] > found.loss[2]
    assert len(found.residues) == 3
    assert not torch.equal(net[0].weight, before)
    start = residue.population_with_strength(0.2, symmetric=False)
    assert found.residues[0] == residue.residue(start[0], "0", start[2], start[1], tau=0.5)


@pytest.mark.parametrize(
    ("loss", "margin", "message"),
    [
        ("simple", 0.0, "loss must be 'info_nce' or 'soft_triplet'"),
        ("info_nce", 0.1, "margin belongs to loss='soft_triplet'"),
    ],
)
def test_residue_of_other_losses(loss: str, margin: float, message: str) -> None:
    net, clean, views = residue.population_with_strength(0.1, symmetric=False)
    with pytest.raises(ValueError, match=message):
        residue.residue(net, "0", views, clean, tau=0.5, loss=loss, margin=margin)


# -- real images --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene() -> step.Scene:
    return step.digits_scene(32)


def test_a_scene_of_digits(scene: step.Scene) -> None:
    assert scene.views.shape == (32, 9, 1, 8, 8)
    assert scene.clean.shape == (32, 1, 8, 8)
    assert scene.labels.shape == (32,)
    assert float(scene.clean.mean(0).abs().max()) < 1e-14
    raw = images.digits(32, 0, dtype=torch.float64).pixels
    assert torch.allclose(scene.views, images.shifts(raw, 1) - raw.mean(0))
    assert torch.allclose(scene.views[:, 0], scene.clean)


def test_batches_of_all_images_average_to_the_operator(scene: step.Scene) -> None:
    r"""A batch of every image draws its views alone: the mean gradient is :math:`-2 N / (N - 1) OP vec(W)`."""
    net = step.scene_network(scene)
    op = step.scene_operator(net, "2", scene)
    steps = -step.simclr_gradients(op, 32, replicates=400, seed=0).flatten(1)
    predicted = 2 * 32 / 31 * op.update().flatten()
    error = (steps.mean(0) - predicted).norm() / predicted.norm()
    noise = ((steps - steps.mean(0)).square().sum(1).mean() / len(steps)).sqrt() / predicted.norm()
    assert float(noise) < 0.2
    assert float(error) < 1.5 * float(noise)  # the distance of a mean from what it estimates
    wrong = intra_operator(net, "2", scene.views).update().flatten()  # another operator, scaled as well as can be
    wrong = wrong * (wrong @ steps.mean(0)) / wrong.square().sum()
    assert float((steps.mean(0) - wrong).norm() / predicted.norm()) > 3 * float(noise)


def test_a_batch_is_what_backpropagation_through_the_network_gives(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    for loss, normalize in (("simple", False), ("info_nce", True)):
        op = step.scene_operator(net, "2", scene, loss=loss)
        found = step.simclr_gradients(op, 8, loss=loss, replicates=2, seed=3)
        draw = torch.Generator().manual_seed(3)
        sample = torch.rand(2, 32, generator=draw).argsort(1)[:, :8]
        views = [torch.randint(9, sample.shape, generator=draw) for _ in range(2)]
        for r in range(2):
            z = [net(scene.views[sample[r], v[r]]) for v in views]
            extra = {"tau": 0.5} if normalize else {}
            value = losses.contrastive(z[0], z[1], loss, normalize=normalize, **extra)
            weight = net[2].weight
            assert isinstance(weight, Tensor)
            (wanted,) = torch.autograd.grad(value, weight)
            assert relative_gap(vec(found[r]), vec(wanted)) < 1e-10
    for size in (1, 33):
        with pytest.raises(ValueError, match=f"between 2 and 32 images, got {size}"):
            step.simclr_gradients(op, size)


def test_agreement_rises_with_the_number_of_batches(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    op = step.scene_operator(net, "2", scene)
    found = step.simclr_agreement(op, size=16, batches=(1, 8, 64), replicates=2)
    assert found.batches == (1, 8, 64)
    assert found.mean[0] < found.mean[1] < found.mean[2]
    assert found.mean[2] > 0.9
    assert found.length == pytest.approx(32 / 31, abs=0.15)


def test_weights_of_a_scene_are_those_of_normalised_outputs(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    op = step.scene_operator(net, "2", scene, loss="info_nce", tau=0.3)
    assert op.normalize
    assert op.mixing.weights is not None
    assert torch.equal(op.mixing.weights, pair_weights(net, scene.clean, loss="info_nce", tau=0.3, normalize=True))


def test_a_simclr_run(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    found = step.simclr_run(net, "2", scene, steps=4, every=2, size=16, rate=0.1, k=3)
    assert [s.step for s in found] == [0, 2, 4]
    start = step.scene_operator(step.scene_network(scene), "2", scene)
    assert found[0].trace == pytest.approx(start.trace())
    assert torch.allclose(found[0].values, start.top_eigenpairs(3).values, rtol=1e-5)
    assert all(0 <= s.inside <= 1 for s in found)
    assert found[0].chance == 3 / start.shape[0]
    assert found[-1].trace != found[0].trace


def test_surviving_modes_are_those_of_the_averaged_images(scene: step.Scene) -> None:
    values, modes, trace = step.surviving_modes(scene, 3)
    blurred = scene.views.mean(1).flatten(1).numpy()
    wanted, vectors = np.linalg.eigh(np.cov(blurred.T, bias=True))
    assert np.allclose(values, wanted[::-1][:3])
    assert trace == pytest.approx(wanted.sum())
    assert modes.shape == (3, 1, 8, 8)
    assert abs(float(modes[0].flatten() @ torch.from_numpy(vectors[:, -1].copy()))) == pytest.approx(1, abs=1e-7)


def test_the_package_repeats_the_operators() -> None:
    assert covariance_operator.__module__ == "sslbook.operators"
    assert population.TupleLoss is not None
    assert unvec(vec(torch.ones(2, 3)), (2, 3)).shape == (2, 3)
