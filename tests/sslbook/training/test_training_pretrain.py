"""Training with a network and images of the caller's own: it learns, goes on bit for bit, and refuses in sentences."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sslbook.images.datasets import load_dataset, subset
from sslbook.networks.siamese import Networks
from sslbook.training import pretrain as module
from sslbook.training.augment import Pipeline
from sslbook.training.evaluate import embed
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.pretrain import METHODS, load_run, pretrain
from sslbook.training.run import checkpoints
from sslbook.training.run.compare import main as runs_command
from sslbook.training.run.settings import REPLACED, Settings, stored_settings
from sslbook.training.run.trainer import train

DATA = subset(load_dataset("digits", "train"), 256)
DIGITS = DATA.pixels
SMALL = {"epochs": 2, "batch": 64, "device": "cpu", "quiet": True}


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8)
    )


def drawn(numbers: Callable[[], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        net[1].weight.data[0, 0] = float(numbers())
        return net

    return make


SEEDED: dict[str, Callable[[], nn.Module]] = {
    "eager": small,
    "lazy": lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(8)),
    "NumPy": drawn(lambda: np.random.standard_normal()),  # noqa: NPY002
    "Python": drawn(random.random),
}


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


class Begun(Exception):
    """In the place of the first step, with the network as it is before it."""


def begun(backbone: Any, **options: Any) -> nn.Module:
    """The network as it is before the first step."""

    def stop(run: Any, folder: Any, **kept: Any) -> None:
        raise Begun(kept["backbone"][0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", stop)
        with pytest.raises(Begun) as stopped:
            pretrain(DIGITS, backbone, **options)
    return stopped.value.args[0]


@pytest.mark.parametrize(("kind", "made"), [*((kind, False) for kind in SEEDED), ("lazy", True)])
def test_first_weights_are_a_function_of_the_seed(kind: str, made: bool) -> None:
    """What a function draws by whatever generator; of a module that is given, what its lazy layers draw."""
    found = []
    for number in (0, 1):
        backbone = SEEDED[kind]() if made else SEEDED[kind]
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(number)
        found.append(begun(backbone, seed=3))
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert made or not torch.equal(weights(found[0]), weights(begun(backbone, seed=4)))
    for name, part in found[0].named_buffers():  # BatchNorm has counted nothing
        assert part.eq(name.endswith("var")).all()
    assert all(part.dtype == torch.float32 for part in found[0].parameters())
    assert all(part.training for part in found[0].modules())


def test_another_run_is_not_mistaken_for_the_one_in_the_folder(tmp_path: Path) -> None:
    pretrain(DATA, small, **SMALL, folder=tmp_path)
    assert set(own_of(tmp_path)) == {"images", "shape", "pipeline"}, "classes don't count here"
    for images, backbone, more in [
        (DIGITS.flip(0), small, {}),
        (DIGITS, lambda: nn.Sequential(*small(), nn.Linear(8, 8)), {}),
        (DIGITS, small, {"temperature": 0.2}),
        (DIGITS, small, {"pipeline": Pipeline(8)}),
        (DIGITS, small, {"epochs": 1}),
    ]:
        with pytest.raises(ValueError, match=r"holds (another run|a run of other networks)"):
            pretrain(images, backbone, **{**SMALL, **more}, folder=tmp_path)


def test_classes_count_where_they_are_asked_for(tmp_path: Path) -> None:
    asked = {"method": "supervised_contrastive", **SMALL}
    for labels, few in ((None, 256), ([-1, *DATA.labels.tolist()[1:]], 1)):
        with pytest.raises(ValueError, match=f"the class of each image, and {few} of the 256 of own have none"):
            pretrain(DIGITS, small, **asked, labels=labels)
    first = pretrain(DIGITS, small, **asked, labels=DATA.labels, folder=tmp_path)
    again = pretrain(DATA, small, **asked, folder=tmp_path)
    assert torch.equal(weights(first.backbone), weights(again.backbone))
    with pytest.raises(ValueError, match="holds another run"):
        pretrain(DIGITS, small, **asked, labels=DATA.labels.flip(0), folder=tmp_path)
    assert set(own_of(tmp_path)) == {"images", "shape", "pipeline", "labels"}


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / checkpoints.RESULT).read_text()))


def own_of(folder: Path) -> dict[str, Any]:
    return dict(result_of(folder)["settings"]["own"])


def test_a_method_has_its_towers(tmp_path: Path) -> None:
    wide, own = Networks(projector_out=64), Networks(predictor=1, target_init="own")
    for number, (method, objective, given, used) in enumerate(
        (
            ("byol", "byol", wide, replace(wide, predictor=2, target="ema")),
            ("byol", "byol", own, replace(own, target="ema")),
            ("simsiam", "byol", wide, replace(wide, predictor=2)),
            ("simclr", "info_nce", wide, wide),
            ("vicreg", "vicreg", None, Networks()),
        )
    ):
        folder, more = tmp_path / str(number), {"networks": given} if given else {}
        pretrain(DIGITS, small, method, **{**SMALL, "epochs": 1}, folder=folder, **more)
        kept = stored_settings(json.dumps(result_of(folder)["settings"]))
        assert (kept.networks, kept.objective) == (used, objective)


def test_what_cannot_be_trained_is_refused() -> None:
    for arguments, sentence in (
        ({"backbone": "resnet50"}, "backbone must be a torch.nn.Module"),
        ({"backbone": nn.Flatten()}, "backbone must have parameters"),
        ({"backbone": nn.Conv2d(1, 4, 3)}, r"to float32 features \(2, F\)"),
        ({"backbone": small().double()}, "backbone can't take images torch.float32"),
        ({"method": "simcrl"}, "did you mean simclr"),
        ({"dataset": "stl10"}, "dataset can't be set here"),
        ({"loss": "vicreg"}, "there is no setting loss"),
        ({"images": DATA, "val": DIGITS}, "val must hold labelled images"),
        ({"images": DIGITS[:1], "batch": 256}, "batch must be at least 2, got 1"),
        ({"pipeline": "cifar10"}, "pipeline must be a Pipeline"),
        ({"optimizer": torch.optim.AdamW}, "optimizer must be one of sgd, adam, adamw"),
        ({"views": lambda x, generator: x[..., :4]}, r"views must make of two pictures floating \(2, 1, 8, 8\)"),
        ({"method": torch.mean, "temperature": 0.2}, "temperature is no setting of a loss of your own"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            pretrain(**{"images": DIGITS, "backbone": small, **SMALL, **arguments})


def test_a_network_is_trained_in_training_mode_whatever_it_was_in() -> None:
    found = []
    for mode in (True, False):
        torch.manual_seed(0)
        found.append(pretrain(DIGITS, small().train(mode), **SMALL).backbone)
    assert torch.equal(weights(found[0]), weights(found[1]))
    kept = small()
    kept[1].eval()  # the caller's choice, in a network that is in training mode
    assert begun(kept)[1].training is False


PLAIN = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8))
net.load_state_dict(torch.load(sys.argv[1], weights_only=True))
print(float(net.eval()(torch.ones(1, 1, 8, 8)).sum()))
assert not any(name.startswith("sslbook") for name in sys.modules)
"""


