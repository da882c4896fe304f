"""A run says whether it works: six ways to collapse are told, six healthy runs that look odd are not; no labels are asked for."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslbook
from sslbook.images.datasets import Dataset, load_dataset, subset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, Outputs
from sslbook.training import evaluate
from sslbook.training.augment import Pipeline
from sslbook.training.objectives import least, objective
from sslbook.training.pretrain import pretrain

DIGITS = subset(load_dataset("digits", "train"), 512)
VIEWS = Pipeline(8, scale=(0.5, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0)
BARE = Networks(projector_norm=None, predictor_norm=None)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def with_dropout() -> nn.Module:
    return nn.Sequential(*net(), nn.Dropout(0.5))


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 50


def alignment(z: Tensor) -> Tensor:
    return -F.cosine_similarity(z[:, 0], z[:, 1]).mean()


def two_classes(count: int | None = None) -> Dataset:
    whole = load_dataset("digits", "train")
    return whole.take((whole.labels < 2).nonzero()[:count, 0])


COLLAPSES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "SimSiam without stop-gradient": ("simsiam", {"stop_gradient": False}, "mean cosine"),
    "SimSiam without BatchNorm in its heads": ("simsiam", {"networks": BARE}, "mean cosine"),
    "neither predictor nor negatives": (alignment, {"networks": BARE}, "mean cosine"),
    "VICReg without its variance": ("vicreg", {"variance": 0.0}, "variance of the embeddings"),
    "VICReg without its covariance": ("vicreg", {"covariance": 0.0, "epochs": 30}, "dimensional collapse"),
    "dead units": ("simclr", {"lr": 1e9, "schedule": "constant"}, "the same"),
}
HEALTHY: dict[str, tuple[Any, dict[str, Any]]] = {
    "features with a large common part": ("simclr", {"backbone": lambda: nn.Sequential(net(), Shift())}),
    "two outputs": ("simclr", {"networks": Networks(projector_out=2)}),
    "forty images of two classes": ("byol", {"images": two_classes(40)}),
    "classes, which leave one direction": ("supervised_contrastive", {"images": two_classes(), "epochs": 30}),
    "Barlow Twins with a thousand outputs": ("barlow_twins", {"networks": Networks(projector_out=1024), "epochs": 6}),
    "hardly begun": ("byol", {"epochs": 2, "lr": 1e-4}),
}


def told(method: Any, **options: Any) -> tuple[str, list[str], Any]:
    """What the run says at its end, what it warned of on its way, and the run."""
    given = {"images": DIGITS, "backbone": net, "epochs": 12, "batch": 64, "lr": 2e-3, "pipeline": VIEWS, **options}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = pretrain(method=method, evaluate=1, device="cpu", quiet=True, **given)
    return run.collapsed, [str(one.message) for one in heard if "collapse" in str(one.message)], run


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_is_told_once(name: str) -> None:
    method, options, words = COLLAPSES[name]
    last, heard, run = told(method, **options)
    assert words in last, (name, run.rows[0], run.rows[-1])
    assert len(heard) == 1
    assert "Has it collapsed?" in heard[0]
    assert "collapsed" in repr(run)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_that_looks_odd_is_left_alone(name: str) -> None:
    method, options = HEALTHY[name]
    last, heard, run = told(method, **options)
    assert (last, heard) == ("", []), (name, run.rows[0], run.rows[-1])
    if name.startswith("features with a large"):
        assert run.rows[-1]["feature_cosine"] > 0.98
    if name.startswith("classes"):
        assert run.rows[-1]["embedding_rank"] < 1.8


def test_a_large_common_part_of_the_embeddings_is_no_collapse() -> None:
    """VICReg doesn't see their mean, and BYOL's cosines may leave views of one image nearer than those of two."""
    start = {"embedding_cosine": 0.35, "view_cosine": 0.48, "variance": 14.0, "embedding_rank": 30.0}
    start |= {"feature_cosine": 0.8, "feature_rank": 18.0}
    apart = {**start, "embedding_cosine": 0.998, "view_cosine": 0.9995}  # a quarter of the distance of two images
    near, few = {**apart, "view_cosine": 0.9982}, {**start, "feature_rank": 1.2}
    for now, before, labels, words in (
        (apart, start, False, ""),
        (near, start, False, "mean cosine"),
        (near, {**near, "variance": 14.0}, False, ""),
        (few, start, False, "dimensional"),
        (few, start, True, ""),
        ({"epoch": 1}, start, False, ""),
    ):
        told = evaluate.collapse(now, before, labels=labels)
        assert words in told
        assert bool(words) == bool(told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"variance": 1e-3, "view_cosine": 0.6}, "the variance of the embeddings is 0.10%"),
        ({"variance": 1e-3, "view_cosine": 0.95}, ""),  # small, but the views of an image are nearer: learnt
        ({"embedding_cosine": 0.995, "view_cosine": 0.996}, "a mean cosine of 0.9950"),
        ({"embedding_cosine": 0.995, "view_cosine": 0.999}, ""),
        ({"embedding_rank": 1.7}, "the embeddings take 1.7 directions"),
        ({"embedding_rank": 1.9}, ""),
    ],
)
def test_what_is_small_is_a_collapse_only_where_views_are_no_nearer(change: dict[str, float], said: str) -> None:
    before = {
        "variance": 1.0,
        "embedding_cosine": 0.2,
        "view_cosine": 0.6,
        "embedding_rank": 20.0,
        "feature_rank": 20.0,
    }
    found = evaluate.collapse(before | change, before, length=True)
    assert said in found
    assert bool(found) == bool(said)


def test_what_is_measured_is_what_a_step_sees() -> None:
    """By hand: two views by their own draws, BatchNorm by the batch."""
    run = pretrain(DIGITS.pixels[:64], net, epochs=1, batch=64, lr=1e-9, pipeline=VIEWS, device="cpu", quiet=True)
    backbone, projector = run.backbone.train(), run.projector.train()
    with torch.no_grad():
        first, second = (backbone(sslbook.random_view(DIGITS.pixels[:64], VIEWS, step=0, view=view)) for view in (8, 9))
        z, other = projector(first), projector(second)
    wanted = {"view_cosine": F.cosine_similarity(z, other).mean(), "variance": z.var(0, correction=0).sum()}
    for name, part in (("embedding", z), ("feature", first)):
        wanted |= {f"{name}_rank": sslbook.effective_rank(part), f"{name}_cosine": sslbook.mean_cosine(part)}
    for name, value in wanted.items():
        assert run.rows[0][name] == pytest.approx(float(value), rel=1e-4)


def test_a_run_that_is_looked_at_ends_with_the_same_weights() -> None:
    ends = []
    for often in (1, 0):
        torch.manual_seed(often)
        run = pretrain(DIGITS.pixels, with_dropout, epochs=3, batch=64, device="cpu", quiet=True, evaluate=often)
        ends.append(run.backbone.state_dict())
    assert all(torch.equal(part, ends[1][name]) for name, part in ends[0].items())


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_no_embeddings_are_below_the_least_loss(temperature: float) -> None:
    """The simplex attains it; where there are too few dimensions for one, or none is sought, the loss stays above."""
    for count in (5, 9):
        bound = least("info_nce", count, temperature=temperature)
        simplex = torch.eye(count, dtype=torch.float64) - 1 / count
        for z, attained in ((simplex, True), (simplex[:, :3], False), (torch.eye(count), False)):
            loss = batch.info_nce(torch.stack([z, z], dim=1), temperature=temperature).item()
            assert loss > bound - 1e-12
            assert (loss < bound + 1e-9) == attained
    assert objective("byol")(Outputs(*[torch.eye(3)] * 6)).item() == least("byol", 3) == -4
    assert least("exact", 8) is None


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    z = torch.randn(2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cosines = F.cosine_similarity(z[:, :, None], z[:, None], dim=-1)
    torch.testing.assert_close(sslbook.mean_cosine(z), (cosines.sum((1, 2)) - 7) / 42)
    assert float(sslbook.mean_cosine(torch.ones(4, 3) * 1e30)) == pytest.approx(1)


def test_curves_and_the_log_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"networks": BARE, "epochs": 4, "batch": 64, "evaluate": 1, "device": "cpu", "folder": tmp_path}
    run = pretrain(DIGITS.pixels, net, "simsiam", **asked)
    said = capsys.readouterr().err
    assert "(least -4.0000)  embeddings: cosine 0." in said
    assert said.count("Has it collapsed?") == 1
    labels = [axes.get_ylabel() for axes in run.plot().axes]
    assert labels == ["loss", "mean cosine of different images", "effective rank"]
    head = (tmp_path / "log.csv").read_text().splitlines()[0].split(",")
    assert {"least", "embedding_rank", "feature_cosine", "collapsed"} <= {*head}
    assert sslbook.load_run(tmp_path, net).collapsed == run.collapsed != ""


def same_crop(batch: Tensor, generator: torch.Generator) -> Tensor:
    """A view of a caller's own: a window for all, and noise."""
    shift = int(torch.randint(0, 3, (), generator=generator))
    moved = batch.roll((shift, shift), (2, 3))
    return moved + 0.1 * torch.randn(batch.shape, generator=generator)


