"""Real images: a SimCLR batch against backpropagation, its mean against the operator, and what is measured along a run."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from held import hold
from torch import Tensor

from sslbook.experiments.covariance import step
from sslbook.images import enumerated
from sslbook.losses import pairs as losses
from sslbook.operator.covariance import covariance_operator, intra_operator, pair_weights
from sslbook.operator.layer import vec
from sslbook.stats.checks import relative_gap


@pytest.fixture(scope="module")
def scene() -> step.Scene:
    return step.digits_scene(32)


def test_a_scene_of_digits(scene: step.Scene) -> None:
    assert scene.views.shape == (32, 9, 1, 8, 8)
    assert scene.clean.shape == (32, 1, 8, 8)
    assert scene.labels.shape == (32,)
    assert float(scene.clean.mean(0).abs().max()) < 1e-14
    raw = enumerated.digits(32, 0, dtype=torch.float64).pixels
    assert torch.allclose(scene.views, enumerated.shifts(raw, 1) - raw.mean(0))
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


def test_a_batch_is_what_backward_through_the_network_gives(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    weight = net[2].weight
    assert isinstance(weight, Tensor)
    for loss, normalize in (("simple", False), ("info_nce", True)):
        op = step.scene_operator(net, "2", scene, loss=loss)
        found = step.simclr_gradients(op, 8, loss=loss, replicates=2, seed=3)
        places = step.batches_of(op.population, 8, 2, seed=3)
        draw = torch.Generator().manual_seed(3)
        sample = torch.rand(2, 32, generator=draw).argsort(1)[:, :8]
        views = [torch.randint(9, sample.shape, generator=draw) for _ in range(2)]
        for r in range(2):
            z = [net(scene.views[sample[r], v[r]]) for v in views]
            extra = {"tau": 0.5} if normalize else {}
            value = losses.contrastive(z[0], z[1], loss, normalize=normalize, **extra)
            net.zero_grad()
            value.backward()
            assert weight.grad is not None
            assert relative_gap(vec(found[r]), vec(weight.grad)) < 1e-14
            for place, v in zip(places, views, strict=True):
                assert torch.equal(place[r], 9 * sample[r] + v[r])
    for size in (1, 33):
        with pytest.raises(ValueError, match=f"size must be between 2 and 32, got {size}"):
            step.simclr_gradients(op, size)


def test_agreement_rises_with_the_number_of_batches(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    op = step.scene_operator(net, "2", scene)
    found = step.simclr_agreement(op, size=16, batches=(1, 8, 64), replicates=2)
    assert found.batches == (1, 8, 64)
    assert found.of()[0] < found.of()[1] < found.of()[2]
    assert float(found.of()[2]) > 0.9
    assert [len(row) for row in found.cosines["operator"]] == [128, 16, 2]
    assert found.lengths["operator"] == pytest.approx([32 / 31] * 2, abs=0.15)
    assert found.spread.shape == (3,)
    assert found.rivals == {}
    drawn = -step.simclr_gradients(op, 16, replicates=64, seed=0).flatten(1)
    predicted = 2 * op.update().flatten()
    cosine = float(drawn.mean(0) @ predicted / drawn.mean(0).norm() / predicted.norm())
    assert found.cosines["operator"][2][0] == pytest.approx(cosine, abs=1e-12)
    assert found.lengths["operator"][0] == pytest.approx(float(drawn.mean(0) @ predicted / predicted.square().sum()))
    coarse = step.simclr_agreement(op, size=16, batches=(8, 64), replicates=2)  # whose means take a backward pass each
    for rows, finer in zip(coarse.cosines["operator"], found.cosines["operator"][1:], strict=True):
        assert rows == pytest.approx(finer, abs=1e-12)
    assert coarse.lengths["operator"] == pytest.approx(found.lengths["operator"], abs=1e-12)


@pytest.mark.parametrize("loss", ["simple", "info_nce"])
def test_theories_are_operators_by_their_names(scene: step.Scene, loss: str) -> None:
    net = step.scene_network(scene)
    found = step.theories(net, "2", scene, loss=loss)
    parts = step.PARTS if loss == "info_nce" else ()
    assert tuple(found) == (step.OPERATOR, *step.RIVALS, *parts)
    assert torch.equal(found["operator"], 2 * step.scene_operator(net, "2", scene, loss=loss).update())
    views, alone = scene.views, scene.views.flatten(0, 1)
    if loss == "simple":
        wanted = {
            "views not averaged": covariance_operator(net, "2", alone[:, None]),
            "covariance within views": intra_operator(net, "2", views),
            "no augmentation": covariance_operator(net, "2", scene.clean[:, None]),
        }
    else:
        options = {"loss": loss, "tau": 0.5, "normalize": True}
        wanted = {
            "views not averaged": covariance_operator(net, "2", alone[:, None], clean=alone, **options),  # type: ignore[arg-type]
            "no augmentation": covariance_operator(net, "2", scene.clean[:, None], clean=scene.clean, **options),  # type: ignore[arg-type]
            "weights left out": covariance_operator(net, "2", views, normalize=True),
            "outputs not normalised": covariance_operator(net, "2", views),
        }
    for name, op in wanted.items():
        assert relative_gap(vec(found[name]), 2 * vec(op.update())) < 1e-12


def test_weights_of_a_scene_are_those_of_normalised_outputs(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    op = step.scene_operator(net, "2", scene, loss="info_nce", tau=0.3)
    assert op.normalize
    assert op.mixing.weights is not None
    assert torch.equal(op.mixing.weights, pair_weights(net, scene.clean, loss="info_nce", tau=0.3, normalize=True))


def test_weights_inside_the_leading_modes(scene: step.Scene) -> None:
    net = step.scene_network(scene)
    inside = step.weights_inside(net, "2", scene, k=3)
    weight = vec(net[2].weight).detach()
    operators = {
        step.OPERATOR: step.scene_operator(net, "2", scene),
        "covariance within views": intra_operator(net, "2", scene.views),
    }
    for name, op in operators.items():
        share = float((op.top_eigenpairs(3).vectors.T @ weight).norm() / weight.norm()) ** 2
        assert inside(name) == pytest.approx(share, abs=1e-5)


def test_a_student_learns_what_it_is_shown(scene: step.Scene) -> None:
    """SimCLR's loss falls under SimCLR, and the labels' under the labels; the same seed gives the same weights."""
    for objective in (step.simclr, step.told):
        nets = [step.train_student(step.scene_network(scene), scene, objective, steps=n, size=32) for n in (0, 30, 30)]
        views = (scene.views[:, 0], scene.views[:, -1])
        losses = [objective(net(views[0]), net(views[1]), scene.labels).item() for net in nets]
        assert losses[1] < 0.95 * losses[0]
        assert losses[1] == losses[2]


def test_surviving_modes_are_those_of_the_averaged_images(scene: step.Scene) -> None:
    values, modes, trace = step.surviving_modes(scene, 3)
    blurred = scene.views.mean(1).flatten(1).numpy()
    wanted, vectors = np.linalg.eigh(np.cov(blurred.T, bias=True))
    assert np.allclose(values, wanted[::-1][:3])
    assert trace == pytest.approx(wanted.sum())
    assert modes.shape == (3, 1, 8, 8)
    assert abs(float(modes[0].flatten() @ torch.from_numpy(vectors[:, -1].copy()))) == pytest.approx(1, abs=1e-7)


def test_faded_views_lie_on_the_way_from_the_clean_images(scene: step.Scene) -> None:
    half = step.faded(scene, 0.5)
    assert torch.allclose(half.views, 0.5 * (scene.views + scene.clean[:, None]))
    assert torch.equal(step.faded(scene, 0.0).views, scene.clean[:, None].expand_as(scene.views))
    assert half.name == "digits"


def test_an_application_costs_two_passes_and_training_three(scene: step.Scene) -> None:
    """Through the second layer and what lies above it; training also pays for two passes through the first."""
    net = step.scene_network(scene)
    pushed, trained = step.operations(net, covariance_operator(net, "2", scene.views), scene)
    first, _ = step.operations(net, covariance_operator(net, "0", scene.views), scene)
    below = first - pushed  # two passes through the first layer
    assert trained == pytest.approx(3 * pushed / 2 + below)
    assert pushed / trained < 2 / 3


def test_the_residue_on_digits() -> None:
    found = step.residue_on_digits(0, samples=4, steps=2, every=1)
    assert found.steps == (0, 1, 2)
    assert found.loss[2] < found.loss[0]
    hold({"first": float(found.loss[0]), "last": float(found.loss[2]), "theta": float(found.residues[-1].theta)})
    assert all(r.theta <= r.corrected for r in found.residues)


def test_the_record_says_by_loss_theory_seed_and_size(scene: step.Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    usual = inspect.signature(step.simclr_agreement).parameters["batches"].default
    short = partial(step.simclr_agreement, batches=(1, 2), size=16)
    monkeypatch.setattr(step, "cifar10_scene", lambda samples, seed: asked.append((samples, seed)) or scene)
    monkeypatch.setattr(step, "simclr_agreement", short)
    found: dict[str, Any] = step.cifar10_values((1,))
    assert asked == [(256, 1)]
    assert found["batches"] == list(usual) == [1, 4, 16, 64]
    net = step.scene_network(scene, 1)
    for loss, parts in (("simple", ()), ("info_nce", step.PARTS)):
        op, told = (make(net, "2", scene, loss=loss) for make in (step.scene_operator, step.theories))
        agreed = short(op, told, loss=loss, replicates=2, seed=1)
        assert found["cosine"][loss] == {
            name: [agreed.of(name).tolist()] for name in (step.OPERATOR, *step.RIVALS, *parts)
        }
        if loss == "simple":
            assert found["length"] == [pytest.approx(sum(agreed.lengths[step.OPERATOR]) / 2)]
    spread = [float(x.flatten(1).var(0, unbiased=False).sum()) for x in (scene.views.mean(1), scene.clean)]
    assert found["surviving_share"] == [pytest.approx(spread[0] / spread[1])]
