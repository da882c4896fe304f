"""The printed tables, their reruns at tiny size, and what `sslbook table` and the recorder make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sslbook import cli, records
from sslbook.chapters.hltm import recorded, tables
from sslbook.chapters.hltm.kinds import random_symmetric
from sslbook.chapters.hltm.training import Protocol
from sslbook.tables.printed import Printed, printed
from sslbook.trees.network import initial_network

TINY = Protocol(epoch_size=256)


@pytest.fixture(autouse=True)
def _few_untrained_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "UNTRAINED", 2)


def test_the_printed_tables_are_the_papers() -> None:
    table = printed("A-Tab6")
    assert table.mean.shape == table.std.shape == (5, 3, 2, 3)
    assert [labels[0] for labels in table.axes.values()] == ["s", 0.7, 2, "initial"]
    assert (float(table.mean[0, 0, 0, 0]), float(table.std[0, 0, 0, 0])) == (0.35, 0.20)
    assert (float(table.mean[4, 2, 1, 2]), float(table.std[4, 2, 1, 2])) == (0.98, 0.01)
    assert tables.epochs_of(table) == (0, 1, 49)
    assert tables.epochs_of(printed("A-Tab4")) == (0, 49)
    submission = printed("B-Tab2")
    assert submission.mean.shape == (1, 3, 2, 3)
    assert submission.std is None
    assert submission.axes["widths"] == (2, 5)
    assert tables.epochs_of(submission) == (0, 1, 20)
    for name in tables.TABLES:
        mean = printed(name).mean
        assert (mean.diff(dim=1) >= -0.03).all(), "stronger polarities, higher correlations"
        assert (mean > 0.3).all()
        assert (mean < 1).all()


def test_a_rerun_is_the_population_up_to_sampling() -> None:
    protocols = [Protocol(depth=3, width=width, epoch_size=256) for width in (2, 5)]
    samples = 12_800
    found = tables.rerun(protocols, [1, 2], latents=("s", "s0", "s01"), epochs=(0, 1), processes=1, samples=samples)
    assert len(found) == 2
    for run in found:
        assert set(run) == set(tables.STATISTICS)
        assert all(corr.shape == (2, 2, 3) for corr in run.values())
        assert ((run["exact"] - run["population"]).abs() < 5 / samples**0.5).all()
        assert ((run["released"] - run["exact"]).abs() < 0.01).all()
        assert (run["exact"][0] - run["exact"][1]).abs().max() > 0, "training changes something"
        assert not run["exact"].equal(run["population"])


def test_a_seed_has_the_same_numbers_in_any_company() -> None:
    named = {"latents": ("s",), "epochs": (0, 1), "processes": 1, "samples": 128}
    (together,) = tables.rerun([Protocol(depth=2, width=2, epoch_size=256)], [1, 2, 3], **named)
    (alone,) = tables.rerun([Protocol(depth=2, width=2, epoch_size=256)], [2], **named)
    for name in tables.STATISTICS:
        assert (together[name][:, 1] - alone[name][:, 0]).abs().max() < 1e-6


def test_a_measurement_needs_whole_minibatches() -> None:
    tree = random_symmetric([0], 2, 0.7)
    net = initial_network([0], tree.branching, 2)
    for samples in (0, 100):
        with pytest.raises(ValueError, match=f"samples must be a multiple of 128, got {samples}"):
            tables.best_correlations(tree, net, [0], 0, ["s"], samples)


def test_a_table_has_the_axes_of_the_printed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Protocol, tuple[int, ...]]] = []

    def rerun(protocols, seeds, *, latents, epochs, processes, samples, device="cpu"):
        calls.extend((protocol, tuple(epochs)) for protocol in protocols)
        shape = (len(epochs), len(seeds), len(latents))
        numbers = torch.arange(float(shape[0] * shape[1] * shape[2])).view(shape)
        return [dict.fromkeys(tables.STATISTICS, 1000.0 * p + numbers) for p in range(len(protocols))]

    monkeypatch.setattr(tables, "rerun", rerun)
    found = tables.table(printed("A-Tab6"), range(1, 11), loss="printed")
    assert found["exact"].shape == (5, 3, 2, 3, 10)
    assert [(p.lower, p.width) for p, _ in calls] == [(low, width) for low in (0.7, 0.8, 0.9) for width in (2, 10)]
    assert {p.loss for p, _ in calls} == {"printed"}
    assert {epochs for _, epochs in calls} == {(0, 1, 49)}
    # latent 4, third range, second width, last column, trial 7
    assert float(found["exact"][4, 2, 1, 2, 7]) == 1000 * 5 + 2 * 50 + 7 * 5 + 4


# --- the command -----------------------------------------------------------------------------------------------------


def made_up(target: Printed, seeds, *, processes, base, device="cpu") -> dict[str, torch.Tensor]:
    assert seeds == (1, 2, 3)
    assert processes == 2
    trials = target.mean[..., None] + torch.tensor([-0.02, 0.01, 0.04])  # of mean 0.01
    trials[0, 1, 1, 0] += 0.3
    return {"exact": trials, "released": trials + 0.1, "population": trials}


def test_the_command_prints_ours_beside_the_papers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "table", made_up)
    assert cli.main(["table", "A-Tab6", "--run", "--seeds", "1", "2", "3", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    assert "loss released; statistic exact; samples an epoch 64000; 3 seeds: 1 2 3." in out
    assert "initial                 after epoch 1           converged\n" in out
    assert "s, U[0.7, 1], 2 units        0.35±0.20 | 0.36±0.03   0.39±0.20 | 0.40±0.03" in out
    assert "on the CPU in 2 processes." in out
    assert "0.013 on average (initial: 0.020; after epoch 1: 0.010; converged: 0.010)" in out
    assert "0.310 at most (s; U[0.8, 1]; 10 units; initial)" in out


def test_the_command_at_tiny_size(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--run", "--seeds", "1", "--epoch-size", "128", "--processes", "1", "--statistic", "population"]
    assert cli.main(["table", "B-Tab2", *asked, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert all(0 <= cell["found"]["correlation"][0] <= 1 for cell in cells)
    assert all(cell["printed"]["std"] is None for cell in cells)
    assert cli.main(["table", "A-Tab4", *asked]) == 0
    out = capsys.readouterr().out
    assert "loss released; statistic population; samples an epoch 128; 1 seed: 1." in out
    assert "0.35±0.20 | " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A-Tab6", "--run", "--processes", "0"], "'0' is not a whole number of at least 1"),
        (["A-Tab6", "--loss", "nce"], "invalid choice: 'nce'"),
        (["A-Tab6", "--epoch-size", "100"], "'100' is not a positive multiple of the minibatch, 128"),
        (["A-Tab6", "--statistic", "best"], "invalid choice: 'best'"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(["table", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


# --- the record ------------------------------------------------------------------------------------------------------


def test_the_record_holds_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers that say where they stand: the record's axes are those of its labels, and the tables' parts are found in it."""

    def rerun(protocols, seeds, *, latents, epochs, processes, samples, device="cpu"):
        def numbers(protocol: Protocol, s: int) -> torch.Tensor:
            cell = protocol.lower + protocol.width / 1000 + (protocol.loss == "printed") / 1e5 * 2
            e, t, n = len(epochs), len(seeds), len(latents)
            code = torch.arange(n) * 1000 + torch.tensor(epochs)[:, None, None] * 10 + torch.arange(t)[None, :, None]
            return code.double().expand(e, t, n) + cell + s * 1e4

        return [{name: numbers(p, s) for s, name in enumerate(tables.STATISTICS)} for p in protocols]

    monkeypatch.setattr(tables, "rerun", rerun)
    values = records.plain(recorded.table_values([1, 2, 3]))
    assert values["epochs"] == [0, 1, 20, 49, 50]
    assert set(values["seconds"]) == {"printed", "released"}
    assert values["samples"] == 64_000
    found = tables.recorded_trials(values, printed("A-Tab6"), "released", "released")
    assert found.shape == (5, 3, 2, 3, 3)
    # statistic 1, latent 3, after 49 epochs, trial 2, polarities from 0.9, 10 units
    assert float(found[3, 2, 1, 2, 2]) == pytest.approx(1e4 + 3000 + 490 + 2 + 0.9 + 0.01, abs=1e-5)
    second = tables.recorded_trials(values, printed("B-Tab2"), "printed", "exact")
    assert second.shape == (1, 3, 2, 3, 3)
    assert float(second[0, 0, 1, 2, 1]) == pytest.approx(200 + 1 + 0.7 + 0.005 + 2e-5, abs=1e-6)
    monkeypatch.setattr(records, "results_folder", lambda: tmp_path)
    records.save_record("hltm-tables", values, seeds=[1, 2, 3], seconds=12)
    assert cli.main(["table", "B-Tab2", "--loss", "printed"]) == 0
    out = capsys.readouterr().out
    assert "loss printed; statistic exact; samples an epoch 64000; 3 seeds: 1 2 3." in out
    assert "Recorded: " in out


