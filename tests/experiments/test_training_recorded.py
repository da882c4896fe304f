"""The recorded run of the chapter, made small enough for a test."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import normalize
from training_cases import DIGITS

from sslbook.experiments.training import records as recorded
from sslbook.experiments.training.records import (
    EXACT,
    HALF,
    LONG,
    RATES,
    RUNS,
    SMALL,
    STEEPNESS,
    WHOLE,
    settings_of,
)
from sslbook.networks.siamese import build
from sslbook.records import store
from sslbook.records.store import plain
from sslbook.training.augment import plain as plain_images
from sslbook.training.evaluate import effective_rank
from sslbook.training.presets.sheets import presets
from sslbook.training.run.settings import Settings, stored_settings

SHORT = (*DIGITS, "networks.predictor_hidden=8", "epochs=2", "evaluate=1", "probes=2")


def test_what_is_compared_differs_in_what_its_name_says() -> None:
    small = {name: settings_of(name, 0) for name in RUNS}
    assert {s.subset for s in small.values()} == {5000}
    assert {(s.epochs, s.shuffle) for s in small.values()} == {(10, True)}
    assert {s.batch for name, s in small.items() if "byol" not in name} == {128}
    assert len({s.hash() for s in small.values()}) == len(RUNS)
    assert small["beta -0.5"].loss_kwargs == {"temperature": 0.5, "beta": -0.5}
    through = small["byol, no EMA, no stop-gradient"]
    assert (through.networks.target, through.loss_kwargs) == (None, {"stop_gradient": False})


def test_what_pushes_away_differs_in_the_loss_alone() -> None:
    names = EXACT | STEEPNESS
    info_nce, *others = (settings_of(name, 0) for name in names)
    for other in others:
        assert replace(other, objective="info_nce", loss_kwargs=info_nce.loss_kwargs) == info_nce
    twice = {"info_nce after info_nce", "info_nce after simple", "simple after info_nce"}
    assert len({s.hash() for s in (info_nce, *others)}) == len(names) - len(twice)


def test_rates_differ_in_nothing_else() -> None:
    assert len({settings_of(name, 0).hash() for name in RATES}) == len(RATES)
    for name in RATES:
        loss, _, rate = name.rpartition(" at ")
        assert settings_of(name, 0) == replace(settings_of(loss, 0), lr=float(rate))


def test_a_stopped_recording_goes_on_with_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that changes its loss begins with the other's last weights, and nothing is trained twice."""
    trained: list[str] = []
    go = recorded.prepared

    def counted(settings: Settings, folder: Path, **options: Any) -> Any:
        if not (folder / "result.json").is_file():
            trained.append(settings.objective)
        return go(settings, folder, **options)

    monkeypatch.setattr(recorded, "prepared", counted)
    make = partial(recorded.run_values, [3], changes=SHORT, processes=1, device="cpu", root=tmp_path)
    both = make(names=("info_nce", "simple after info_nce"))
    assert trained == ["info_nce", "simple"]
    again = make(names=("simple after info_nce", "simple"))
    assert trained == ["info_nce", "simple", "simple"]
    assert again["runs"]["simple after info_nce"] == both["runs"]["simple after info_nce"]
    first = {name: values["knn"][0] for name, values in (both["runs"] | again["runs"]).items()}
    assert first["simple after info_nce"] == both["runs"]["info_nce"]["knn"][-1]
    assert first["simple"] == first["info_nce"] != first["simple after info_nce"]


def test_parts_of_a_record_are_of_one_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSLBOOK_RUNS", str(tmp_path))
    monkeypatch.setenv("SSLBOOK_COMMIT", "0123456789ab")
    assert store.parts_folder() == tmp_path / "recorded" / "0123456789"
    monkeypatch.setenv("SSLBOOK_COMMIT", "0123456789ab+changes")
    with pytest.raises(ValueError, match="kept for a commit alone, and this tree is at 0123456789ab\\+changes"):
        store.parts_folder()
    part = tmp_path / "part.json"
    assert store.kept(part, lambda: {"a": 1}) == store.kept(part, lambda: {"a": 2}) == {"a": 1}
    part.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"part\.json: not a part of a record"):
        store.kept(part, lambda: {"a": 2})


def test_span_is_the_effective_rank_of_the_embeddings(tmp_path: Path) -> None:
    values = plain(recorded.run_values([3], changes=SHORT, names=("simple",), processes=1, device="cpu", root=tmp_path))
    settings, images = settings_of("simple", 3, SHORT), recorded.datasets.load_dataset("digits", "test")
    model = build(settings.networks, 3)
    shares = recorded.spectrum(recorded.unit_embeddings(model, images, recorded.PIPELINES["digits"], "cpu"))
    embeddings = normalize(
        model.projector(model.features(plain_images(images.pixels, recorded.PIPELINES["digits"]))), dim=1
    )
    found = recorded.span({"last": {"simple": {"axes": [shares]}}}, "simple")
    assert found[0] == pytest.approx(float(effective_rank(embeddings.detach())), rel=1e-5)
    assert -1 < values["last"]["simple"]["likeness"][0] < 1
    assert sum(values["last"]["simple"]["axes"][0]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("processes", [1, 2])
def test_curves_last_numbers_and_pictures(processes: int, tmp_path: Path) -> None:
    names = ("info_nce", "exact", "byol") if processes == 1 else ("info_nce",)
    values = plain(
        recorded.run_values([3, 4], changes=SHORT, names=names, processes=processes, device="cpu", root=tmp_path)
    )
    json.dumps(values, allow_nan=False)
    assert values["epochs"] == [0, 1, 2]
    assert set(values["runs"]) == set(names)
    for curves in values["runs"].values():
        assert curves["loss"][0] == [None, None]
        assert all(len(row) == 2 and None not in row for row in curves["knn"])
    assert set(values["pictures"]) == {"info_nce", "byol"} & {*names}
    assert set(values["last"]["info_nce"]) == {"knn", "linear", "linear_best", "rank", "axes", "likeness"}
    shown = values["pictures"]["info_nce"]
    assert len(shown["filters"]) == 2
    assert len(shown["queries"]) == len(shown["neighbours"]) == 10
    assert shown["query_labels"] == list(range(10))
    assert all(len(row) == recorded.NEIGHBOURS for row in shown["neighbours"])


def test_neighbours_are_named_by_their_places_in_the_whole_file(tmp_path: Path) -> None:
    values = recorded.run_values([0], changes=SHORT, names=("info_nce",), processes=1, device="cpu", root=tmp_path)
    whole = recorded.datasets.load_dataset("digits", "train")
    shown = values["pictures"]["info_nce"]
    labels = [[int(whole.labels[i]) for i in row] for row in shown["neighbours"]]
    assert labels == shown["neighbour_labels"]


def test_small_is_what_two_cores_do_in_minutes() -> None:
    assert {"subset=5000", "networks.width=16"} <= set(SMALL)
    assert settings_of("info_nce", 0).hash() == presets()["cifar10-small"].settings.hash()


WITH = {"rates": HALF, "exact": HALF, "beta": HALF, "steepness": HALF, "long": LONG, "whole": WHOLE, "cifar10": SMALL}


@pytest.mark.parametrize("name", WITH)
def test_a_record_was_made_with_the_settings_that_stand_in_the_code(name: str) -> None:
    made = store.recorded(f"training-{name}")
    for run, settings in made["settings"].items():
        assert stored_settings(json.dumps(settings)) == settings_of(run, made.provenance.seeds[0], WITH[name])
