"""The papers' ablation tables as cells to run, their records, the command that shows them, and what the page shows."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch

from sslbook import cli
from sslchapters import records as store
from sslchapters.byol import records
from sslchapters.byol.runs import (
    MEASURES,
    NONE,
    Ablation,
    Norm,
    Recipe,
    Shape,
    Split,
    digits,
)
from sslchapters.enumerated import Images
from sslchapters.tables import ABLATIONS as NAMES
from sslchapters.tables import printed

SMALL = Recipe(shape=Shape(channels=(3, 5), width=7, output=4), epochs=1, batch=16)


def tiny() -> Split:
    everything = digits().train
    return Split(
        *(Images(everything.pixels[part], everything.labels[part], "digits") for part in (slice(40), slice(40, 80)))
    )


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of an epoch on forty digits, also in the place of photographs."""
    for name, value in {"DIGITS": SMALL, "CIFAR10": SMALL, "DIGITS_MOMENTS": (0, 1), "BATCHLESS_AT": (0, 1)}.items():
        monkeypatch.setattr(records, name, value)
    monkeypatch.setattr(records, "digits", tiny)
    monkeypatch.setattr(records, "cifar10", lambda count: tiny())
    monkeypatch.setattr(records, "parts_folder", lambda: tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_cell_is_a_cell(name: str) -> None:
    target = printed(name)
    cells = records.cells(name, SMALL)
    assert list(cells) == target.cells
    assert len(set(cells.values())) == len(cells) == target.mean.numel()
    assert target.std is None or target.std.shape == target.mean.shape
    trials = {cell: torch.full((2,), float(i)) for i, cell in enumerate(cells)}
    shown = records.in_table(name, trials)
    assert shown.shape == (*target.mean.shape, 2)
    assert shown[..., 0].flatten().tolist() == list(range(len(cells)))


def test_cells_are_what_their_names_say() -> None:
    third = records.cells("B-Tab3", SMALL)
    assert third["–"] == Ablation(0, 0.0, NONE, NONE)
    assert third["EMA, BN"] == Ablation(0, records.EMA)
    assert third["P, BN"] == Ablation(2, 0.0, Norm(), Norm())
    assert third["P, EMA, BN"] == records.cells("B-Tab4", SMALL)["μ, σ"] == records.cells("B-Tab5", SMALL)["original"]
    assert third["P, EMA"] == records.cells("B-Tab4", SMALL)["–"]
    detached = records.cells("B-Tab4", SMALL)["μ̸, σ"]
    assert detached.projector == detached.head == Norm("detach", "normal")
    seventh = records.cells("B-Tab7", SMALL)["no BN in predictor; [0, 0.05]"]
    # a third of Xavier's range for 128 x 128, so a third of ours for 4 x 4
    assert replace(seventh, span=None) == Ablation(1, 0.0, head=NONE)
    assert seventh.span == pytest.approx((0.0, 0.05 * (256 / 8) ** 0.5))
    tenth = records.cells("B-Tab10", SMALL)["T = 20; 0.01"]
    assert tenth.reset == 20
    assert tenth.span == pytest.approx((-0.01 * (640 / 11) ** 0.5, 0.01 * (640 / 11) ** 0.5))
    assert records.protocol_of("B-Tab10", SMALL).rate == pytest.approx(SMALL.rate * 0.02 / 0.03)
    assert records.protocol_of("B-Tab3", SMALL) == SMALL


def test_what_two_parts_give_together() -> None:
    """Each cell the sum of what its parts give, and of what pairs of them give."""
    alone, pairs = {"P": 3.0, "EMA": 5.0, "BN": 7.0}, {("P", "BN"): 11.0, ("P", "EMA"): -2.0, ("EMA", "BN"): 0.5}
    found = {}
    for cell in printed("B-Tab3").cells:
        parts = set(cell.split(", "))
        value = sum(v for part, v in alone.items() if part in parts) + sum(v for p, v in pairs.items() if {*p} <= parts)
        found[cell] = torch.tensor([value, value + 1], dtype=torch.float64)
    for pair, value in pairs.items():
        assert records.together(found, *pair).tolist() == pytest.approx([value, value])
        assert records.together(found, *pair[::-1]).tolist() == pytest.approx([value, value])


@pytest.mark.usefixtures("few")
def test_the_record_holds_every_table_once_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RATES", (0.1,))
    values = records.digits_values([0, 1])
    json.dumps(values)
    assert set(values["tables"]) == set(NAMES)
    for name, cells in values["tables"].items():
        assert list(cells) == printed(name).cells
        assert all(len(cell["accuracy"]) == 2 == len(cell["accuracy"][0]) for cell in cells.values())
    shared = [values["tables"]["B-Tab3"]["P, EMA, BN"], values["tables"]["B-Tab4"]["μ, σ"]]
    assert shared[0] == shared[1]
    last = {name: {m: v[-1] for m, v in values["tables"]["B-Tab3"][name].items()} for name in ("P, BN", "P, EMA, BN")}
    for (name, measured), ema in zip(last.items(), ("0", "0.97"), strict=True):
        for m in MEASURES:
            assert values["rates"]["0.1"][ema][m] == pytest.approx(measured[m], abs=3e-5), "the rate of the tables"
        assert all(a != b for a, b in zip(values["symmetric"][name]["rank"], measured["rank"], strict=True)), name


@pytest.mark.usefixtures("few")
def test_cifar10_values_have_the_same_form(monkeypatch: pytest.MonkeyPatch) -> None:
    values = records.cifar10_values([0])
    assert values["images"] == 40
    assert values["epochs"] == [0, 1]
    assert list(values["tables"]["B-Tab3"]) == printed("B-Tab3").cells
    monkeypatch.setattr(records, "CIFAR10", replace(SMALL, epochs=4))
    four = records.cifar10_values([0])
    assert four["epochs"] == [0, 2, 4]
    assert {len(measured["rank"]) for measured in four["tables"]["B-Tab3"].values()} == {3}


def test_a_table_at_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(records.IMAGES, "digits", (tiny, SMALL))
    assert cli.main(["table", "B-Tab4-digits-convnet", "--run", "--seeds", "0", "1"]) == 0
    shown = capsys.readouterr().out
    assert "epochs 1; 2 seeds: 0 1." in shown
    assert shown.count("±") == 9 * 2, "of each cell the printed and ours"
    assert cli.main(["table", "B-Tab7-digits-convnet", "--run", "--seeds", "0", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["cells"]) == 6
    assert content["cells"][3]["printed"]["mean"] == 71.95


@pytest.mark.usefixtures("few")
def test_a_recorded_table_at_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path)
    values = records.cifar10_values([0, 1])
    store.save_record("byol-cifar10", values, seeds=[0, 1], seconds=1)
    assert cli.main(["table", "B-Tab3-cifar10-convnet"]) == 0
    shown = capsys.readouterr().out
    assert "Recorded: " in shown
    assert "P, EMA, BN  78.1±0.3" in shown
    assert cli.main(["table", "B-Tab4-cifar10-convnet"]) == 0
    assert "No record holds it: sslbook table B-Tab4-cifar10-convnet --run runs it." in capsys.readouterr().out
    assert cli.main(["table", "B-Tab3-cifar10-convnet", "--epochs", "1"]) == 0
    assert "epochs 1;" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        cli.main(["table", "B-Tab3-cifar10-convnet", "--epochs", "7"])
    assert "--epochs: the record holds 0, 1, got 7; --run runs others" in capsys.readouterr().err


def test_images_that_are_not_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLBOOK_DATA", raising=False)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["table", "B-Tab3-cifar10-convnet", "--run"])
    assert "CIFAR-10 is not here: set SSLBOOK_DATA" in capsys.readouterr().err


def test_records_were_made_with_the_sizes_that_stand_in_the_code() -> None:
    made = store.recorded("byol-digits")
    assert made["epochs"] == list(records.DIGITS_MOMENTS)
    names = {f"{rate:g}": [f"{ema:g}" for ema in records.AVERAGES] for rate in records.RATES}
    assert {rate: list(row) for rate, row in made["rates"].items()} == names
    assert {name: tuple(at) for name, at in store.recorded("byol-resets")["epochs"].items()} == records.RESET_MOMENTS
    assert store.recorded("byol-average")["epochs"] == list(records.DIGITS_AT)
    made = store.recorded("byol-average-cifar10")
    assert made["epochs"] == list(records.CIFAR10_AT)
    assert list(made["averages"]) == list(records.LONG_AVERAGES)
    assert (made["images"], made["batch"]) == (records.CIFAR10_IMAGES, records.CIFAR10.batch)


def test_the_settings_of_both_data_sets() -> None:
    photographs = ((32, 3, (16, 32, 64), 128, 64), (0.15, 0.25, 0.0, 0.3, 0.2, 0.2, True), 4, 128, 0.1, 0.9, 4e-4)
    assert astuple(records.CIFAR10) == photographs
    small = ((8, 1, (8, 32), 64, 32), (0.12, 0.1, 0.1, 0.1, 0.0, 0.0, False), 100, 64, 0.1, 0.9, 4e-4)
    assert astuple(records.DIGITS) == small


@pytest.mark.parametrize("name", ["B-Tab3", "B-Tab5"])
def test_a_listing_shows_what_was_found(name: str) -> None:
    found = {cell: dict.fromkeys(MEASURES, torch.tensor([0.5, 0.7])) for cell in printed(name).cells}
    found = {cell: {**each, "likeness": -each["likeness"]} for cell, each in found.items()}
    html = records.html_listing(records.filled(name, found), "a < b").data
    assert "a &lt; b" in html
    assert html.count('<th scope="row">') == len(found)
    for shown in ("60.0±14.1", "0.6", "−0.600"):
        assert html.count(f"<td>{shown}</td>") == len(found)


def test_a_grid_shows_printed_and_found() -> None:
    target = printed("B-Tab10")
    found = {cell: dict.fromkeys(MEASURES, torch.tensor([0.5])) for cell in target.cells}
    html = records.html_grid(records.filled("B-Tab10", found), "").data
    assert html.count('<th scope="row">') == target.mean.shape[0]
    assert f"<td>{target.mean[0, 0]:.1f} | 50.0</td>" in html


@pytest.mark.usefixtures("few")
def test_the_record_without_batch_statistics() -> None:
    values = records.batchless_values([0, 1])
    json.dumps(values, allow_nan=False)
    slow, fast = values["runs"]["0.03"], values["runs"]["0.1"]
    assert list(slow) == list(records.BATCHLESS)
    assert all(slow[cell]["rank"][0] == fast[cell]["rank"][0] for cell in slow), "before training the rate is nothing"
    assert all(slow[cell]["rank"][1] != fast[cell]["rank"][1] for cell in slow)
    ranks = [slow[cell]["rank"][0] for cell in ("BatchNorm", "GroupNorm", "no norm")]
    assert len(set(map(tuple, ranks))) == 3, "their encoders differ"