OWN: dict[str, Any] = {"views": same_crop, "method": partial(batch.barlow_twins, weight=0.01), "optimizer": "adamw"}


@pytest.mark.parametrize("name", OWN)
def test_what_is_the_callers_own_resumes_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go(**options: Any) -> Any:
        given = {"epochs": 3, "batch": 64, "device": "cpu", "quiet": True, name: OWN[name], **options}
        return pretrain(DIGITS, with_dropout, **given)

    def die(row: dict) -> None:
        if row["epoch"] == 2:
            raise InterruptedError

    whole = go()
    monkeypatch.setattr("sslbook.training.run.trainer.SAVE_SECONDS", -1.0)
    with pytest.raises(InterruptedError):
        go(folder=tmp_path, on_epoch=die)
    assert (tmp_path / "step-000000008.pt").exists()
    torch.manual_seed(7)
    resumed = go(folder=tmp_path)
    for part, other in zip(whole.backbone.parameters(), resumed.backbone.parameters(), strict=True):
        assert torch.equal(part, other)
    assert [row.get("loss") for row in resumed.rows] == [row.get("loss") for row in whole.rows]
    with pytest.raises(ValueError, match="holds another run"):  # a folder knows functions by their names
        go(folder=tmp_path, **{name: {"views": lambda x, draw: x, "method": alignment, "optimizer": "sgd"}[name]})


def test_each_own_view_has_a_generator_of_its_own() -> None:
    seeds: list[int] = []
    views = lambda x, draw: seeds.append(draw.initial_seed()) or x + 0.0  # noqa: E731
    pretrain(DIGITS.pixels, net, views=views, epochs=2, batch=64, evaluate=0, device="cpu", quiet=True)
    assert len(set(seeds)) == len(seeds) >= 32


def test_an_own_loss_is_the_librarys_by_another_way() -> None:
    given = {"epochs": 2, "batch": 64, "device": "cpu", "quiet": True}
    ours = pretrain(DIGITS, net, "info_nce", temperature=0.2, **given)
    theirs = pretrain(DIGITS, net, partial(batch.info_nce, temperature=0.2), **given)
    assert [row["loss"] for row in theirs.rows[1:]] == pytest.approx([row["loss"] for row in ours.rows[1:]], rel=1e-4)
