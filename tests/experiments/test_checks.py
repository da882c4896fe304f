"""Every check on a few instances: what is true agrees, and what was broken on purpose doesn't, by as much as before."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from held import hold

from sslbook import experiments
from sslbook.experiments.emergence import ring
from sslbook.experiments.emergence import theory as nodes
from sslbook.experiments.landscape import optima, stability, theory
from sslbook.experiments.landscape.theory import LINEAR, RELU, Activation, monomial
from sslbook.experiments.linear_byol import checks as linear
from sslbook.experiments.operators_today import checks as today
from sslbook.losses.energies import ENERGIES
from sslbook.stats.checks import CHECKS, Gaps

HOLDS = 1e-9
"""An identity. Both sides are float64 sums (epsilon 2e-16) of up to 1e5 terms. Most gaps are 1e-14; where samples lie far apart,
tuples whose negative is the anchor's own sample weigh 1e4 times more than all others and cancel, which leaves 1e-10."""

BROKEN = 1e-4
"""A broken variant, the smallest over all instances: five orders above what holds. How large it is is held as well."""

for found in pkgutil.walk_packages(experiments.__path__, f"{experiments.__name__}."):
    importlib.import_module(found.name)  # a module that is imported lists its checks

SHAPES = {"relu": RELU, "linear": LINEAR, "leaky": Activation(0.3), "square": monomial(2), "cube": monomial(3)}
BATCHED: Mapping[str, Callable[[], Gaps]] = {
    **{f"energy of {loss}": partial(theory.energy_gaps, loss, 32, seed=3) for loss in ENERGIES},
    **{f"{loss}, epsilon": partial(theory.energy_gaps, loss, 32, seed=3, epsilon=0.7) for loss in ENERGIES},
    **{f"filter, {name}": partial(theory.filter_gaps, act, 64, seed=5) for name, act in SHAPES.items()},
    "filter, absolute": partial(theory.filter_gaps, Activation(-1.0), 64, seed=5),
    **{f"orbit, {name}": partial(optima.orbit_gaps, act, 32, seed=7) for name, act in SHAPES.items()},
    "kernels": partial(theory.kernel_gaps, 40, seed=9),
    "roughness": partial(stability.plane_gaps, 32, seed=6),
    "scrambled": partial(nodes.projector_gaps, seed=7),
    "two layers": partial(nodes.flow_gaps, 50, seed=5),
    "growth": ring.growth_gaps,
    "linear flow": partial(linear.flow_gaps, 100, seed=5),
    "scalars": partial(linear.reduction_gaps, 40, seed=3),
    **{f"moments, {k} scrambled": partial(linear.moment_gaps, 100, 1, scrambled=k) for k in (1, 2)},
    "fixed points": partial(linear.fixed_point_gaps, 150, seed=1),
    "symmetry": partial(linear.symmetry_gaps, 150, seed=1),
    "laplacians": partial(today.laplacian_gaps, seed=3),
}


@pytest.mark.parametrize("name", [*CHECKS, *BATCHED])
def test_what_is_true_agrees_and_what_is_broken_does_not(name: str) -> None:
    gaps = CHECKS[name](8, 1000) if name in CHECKS else BATCHED[name]()
    assert {name: gap for name, gap in gaps.items() if not _right(name, gap)} == {}
    hold(gaps)


def _right(name: str, gap: float) -> bool:
    return gap > BROKEN if name.startswith("broken:") else name == "instances" or gap < HOLDS
