"""Table 1 and the figures: cells, printed numbers, the command, the record."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch

from sslbook import cli
from sslbook.experiments.modulation import records, runs
from sslbook.experiments.modulation.runs import SCORES, TableCell, TokenRun, _bytes, train_cells
from sslbook.records import store
from sslbook.records.page import as_html
from sslbook.records.printed import printed


def test_cells_of_every_table() -> None:
    counts = {name: len(records.cells(name)) for name in records.NAMES}
    assert counts == {"C-Tab1": 64, "C-Fig4": 64, "C-Fig9": 80, "C-Fig10": 80, "C-Fig11": 96, "C-Fig5": 2}
    for name in records.NAMES:
        for (beta, p, label), cell in records.cells(name).items():
            assert (cell.beta, cell.patterns) == (beta, p)
            assert cell == replace(records.curves(name)[label], beta=beta, patterns=p)
    assert records.cells("C-Tab1")[2, 3, "μ̸, σ"] == TableCell(3, 2, mean="detach", std="normal", zeta=10.0)
    assert records.cells("C-Fig11")[5, 1, "no BN, ζ = 5"] == TableCell(1, 5, mean="omit", std="omit", zeta=5.0)
    assert set(records.cells("C-Fig4").values()) <= {
        *records.cells("C-Fig9").values(),
        *records.cells("C-Fig10").values(),
    }
    with pytest.raises(ValueError, match="name must be one of C-Tab1"):
        records.cells("C-Fig8")


def test_printed_numbers_as_both_transcriptions_have_them() -> None:
    target = printed("C-Tab1")
    assert target.mean.shape == target.std.shape == (4, 4, 4)
    at = dict(zip(records.PARTS, target.mean[1, 1]))
    assert {label: float(value) for label, value in at.items()} == {
        "μ̸, σ̸": 0.78,
        "μ̸, σ": 0.0,
        "μ, σ̸": 0.8,
        "μ, σ": 0.41,
    }
    assert target.mean.sum() == pytest.approx(40.46)
    assert target.std.sum() == pytest.approx(4.01)


def test_distance_from_the_paper() -> None:
    target = printed("C-Tab1")
    draw = torch.Generator().manual_seed(0)
    own = target.mean[..., None] + 0.05 * torch.randn(4, 4, 4, 40, generator=draw, dtype=torch.float64)
    gap, errors = records.distance(own, target)
    assert gap < 0.02
    assert errors < 2
    assert records.distance(own + 0.3, target)[0] == pytest.approx(0.3, abs=0.02)
    assert records.distance(own + 0.3, target)[1] > 5


def test_what_chance_makes_of_a_perfect_reproduction() -> None:
    target = printed("C-Tab1")
    draw = torch.Generator().manual_seed(1)
    own = target.mean[..., None] + 0.07 * torch.randn(4, 4, 4, 3, generator=draw, dtype=torch.float64)
    found = records.chance(own, target, 400, 0)
    assert found.gaps.shape == found.errors.shape == found.leans.shape == (400,)
    assert 1.25 < found.errors.mean() < 1.5, "errors that are estimated from three values each"
    assert found.gaps.mean() == pytest.approx(records.standard_error(own, target) * (2 / torch.pi) ** 0.5, rel=0.15)
    many = records.chance(own.repeat(1, 1, 1, 100), target, 50, 0, seeds=300).errors
    assert many.mean() == pytest.approx(1, abs=0.2), "known errors, but for the rounding"
    ten = target.only(patterns=10)
    assert ten.mean.equal(target.mean[:, 3])
    assert records.distance(own[:, 3], ten)[0] < 0.1
    assert records.chance(own[:, 3], ten, 30, 0).errors.shape == (30,)
    assert torch.tensor(records.distance(own[..., :1], target)[1]).isnan()


def test_cells_of_a_seed_are_drawn_together() -> None:
    target = printed("C-Tab1")
    draw = torch.Generator().manual_seed(2)
    alone = 0.1 * torch.randn(4, 4, 4, 12, generator=draw, dtype=torch.float64)
    tied = 0.03 * alone + 0.1 * torch.randn(4, 4, 1, 12, generator=draw, dtype=torch.float64)
    for trials, size in ((alone, 0.0), (tied, 1.0)):
        matrix = records.shared(target.mean[..., None] + trials)[2]
        assert matrix[~torch.eye(4, dtype=torch.bool)].mean() == pytest.approx(size, abs=0.1)
    apart, joint = (records.chance(target.mean[..., None] + trials, target, 400, 0) for trials in (alone, tied))
    assert joint.errors.std() > 1.5 * apart.errors.std(), "a table that shares its seeds is off all over or nowhere"
    low = target.mean[..., None] + alone - torch.tensor([0.0, 0.0, 0.0, 0.5])[:, None]
    assert records.lean(low, target).tolist() == pytest.approx([0, 0, 0, -0.5], abs=0.05)


def test_a_table_for_a_page_has_headers() -> None:
    made = as_html("a < b", ("β", "ours"), [["1", "0.5"], ["2", "0.7"]])
    assert "<caption>a &lt; b</caption>" in made
    assert made.count('<th scope="col">') == made.count('<th scope="row">') == made.count("<td>") == 2


def values() -> dict:
    return records.table_values([1, 2], steps=2, processes=1, names=("C-Tab1", "C-Fig4", "C-Fig5"))


def test_recorded_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(records, "BETAS", (1, 2))
    monkeypatch.setattr(records, "PATTERNS", (1, 3))
    kept = json.loads(json.dumps(values()))
    assert list(kept["tables"]["C-Tab1"]) == list(records.VARIANTS)
    assert list(kept["tables"]["C-Fig4"]) == ["released"]
    found = records.recorded_trials(kept, "C-Fig4", "released", "printed +")
    assert found.shape == (2, 2, 4, 2)
    cell = records.cells("C-Fig4")[2, 3, "relu, quadratic loss"]
    alone = train_cells(replace(TokenRun(), steps=2), [cell], [1, 2])[cell]["printed +"]
    assert (found[1, 1, 3] - alone).abs().max() < 1e-4
    assert torch.tensor(kept["weights"]["relu"]).shape == (10, 8, 15)
    assert torch.tensor(kept["allowed"]).sum() == 30
    with pytest.raises(ValueError, match="variant must be one of released for C-Fig4, got 'printed'"):
        records.recorded_trials(kept, "C-Fig4", "printed", "printed +")
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path)
    store.save_record("modulation-tables", kept, seeds=[1, 2], seconds=1)
    assert cli.main(["table", "C-Fig4"]) == 0
    shown = capsys.readouterr().out
    assert "experiment released; scores released; 2 seeds: 1 2." in shown
    assert "Recorded: " in shown
    assert cli.main(["table", "C-Fig5"]) == 0
    assert "linear, R9" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["table", "C-Fig4", "--variant", "printed"])
    assert "variant must be one of" in capsys.readouterr().err


def test_more_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BETAS", (1, 2))
    monkeypatch.setattr(records, "PATTERNS", (1, 3))
    made = json.loads(json.dumps(records.seed_values([1, 2], steps=2, processes=1, parts=tmp_path)))
    assert {name: torch.tensor(kept["released +"]).shape for name, kept in made["tables"].items()} == {
        "C-Tab1": (2, 2, 4, 2),
        "C-Fig11": (2, 2, 6, 2),
        "C-Fig9": (1, 1, 5, 2),
        "C-Fig10": (1, 1, 5, 2),
    }
    assert made["betas"]["C-Fig9"] == [2]
    assert made["patterns"]["C-Tab1"] == [1, 3]
    three = records.table_values([1, 2], steps=2, processes=1, names=("C-Tab1", "C-Fig9", "C-Fig11"))
    for name, wide in (("C-Tab1", False), ("C-Fig11", False), ("C-Fig9", True)):
        same = records.recorded_trials(json.loads(json.dumps(three)), name, "released", "released +")
        same = same[1:, 1:] if wide else same
        more = torch.tensor(made["tables"][name]["released +"], dtype=torch.float64)
        assert (more - same).abs().max() < 2e-4, "as the record with three seeds"
    first = json.loads(json.dumps(three))
    for name, shape in (("C-Fig9", (1, 1, 5, 4)), ("C-Fig11", (2, 2, 6, 4))):
        both = records.all_trials(first, made, name, "released +")
        assert both.shape == shape
        assert (both[..., :2] - both[..., 2:]).abs().max() < 2e-4, "the same seeds twice, in the same places"
    monkeypatch.setattr(runs, "train_tokens", None)
    assert records.seed_values([1, 2], steps=2, parts=tmp_path)["tables"] == made["tables"], "kept, not made again"


def test_many_seeds_of_what_few_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BETAS", (1, 2))
    made = json.loads(json.dumps(records.contested_values([1, 2], steps=2, processes=1)))
    assert {name: torch.tensor(kept).shape for name, kept in made["tables"].items()} == {
        "C-Fig10": (1, 3, 2),
        "C-Fig11": (1, 2, 2),
    }
    cell = records.cells("C-Fig10")[2, 3, "relu"]
    alone = train_cells(replace(TokenRun(), steps=2), [cell], [1, 2])[cell]["released +"]
    assert (torch.tensor(made["tables"]["C-Fig10"])[0, 1] - alone).abs().max() < 1e-4


def test_the_command_runs_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["table", "C-Tab1", "--run", "--steps", "1", "--seeds", "1", "2", "--processes", "1"]
    assert cli.main(line) == 0
    shown = capsys.readouterr().out
    assert "minibatches 1; " in shown
    assert "on the CPU in 1 process." in shown
    assert "0.31±0.24 | " in shown
    assert "Difference from the paper's means:" in shown
    assert cli.main([*line, "--json", "--variant", "printed"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["facts"]["experiment"] == "printed"
    assert len(content["cells"]) == 64
    assert set(content["cells"][0]["found"]) == set(SCORES)
    assert len(content["cells"][0]["found"]["printed +"]) == 2
    assert content["cells"][0]["printed"] == {"mean": 0.31, "std": 0.24}


def test_the_command_shows_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "C-Fig5", "--run", "--steps", "1", "--processes", "1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["axes"]["activations"] == ["relu", "linear"]
    assert len(content["cells"][0]["found"]["filters"]) == 15
    for bad in (["--seeds", "1", "2", "--run"], ["--processes", "0", "--run"], ["--variant", "other"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["table", "C-Fig5", *bad])
        assert stopped.value.code == 2
    capsys.readouterr()


def test_the_settings_are_those_of_the_released_code() -> None:
    released = (10, 20, 40, 5, 50, 128, 5000, 0.02, 0.9, 5e-3, 0.1, "view", "released")
    assert astuple(TokenRun()) == released


def test_memory_of_a_replica() -> None:
    """Of 10 fields of 20 tokens, 10 filters, 128 images and 50 outputs, in float32."""
    weights, tables_, pairs, outputs = 3 * 10 * 10 * (20 + 50), 8 * 10 * 20 * 10, 3 * 128**2, 6 * 128 * 50
    assert _bytes(TokenRun(), 10) == 4 * (weights + tables_ + pairs + outputs + 2 * 10 * 20 * 50)


def test_weights_are_in_units_of_the_fields_largest() -> None:
    fields = [[[1.0, 2.0], [0.5, -4.0]], [[-3.0, -1.0], [0.0, 0.0]]]
    found = records._weights({"relu": fields}, [[True, False], [False, True]])
    assert found.axes == {"activations": ("relu",), "fields": ("R0", "R1"), "tokens": ("0", "1")}
    shown = {entry.at[1:]: (entry.found["largest"], entry.found["filters"], entry.note) for entry in found.entries}
    assert shown == {
        ("R0", "0"): ([1.0], [1.0, 2.0], "*"),
        ("R0", "1"): ([0.25], [0.5, -4.0], ""),
        ("R1", "0"): ([-1.0], [-3.0, -1.0], ""),
        ("R1", "1"): ([0.0], [0.0, 0.0], "*"),
    }
    (dead,) = records._weights({"relu": [[[0.0]]]}, [[False]]).entries
    assert dead.found["largest"] == [0.0], "and no division by zero"
