"""Settings: what is allowed, how they are changed, and the hash that tells runs apart; optimisers after their formulas."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from torch import nn

from sslbook.networks.siamese import Networks
from sslbook.training.augment import Pipeline
from sslbook.training.papers import listing, presets, run_of, with_changes
from sslbook.training.run.settings import FREE, Settings, stored_settings
from sslbook.training.run.step import FACTOR, make_optimizer
from sslchapters.records import recorded

BYOL = presets()["stl10-byol"].settings


def test_what_is_not_allowed_gets_a_sentence() -> None:
    for change, sentence in (
        ("dataset=cifar", "dataset must be one of cifar10, stl10"),
        ("shuffle=1", "shuffle must be true or false"),
        ("momentum=1", "momentum must be at least 0 and below 1"),
        ("lr=fast", "lr must be a number"),
        ("probes=0", "probes must be at least 1"),
        ("warmup=1", "warmup is for the cosine schedule"),
        ("widht=3", "did you mean .*networks.width"),
        ("margin=3", "info_nce takes temperature"),
    ):
        with pytest.raises(ValueError, match=sentence):
            with_changes(Settings(), [change])


def test_the_least_of_each_number_is_allowed_and_what_is_below_it_is_not() -> None:
    for name, least in {"batch": 2, "epochs": 1, "subset": 1, "seed": 0, "reset": 0, "evaluate": 0}.items():
        with_changes(Settings(), [f"{name}={least}"])
        with pytest.raises(ValueError, match=f"{name} must be at least {least}"):
            with_changes(Settings(), [f"{name}={least - 1}"])
    assert Pipeline(1, jitter=(0, 0, 0, 0.5), scale=(1, 1), grey=1, flip=0).size == 1
    with pytest.raises(ValueError, match="jitter"):
        Pipeline(1, jitter=(0, 0, 0, 0.51))


def test_changes_are_read_as_what_they_are_for() -> None:
    changes = ("subset=5000", "lr=1", "networks.predictor_norm=none", "networks.predictor_range=0,0.05")
    changed = with_changes(BYOL, [*changes, "probes=10,20", "objective=info_nce", "temperature=0.2"])
    assert (changed.subset, repr(changed.lr)) == (5000, "1.0")
    assert (changed.networks.predictor_norm, changed.networks.predictor_range) == (None, (0.0, 0.05))
    assert (changed.probes, changed.loss_kwargs) == ((10, 20), {"temperature": 0.2})
    assert with_changes(changed, ["probes=7", "objective=soft_triplet"]).loss_kwargs == {"temperature": 0.2}
    assert with_changes(changed, ["probes=7"]).probes == (7,)
    assert with_changes(changed, ["probes=none", "objective=quadratic"]).loss_kwargs == {}


def test_the_hash_tells_runs_apart_and_nothing_else() -> None:
    base = replace(BYOL, split="train")
    for name, value in {"seed": 7, "evaluate": 0, "probes": (3,), "epochs": 500}.items():
        assert name in (*FREE, "epochs")
        assert replace(base, **{name: value}).hash() == base.hash(), name
    others: dict = {"dataset": "cifar10", "split": "train+unlabeled", "subset": 10, "pipeline": "mnist"}
    others |= {"networks": Networks(width=16), "objective": "simple", "optimizer": "adam", "lr": 0.5}
    others |= {"loss_kwargs": {"stop_gradient": False}, "betas": (0.5, 0.5), "weight_decay": 0.1}
    others |= {"schedule": "released", "batch": 64, "shuffle": False}
    others |= {"drop_last": True, "noise": 0.1, "precision": "float32", "own": {"images": "a"}, "momentum": 0.5}
    others |= {"ema": 0.5, "ema_end": 1.0, "reset": 3, "symmetric": True, "predictor_lr": 10.0}
    cosine = replace(base, schedule="cosine")
    changed = [replace(base, **{name: value}) for name, value in others.items()]
    changed += [cosine, replace(cosine, epochs=500), replace(cosine, warmup=2)]  # its rates depend on the length
    assert {*others, *FREE, "epochs", "warmup"} == {field.name for field in fields(Settings)}
    hashes = [settings.hash() for settings in (base, *changed)]
    assert len(set(hashes)) == len(hashes)
    assert replace(base, lr=1).hash() == replace(base, lr=1.0).hash()
    assert len({preset.settings.hash() for preset in presets().values()}) == len(presets())


def test_recorded_runs_are_found_by_the_names_of_today() -> None:
    """A record of a table names its runs by their folders, which have the hash; other hashes would leave the table empty."""
    assert set(recorded("A-Tab2")["runs"]) == {run_of("cifar10-simclr-nce", seed=1).slug}


def test_settings_come_back_from_json_also_of_earlier_versions() -> None:
    own = replace(BYOL, own={"images": "a"}, dataset="cifar10", split="train", pipeline="cifar10")
    assert "dataset" not in own.as_json()
    for settings in (BYOL, own):
        assert stored_settings(json.dumps(settings.as_json() | {"capture": "graph"})) == settings


def test_values_are_listed_as_they_are_set() -> None:
    for name, preset in presets().items():
        lines = [line.strip() for line in listing([name]).splitlines() if line.startswith("    ")]
        again = with_changes(preset.settings, [line for line in lines if line != "networks.predictor_range=none"])
        usual = {**again.loss_kwargs, **preset.settings.loss_kwargs}
        assert again == replace(preset.settings, loss_kwargs=usual)


def test_optimisers_have_the_runs_numbers() -> None:
    parts = nn.Linear(5, 4), nn.Linear(4, 3, bias=False)
    params = [weight for part in parts for weight in part.parameters()]
    for name, own in (("sgd", {"momentum": 0.5}), ("adam", {"betas": (0.7, 0.8)}), ("adamw", {"betas": (0.7, 0.8)})):
        settings = replace(Settings(), optimizer=name, lr=0.25, weight_decay=0.125, predictor_lr=3, **own)
        made = make_optimizer(settings, params, parts[1])
        assert type(made).__name__.lower() == name
        one, two = made.param_groups
        assert {**one, "lr": 0.25, "weight_decay": 0.125, **own} == one
        assert (one.get(FACTOR), two[FACTOR], len(one["params"]), len(two["params"])) == (None, 3, 2, 1)
