"""The room of printed tables: what is read, what is shown, and that every table takes the same options in the same sense."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sslbook import cli
from sslchapters import catalogue, data_files, tables
from sslchapters.tables import (
    Entry,
    Filled,
    Printed,
    as_json,
    cells,
    fill,
    grid,
    listing,
    printed,
    summary,
)


@pytest.mark.parametrize("path", sorted((data_files.folder() / "printed").glob("*.json")), ids=lambda path: path.stem)
def test_every_file_is_read_with_its_axes(path: Path) -> None:
    table = printed(path.stem)
    assert table.mean.shape == tuple(map(len, table.axes.values()))
    assert table.std is None or table.std.shape == table.mean.shape
    assert len(set(table.cells)) == table.mean.numel() == len(table.numbers())


def test_a_part_keeps_its_numbers() -> None:
    whole, root = printed("A-Tab6"), printed("A-Tab4")
    assert root.axes["latents"] == ("s",)
    assert root.columns == ("initial", "converged")
    assert root.mean.equal(whole.mean[:1, ..., [0, 2]])
    assert root.std is not None
    assert root.std.equal(whole.std[:1, ..., [0, 2]])  # type: ignore[index]
    ten = printed("C-Tab1").only(patterns=10)
    assert list(ten.axes) == ["betas", "columns"]
    assert ten.mean.equal(printed("C-Tab1").mean[:, 3])
    assert printed("B-Tab5").mean.shape == (1, 4)  # the row on STL-10
    with pytest.raises(ValueError, match=r"name must be one of A-Tab2, .*got 'A-Tab5'"):
        printed("A-Tab5")


def test_cells_are_named_by_what_differs() -> None:
    assert printed("B-Tab3").cells[2] == "BN"
    assert printed("B-Tab7").cells[3] == "no BN in predictor; [0, 0.01]"
    assert printed("A-Tab6").cells[-1] == "s0111; U[0.9, 1]; 10 units; converged"


AXES = {"rows": ("up", "down"), "columns": ("μ̸", "b")}


def small() -> Printed:
    return Printed("T", "Table T", AXES, torch.tensor([[1.0, 2.0], [3.0, math.nan]]), torch.full((2, 2), 0.25))


def filled() -> Filled:
    found = {"score": torch.tensor([[[1.0, 2.0], [2.0, 2.0]], [[3.0, 3.0], [4.0, 6.0]]]), "rank": torch.ones(2, 2, 2)}
    return fill(small(), found, {"score": 1, "rank": 0}, seeds=(3, 5))


def test_a_grid_has_the_papers_number_and_ours() -> None:
    lines = grid(filled()).splitlines()
    assert lines[0].split() == ["paper", "|", "ours", "μ̸", "b"]
    assert lines[1] == "up            1.0±0.2 | 1.5±0.7  2.0±0.2 | 2.0±0.0"
    assert lines[2].endswith("– | 5.0±1.4")
    assert lines[0].index("μ̸") == len(lines[1].partition("  2.0")[0]) - 1, "a stroke through a letter takes no room"
    assert cells(filled(), brief=True)[1][0] == ["up", "1.0 | 1.5", "2.0 | 2.0"]


def test_a_list_has_all_measures_and_the_difference() -> None:
    lines = listing(filled()).splitlines()
    assert lines[0].split() == ["paper", "score", "diff.", "rank"]
    assert lines[1].split() == ["up;", "μ̸", "1.0±0.2", "1.5±0.7", "+0.5", "1±0"]
    apart = replace(filled(), entries=tuple(replace(entry, comparable=False) for entry in filled().entries))
    assert "diff." not in listing(apart)
    ragged = replace(filled(), entries=(Entry(("up", "μ̸"), (1.0, None), note="no run"), *filled().entries[1:]))
    first, second = (line.split() for line in listing(ragged).splitlines()[1:3])
    assert first[2:] == ["1.0", "–", "–", "–", "0", "no", "run"]
    assert second[-1] == "2"


def test_the_summary_says_how_far_and_where() -> None:
    shown = summary(filled())
    assert "0.17 on average (μ̸: 0.25; b: 0.00), 0.50 at most (up; μ̸)" in shown
    assert summary(replace(filled(), entries=())) == ""


def test_json_is_strict_and_has_every_number() -> None:
    content = json.loads(json.dumps(as_json(filled()), allow_nan=False))
    assert content["cells"][1]["found"] == {"score": [2.0, 2.0], "rank": [1.0, 1.0]}
    assert content["cells"][3]["printed"]["mean"] is None
    assert content["seeds"] == [3, 5]


@pytest.fixture(autouse=True)
def _no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLBOOK_RUNS", str(tmp_path / "runs"))


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_a_table_shows_its_record_or_says_what_is_missing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: ")
    assert f"sslbook table {name} --run" in out
    assert catalogue.table(name).legend in out
    assert cli.main(["table", name, "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    held = any(cell["found"] and any(cell["found"].values()) for cell in content["cells"])
    assert ("Recorded: " in out) == held
    assert held == (tables.record_of(catalogue.table(name).record) is not None)
    assert math.prod(map(len, content["axes"].values())) == len(content["cells"])


def test_an_option_means_the_same_in_every_table() -> None:
    meant: dict[str, tuple[str, str, object]] = {}
    for name in catalogue.TABLES:
        parser = tables.parser_of(catalogue.table(name))
        for action in parser._actions:
            says = (str(action.help), type(action).__name__, action.type)
            assert meant.setdefault(action.option_strings[-1], says) == says, f"{name} {action.option_strings}"
    assert {"--run", "--seeds", "--device", "--json", "--processes", "--jobs", "--epochs"} <= set(meant)
    assert not {"--trials", "--workers", "--recorded", "--ranks"} & set(meant)


@pytest.mark.parametrize("name", catalogue.TABLES)
def test_a_table_refuses_with_status_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more, sentence in (
        (["--seeds", "-1"], "'-1' is not a whole number from 0 to 2**32 - 1"),
        (["--device", "cpu"], "--device is for a run: add --run"),
        (["--run", "--device", "abacus"], "'abacus' is not one of this machine's devices"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["table", name, *more])
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [name for name in catalogue.TABLES if catalogue.table(name).record in catalogue.RECORDERS]
)
def test_seeds_choose_among_the_recorded_ones(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", name, "--seeds", "1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["seeds"] == [1]
    measure = content["measures"][0]
    assert all(len(cell["found"][measure]) == 1 for cell in content["cells"])
    with pytest.raises(SystemExit) as stop:
        cli.main(["table", name, "--seeds", "77"])
    assert stop.value.code == 2
    assert "got 77; --run runs others" in capsys.readouterr().err
