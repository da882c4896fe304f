"""Settings: what is allowed, how they are changed, and the hash that tells runs apart; optimisers after their formulas."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sslbook.networks.siamese import Networks
from sslbook.training.augment import PIPELINES, Pipeline
from sslbook.training.objectives import OBJECTIVES, arguments
from sslbook.training.presets.papers import presets, values_of, with_changes
from sslbook.training.run.checkpoints import RESULT, read_result
from sslbook.training.run.parts import LARS, make_ema, make_optimizer, make_rate
from sslbook.training.run.settings import FREE, Settings, stored_settings
from sslchapters.records import recorded


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("dataset=cifar", "did you mean 'cifar10'"),
        ("shuffle=1", "shuffle must be true or false"),
        ("momentum=1", "momentum must be at least 0 and below 1"),
        ("probes=0", "probes must be at least 1"),
        ("reset=5", "reset and symmetric are for a predictor"),
        ("warmup=1", "warmup is for the cosine schedule"),
        ("widht=3", "did you mean .*networks.width"),
        ("networks=3", "networks can't be set as a whole"),
        ("margin=3", "info_nce takes temperature"),
        ("=3", "a change must be of the form key=value"),
    ],
)
def test_what_is_not_allowed_gets_a_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_changes(Settings(), [change])


def test_changes_are_read_as_what_they_are_for() -> None:
    changed = with_changes(
        presets()["cifar10-byol"].settings,
        [
            *("subset=5000", "lr=1", "networks.predictor_norm=none", "networks.predictor_range=0,0.05"),
            *("probes=10,20", "objective=info_nce", "temperature=0.2"),
        ],
    )
    assert (changed.subset, repr(changed.lr)) == (5000, "1.0")
    assert (changed.networks.predictor_norm, changed.networks.predictor_range) == (None, (0.0, 0.05))
    assert (changed.probes, changed.loss_kwargs) == ((10, 20), {"temperature": 0.2})
    simple = with_changes(changed, ["objective=simple"])  # which takes no temperature
    assert simple.loss_kwargs == {}
    assert with_changes(simple, ["objective=exact", "temperature=0.1"]).loss_kwargs == {"temperature": 0.1}
    assert with_changes(changed, ["subset=none"]).subset is None
    assert [with_changes(changed, [f"probes={given}"]).probes for given in ("7", "none", "")] == [(7,), (), ()]


def test_the_hash_tells_runs_apart_and_nothing_else() -> None:
    base = replace(Settings(), schedule="constant")
    same = {"seed": 7, "evaluate": 0, "probes": (3,), "capture": "compile", "epochs": 500}
    assert set(same) == {*FREE, "epochs"}
    for name, value in same.items():
        assert replace(base, **{name: value}).hash() == base.hash(), name
    others = {"dataset": "mnist", "subset": 10, "pipeline": "mnist", "networks": Networks(width=16)}
    others |= {"objective": "simple", "loss_kwargs": {"temperature": 0.1}, "optimizer": "sgd", "lr": 0.5}
    others |= {"betas": (0.5, 0.5), "weight_decay": 0.1, "schedule": "released", "batch": 64, "shuffle": True}
    others |= {"drop_last": False, "noise": 0.1, "precision": "float32", "own": {"images": "a digest"}}
    elsewhere = {change.partition("=")[0] for _, change in USED}
    assert set(others) | set(same) | elsewhere >= {field.name for field in fields(Settings)}
    hashes = {replace(base, **{name: value}).hash() for name, value in others.items()}
    assert len(hashes | {base.hash()}) == len(others) + 1
    cosine = replace(base, schedule="cosine")
    assert replace(cosine, epochs=500).hash() != cosine.hash()  # its rates depend on the length


BYOL = presets()["stl10-byol"].settings


USED = [
    (replace(Settings(), optimizer="sgd"), "momentum=0.5"),
    (replace(Settings(), optimizer="lars"), "momentum=0.5"),
    (replace(Settings(), schedule="cosine"), "warmup=2"),
    (replace(BYOL, ema_end=1.0), "epochs=7"),
    (replace(BYOL, networks=replace(BYOL.networks, target=None)), "stop_gradient=false"),
    *((BYOL, f"{name}") for name in ("split=train", "ema=0.5", "ema_end=1", "predictor_lr=10", "reset=2")),
    *((BYOL, f"networks.{name}") for name in ("target_init=copy", "predictor_hidden=8", "predictor_norm=none")),
    *((BYOL, f"networks.{name}") for name in ("predictor_range=0,0.1", "unbiased=true")),
    *((BYOL, name) for name in ("symmetric=true", "networks.projector_out_norm=normal,normal")),
]
"""Settings that only some runs use, with such a run."""


@pytest.mark.parametrize(("base", "change"), USED)
def test_what_a_run_uses_is_in_its_hash(base: Settings, change: str) -> None:
    assert with_changes(base, [change]).hash() != base.hash()


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (Settings(), ["temperature=0.5"]),
        (Settings(), ["momentum=0.5"]),
        (Settings(), ["ema=0.5", "ema_end=1", "predictor_lr=3"]),
        (Settings(), ["networks.target_init=own"]),
        (Settings(), ["networks.predictor_hidden=8", "networks.predictor_norm=none", "networks.predictor_range=0,1"]),
        (replace(Settings(), optimizer="sgd"), ["betas=0.5,0.5"]),
        (BYOL, ["stop_gradient=true"]),
        (BYOL, ["networks.predictor=2.0"]),
        (replace(BYOL, networks=replace(BYOL.networks, predictor=1)), ["networks.predictor_hidden=8"]),
        (with_changes(Settings(), ["networks.projector_norm=none"]), ["networks.unbiased=true"]),
    ],
)
def test_what_a_run_does_not_use_is_not_in_its_hash(base: Settings, changes: list[str]) -> None:
    assert with_changes(base, changes).hash() == base.hash()


def test_an_augmentation_counts_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Settings().hash()
    monkeypatch.setitem(PIPELINES, "again", PIPELINES["cifar10"])
    assert replace(Settings(), pipeline="again").hash() == before
    monkeypatch.setitem(PIPELINES, "cifar10", replace(PIPELINES["cifar10"], grey=0.1))
    assert Settings().hash() != before


def test_hashes_stay() -> None:
    """Folders of runs are found by them: another one here orphans somebody's runs; and no two presets are the same run."""
    hashes = {name: preset.settings.hash() for name, preset in sorted(presets().items())}
    names = ("cifar10-simclr-nce", "stl10-byol", "digits-simclr-nce")
    assert [hashes[name] for name in names] == ["9b18ebfa08", "ec084ee49b", "69bb13f138"]
    assert Settings().hash() == "9b18ebfa08"
    assert len(set(hashes.values())) == len(hashes)
    assert hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16] == "86a50d78defb3837"
    assert with_changes(Settings(), ["lr=1"]).hash() == with_changes(Settings(), ["lr=1.0"]).hash()


