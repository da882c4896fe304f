"""The experiments of the chapter: checks with their rivals, what a theory explains of a step, and the training of the record."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import open_layer
from sslchapters.operators_today import runs


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_each_table_is_the_theory_of_its_name(tau: float) -> None:
    """Against the operators and the losses of the library, which know nothing of tables; up to a factor."""
    views, clean = runs.digits_scene(96).batch(24, torch.Generator().manual_seed(0))
    net = runs.scene_network(runs.digits_scene(2))
    found = {name: steps[0] for name, steps in runs.ladder(net, ("2",), views, clean, tau).items()}
    known = runs.steps_of(net, "2", views, tau)
    images = functional.normalize(net(clean).detach())
    distances = 1 - images @ images.T
    frozen = {
        "weights at clean images": torch.sigmoid(-distances / tau),
        "all negatives, clean weights": torch.softmax(
            torch.cat([torch.zeros(24, 1), (-distances / tau).fill_diagonal_(-torch.inf).repeat_interleave(2, 1)], 1), 1
        )[:, 1::2],
    }
    wanted = {
        "centred": covariance_operator(net, "2", views.flatten(0, 1)[:, None]).exact_update(),
        "averaged over views": covariance_operator(net, "2", views).exact_update(),
        "averaged, no view its own partner": covariance_operator(net, "2", views, beta=23 / 24).exact_update(),
        "of cosines": known["eq. 56"],
        "no view its own partner": known["all pairs alike"],
        "weights at the views": known["one negative"],
        "all negatives": known["autograd"],
    }
    wanted["second moment"] = open_layer(net, "2", views.flatten(0, 1)).vjp(net(views.flatten(0, 1)).detach())
    for name, weights in frozen.items():
        z = functional.normalize(net(views.flatten(0, 1))).unflatten(0, (24, 2))
        apart = 1 - torch.einsum("iad,jbd->ijab", z, z)
        together = apart.diagonal().movedim(-1, 0)[:, 0, 1]
        loss = (weights.fill_diagonal_(0) * (together[:, None] - apart.mean((2, 3)))).sum()
        wanted[name] = -torch.autograd.grad(loss, net.get_parameter("2.weight"))[0]
    assert set(wanted) == set(found)
    for name, step in wanted.items():
        assert runs.cosine(found[name], step) == pytest.approx(1, abs=1e-12), name
        assert max(runs.cosine(found[name], other) for key, other in wanted.items() if key != name) < 1 - 1e-5, name
