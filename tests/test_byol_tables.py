"""The papers' ablation tables as cells to run, their recorded runs, and the command that shows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sslbook import cli, records
from sslbook.chapters.byol import ablation, recorded, recorded_long, tables
from sslbook.chapters.byol.ablation import Cell, Protocol, Split
from sslbook.chapters.byol.siamese import NONE, Norm, Shape
from sslbook.chapters.byol.views import Augmentation
from sslbook.images import Images
from sslbook.tables.ablation import NAMES
from sslbook.tables.filled import grid, listing
from sslbook.tables.printed import printed

SMALL = Protocol(shape=Shape(channels=(3, 5), width=7, output=4), epochs=1, batch=16)


def tiny() -> Split:
    everything = ablation.digits().train
    return Split(
        *(Images(everything.pixels[part], everything.labels[part], "digits") for part in (slice(40), slice(40, 80)))
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_cell_is_a_cell(name: str) -> None:
    target = printed(name)
    cells = tables.cells(name, SMALL)
    assert list(cells) == target.cells
    assert len(set(cells.values())) == len(cells) == target.mean.numel()
    assert target.std is None or target.std.shape == target.mean.shape
    trials = {cell: torch.full((2,), float(i)) for i, cell in enumerate(cells)}
    shown = tables.in_table(name, trials)
    assert shown.shape == (*target.mean.shape, 2)
    assert shown[..., 0].flatten().tolist() == list(range(len(cells)))


def test_cells_are_what_their_names_say() -> None:
    third = tables.cells("B-Tab3", SMALL)
    assert third["–"] == Cell(0, 0.0, NONE, NONE)
    assert third["EMA, BN"] == Cell(0, tables.EMA)
    assert third["P, BN"] == Cell(2, 0.0, Norm(), Norm())
    assert third["P, EMA, BN"] == tables.cells("B-Tab4", SMALL)["μ, σ"] == tables.cells("B-Tab5", SMALL)["original"]
    assert third["P, EMA"] == tables.cells("B-Tab4", SMALL)["–"]
    detached = tables.cells("B-Tab4", SMALL)["μ̸, σ"]
    assert detached.projector == detached.head == Norm("detach", "normal")
    seventh = tables.cells("B-Tab7", SMALL)["no BN in predictor; [0, 0.05]"]
    # a third of Xavier's range for 128 x 128, so a third of ours for 4 x 4
    assert replace(seventh, span=None) == Cell(1, 0.0, head=NONE)
    assert seventh.span == pytest.approx((0.0, 0.05 * (256 / 8) ** 0.5))
    tenth = tables.cells("B-Tab10", SMALL)["T = 20; 0.01"]
    assert tenth.reset == 20
    assert tenth.span == pytest.approx((-0.01 * (640 / 11) ** 0.5, 0.01 * (640 / 11) ** 0.5))
    assert tables.protocol_of("B-Tab10", SMALL).rate == pytest.approx(SMALL.rate * 0.02 / 0.03)
    assert tables.protocol_of("B-Tab3", SMALL) == SMALL


def test_printed_numbers_and_their_range_of_weights() -> None:
    third = printed("B-Tab3")
    assert third.mean[0, -1] == 78.1
    assert third.mean[0].argmax() == 7
    assert printed("B-Tab5").mean.shape == (1, 4)  # the row on STL-10
    assert tables.xavier(128, 128) == pytest.approx(0.153, abs=5e-4)  # the caption of Table 8 says 0.15
    assert tables.xavier(128, 512) == pytest.approx(0.097, abs=5e-4)  # and that of Table 10, 0.097


def test_what_two_parts_give_together() -> None:
    """Each cell the sum of what its parts give, and of what pairs of them give."""
    alone, pairs = {"P": 3.0, "EMA": 5.0, "BN": 7.0}, {("P", "BN"): 11.0, ("P", "EMA"): -2.0, ("EMA", "BN"): 0.5}
    found = {}
    for cell in printed("B-Tab3").cells:
        parts = set(cell.split(", "))
        value = sum(v for part, v in alone.items() if part in parts) + sum(v for p, v in pairs.items() if {*p} <= parts)
        found[cell] = torch.tensor([value, value + 1], dtype=torch.float64)
    for pair, value in pairs.items():
        assert tables.together(found, *pair).tolist() == pytest.approx([value, value])
        assert tables.together(found, *pair[::-1]).tolist() == pytest.approx([value, value])


def test_the_record_holds_every_table_once_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    original = recorded.run

    def counting(protocol, cells, *rest, **more):
        ran.append(len(cells))
        return original(protocol, cells, *rest, **more)

    monkeypatch.setattr(recorded, "run", counting)
    monkeypatch.setattr(recorded, "RATES", (0.1,))
    values = recorded.digits_values([0, 1], protocol=SMALL, data=tiny(), at=(0, 1))
    json.dumps(values)
    assert set(values["tables"]) == set(NAMES)
    for name, cells in values["tables"].items():
        assert list(cells) == printed(name).cells
        assert all(len(cell["accuracy"]) == 2 == len(cell["accuracy"][0]) for cell in cells.values())
    # 8 + 9 + 4 + 6 + 6 + 6 cells, of which "P, EMA" and "P, EMA, BN" are in more than one table
    assert ran[0] == 8 + 7 + 3 + 6 + 6 + 6
    shared = [values["tables"]["B-Tab3"]["P, EMA, BN"], values["tables"]["B-Tab4"]["μ, σ"]]
    assert shared[0] == shared[1]
    last = {name: {m: v[-1] for m, v in values["tables"]["B-Tab3"][name].items()} for name in ("P, BN", "P, EMA, BN")}
    for (name, measured), ema in zip(last.items(), ("0", "0.97"), strict=True):
        for m in ablation.MEASURES:
            assert values["rates"]["0.1"][ema][m] == pytest.approx(measured[m], abs=3e-5), "the rate of the tables"
        assert all(a != b for a, b in zip(values["symmetric"][name]["rank"], measured["rank"], strict=True)), name


def test_cifar10_values_have_the_same_form() -> None:
    values = recorded.cifar10_values([0], protocol=SMALL, data=tiny(), device="cpu")
    assert values["images"] == 40
    assert values["epochs"] == [0, 1]
    assert list(values["tables"]["B-Tab3"]) == printed("B-Tab3").cells
    four = recorded.cifar10_values([0], protocol=replace(SMALL, epochs=4), data=tiny(), device="cpu")
    assert four["epochs"] == [0, 2, 4]
    assert {len(measured["rank"]) for measured in four["tables"]["B-Tab3"].values()} == {3}


def test_a_table_at_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.IMAGES, "digits", (tiny, SMALL))
    assert cli.main(["table", "B-Tab4-digits-convnet", "--run", "--seeds", "0", "1"]) == 0
    shown = capsys.readouterr().out
    assert "epochs 1; 2 seeds: 0 1." in shown
    assert shown.count("±") == 9 * 2
    assert cli.main(["table", "B-Tab7-digits-convnet", "--run", "--seeds", "0", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["cells"]) == 6
    assert content["cells"][3]["printed"]["mean"] == 71.95


def test_a_grid_has_the_tables_shape() -> None:
    found = {
        cell: {"accuracy": torch.tensor([0.5, 0.7]) + i / 100, "rank": torch.ones(2), "likeness": torch.zeros(2)}
        for i, cell in enumerate(printed("B-Tab7").cells)
    }
    head, first, second = grid(tables.filled("B-Tab7", found), brief=True).splitlines()
    assert head.split("[")[1:] == ["0, 0.01]     ", "0, 0.02]     ", "0, 0.05]"]
    assert first == "BN in predictor      62.8 | 60.0   62.9 | 61.0   62.3 | 62.0"
    assert second == "no BN in predictor   72.0 | 63.0   72.1 | 64.0   71.9 | 65.0"
    assert "diff." not in listing(tables.filled("B-Tab7", found)), "other images, another network"


def test_a_recorded_table_at_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "results_folder", lambda: tmp_path)
    values = recorded.cifar10_values([0, 1], protocol=replace(SMALL, epochs=1), data=tiny(), device="cpu")
    records.save_record("byol-cifar10", values, seeds=[0, 1], seconds=1)
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
    made = records.recorded("byol-digits")
    assert made["epochs"] == list(recorded.MOMENTS)
    names = {f"{rate:g}": [f"{ema:g}" for ema in recorded.AVERAGES] for rate in recorded.RATES}
    assert {rate: list(row) for rate, row in made["rates"].items()} == names
    assert {name: tuple(at) for name, at in records.recorded("byol-resets")["epochs"].items()} == recorded_long.MOMENTS
    assert records.recorded("byol-average")["epochs"] == list(recorded_long.DIGITS_AT)
    made = records.recorded("byol-average-cifar10")
    assert made["epochs"] == list(recorded_long.CIFAR10_AT)
    assert list(made["averages"]) == [f"{ema:g}" for ema in recorded_long.AVERAGES]
    assert (made["images"], made["batch"]) == (tables.CIFAR10_IMAGES, tables.CIFAR10.batch)


def test_the_settings_of_both_data_sets() -> None:
    assert (
        Protocol(
            Shape(32, 3, (16, 32, 64), 128, 64),
            Augmentation(0.15, 0.25, 0.0, 0.3, 0.2, 0.2, True),
            4,
            128,
            0.1,
            0.9,
            4e-4,
        )
        == tables.CIFAR10
    )
    assert (
        Protocol(
            Shape(8, 1, (8, 32), 64, 32), Augmentation(0.12, 0.1, 0.1, 0.1, 0.0, 0.0, False), 100, 64, 0.1, 0.9, 4e-4
        )
        == tables.DIGITS
    )
