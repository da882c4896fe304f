"""Theorem 4's residue: what it is made of, its bounds, how it grows, and a training run."""

from __future__ import annotations

import pytest
import torch
from gap_cases import assert_gaps

from sslbook.chapters.covariance import residue
from sslbook.chapters.covariance.identities import Curve
from sslbook.chapters.covariance.population import all_tuples, expected_gradient, nce_loss, triplet_loss
from sslbook.connection import open_layer, vec
from sslbook.gaps import relative_gap
from sslbook.networks import mlp
from sslbook.operators import covariance_operator


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.2)])
def test_both_terms_of_theorem_4_make_the_step(loss: str, margin: float) -> None:
    """The matrix whose distance from the main term is theta does give the enumerated gradient, with augmentation."""
    net, clean, views = residue.population_with_strength(0.4, symmetric=False)
    n, v = views.shape[:2]
    opened = open_layer(net, "0", views.flatten(0, 1))
    k = opened.connections()
    c = residue._coefficients(opened.output, n, v, loss, 0.7, margin)[0]
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
    assert found.unbiased == pytest.approx(2 * 9 / 4 * (2 * (1 * 2) / 2 + 3 * 2))


@pytest.mark.parametrize(("loss", "margin"), [("info_nce", 0.0), ("soft_triplet", 0.3)])
def test_the_corrected_bound_is_a_bound(loss: str, margin: float) -> None:
    for alike in (False, True):
        margins = residue.bound_margins(25, tau=0.5, loss=loss, margin=margin, seed=100, alike=alike)
        assert margins["corrected"].shape == (25,)
        assert float(margins["corrected"].min()) >= 1
        assert bool(margins["printed"].min() < 1) == alike, "only look-alikes tell the bounds apart"
        assert bool(margins["unbiased"].min() < 1) == alike


def test_look_alikes_are_all_bias() -> None:
    net, clean, views = residue.look_alikes(0.5)
    assert float((clean - clean[0]).abs().max()) < 0.01
    found = residue.residue(net, "0", views, clean, tau=1.0)
    assert found.spread == found.unbiased == 0.0
    assert found.bias > 0


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
        rates.append(Curve(strengths, tuple(r.theta for r in found)).rate)
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
        ("simple", 0.0, "loss must be one of info_nce, soft_triplet"),
        ("info_nce", 0.1, "margin belongs to loss='soft_triplet'"),
    ],
)
def test_residue_of_other_losses(loss: str, margin: float, message: str) -> None:
    net, clean, views = residue.population_with_strength(0.1, symmetric=False)
    with pytest.raises(ValueError, match=message):
        residue.residue(net, "0", views, clean, tau=0.5, loss=loss, margin=margin)


def test_step_gaps() -> None:
    assert_gaps(residue.step_gaps(), ("step",), ("main term alone",))
    assert_gaps(residue.step_gaps(seed=5), ("step",), ("main term alone",))


def test_what_the_main_term_leaves_of_a_step_through_both_towers() -> None:
    net, clean, views = residue.population_with_strength(0.4, symmetric=False)
    op = covariance_operator(net, "0", views, loss="info_nce", tau=0.7, clean=clean)
    truth = -expected_gradient(net, "0", views, nce_loss(0.7), all_tuples(*views.shape[:2]), both=True)
    wanted = float((truth - 2 * op.update()).norm() / (2 * op.update()).norm())
    assert residue.residue(net, "0", views, clean, tau=0.7).step_rest == pytest.approx(wanted)
    assert wanted > 0.1
