"""Printed tables, how they are shown beside ours, and that the catalogue, the records and the command fit together."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Told

from sslbook import cli
from sslchapters import commands, data_files
from sslchapters.audit import byol
from sslchapters.byol import records as ablations
from sslchapters.byol.runs import NONE, Ablation, Norm, Recipe, Shape, Split, digits
from sslchapters.enumerated import Images
from sslchapters.records import recorded, results_folder
from sslchapters.tables import Entry, Filled, Printed, as_json, cells, fill, grid, listing, printed, record_of, summary

AXES = {"rows": ("up", "down"), "columns": ("μ̸", "b")}
SMALL = Recipe(shape=Shape(channels=(3, 5), width=7, output=4), epochs=1, batch=16)


def filled() -> Filled:
    target = Printed("T", "Table T", AXES, torch.tensor([[1.0, 2.0], [3.0, math.nan]]), torch.full((2, 2), 0.25))
    found = {"score": torch.tensor([[[1.0, 2.0], [2.0, 2.0]], [[3.0, 3.0], [4.0, 6.0]]]), "rank": torch.ones(2, 2, 2)}
    return fill(target, found, {"score": 1, "rank": 0}, seeds=(3, 5))


def test_every_printed_file_is_read_with_its_axes() -> None:
    for path in (data_files.folder() / "printed").glob("*.json"):
        table = printed(path.stem)
        assert table.mean.shape == tuple(map(len, table.axes.values())), path
        assert len(set(table.cells)) == table.mean.numel() == len(table.numbers()), path
    whole, root = printed("A-Tab6"), printed("A-Tab4")
    assert root.mean.equal(whole.mean[:1, ..., [0, 2]]), "a part keeps its numbers"
    assert printed("C-Tab1").only(patterns=10).mean.equal(printed("C-Tab1").mean[:, 3])
    with pytest.raises(ValueError, match=r"name must be one of A-Tab2, .*got 'A-Tab5'"):
        printed("A-Tab5")


def test_a_grid_and_a_list_have_the_papers_number_and_ours() -> None:
    lines = grid(filled()).splitlines()
    assert lines[0].split() == ["paper", "|", "ours", "μ̸", "b"]
    assert lines[1] == "up            1.0±0.2 | 1.5±0.7  2.0±0.2 | 2.0±0.0"
    assert lines[0].index("μ̸") == len(lines[1].partition("  2.0")[0]) - 1, "a stroke through a letter takes no room"
    assert cells(filled(), brief=True)[1][0] == ["up", "1.0 | 1.5", "2.0 | 2.0"]
    lines = listing(filled()).splitlines()
    assert lines[0].split() == ["paper", "score", "diff.", "rank"]
    assert lines[1].split() == ["up;", "μ̸", "1.0±0.2", "1.5±0.7", "+0.5", "1±0"]
    ragged = replace(filled(), entries=(Entry(("up", "μ̸"), (1.0, None), note="no run"), *filled().entries[1:]))
    assert listing(ragged).splitlines()[1].split()[2:] == ["1.0", "–", "–", "–", "0", "no", "run"]
    assert "0.17 on average (μ̸: 0.25; b: 0.00), 0.50 at most (up; μ̸)" in summary(filled())
    content = json.loads(json.dumps(as_json(filled()), allow_nan=False))
    assert content["cells"][3] | {"at": 0} == {
        "at": 0,
        "printed": {"mean": None, "std": 0.25},
        "found": {"score": [4.0, 6.0], "rank": [1.0, 1.0]},
        "comparable": True,
        "note": "",
    }


def test_every_record_has_its_maker_and_its_seeds_and_every_table_its_record() -> None:
    for kind, declared in (("STUDIES", commands.RECORDERS), ("TABLES", commands.TABLES)):
        modules = {importlib.import_module(module) for module in declared.values()}
        assert {name for module in modules for name in getattr(module, kind)} == set(declared)
    for name in commands.RECORDERS:
        assert recorded(name).provenance.seeds == importlib.import_module(commands.RECORDERS[name]).STUDIES[name].seeds
    for name in commands.TABLES:
        table = commands.declared(name)
        assert table.name == name
        assert table.record in {"", name, *commands.RECORDERS}
    assert {path.stem for path in results_folder().glob("*.json")} <= {*commands.RECORDERS, *commands.TABLES}


ONE_OF_EACH = ("A-Tab2", "B-Tab5-stl10-resnet18", "A-Tab6", "B-Tab10-digits-convnet", "B-Tab4-cifar10-convnet")


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "C-Tab1", "C-Fig5", "C-Fig11"])
def test_a_table_shows_its_record_or_says_what_is_missing(
    name: str, told: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSLBOOK_RUNS", str(tmp_path))
    out = told(["table", name])
    assert out.startswith(f"{name}: ")
    assert f"sslbook table {name} --run" in out
    content = json.loads(told(["table", name, "--json"]))
    held = any(cell["found"] and any(cell["found"].values()) for cell in content["cells"])
    assert ("Recorded: " in out) == held == (record_of(commands.declared(name).record) is not None)
    assert math.prod(map(len, content["axes"].values())) == len(content["cells"])


def test_seeds_choose_among_the_recorded_ones(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    content = json.loads(told(["table", "A-Tab4", "--seeds", "3", "--json"]))
    assert content["seeds"] == [3]
    assert all(len(cell["found"]["correlation"]) == 1 for cell in content["cells"])
    for bad, sentence in (
        (["--seeds", "77"], "got 77; --run runs others"),
        (["--epoch-size", "128"], "--epoch-size is for a run: add --run"),
        (["--run", "--device", "abacus"], "'abacus'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["table", "A-Tab4", *bad])
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["A-Tab4", "--epoch-size", "128", "--processes", "1", "--seeds", "1", "--statistic", "population"],
        ["C-Tab1", "--steps", "1", "--processes", "1", "--seeds", "1", "2"],
        ["C-Fig5", "--steps", "1", "--processes", "1"],
        ["B-Tab7-digits-convnet", "--seeds", "0", "1"],
    ],
)
def test_a_table_is_run(line: list[str], told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny() -> Split:
        both = digits().train
        halves = (Images(both.pixels[part], both.labels[part], "digits") for part in (slice(40), slice(40, 80)))
        return Split(*halves)

    monkeypatch.setitem(byol.IMAGES, "digits", (tiny, SMALL))
    out = told(["table", line[0], "--run", *line[1:]])
    assert " s on cpu." in out
    content = json.loads(told(["table", line[0], "--run", *line[1:], "--json"]))
    measure = content["measures"][0]
    assert all(len(cell["found"][measure]) == len(content["seeds"]) for cell in content["cells"])


def test_a_name_that_means_several_tables_is_asked_about(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    assert cli.main(["table", "B-Tab3"]) == 2
    assert "name one of B-Tab3-digits-convnet, " in capsys.readouterr().err
    assert told(["table", "--list", "b-tab3", "convnet"]).splitlines()[3:] == [
        "B-Tab3   BYOL: predictor, moving average (EMA), BatchNorm",
        "         B-Tab3-digits-convnet, B-Tab3-cifar10-convnet",
    ]
    assert told(["table", "--list", "simclr", "exact"]).splitlines()[3:] == [
        "A-Tab2   SimCLR: exact loss against InfoNCE"
    ]
    assert all(len(line) <= 132 for line in told(["table", "--list"]).splitlines())
    assert cli.main(["table", "--list", "resnet19"]) == 2


def test_the_ablations_are_what_their_names_say() -> None:
    table = {name: ablations.cells(name, SMALL) for name in ablations.NAMES}
    assert all(list(cells) == printed(name).cells for name, cells in table.items())
    third = table["B-Tab3"]
    assert third["–"] == Ablation(0, 0.0, NONE, NONE)
    assert third["EMA, BN"] == Ablation(0, ablations.EMA)
    assert third["P, BN"] == Ablation(2, 0.0, Norm(), Norm())
    assert third["P, EMA, BN"] == table["B-Tab4"]["μ, σ"] == table["B-Tab5"]["original"]
    assert table["B-Tab4"]["μ̸, σ"].head == Norm("detach", "normal")
    seventh = table["B-Tab7"]["no BN in predictor; [0, 0.05]"]
    # a third of Xavier's range for 128 x 128, so a third of ours for 4 x 4
    assert replace(seventh, span=None) == Ablation(1, 0.0, head=NONE)
    assert seventh.span == pytest.approx((0.0, 0.05 * (256 / 8) ** 0.5))
    tenth = table["B-Tab10"]["T = 20; 0.01"]
    assert (tenth.reset, tenth.span) == (20, pytest.approx((-0.01 * (640 / 11) ** 0.5, 0.01 * (640 / 11) ** 0.5)))