def test_hashes_go_by_the_names_that_settings_had_at_first() -> None:
    """Written down before ``rate``, ``decay``, ``predictor_rate``, ``numbers`` and ``tau`` had other names."""
    sharp = {"objective": "beta", "loss_kwargs": {"temperature": 0.07, "beta": 0.2}}
    for base, changes, hashed in (
        (Settings(), {"lr": 0.03}, "e3425d94a6"),
        (Settings(), {"weight_decay": 1e-4}, "3f410b0c31"),
        (Settings(), {"loss_kwargs": {"temperature": 0.2}}, "5909b9e4d1"),
        (BYOL, {"predictor_lr": 10.0}, "caa8ece49d"),
        (BYOL, {**sharp, "lr": 0.3, "weight_decay": 1e-6, "predictor_lr": 2.0}, "b6f8253a5f"),
    ):
        assert replace(base, **changes).hash() == hashed, changes


def test_files_with_the_names_that_settings_had_at_first_are_read(tmp_path: Path) -> None:
    old = recorded("training-cifar10")["settings"]["info_nce"]
    assert {"rate", "decay", "numbers"} <= old.keys()
    read = stored_settings(json.dumps(old))
    assert (read.lr, read.weight_decay, read.loss_kwargs) == (old["rate"], old["decay"], {"temperature": 0.5})
    assert stored_settings(json.dumps(read.as_json())) == read
    (tmp_path / RESULT).write_text(json.dumps({"settings": old, "rows": [{"epoch": 1, "rate": 0.5}]}))
    result = read_result(tmp_path)
    assert result is not None
    assert stored_settings(json.dumps(result["settings"])) == read
    assert result["rows"] == [{"epoch": 1, "lr": 0.5}]


def test_defaults_stay_what_they_are() -> None:
    """The hash leaves them out, so another default would give another run an old one's name; a new setting is welcome."""
    settings = Settings().as_json()
    found = {"settings": settings, "networks": settings.pop("networks")}
    found |= {"losses": {name: arguments(name) for name in OBJECTIVES}}
    found |= {"pipeline": json.loads(json.dumps(asdict(Pipeline(32))))}
    for name, written in DEFAULTS.items():
        assert {key: found[name][key] for key in written} == written, name


