"""The covariance operator's identities, finite populations, the residue of Theorem 4, and the drawings."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing_cases import GREYS, geometry
from held import hold
from matplotlib.figure import Figure
from torch import Tensor

from sslbook.experiments.covariance import checks, drawing, reference, runs
from sslbook.experiments.covariance.checks import Curve
from sslbook.experiments.covariance.reference import (
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    random_tuples,
    simple_loss,
    triplet_loss,
)
from sslbook.images import enumerated
from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import covariance_operator, intra_operator
from sslbook.operator.layer import open_layer, vec
from sslbook.stats.checks import relative_gap


def test_eigenvalues() -> None:
    assert checks.eigenvalue_margin() > -1e-13
    assert checks.eigenvalue_margin(beta=-1.0) > -1e-13
    assert checks.eigenvalue_margin(beta=0.5) < -0.1
    assert checks.asymmetry() > 0.05
    assert checks.asymmetry(normalize=False) < 1e-14


def test_monte_carlo_goes_down_as_the_root_of_the_batch() -> None:
    curve = checks.monte_carlo((32, 128, 512, 2048), replicates=64)
    assert curve.rate == pytest.approx(-0.5, abs=0.05)
    assert curve.error[0] > 5 * curve.error[-1]
    exact = checks.Curve((1, 10, 100), (3.0, 0.3, 0.03))
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
    found = checks.many_negatives(negatives)
    assert found.one_tower < 1e-12
    assert found.both_towers < 1e-12
    assert min(found.without_tau, found.without_half) > 0.05
    assert found.symmetrised < 1e-12 if negatives == 1 else found.symmetrised > 5e-3


def test_joint_weights_by_listing_the_draws() -> None:
    r = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r = (r + r.T) * (1 - torch.eye(3, dtype=torch.float64))
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i, a, b in itertools.product(range(3), repeat=3):
        weight = (-torch.stack([r[i, a], r[i, b]]) / 0.5).exp()
        weight = weight / (1 + weight.sum()) / 0.5
        wanted[i, a] += weight[0] * 3 / 9
        wanted[i, b] += weight[1] * 3 / 9
    assert relative_gap(checks.joint_weights(r, 2, 0.5), wanted) < 1e-13
    single = checks.joint_weights(r, 1, 0.5)
    assert relative_gap(single, pairs.pair_weight(r, "info_nce", temperature=0.5)) < 1e-13


def test_the_operator_is_not_the_kernel() -> None:
    found = checks.kernel_comparison(4)
    assert (found.operator_size, found.kernel_size, found.network_size) == (24, 8, 8)
    assert found.operator_rank == 6  # (N - 1) n_L: centring takes one sample away
    assert 6 < found.kernel_rank <= found.network_rank <= 8
    assert found.spectrum_gap < 1e-12
    assert min(found.uncentred_gap, found.unaveraged_gap) > 0.02
    many = checks.kernel_comparison(40)
    assert many.operator_rank <= many.operator_size == 24 < many.kernel_size == 80
    assert many.spectrum_gap < 1e-12


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
    t = random_tuples(3, 2, 60_000, seed=0)
    assert torch.equal(t.anchor // 2, t.positive // 2)
    for index in (t.anchor, t.positive, t.negative[:, 0]):
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


@pytest.mark.parametrize("views", [1, 2, 3])
def test_an_estimate_from_few_views_by_a_loop_over_draws(views: int) -> None:
    k = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimates = []
    for i, j in itertools.product(range(3), repeat=2):
        for drawn in itertools.product(range(2), repeat=2 * views):
            pair = torch.stack([k[i, list(drawn[:views])].mean(0), k[j, list(drawn[views:])].mean(0)])
            estimates.append(sum(torch.cov(column.T) for column in pair.unbind(-1)))
    mean = torch.stack([torch.as_tensor(e) for e in estimates]).mean(0)
    assert relative_gap(reference.mean_estimate(k, views), mean) < 1e-14


def test_an_estimate_from_few_views_is_too_large_by_a_share_of_the_variance_within() -> None:
    k = torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    between, within = k.mean(1) - k.mean((0, 1)), k - k.mean(1, keepdim=True)
    ve = torch.einsum("ino,imo->nm", between, between) / 4
    ev = torch.einsum("ijno,ijmo->nm", within, within) / 12
    for views in (1, 2, 3):
        assert relative_gap(reference.mean_estimate(k, views), ve + ev / views) < 1e-13
        assert relative_gap(reference.mean_estimate(k, views), ve) > 0.1


def test_a_rank_has_no_unit() -> None:
    values = torch.tensor([1e-30, 1e-12, 3.0], dtype=torch.float64)
    assert [checks._rank(scale * values) for scale in (1.0, 1e-9, 1e9)] == [1, 1, 1]
    assert checks._rank(torch.tensor([0.5, 1.0]) * 1e-20) == 2


# --- the residue -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.2)])
def test_both_terms_of_theorem_4_make_the_step(loss: str, margin: float) -> None:
    """What is measured of the two matrices that give the enumerated gradient (`step_gaps`)."""
    net, clean, views = checks.population_with_strength(0.4, symmetric=False)
    n, v = views.shape[:2]
    opened = open_layer(net, "0", views.flatten(0, 1))
    k = opened.connections()
    full = torch.einsum("ano,ab,bmo->nm", k, checks.coefficients(opened.output, n, v, loss, 0.7, margin)[0], k)
    main = covariance_operator(net, "0", views, loss=loss, temperature=0.7, margin=margin, clean=clean)
    enumerated = nce_loss(0.7) if loss == "info_nce" else triplet_loss(0.7, margin)
    rest = -expected_gradient(net, "0", views, enumerated, all_tuples(n, v), both=True) - 2 * main.update()
    found = checks.residue(net, "0", views, clean, tau=0.7, loss=loss, margin=margin)
    assert found.theta == pytest.approx(float(torch.linalg.matrix_norm(full - main.dense(), 2)))
    assert found.main == pytest.approx(float(torch.linalg.matrix_norm(main.dense(), 2)))
    assert found.relative == found.theta / found.main
    assert found.step_rest == pytest.approx(float(rest.norm() / (2 * main.update()).norm()))
    assert found.step_rest > 0.1


def test_no_augmentation_no_residue() -> None:
    net, clean, _ = checks.population_with_strength(0.0, symmetric=False)
    for views in (clean[:, None], clean[:, None].repeat(1, 3, 1)):
        found = checks.residue(net, "0", views, clean, tau=0.5)
        assert found.theta < 1e-14 * found.main
        assert found.corrected < 1e-13


def test_bounds_by_hand() -> None:
    net = mlp((1, 1))
    net[0].weight.detach().fill_(2.0)
    clean = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    views = torch.tensor([[[1.0], [3.0]], [[1.0], [1.0]]], dtype=torch.float64)  # outputs 2, 6 and 2, 2; clean 0 and 2
    found = checks.residue(net, "0", views, clean, tau=1.0)
    # the outputs' variance is 4 and 0, their squared bias 16 and 0;
    # f(x) and f(x') are 2 apart with probability one half; M_K = 3
    assert found.printed == pytest.approx(2 * 9 * (2 * (1 * (2 + 4)) / 2 + 3 * 2))
    assert found.corrected == pytest.approx(2 * 9 / 4 * (2 * (1 * 20**0.5) / 2 + 3 * 2 + 2 * 8))
    assert found.unbiased == pytest.approx(2 * 9 / 4 * (2 * (1 * 2) / 2 + 3 * 2))


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.3)])
def test_the_corrected_bound_is_a_bound(loss: str, margin: float) -> None:
    for alike in (False, True):
        margins = checks.bound_margins(25, tau=0.5, loss=loss, margin=margin, seed=100, alike=alike)
        assert margins["corrected"].shape == (25,)
        assert float(margins["corrected"].min()) >= 1
        assert bool(margins["printed"].min() < 1) == alike, "only look-alikes tell the bounds apart"
        assert bool(margins["unbiased"].min() < 1) == alike


def test_look_alikes_are_all_bias() -> None:
    net, clean, views = checks.look_alikes(0.5)
    assert float((clean - clean[0]).abs().max()) < 0.01
    found = checks.residue(net, "0", views, clean, tau=1.0)
    assert found.unbiased == 0.0


def test_the_printed_bound_fails() -> None:
    found = checks.deterministic_augmentation()
    assert found.printed == 0.0
    assert found.theta > 0.1
    assert found.corrected >= found.theta


def test_the_residue_grows_with_the_augmentation() -> None:
    strengths = (0.01, 0.02, 0.04)
    rates = []
    for symmetric in (False, True):
        found = checks.residue_curve(strengths, symmetric=symmetric)
        rates.append(Curve(strengths, tuple(r.theta for r in found)).rate)
    assert rates[0] == pytest.approx(1, abs=0.15)  # views off centre: first order
    assert rates[1] > 1.6  # views in opposite pairs: the first order drops out, kinks apart


# --- drawings --------------------------------------------------------------------------------------------------------


def test_every_part_of_a_drawing_is_where_it_was() -> None:
    at, views = torch.linspace(0, 2, 5), torch.tensor([[[2.0, 0.0], [2.0, 2.0]], [[0.0, 0.0], [0.0, 2.0]]])
    mode = torch.arange(1.0, 19.0).reshape(2, 1, 3, 3)
    hold(
        {
            "spectrum": geometry(lambda ax: drawing.signed_spectrum(ax, torch.tensor([-2.0, -1.0, 3.0]), GREYS)),
            "weights": geometry(
                lambda ax: drawing.weights_of_pairs(ax, torch.tensor([0.5, 0.6, 1.5]), at, torch.exp(-at), GREYS)
            ),
            "cosines": geometry(lambda ax: drawing.cosines(ax, {"operator": 0.7, "rival": -0.2}, GREYS)),
            "images": geometry(lambda ax: drawing.images_in_a_plane(ax, views, ("A", "B"), GREYS)),
            "steps": geometry(lambda ax: drawing.steps_in_a_plane(ax, {"means": (1, 0), "views": (3, 1)}, GREYS)),
        }
    )
    ax = Figure().add_subplot()
    drawing.kernels(ax, mode, "7%")  # the kernels in a row, with gaps
    shown = ax.images[0].get_array().filled(np.nan)
    assert np.array_equal(shown[:, :3], mode[0, 0])
    assert np.array_equal(shown[:, 4:], mode[1, 0])
    assert np.isnan(shown[:, 3]).all()
    assert ax.images[0].get_clim() == (-18, 18)


# --- real images -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene() -> runs.Scene:
    return runs.digits_scene(32)


def test_a_scene_of_digits(scene: runs.Scene) -> None:
    assert scene.views.shape == (32, 9, 1, 8, 8)
    assert scene.clean.shape == (32, 1, 8, 8)
    assert scene.labels.shape == (32,)
    assert float(scene.clean.mean(0).abs().max()) < 1e-14
    raw = enumerated.digits(32, 0, dtype=torch.float64).pixels
    assert torch.allclose(scene.views, enumerated.shifts(raw, 1) - raw.mean(0))
    assert torch.allclose(scene.views[:, 0], scene.clean)


def test_batches_of_all_images_average_to_the_operator(scene: runs.Scene) -> None:
    r"""A batch of every image draws its views alone: the mean gradient is :math:`-2 N / (N - 1) OP vec(W)`."""
    net = runs.scene_network(scene)
    op = runs.scene_operator(net, "2", scene)
    steps = -runs.simclr_gradients(op, 32, replicates=400, seed=0).flatten(1)
    predicted = 2 * 32 / 31 * op.update().flatten()
    error = (steps.mean(0) - predicted).norm() / predicted.norm()
    noise = ((steps - steps.mean(0)).square().sum(1).mean() / len(steps)).sqrt() / predicted.norm()
    assert float(noise) < 0.2
    assert float(error) < 1.5 * float(noise)  # the distance of a mean from what it estimates
    wrong = intra_operator(net, "2", scene.views).update().flatten()  # another operator, scaled as well as can be
    wrong = wrong * (wrong @ steps.mean(0)) / wrong.square().sum()
    assert float((steps.mean(0) - wrong).norm() / predicted.norm()) > 3 * float(noise)


def test_a_batch_is_what_backward_through_the_network_gives(scene: runs.Scene) -> None:
    net = runs.scene_network(scene)
    weight = net[2].weight
    assert isinstance(weight, Tensor)
    for loss, normalize in (("simple", False), ("info_nce", True)):
        op = runs.scene_operator(net, "2", scene, loss=loss)
        found = runs.simclr_gradients(op, 8, loss=loss, replicates=2, seed=3)
        places = runs.batches_of(op.population, 8, 2, seed=3)
        draw = torch.Generator().manual_seed(3)
        sample = torch.rand(2, 32, generator=draw).argsort(1)[:, :8]
        views = [torch.randint(9, sample.shape, generator=draw) for _ in range(2)]
        for r in range(2):
            z = [net(scene.views[sample[r], v[r]]) for v in views]
            extra = {"temperature": 0.5} if normalize else {}
            value = pairs.contrastive(z[0], z[1], loss, normalize=normalize, **extra)
            net.zero_grad()
            value.backward()
            assert weight.grad is not None
            assert relative_gap(vec(found[r]), vec(weight.grad)) < 1e-14
            for place, v in zip(places, views, strict=True):
                assert torch.equal(place[r], 9 * sample[r] + v[r])
    for size in (1, 33):
        with pytest.raises(ValueError, match=f"size must be between 2 and 32, got {size}"):
            runs.simclr_gradients(op, size)


def test_agreement_rises_with_the_number_of_batches(scene: runs.Scene) -> None:
    net = runs.scene_network(scene)
    op = runs.scene_operator(net, "2", scene)
    found = runs.simclr_agreement(op, size=16, batches=(1, 8, 64), replicates=2)
    assert found.batches == (1, 8, 64)
    assert found.of()[0] < found.of()[1] < found.of()[2]
    assert float(found.of()[2]) > 0.9
    assert [len(row) for row in found.cosines["operator"]] == [128, 16, 2]
    assert found.lengths["operator"] == pytest.approx([32 / 31] * 2, abs=0.15)
    assert found.rivals == {}
    drawn = -runs.simclr_gradients(op, 16, replicates=64, seed=0).flatten(1)
    predicted = 2 * op.update().flatten()
    cosine = float(drawn.mean(0) @ predicted / drawn.mean(0).norm() / predicted.norm())
    assert found.cosines["operator"][2][0] == pytest.approx(cosine, abs=1e-12)
    assert found.lengths["operator"][0] == pytest.approx(float(drawn.mean(0) @ predicted / predicted.square().sum()))
    coarse = runs.simclr_agreement(op, size=16, batches=(8, 64), replicates=2)  # whose means take a backward pass each
    for rows, finer in zip(coarse.cosines["operator"], found.cosines["operator"][1:], strict=True):
        assert rows == pytest.approx(finer, abs=1e-12)
    assert coarse.lengths["operator"] == pytest.approx(found.lengths["operator"], abs=1e-12)


@pytest.mark.parametrize("loss", ["simple", "info_nce"])
def test_theories_are_operators_by_their_names(scene: runs.Scene, loss: str) -> None:
    net = runs.scene_network(scene)
    found = runs.theories(net, "2", scene, loss=loss)
    parts = runs.PARTS if loss == "info_nce" else ()
    assert tuple(found) == (runs.OPERATOR, *runs.RIVALS, *parts)
    assert torch.equal(found["operator"], 2 * runs.scene_operator(net, "2", scene, loss=loss).update())
    views, alone = scene.views, scene.views.flatten(0, 1)
    if loss == "simple":
        wanted = {
            "views not averaged": covariance_operator(net, "2", alone[:, None]),
            "covariance within views": intra_operator(net, "2", views),
            "no augmentation": covariance_operator(net, "2", scene.clean[:, None]),
        }
    else:
        options = {"loss": loss, "temperature": 0.5, "normalize": True}
        wanted = {
            "views not averaged": covariance_operator(net, "2", alone[:, None], clean=alone, **options),  # type: ignore[arg-type]
            "no augmentation": covariance_operator(net, "2", scene.clean[:, None], clean=scene.clean, **options),  # type: ignore[arg-type]
            "weights left out": covariance_operator(net, "2", views, normalize=True),
            "outputs not normalised": covariance_operator(net, "2", views),
        }
    for name, op in wanted.items():
        assert relative_gap(vec(found[name]), 2 * vec(op.update())) < 1e-12


def test_weights_inside_the_leading_modes(scene: runs.Scene) -> None:
    net = runs.scene_network(scene)
    inside = runs.weights_inside(net, "2", scene, k=3)
    weight = vec(net[2].weight).detach()
    operators = {
        runs.OPERATOR: runs.scene_operator(net, "2", scene),
        "covariance within views": intra_operator(net, "2", scene.views),
    }
    for name, op in operators.items():
        share = float((op.top_eigenpairs(3).vectors.T @ weight).norm() / weight.norm()) ** 2
        assert inside[name] == pytest.approx(share, abs=1e-5)


def test_a_student_learns_what_it_is_shown(scene: runs.Scene) -> None:
    """SimCLR's loss falls under SimCLR, and the labels' under the labels; the same seed gives the same weights."""
    for objective in (runs.simclr, runs.told):
        nets = [runs.train_student(runs.scene_network(scene), scene, objective, steps=n, size=32) for n in (0, 30, 30)]
        views = (scene.views[:, 0], scene.views[:, -1])
        losses = [objective(net(views[0]), net(views[1]), scene.labels).item() for net in nets]
        assert losses[1] < 0.95 * losses[0]
        assert losses[1] == losses[2]


def test_a_run_is_measured_before_and_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = runs.digits_scene(64)
    monkeypatch.setattr(runs, "digits_scene", lambda samples, seed: made)
    monkeypatch.setattr(runs, "RUN_LAYERS", ("0",))
    monkeypatch.setattr(runs, "STATES", {"start": (runs.simclr, 0), "labels": (runs.told, 3)})
    found: Any = runs.along_runs((0, 1), tmp_path)
    net = runs.scene_network(made, 1)
    inside = [runs.weights_inside(runs.scene_network(made, seed), "0", made) for seed in (0, 1)]
    for name, shares in found["share"]["start"]["0"].items():
        assert shares == pytest.approx([each[name] for each in inside], abs=1e-5)
    assert found["share"]["start"]["0"] != found["share"]["labels"]["0"]
    op = runs.scene_operator(net, "0", made, loss="info_nce")
    again = runs.simclr_agreement(op, batches=(64,), loss="info_nce", replicates=1, seed=1001)
    assert found["cosine"]["start"]["0"]["operator"][1] == pytest.approx(float(again.of()[0]), abs=1e-5)


def test_surviving_modes_are_those_of_the_averaged_images(scene: runs.Scene) -> None:
    values, modes, trace = runs.surviving_modes(scene, 3)
    blurred = scene.views.mean(1).flatten(1).numpy()
    wanted, vectors = np.linalg.eigh(np.cov(blurred.T, bias=True))
    assert np.allclose(values, wanted[::-1][:3])
    assert trace == pytest.approx(wanted.sum())
    assert modes.shape == (3, 1, 8, 8)
    assert abs(float(modes[0].flatten() @ torch.from_numpy(vectors[:, -1].copy()))) == pytest.approx(1, abs=1e-7)


def test_faded_views_lie_on_the_way_from_the_clean_images(scene: runs.Scene) -> None:
    half = runs.faded(scene, 0.5)
    assert torch.allclose(half.views, 0.5 * (scene.views + scene.clean[:, None]))
    assert torch.equal(runs.faded(scene, 0.0).views, scene.clean[:, None].expand_as(scene.views))


def test_an_application_costs_two_passes_and_training_three(scene: runs.Scene) -> None:
    """Through the second layer and what lies above it; training also pays for two passes through the first."""
    net = runs.scene_network(scene)
    pushed, trained = runs.operations(net, covariance_operator(net, "2", scene.views), scene)
    first, _ = runs.operations(net, covariance_operator(net, "0", scene.views), scene)
    below = first - pushed  # two passes through the first layer
    assert trained == pytest.approx(3 * pushed / 2 + below)
    assert pushed / trained < 2 / 3


def test_the_residue_on_digits() -> None:
    found = runs.residue_on_digits(0, samples=4, steps=2, every=1)
    assert list(found) == [0, 1, 2]
    hold({"theta": found[2].theta})
    assert all(r.theta <= r.corrected for r in found.values())


def test_the_record_says_by_loss_theory_seed_and_size(scene: runs.Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    usual = inspect.signature(runs.simclr_agreement).parameters["batches"].default
    short = partial(runs.simclr_agreement, batches=(1, 2), size=16)
    monkeypatch.setattr(runs, "cifar10_scene", lambda samples, seed: asked.append((samples, seed)) or scene)
    monkeypatch.setattr(runs, "simclr_agreement", short)
    found: dict[str, Any] = runs.cifar10_values((1,))
    assert asked == [(256, 1)]
    assert found["batches"] == list(usual) == [1, 4, 16, 64]
    net = runs.scene_network(scene, 1)
    for loss, parts in (("simple", ()), ("info_nce", runs.PARTS)):
        op, told = (make(net, "2", scene, loss=loss) for make in (runs.scene_operator, runs.theories))
        agreed = short(op, told, loss=loss, replicates=2, seed=1)
        assert found["cosine"][loss] == {
            name: [agreed.of(name).tolist()] for name in (runs.OPERATOR, *runs.RIVALS, *parts)
        }
