"""Training with a network and images of the caller's own: it learns, goes on bit for bit, and refuses in sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sslbook.images.datasets import load_dataset, subset
from sslbook.networks.siamese import Networks
from sslbook.training import pretrain as module
from sslbook.training.augment import Pipeline
from sslbook.training.evaluate import embed
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.papers import runs_command
from sslbook.training.pretrain import METHODS, load_run, pretrain
from sslbook.training.run import checkpoints
from sslbook.training.run.settings import REPLACED, stored_settings

DATA = subset(load_dataset("digits", "train"), 256)
DIGITS = DATA.pixels
SMALL = {"epochs": 2, "batch": 64, "device": "cpu", "quiet": True}


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8)
    )


def weights(module: nn.Module) -> torch.Tensor:
    parts = [*module.parameters(), *module.buffers()]
    return torch.cat([part.detach().double().flatten() for part in parts])


def test_every_method_trains_the_module_that_is_given() -> None:
    for method in {**METHODS, **OBJECTIVES}:
        backbone = small()
        before = weights(backbone)
        run = pretrain(DATA, backbone, method, **SMALL)
        assert run.backbone is backbone
        assert not backbone.training
        assert not torch.equal(weights(backbone), before), method
        assert [row["epoch"] for row in run.rows] == [0, 1, 2]
        assert embed(run.backbone, load_dataset("digits", "test").take(slice(9)), run.pipeline).shape == (9, 8)


def begun(backbone: Any, **options: Any) -> nn.Module:
    """The network as it is before the first step."""
    nothing = SimpleNamespace(rows=[], model=SimpleNamespace(projector=nn.Identity()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", lambda *run, **options: nothing)
        return pretrain(DIGITS, backbone, **options).backbone


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(8))


@pytest.mark.parametrize(("make", "made"), [(small, False), (lazy, False), (lazy, True)])
def test_first_weights_are_a_function_of_the_seed(make: Callable[[], nn.Module], made: bool) -> None:
    """What a function draws; of a module that is given, what its lazy layers draw."""
    found = []
    for number in (0, 1):
        torch.manual_seed(number)
        found.append(begun(make() if made else make, seed=3))
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert not torch.equal(weights(found[0]), weights(begun(make, seed=4)))
    for name, part in found[0].named_buffers():  # BatchNorm has counted nothing
        assert part.eq(name.endswith("var")).all()


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / checkpoints.RESULT).read_text()))


def test_another_run_is_not_mistaken_for_the_one_in_the_folder(tmp_path: Path) -> None:
    """Classes count where they are asked for, and nowhere else."""
    asked = {"method": "supervised_contrastive"}
    for labels, few in ((None, 256), ([-1, *DATA.labels.tolist()[1:]], 1)):
        with pytest.raises(ValueError, match=f"the class of each image, and {few} of the 256 of own have none"):
            pretrain(DIGITS, small, **asked, **SMALL, labels=labels)
    pretrain(DATA, small, **SMALL, folder=tmp_path / "bare")
    pretrain(DIGITS, small, **SMALL, labels=DATA.labels.flip(0), folder=tmp_path / "bare")
    pretrain(DATA, small, **asked, **SMALL, folder=tmp_path / "told")
    for folder, images, backbone, more in (
        ("bare", DIGITS.flip(0), small, {}),
        ("bare", DIGITS, lambda: nn.Sequential(*small(), nn.Linear(8, 8)), {}),
        ("bare", DIGITS, small, {"temperature": 0.2}),
        ("bare", DIGITS, small, {"pipeline": Pipeline(8)}),
        ("told", DIGITS, small, {"labels": DATA.labels.flip(0), **asked}),
    ):
        with pytest.raises(ValueError, match=r"holds (another run|a run of other networks)"):
            pretrain(images, backbone, **{**SMALL, **more}, folder=tmp_path / folder)


def test_a_method_has_its_towers(tmp_path: Path) -> None:
    own = Networks(projector_out=64, predictor=1, target_init="own")
    for method, objective, given, used in (
        ("byol", "byol", own, replace(own, target="ema")),
        ("simsiam", "byol", Networks(), Networks(predictor=2)),
        ("simclr", "info_nce", own, own),
        ("vicreg", "vicreg", Networks(), Networks()),
    ):
        pretrain(DIGITS, small, method, **{**SMALL, "epochs": 1}, folder=tmp_path / method, networks=given)
        kept = stored_settings(json.dumps(result_of(tmp_path / method)["settings"]))
        assert (kept.networks, kept.objective) == (used, objective)


def test_what_cannot_be_trained_is_refused() -> None:
    for arguments, sentence in (
        ({"backbone": nn.Flatten()}, "backbone must have parameters"),
        ({"backbone": nn.Conv2d(1, 4, 3)}, r"to float32 features \(2, F\)"),
        ({"method": "simcrl"}, "did you mean simclr"),
        ({"dataset": "stl10"}, "dataset can't be set here"),
        ({"images": DATA, "val": DIGITS}, "must hold labelled images"),
        ({"method": torch.mean, "temperature": 0.2}, "temperature is no setting of a loss of your own"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pretrain(**{"images": DIGITS, "backbone": small, **SMALL, **arguments})


def test_a_network_is_trained_in_training_mode_whatever_it_was_in() -> None:
    found = []
    for mode in (True, False):
        torch.manual_seed(0)
        found.append(pretrain(DIGITS, small().train(mode), **SMALL).backbone)
    assert torch.equal(weights(found[0]), weights(found[1]))
    kept = small()
    kept[1].eval()  # the caller's choice, in a network that is in training mode
    assert pretrain(DIGITS, kept, **SMALL).backbone[1].num_batches_tracked == 0


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), nn.DataParallel])
def test_weights_have_plain_names(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    """Whatever compiled or parallel wrappers put into them, on either side."""

    def wrapped() -> nn.Module:
        return nn.Sequential(wrap(small()), nn.Linear(8, 8))

    with torch.no_grad():  # the caller's own mode is not the run's
        trained = pretrain(DATA, wrapped, folder=tmp_path, **SMALL)
    kept = torch.load(tmp_path / "backbone.pt", weights_only=True)
    (net := nn.Sequential(small(), nn.Linear(8, 8))).load_state_dict(kept)
    for found in (net, load_run(tmp_path, wrapped).backbone):
        assert torch.equal(weights(found), weights(trained.backbone))


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path: Path) -> None:
    found = []
    for kind in (lambda value: value, torch.tensor, lambda value: np.array(value)[()]):
        numbers = {"seed": 3, "epochs": 1, "batch": 8, "evaluate": 0, "lr": 0.25, "temperature": 0.5, "shuffle": True}
        given = {name: kind(value) for name, value in {**numbers, "betas": (0.5, 0.75), "probes": ()}.items()}
        given["networks"] = Networks(projector_hidden=kind(8), projector_out=kind(8))
        given["pipeline"] = Pipeline(kind(8), scale=kind([0.25, 1.0]), grey=kind(0.5))
        pretrain(DIGITS[:16], small, **given, folder=tmp_path, quiet=True, device="cpu")  # the same run each time
        found.append({**result_of(tmp_path), "seconds": 0})
    assert found[0] == found[1] == found[2]


def test_a_batch_that_is_cut_is_told_at_the_callers_line() -> None:
    with pytest.warns(UserWarning, match="batch=1000 is cut to the 256 images that there are") as told:
        pretrain(DIGITS, small, **{**SMALL, "epochs": 1, "batch": 1000})
    assert told[0].filename == __file__


def test_a_run_goes_on_for_more_epochs_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steady, falling = {"schedule": "constant", "folder": tmp_path / "steady"}, {"folder": tmp_path / "falling"}
    for options in (steady, falling):
        pretrain(DATA, small, **{**SMALL, **options})
    longer = pretrain(DATA, small, **{**SMALL, **steady, "epochs": 3})
    whole = pretrain(DATA, small, **{**SMALL, **steady, "epochs": 3, "folder": None})
    assert torch.equal(weights(longer.backbone), weights(whole.backbone))
    for options, sentence in (
        (
            {**falling, "epochs": 3},
            r"rate has fallen to 0 by epoch 2; a run with schedule='constant' .* can be trained on",
        ),
        (steady, "is at step 12, past the 8 of this run: choose another folder"),
        ({**steady, "epochs": 3, "probes": 2, "val": DATA}, "is at step 12, without the linear protocol after epoch 2"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pretrain(DATA, small, **{**SMALL, **options})
    assert runs_command([str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["run", "schedule", "epochs", "done"]
    assert [row.split()[:4] for row in rows] == [["falling", "cosine", "2", "2"], ["steady", "constant", "3", "3"]]
    assert runs_command([str(tmp_path), "--plot", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="2"):
        runs_command([str(tmp_path / "none")])


def test_the_weights_of_a_run_come_out(tmp_path: Path) -> None:
    """By the library, into a network like that which was trained; the result says what was trained."""
    trained = pretrain(DATA, small, folder=tmp_path / "run", **SMALL)
    loaded = load_run(tmp_path / "run", small)
    assert torch.equal(weights(loaded.backbone), weights(trained.backbone))
    assert torch.equal(weights(loaded.projector), weights(trained.projector))
    assert not loaded.backbone.training
    assert (loaded.pipeline, loaded.rows) == (trained.pipeline, trained.rows)
    result = result_of(tmp_path / "run")
    assert (result["data"], result["images"], result["backbone"]) == (DATA.name, 256, str(small()))
    assert not {*REPLACED} & {*result["settings"]}
    for folder, backbone, sentence in (
        ("run", None, "backbone must be a network like the one"),
        ("run", nn.Linear(3, 4), "backbone must be a network like"),
        ("", small, r"folder must be that of a run.* did you mean .*run\?"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=sentence):
            load_run(tmp_path / folder, backbone)


def test_a_run_of_ones_own_is_watched_and_shows_itself() -> None:
    """A row an epoch to the callback, accuracy of labelled images along the way, a short repr, and curves."""
    asked, seen = subset(load_dataset("digits", "test"), 64), []
    run = pretrain(DATA, small(), **SMALL, val=asked, evaluate=1, on_epoch=seen.append)
    assert [row["epoch"] for row in seen] == [0, 1, 2]
    assert all(0 <= row["knn"] <= 1 for row in run.rows)
    assert repr(run).startswith("Pretrained(Sequential, 2 epochs, loss ")
    assert len(run.plot().axes) == 4
    with pytest.raises(ValueError, match="val must have the classes and the size of images"):
        pretrain(DATA, small(), **SMALL, val=replace(asked, pixels=asked.pixels[..., :4]))