DEFAULTS: dict[str, dict] = json.loads("""{
"settings": {"dataset": "cifar10", "split": "train", "subset": null, "objective": "info_nce", "optimizer": "adam", "lr": 0.01,
    "momentum": 0.9, "betas": [0.9, 0.999], "weight_decay": 0.0, "schedule": "released", "warmup": 0, "batch": 128, "epochs": 100,
    "shuffle": false, "drop_last": true, "ema": 0.996, "reset": 0, "symmetric": false, "noise": 0.0, "precision": "auto"},
"networks": {"stem": "cifar", "width": 64, "projector_hidden": 512, "projector_out": 128, "unbiased": false, "predictor": 0,
    "projector_norm": ["normal", "normal"], "predictor_norm": ["normal", "normal"], "predictor_hidden": 512,
    "predictor_range": null, "target": null, "target_init": "copy", "channels": 3},
"losses": {"info_nce": {"temperature": 0.5}, "exact": {"temperature": 0.5, "beta": 0.0, "weights": "augmented", "over": "mean"},
    "beta": {"temperature": 0.5, "beta": 0.0, "form": "released"}, "simple": {"beta": 0.0}, "quadratic": {},
    "soft_triplet": {"temperature": 0.5, "margin": 0.0}, "triplet": {"temperature": 0.5, "margin": 0.0},
    "byol": {"stop_gradient": true},
    "decoupled": {"temperature": 0.5}, "supervised_contrastive": {"temperature": 0.5}, "clip": {"temperature": 0.07},
    "sigmoid_pairs": {"scale": 10.0, "bias": -10.0}, "spectral_contrastive": {"mu": 1.0}, "barlow_twins": {"weight": 0.005},
    "vicreg": {"variance": 25.0, "invariance": 25.0, "covariance": 1.0}},
"pipeline": {"scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333], "flip": 0.5, "jitter": [0.0, 0.0, 0.0, 0.0],
    "jitter_probability": 0.8, "grey": 0.2, "blur": 0.0, "blur_kernel": 9, "blur_sigma": [0.1, 2.0], "mean": [], "std": []}
}""")


def test_values_are_printed_as_they_are_set() -> None:
    for preset in presets().values():
        values = {k: v for k, v in values_of(preset.settings).items() if k != "networks.predictor_range" or v != "none"}
        again = with_changes(preset.settings, [f"{key}={value}" for key, value in values.items()])
        assert again.hash() == preset.settings.hash()
        assert again.probes == preset.settings.probes


def test_an_average_grows_as_byols() -> None:
    """1 − (1 − s)(cos(πk/K) + 1)/2 of step k of K (Grill et al. 2020, Section 3.3); without an end it stays."""
    grows = make_ema(replace(BYOL, ema=0.9, ema_end=1.0, epochs=5), per_epoch=4)
    assert [grows(k) for k in (0, 5, 10, 20)] == pytest.approx([0.9, 1 - 0.1 * (0.5**0.5 + 1) / 2, 0.95, 1.0])
    steady = make_ema(replace(BYOL, ema=0.9), per_epoch=4)
    assert [steady(k) for k in (0, 7, 19)] == [0.9] * 3


def problem(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False)).to(dtype)
    nn.init.zeros_(net[3].weight)  # of no length, and it lets no gradient through in the first step
    return net


def gradients(net: nn.Sequential, step: int) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).roll(step).view(8, 5)
    for parameter in net.parameters():
        parameter.grad = None
    (net(x) - 1).square().sum().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def by_hand(momentum: float, decay: float, trust: float, rate: float, steps: int, *, broken: bool = False) -> list:
    """LARS as its formula reads, tensor by tensor, in plain loops."""
    net = problem()
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    for step in range(steps):
        grads = gradients(net, step)
        with torch.no_grad():
            for v, p, g in zip(velocity, net.parameters(), grads, strict=True):
                local, pull = 1.0, g
                if p.ndim > 1 or broken:
                    size, slope = float(p.norm()), float(g.norm())
                    pull = g + decay * p
                    local = trust * size / (slope + decay * size) if size > 0 and slope > 0 else 1.0
                v.mul_(momentum).add_(rate * local * pull)
                p -= v
    return [p.detach() for p in net.parameters()]


def test_lars_follows_its_formula() -> None:
    net = problem()
    optimizer = LARS(net.parameters(), 0.3, momentum=0.9, weight_decay=0.01, trust=0.02)
    for step in range(5):
        gradients(net, step)
        optimizer.step()
    ours = [p.detach() for p in net.parameters()]
    formula = by_hand(0.9, 0.01, 0.02, 0.3, 5)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, formula, strict=True)) < 1e-13
    adapted_biases = by_hand(0.9, 0.01, 0.02, 0.3, 5, broken=True)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, adapted_biases, strict=True)) > 1e-3


@pytest.mark.parametrize("name", ["sgd", "adam", "lars"])
def test_optimisers_have_the_runs_numbers(name: str) -> None:
    settings = replace(Settings(), optimizer=name, lr=0.25, momentum=0.5, weight_decay=0.125, betas=(0.7, 0.8))
    optimizer = make_optimizer(settings, list(problem(torch.float32).parameters()))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.125)
    assert group["betas"] == (0.7, 0.8) if name == "adam" else group["momentum"] == 0.5
    assert make_rate(replace(settings, schedule="cosine", warmup=2), 10)(4) == 0.25 * 5 / 20