def test_the_weights_of_a_preset_come_out_before_its_end(tmp_path: Path) -> None:
    networks = Networks(width=2, channels=1)
    settings = Settings(dataset="digits", pipeline="digits", networks=networks, epochs=2, batch=64, subset=128)
    stopped = train(settings, tmp_path, stop_after=1, device="cpu", quiet=True)
    assert torch.equal(weights(load_run(tmp_path).backbone), weights(stopped.model.encoder))
    assert not (tmp_path / "backbone.pt").exists()
    train(settings, tmp_path, device="cpu", quiet=True)
    found = torch.load(tmp_path / "backbone.pt", weights_only=True)
    assert all(torch.equal(found[name], part) for name, part in load_run(tmp_path).backbone.state_dict().items())


class Stateful(nn.Flatten):
    """A layer that keeps something beside its tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"n": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"n": 3}


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), nn.DataParallel])
def test_weights_have_plain_names(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    """Whatever compiled or parallel wrappers put into them, on either side; what a module keeps else comes out too."""

    def wrapped() -> nn.Module:
        return nn.Sequential(wrap(small()), Stateful(), nn.Linear(8, 8))

    with torch.no_grad():  # the caller's own mode is not the run's
        trained = pretrain(DATA, wrapped, folder=tmp_path, **SMALL)
    kept = torch.load(tmp_path / "backbone.pt", weights_only=True)
    assert kept["1._extra_state"] == {"n": 3}
    (net := nn.Sequential(small(), Stateful(), nn.Linear(8, 8))).load_state_dict(kept)
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


def test_what_is_changed_or_does_nothing_is_told() -> None:
    for options, sentence in (
        ({"batch": 1000}, "batch=1000 is cut to the 256 images that there are"),
        ({"probes": (1,)}, "probes measure nothing without val"),
    ):
        with pytest.warns(UserWarning, match=sentence) as told:
            pretrain(DIGITS, small, **{**SMALL, "epochs": 1, **options})
        assert told[0].filename == __file__, "the caller's line"


def test_a_folder_of_pictures_is_cut_and_kept_apart_from_the_run(tmp_path: Path) -> None:
    for number in range(8):
        Image.effect_noise((12 + number, 10), 60).save(tmp_path / f"{number}.png")
    items = [Image.open(path) for path in sorted(tmp_path.glob("*.png"))]
    for images in (str(tmp_path), items, [np.array(item) for item in items]):
        with pytest.raises(ValueError, match="size=32 cuts each to 32 by 32"):
            pretrain(images, small, **SMALL)
        assert pretrain(images, small, size=8, **{**SMALL, "epochs": 1, "batch": 4}).rows
    with pytest.warns(UserWarning, match="puts the run's files among the pictures"):
        pretrain(tmp_path, small, size=8, folder=tmp_path / "run", **{**SMALL, "epochs": 1, "batch": 4})


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
    """By the library and by PyTorch alone, into a network like that which was trained; the result says what was trained."""
    trained = pretrain(DATA, small, folder=tmp_path / "run", **SMALL)
    loaded = load_run(tmp_path / "run", small)
    assert torch.equal(weights(loaded.backbone), weights(trained.backbone))
    assert not loaded.backbone.training
    assert (loaded.pipeline, loaded.rows) == (trained.pipeline, trained.rows)
    result = result_of(tmp_path / "run")
    assert (result["data"], result["images"], result["backbone"]) == (DATA.name, 256, str(small()))
    assert not {*REPLACED} & {*result["settings"]}
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "run/backbone.pt")]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert float(alone.stdout) == pytest.approx(trained.backbone(torch.ones(1, 1, 8, 8)).sum().item())
    for folder, backbone, sentence in (
        ("run", None, "give backbone, a network"),
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
    some = replace(asked, labels=asked.labels.where(torch.arange(64) > 1, -1))
    with pytest.warns(UserWarning, match="2 of the 64 images of val have no class, and are left out"):
        pretrain(DATA, small(), **SMALL, val=some)
    with pytest.raises(ValueError, match="val must have the classes and the size of images"):
        pretrain(DATA, small(), **SMALL, val=replace(asked, pixels=asked.pixels[..., :4]))