def test_recorded_trials_are_those_of_a_rerun(tmp_path) -> None:
    values = recorded.table_values([1], base=TINY, epochs=(0, 1, 20), processes=1)
    records.save_record("hltm-tables", values, seeds=[1], seconds=1.0, folder=tmp_path)
    found = records.recorded("hltm-tables", folder=tmp_path)
    again = tables.table(printed("B-Tab2"), [1], processes=1, base=TINY)
    for statistic in tables.STATISTICS:
        mine = tables.recorded_trials(found.values, printed("B-Tab2"), "released", statistic)
        assert (mine - again[statistic]).abs().max() < 2e-5
        assert torch.equal(mine, torch.tensor(records.rounded(mine, 5), dtype=mine.dtype)), "five digits are kept"


def test_means_before_training_stand_by_latent_polarity_and_width() -> None:
    found = torch.tensor(recorded._untrained_means(2, widths=(2, 5)), dtype=torch.float64)
    assert found.shape == (len(recorded.LATENTS), 3, 2)
    for i, lower in enumerate(recorded.LOWER):
        for j, width in enumerate((2, 5)):
            alone = tables.untrained(Protocol(lower=lower, width=width), [1, 2], recorded.LATENTS)
            assert found[:, i, j].tolist() == pytest.approx(alone.mean(0).tolist(), abs=6e-6), (lower, width)
