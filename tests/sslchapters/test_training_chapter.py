"""What the chapter on training runs live, says of the runs that wait, and records, made small enough for a test."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup
from torch.nn.functional import normalize
from training_cases import DIGITS

from sslbook import cli
from sslbook.networks.siamese import build
from sslbook.training import evaluate
from sslbook.training.augment import plain as plain_images
from sslbook.training.evaluate import effective_rank
from sslbook.training.presets.papers import presets
from sslbook.training.run.settings import Settings, stored_settings
from sslchapters import records as store
from sslchapters.records import plain
from sslchapters.training import full_runs as tables
from sslchapters.training import live, shown
from sslchapters.training import records as recorded
from sslchapters.training.paper_tables import paper_tables
from sslchapters.training.records import (
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


def test_a_course_has_a_row_a_look_and_a_column_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {split: live.datasets.subset(live.datasets.load_dataset("digits", split), 256) for split in ("train", "test")}
    monkeypatch.setattr(live.datasets, "load_dataset", lambda name, split: few[split])
    found = live.course("SimCLR", (0, 1), 2, 1)
    assert found.epochs == (0, 1, 2)
    assert found.knn.shape == found.likeness.shape == (3, 2)
    assert bool(found.loss[0].isnan().all())
    assert bool(found.loss[1:].isfinite().all())
    assert found.embeddings.shape[:2] == found.features.shape[:2] == found.known.shape[:2] == (3, 256)
    torch.testing.assert_close(found.embeddings.norm(dim=2), torch.ones(3, 256))
    assert not torch.equal(found.features[1], found.features[2])
    alone = live.course("SimCLR", (1,), 2, 2)
    assert torch.equal(alone.knn[-1, 0], found.knn[-1, 1]), "a stop to look changes nothing, nor does another seed"


def test_the_spoiled_runs_differ_from_byol_in_what_their_names_say() -> None:
    byol, bare, through = (live.settings_of(name, 0, 1) for name in list(live.RUNS)[1:])
    assert replace(bare, networks=byol.networks) == byol
    assert (bare.networks.predictor, bare.networks.target) == (0, "ema")
    assert (through.networks.target, through.loss_kwargs) == (None, {"stop_gradient": False})
    assert through.networks.predictor == byol.networks.predictor


def test_nearest_come_first() -> None:
    known = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]])
    assert evaluate.nearest(known, torch.tensor([[3.0, 1.0]]), 3).tolist() == [[0, 2, 1]]


def test_a_number_that_views_share_agrees_and_one_that_they_do_not_does_not() -> None:
    images = live.photographs(12, 64, seed=1)
    still = replace(live.BARE, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    assert live.agreement(live.drawn(images, still, 3), live.redness) == pytest.approx(1)
    assert live.agreement(live.drawn(images, still, 3), live.edges) == pytest.approx(1)
    noise = [torch.rand(200, 3, 4, 4, generator=torch.Generator().manual_seed(view)) for view in range(3)]
    assert abs(live.agreement(noise, live.redness)) < 0.2


def test_redness_and_edges_are_what_they_are_called() -> None:
    """In float32, of means of 64 slopes."""
    red, upright = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    red[0, 0], red[1] = 1.0, 0.5
    torch.testing.assert_close(live.redness(red), torch.tensor([1.0, 1 / 3]))
    upright[0, :, :, 4:], upright[1, :, 4:] = 1.0, 1.0
    slope = torch.linspace(0, 0.5, 6).expand(1, 3, 4, 6)
    assert float(live.edges(slope)) == pytest.approx(math.log((0.1 + live.FAINT) / live.FAINT), rel=1e-5)
    assert live.FAINT == 1e-3, "far below a slope that one sees, far above rounding"
    across, down = live.edges(upright).tolist()
    assert across > 0 > down
    assert across == pytest.approx(-down, rel=1e-5)


def test_all_runs_wait_where_there_are_none(tmp_path: Path) -> None:
    found = tables.owed("A-Tab2", range(1, 6), tmp_path)
    assert (found.runs, found.finished) == (30, 0)
    assert found.hours == pytest.approx(5 * 3 * 500 * (3.0 + 3.8) / 3600)
    shown = tables.cells("A-Tab3", range(1, 6), tmp_path)[1]
    assert len(shown) == 4
    assert shown[0][-3:] == ["85.2 | –", "88.0 | –", "88.1 | –"]


@pytest.mark.parametrize("table", paper_tables())
def test_each_tables_command_can_be_tried_dry(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["table", table, "--run", "--download", "--dry-run", "--seeds", "1", "--folder", str(tmp_path)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.strip()
    assert not any(tmp_path.iterdir())


def test_a_record_s_table() -> None:
    numbers = {"knn": [0.38, 0.4], "linear": [0.41, 0.41], "linear_best": [0.42, 0.41], "rank": [10.0, 12.0]}
    values = {"last": {"info_nce": numbers}, "runs": {"info_nce": {"knn": [[0.2, 0.2], [0.38, None]]}}}

    def cells(row: str) -> list[str]:
        page = BeautifulSoup(str(shown.accuracies(values, "after ten epochs").data), "html.parser")
        return [cell.get_text() for cell in page.select(f"{row} th, {row} td")]

    assert cells("thead") == ["trained with", "k-NN, %", "linear, %", "rank"]
    assert cells("tbody") == ["InfoNCE", "39.0 ±\N{NO-BREAK SPACE}1.4", "41.0 ±\N{NO-BREAK SPACE}0.0", "11.0"]
    numbers |= {"axes": [[0.5, 0.5], [0.5, 0.5]]}
    assert (cells("thead")[-1], cells("tbody")[-1]) == ("span", "2.0")
    np.testing.assert_array_equal(recorded.curve(values, "info_nce", "knn"), [[0.2, 0.2], [0.38, np.nan]])
    assert len({course.label for course in recorded.COURSES.values()}) == len(recorded.COURSES)


def test_tables_have_header_cells_and_hide_what_is_not_made(tmp_path: Path) -> None:
    page = str(shown.printed("A-Tab3", range(1, 6), tmp_path).data)
    assert page.count('<th scope="col">') == 1 + 3
    assert page.count('<th scope="row">') == 4
    assert "<td>85.2</td>" in page
    upright = str(shown.printed("B-Tab3-stl10-resnet18", range(1, 6), tmp_path).data)
    assert upright.count('<th scope="row">') == 8
    assert "<td>78.1</td>" in upright
    assert "30 of 30" in str(shown.debts(["A-Tab2"], range(1, 6), tmp_path).data)
    last = {"byol": {"knn": [0.38, 0.4], "linear": [0.41, 0.41], "rank": [10.0, 12.0]}}
    cells = "<td>39.0 ±\N{NO-BREAK SPACE}1.4</td><td>41.0 ±\N{NO-BREAK SPACE}0.0</td><td>11.0</td>"
    assert cells in "".join(map(str.strip, str(shown.accuracies({"last": last}, "").data).splitlines()))


def test_ingredients_are_jittered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(live, "drawn", lambda images, pipeline, **_: asked.append(pipeline) or [images, images])
    found = live.alone(torch.rand(3, 3, 4, 4))
    assert list(found) == ["brightness", "contrast", "saturation", "hue", "grey"]
    assert np.array([pipeline.jitter for pipeline in asked]).tolist() == [
        *np.diag(live.FULL).tolist(),
        [0.0] * 4,
    ]
    assert [pipeline.grey for pipeline in asked] == [0, 0, 0, 0, 0.2]


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
    go = recorded.train

    def counted(settings: Settings, folder: Path, **options: Any) -> Any:
        if not (folder / "result.json").is_file():
            trained.append(settings.objective)
        return go(settings, folder, **options)

    monkeypatch.setattr(recorded, "train", counted)
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
        model.projector(model.encoder(plain_images(images.pixels, recorded.PIPELINES["digits"]))), dim=1
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
