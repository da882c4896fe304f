"""What the chapter on training runs live and says of the runs that wait, made small."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup

from sslbook import cli
from sslbook.experiments.training import live, shown
from sslbook.experiments.training import records as recorded
from sslbook.training import evaluate
from sslbook.training.presets import tables
from sslbook.training.presets.sheets import sheets

# -- a run to watch ---------------------------------------------------------------------------------------------------


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


# -- what a view gives away -------------------------------------------------------------------------------------------


def test_a_number_that_views_share_agrees_and_one_that_they_do_not_does_not() -> None:
    images = live.photographs(12, 64, seed=1)
    still = replace(live.BARE, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    assert live.agreement(live.drawn(images, still, 3), live.redness) == pytest.approx(1)
    assert live.agreement(live.drawn(images, still, 3), live.edges) == pytest.approx(1)
    noise = [torch.rand(200, 3, 4, 4, generator=torch.Generator().manual_seed(view)) for view in range(3)]
    assert abs(live.agreement(noise, live.redness)) < 0.2


def test_redness_and_edges_are_what_they_are_called() -> None:
    red, upright = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    red[0, 0], red[1] = 1.0, 0.5
    torch.testing.assert_close(live.redness(red), torch.tensor([1.0, 1 / 3]))
    upright[0, :, :, 4:], upright[1, :, 4:] = 1.0, 1.0
    slope = torch.linspace(0, 0.5, 6).expand(1, 3, 4, 6)
    assert float(live.edges(slope)) == pytest.approx(math.log((0.1 + live.FAINT) / live.FAINT))
    assert live.FAINT == 1e-3, "far below a slope that one sees, far above rounding"
    across, down = live.edges(upright)
    assert across > 0 > down
    assert across == pytest.approx(-down)


# -- what waits -------------------------------------------------------------------------------------------------------


def test_all_runs_wait_where_there_are_none(tmp_path: Path) -> None:
    found = tables.owed("A-Tab2", range(1, 6), tmp_path)
    assert (found.runs, found.finished) == (30, 0)
    assert found.hours == pytest.approx(5 * 3 * 500 * (3.0 + 3.8) / 3600)
    shown = tables.cells("A-Tab3", range(1, 6), tmp_path)[1]
    assert len(shown) == 4
    assert shown[0][-3:] == ["85.2 | –", "88.0 | –", "88.1 | –"]


@pytest.mark.parametrize("table", sheets())
def test_each_tables_command_can_be_tried_dry(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["table", table, "--run", "--download", "--dry-run", "--seeds", "1", "--folder", str(tmp_path)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.strip()
    assert not any(tmp_path.iterdir())


# -- the record as the page shows it ----------------------------------------------------------------------------------


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
