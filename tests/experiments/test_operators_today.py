"""The experiments of the chapter: checks with their rivals, what a theory explains of a step, and the training of the record."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from sslbook.experiments.operators_today import checks, runs
from sslbook.images.datasets import Dataset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, build
from sslbook.operator.layer import open_layer
from sslbook.training.views.augment import Pipeline


def test_cosines_leave_no_growth() -> None:
    assert checks.growth_gaps("clip", 7)["growth"] < 1e-11
    assert checks.growth_gaps("spectral_contrastive", 7)["growth"] > 0.1
    assert checks.growth_gaps("spectral_contrastive", 7)["negative"] > 0.01


def test_between_samples_distances_make_a_positive_operator() -> None:
    plain = partial(batch.info_nce, temperature=0.3, normalize=False)
    assert checks.lowest_between(plain, 5, seed=4) > -1e-13
    assert checks.lowest_between(checks.LOSSES["info_nce"], 5, seed=4) < -1e-3
    matrix = torch.arange(16.0).reshape(4, 4)
    assert checks.between(matrix).tolist() == [[10.0, 18.0], [42.0, 50.0]]


def test_turning_finds_out_who_sees_coordinates() -> None:
    z = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert checks.turned(checks.LOSSES["info_nce"], z) < 1e-14
    assert checks.turned(batch.vicreg, z) > 1e-3


def test_what_each_theory_explains() -> None:
    data = runs.digits(96)
    found = runs.explained(runs.network(), "2", data, tau=0.5, batches=3, size=24)
    assert found.error < 1e-12
    assert found.interval("this chapter").mean == pytest.approx(1, abs=1e-12)
    paper = found.interval("cross-covariance")
    assert paper.low < paper.mean < paper.high
    assert found.interval("unbiased").mean > max(paper.high, found.interval("no cosines").mean)
    again = runs.explained(runs.network(), "2", data, tau=0.5, batches=3, size=24)
    assert all(torch.equal(found.cosines[name], again.cosines[name]) for name in found.cosines)


def test_the_unbiased_operator_is_the_simple_loss_of_the_batch() -> None:
    """Distinct views in a positive pair, distinct images in a negative one: 2 N / (N - 1) times shorter, and nothing else."""
    data = runs.digits(96)
    views, clean, every = data.batch(64, torch.Generator().manual_seed(0))
    steps = runs.steps_of(runs.network(), "0", views, clean, 0.5, every)
    assert float((2 * 64 / 63 * steps["unbiased"] - steps["all pairs alike"]).norm()) < 1e-12 * float(
        steps["all pairs alike"].norm()
    )
    for other in ("cross-covariance", "all nine shifts"):
        assert float((steps[other] - steps["unbiased"]).norm()) > 0.1 * float(steps["unbiased"].norm())


def test_spread_of_a_push() -> None:
    even = -torch.ones(5, 5, dtype=torch.float64)
    assert runs.pair_shares(even) == pytest.approx([4.0] * 5)
    one = torch.eye(5, dtype=torch.float64).roll(1, 0) * -2
    assert runs.pair_shares(one) == pytest.approx([1.0] * 5)


def test_a_resnet_in_float32() -> None:
    """Each layer's step against one ``.backward()``: what rounding leaves, which ``.backward()`` itself has against float64."""
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
    errors, rounding = runs.backward_errors(model, views), runs.rounding(model, views)
    assert [*errors] == ["error", "double", "mixed"]
    assert {len(each) for each in (*errors.values(), rounding)} == {22}
    worst = {name: max(each.values()) for name, each in errors.items()}
    assert worst["double"] < 1e-7 < min(worst["error"], worst["mixed"]) <= max(worst["error"], worst["mixed"]) < 5e-6
    assert max(rounding.values()) > 1e-7
    cosines = runs.held(model, views)
    assert len(cosines) == 22
    assert all(-1 < cosine < 0.999 for cosine in cosines.values())
    assert not model.training


# --- the training of the record --------------------------------------------------------------------------------------


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
