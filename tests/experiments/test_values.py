"""What chapters compute and no other test does, made small: a value that moves is seen here before a chapter says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch
from held import hold

from sslbook.experiments.byol import checks as byol
from sslbook.experiments.byol import instances as towers
from sslbook.experiments.byol.theory import measured_growth
from sslbook.experiments.covariance import checks as covariance
from sslbook.experiments.covariance.runs import digits_scene, faded, residue_on_digits
from sslbook.experiments.dual_networks.checks import partial_sums
from sslbook.experiments.emergence import ring, runs
from sslbook.experiments.emergence import theory as nodes
from sslbook.experiments.hltm import checks as trees
from sslbook.experiments.hltm import lucky_nodes
from sslbook.experiments.landscape import optima, stability
from sslbook.experiments.landscape import theory as landscape
from sslbook.experiments.landscape.theory import RELU
from sslbook.experiments.linear_byol import checks as linear
from sslbook.experiments.linear_byol import instances, theory
from sslbook.experiments.modulation import checks as modulation
from sslbook.experiments.modulation import theory as patterns
from sslbook.experiments.modulation.instances import course, fewest, four_fields, random_filters
from sslbook.experiments.operators_today import checks as today
from sslbook.experiments.training import live

DRAW = torch.Generator().manual_seed(1)
W, HALF = torch.randn(2, 3, 4, generator=DRAW, dtype=torch.float64), torch.tensor([0.5, 0.2], dtype=torch.float64)
START, TILTED = nodes.random_start(2, nodes=3, seed=1), stability.nearly_orthogonal(2, 0.05, seed=1)
RING = runs.train_ring([1, 2], steps=40)
SIDES, SPREAD = np.array([[0.3], [-0.2]]), np.array([[0.9, 0.5, 0.3]])
WORLD = instances.world("additive", 2, 1)
BEGIN = instances.random_start("gaussian", 2, 2, 6, np.random.default_rng(1))


def _mixed(linear: bool) -> torch.Tensor:
    return nodes.grow(W, nodes.equiangular_mixture(2, 3, 4, 0.1, cosine=0.2, seed=1), steps=20, linear=linear)


CALLS: dict[str, Callable[[], object]] = {
    "left over": lambda: byol.left_over(1, 5, 1),
    "variants": lambda: byol.variant_errors(3, 1),
    "correction": lambda: [byol.batch_correction(3, 1, joint=joint) for joint in (True, False)],
    "rates": lambda: byol.measured_rates(0.3, HALF, 1),
    "growth": lambda: [measured_growth(0.3, 0.01, 0.2, sign=sign, steps=20) for sign in (1, -1)],
    "margin": lambda: [covariance.asymmetry(2, 1), covariance.eigenvalue_margin(2, 1, beta=0.5)],
    "monte carlo": lambda: [covariance.monte_carlo((2, 4), 2, 1, averaged=on) for on in (True, False)],
    "negatives": lambda: covariance.many_negatives(3, seed=1),
    "kernels": lambda: covariance.kernel_comparison(4, seed=1),
    "residue": lambda: covariance.residue_curve((0.1, 0.3), seed=1),
    "bounds": lambda: [covariance.bound_margins(2, alike=alike, seed=1) for alike in (True, False)],
    "fixed views": covariance.deterministic_augmentation,
    "digits": lambda: list(residue_on_digits(1, samples=4, steps=4, every=2).values()),
    "partial sums": lambda: partial_sums(3, 1),
    "path": lambda: [ring.pattern_counts(3), ring.follow(W[:, 0, :3], 20, 0.01, every=10)],
    "fates": lambda: [f(bias, 40, 1) for f in (ring.fates, ring.foretold, ring.stuck_share) for bias in (True, False)],
    "end rates": lambda: [ring.end_rate("01", bias=False), ring.end_rate("11", bias=True)],
    "mixtures": lambda: [_mixed(linear=True), _mixed(linear=False)],
    "specialised": lambda: nodes.specialise(nodes.random_mixture(2, 3, 4, 0.3, seed=1), 3, steps=40, seed=1),
    "gated": lambda: nodes.gated_mean_gap(1),
    "off diagonal": lambda: [nodes.off_diagonal_share(3, 1, masked=on) for on in (True, False)],
    "flows": lambda: [nodes.integrate(START, 0.1, linear=on, towers=2) for on in (True, False)],
    "steps": lambda: [nodes.descend(START, 0.2, 0.05), nodes.drift(START, 0.2, (0.1, 0.05)), nodes.step_gap(START)],
    "leaving": lambda: nodes.leave_diagonal(1, growth=1.2, replicas=2),
    "sampled": lambda: nodes.sampled_training(START, 0.1, 0.05, seed=1),
    "neurons": lambda: nodes.train_neuron(2, steps=20, seed=1),
    "scores": lambda: trees.sampling_score(2, 200, 1, flatter=0.1),
    "jensen": lambda: [f(5, 1) for f in (trees.squashing, trees.sharpened_jensen, trees.relu_jensen)],
    "parts": lambda: trees.part_steps([1, 2], width=3),
    "lucky": lambda: lucky_nodes.chance_of_lucky_part(
        lucky_nodes.balanced_part(8, 0.3, 0.9, 2), 3, 1.0, draws=200, seed=1
    ),
    "filters": lambda: [optima.train_linear(2, 4, anew=anew, steps=20, seed=1).cosine for anew in (True, False)],
    "blurred": lambda: [optima.blurred_maxima(optima.NINE, 0.4), optima.census(3, 6, RELU, seed=1)],
    "scans": lambda: [stability.scan(setting, 2, 4, 1) for setting in stability.SETTINGS],
    "perturbed": lambda: [stability.perturbation_gaps(50, 1), stability.irregularity(HALF, HALF, HALF + 1, HALF)],
    "plane": lambda: stability.certify_plane(*stability.tight_triples(2, 1)),
    "discs": lambda: [stability.roughness(stability.discs(2, 1), HALF, tau) for tau in (None, 0.5)],
    "points": lambda: [stability.certify_points(TILTED[0], TILTED[1][:, :1]), stability.iterate(*TILTED[:2], 3)],
    "stopped": lambda: landscape.stop_gradient_gaps("soft_triplet", 4, 1),
    "convergence": lambda: [landscape.convergence((10, 20), 2, 1), landscape.pattern_gaps(4, 3, 1)],
    "linear fates": lambda: [linear.fates(400, 0), linear.jacobian_gap(3, 1), linear.printed_gap(3, 1)],
    "verdicts": lambda: linear.verdicts(2, 2, 3, 1),
    "shares": lambda: linear.stable_shares(3, 2, 3, 1, commuting=True),
    "ends": lambda: [linear.random_ends(kind, 2, 1) for kind in instances.STARTS],
    "worlds": lambda: [WORLD.moments, linear.sampled_gap(WORLD.moments, WORLD.draw, 50, 1)],
    "circling": lambda: [instances.circling(commuting=on) for on in (True, False)],
    "aligned": lambda: np.abs(theory.aligned_spectrum(SPREAD, SPREAD + 1, np.array([[0, 2]]), SPREAD[:, :2])),
    "balance": lambda: linear.step_gap(BEGIN, WORLD.moments),
    "trained": lambda: instances.train_byol(BEGIN, WORLD.draw, 5, 0.01, seed=1),
    "simclr": lambda: instances.train_simclr(BEGIN.online, WORLD.draw, 5, 0.01, seed=1),
    "portraits": lambda: [instances.planar_path(theory.planar_field(k, 0.5), *SIDES, 2.0) for k in theory.PORTRAITS],
    "sphere": lambda: modulation.linear_filters(2, 1, 50),
    "uniform": lambda: [modulation.uniformity(3, 1, 0.1), modulation.bound_slack(3, 4, 0.2, 1)],
    "basins": lambda: modulation.basin_shares(3, (0.5, -0.5), 1.5, 40, 1),
    "probabilities": lambda: [modulation.probability_scores(200, 1), patterns.win_probability(0.3, 5)],
    "winning": lambda: [patterns.win_probabilities(W[0].abs()), patterns.others_share(HALF, HALF.flip(0), 0.25)],
    "courses": lambda: [course(random_filters(2, 3, 1), 5), fewest((1.0, 2.0))],
    "losses": lambda: [today.growth_gaps(loss, 2, 1) for loss in today.LOSSES],
    "decline": lambda: towers.descend(
        towers.by_hand([[[1, 0], [0.9, 0.1]], [[0, 1], [0.2, 1]]], W[0, :2, :2]), 3, 0.05
    ),
    "ring": lambda: [runs.released(RING), runs.agreement(RING.start, RING.end)],
    "opening": lambda: [optima.opening(optima.NINE, 0), landscape.THRESHOLD],
    "edges": lambda: [patterns.edge_of_two(c, 1.5) for c in (0.3, 1.2)],
    "faded": lambda: [faded(digits_scene(4), 0.5).views, four_fields(torch.arange(16).view(4, 4))],
    "one image": lambda: [live.alone(live.photographs(8, 32, seed=1)), live.jittered(0.5)],
}


def numbers(found: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Of each array one sum, in which each place has a weight of its own, and the plain numbers."""
    if isinstance(found, Mapping):
        parts: Iterator[tuple[object, object]] = iter(found.items())
    elif is_dataclass(found):
        parts = ((part.name, getattr(found, part.name)) for part in fields(found))
    elif isinstance(found, (list, tuple)):
        parts = enumerate(found)
    elif isinstance(found, (int, float, np.ndarray, np.generic, torch.Tensor)):
        flat = np.asarray(found, dtype=np.float64).ravel()
        yield f"{name} nan", float(np.isnan(flat).sum())
        yield name, float(np.nan_to_num(flat) @ np.cos(np.arange(flat.size)))
        return
    else:
        return
    for key, value in parts:
        yield from numbers(value, f"{name}.{key}".strip("."))


@pytest.mark.parametrize("name", CALLS)
def test_what_a_chapter_computes_is_as_it_was(name: str) -> None:
    hold(dict(numbers(CALLS[name]())), within=1e-5)
