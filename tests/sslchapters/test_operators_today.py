"""The experiments of the chapter: checks with their rivals, what a theory explains of a step, and the training of the record."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbook.images.datasets import Dataset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import open_layer
from sslbook.training.augment import Pipeline
from sslchapters.operators_today import runs


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_each_table_is_the_theory_of_its_name(tau: float) -> None:
    """Against the operators and the losses of the library, which know nothing of tables; up to a factor."""
    views, clean = runs.digits(96).batch(24, torch.Generator().manual_seed(0))
    net = runs.network()
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
        others = [runs.cosine(found[name], other) for key, other in wanted.items() if key != name]
        assert max(others) < 1 - 1e-5, name


def test_the_price_of_an_ingredient_is_a_cosine(tmp_path: Path) -> None:
    cells = (("digits", 0, 0.5), ("digits", 3, 0.1))
    found = runs.ingredient_values((0, 1), cells=cells, batches=3, parts=tmp_path)
    data, net = runs.digits(seed=1), runs.network(1)
    rows = []
    for number in range(3):
        views, _ = data.batch(64, torch.Generator().manual_seed(1000 + number))
        rows.append(runs.steps_of(net, "2", views, 0.5))
    numbers = found["cosines"]["digits"]["0"]["0.5"]["2"]
    single = [runs.cosine(row["eq. 56"], row["autograd"]) for row in rows]
    assert numbers["of cosines"]["batch"][1] == pytest.approx(sum(single) / 3, abs=1e-4)
    apart = [runs.cosine(rows[i]["autograd"], rows[i - 1]["autograd"]) for i in range(3)]
    assert numbers["another batch"]["batch"][1] == pytest.approx(sum(apart) / 3, abs=1e-4)
    # theories are known up to a factor that all batches share, so that their means have directions
    summed = [sum(row[name] for row in rows) for name in ("one negative", "autograd")]
    assert numbers["weights at the views"]["mean"][1] == pytest.approx(runs.cosine(*summed), abs=1e-4)
    assert numbers["all negatives"] == {"batch": [1, 1], "mean": [1, 1]}
    assert found["cosines"]["digits"]["3"]["0.1"]["2"] != numbers


def test_a_resnet_in_float32() -> None:
    """Each layer's step against one ``.backward()``: what the precision's rounding leaves in twenty layers."""
    net = build(Networks(width=8, projector_hidden=32, projector_out=16), 0)
    model = nn.Sequential(net.encoder, net.projector).eval()
    views = torch.randn(12, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loss = partial(batch.info_nce, temperature=0.5)
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
    errors = runs.backward_errors(model, views)
    assert [*errors] == ["error", "double", "mixed"]
    assert {len(each) for each in errors.values()} == {22}
    exact = runs.backward_errors(copy.deepcopy(model).double(), views.double())
    for found, bar in ((errors, 1e-5), (exact, 1e-13)):
        assert max(max(each.values()) for each in found.values()) < bar
    cosines = runs.held(model, views)
    assert len(cosines) == 22
    assert all(-1 < cosine < 0.999 for cosine in cosines.values())
    assert not model.training


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int, int]]:
    """Seed, step, view and images of each view that is drawn: the images with some noise."""
    seen: list[tuple[int, int, int, int]] = []

    def view_of(pixels: Tensor, pipeline: Pipeline, *, seed: int, step: int, view: int) -> Tensor:
        assert pipeline is runs.PIPELINES["cifar10"]
        seen.append((seed, step, view, len(pixels)))
        draw = torch.Generator().manual_seed(2 * step + view)
        return pixels.float() / 255 + 0.1 * torch.randn(pixels.shape, generator=draw)

    monkeypatch.setattr(runs, "random_view", view_of)
    return seen


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def images() -> Dataset:
    pixels = torch.randint(256, (200, 3, 2, 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Dataset(pixels, torch.zeros(200, dtype=torch.long), "noise", 1)


def test_without_a_step_twenty_batches_are_counted(asked: list[tuple[int, int, int, int]]) -> None:
    model, before = network(), network()
    runs._train(model, images(), 0, 3)
    assert asked == [(3, 1000 + number, view, 128) for number in range(20) for view in (0, 1)]
    assert all(a.equal(b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert int(model[2].num_batches_tracked) == 20  # type: ignore[arg-type]
    assert not model.training, "the statistics are held"


def test_steps_are_adams_on_info_nce(asked: list[tuple[int, int, int, int]]) -> None:
    model, plain, data = network(), network(), images()
    runs._train(model, data, 22, 3)
    assert [step for _, step, view, _ in asked if view == 0] == list(range(1000, 1022))
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    for number in range(1000, 1022):
        pixels = data.pixels[runs._rows(data, 3, number, 128)]
        pair = [runs.random_view(pixels, runs.PIPELINES["cifar10"], seed=3, step=number, view=v) for v in (0, 1)]
        z = plain(torch.stack(pair, 1).flatten(0, 1)).unflatten(0, (128, 2))
        optimizer.zero_grad()
        batch.info_nce(z, temperature=0.5).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not any(a.equal(b) for a, b in zip(model[1].parameters(), network()[1].parameters(), strict=True))
