"""Finite populations by loops, the residue of Theorem 4, and what runs on real images record."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import covariance_operator, intra_operator, relative_gap
from sslbook.operator.layer import open_layer, vec
from sslchapters.covariance import checks, runs
from sslchapters.covariance.checks import (
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    simple_loss,
    triplet_loss,
)


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
    assert relative_gap(checks.mean_estimate(k, views), mean) < 1e-13


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


@pytest.fixture(scope="module")
def scene() -> runs.Scene:
    return runs.digits_scene(32)


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
            assert relative_gap(vec(found[r]), vec(weight.grad)) < 1e-13
            for place, v in zip(places, views, strict=True):
                assert torch.equal(place[r], 9 * sample[r] + v[r])
    for size in (1, 33):
        with pytest.raises(ValueError, match=f"size must be at least 2 and at most 32, got {size}"):
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
