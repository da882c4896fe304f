"""Reports of inspections: printed, saved and read back, as a page, and by the command."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bs4 import BeautifulSoup
from inspection_cases import network, pictures
from PIL import Image
from torch import nn
from training_cases import DIGITS

from sslbook.cli import main
from sslbook.inspect import measure
from sslbook.inspect.measure import inspect_network
from sslbook.inspect.report import ALL, BETWEEN, NOISE, OUTCOMES, RANDOM, UNTRAINED, WITHIN, Report, Share
from sslbook.training.papers import run_of
from sslbook.training.run.trainer import train


@pytest.fixture(scope="module")
def report() -> Report:
    torch.manual_seed(0)
    return inspect_network(network(), pictures(), views=3, k=3, untrained=network(1), loss="info_nce")


def saved(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def test_a_report_names_all_layers_and_is_saved(report: Report, tmp_path: Path) -> None:
    assert [layer.name for layer in report.layers] == ["0", "4", "6"]
    assert not report.refused
    for layer in report.layers:
        assert set(layer.weights) == {BETWEEN, ALL, WITHIN, UNTRAINED, RANDOM}
        assert set(layer.step) == {*layer.weights, NOISE}
        assert all(0 <= share.value <= 1 + 1e-9 for part in (layer.weights, layer.step) for share in part.values())
    assert [layer.copies for layer in report.layers] == [1, 1, 3]
    assert report.table().startswith(report.verdict())
    assert len(report.plot().axes[0].get_yticks()) == 3
    report.save(tmp_path / "new")
    assert saved(tmp_path / "new") == json.loads(json.dumps({"format": 1, **asdict(report)}))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.json"]


def test_what_noise_is_larger_than_is_not_shown(report: Report, tmp_path: Path) -> None:
    """No share is above one, no rank below, and no eigenvalue clear that is not twice as high as the noise."""
    layer = replace(report.layers[1], values=(1.0, 0.5), lowest=0.0, residual=0.0)
    for trace, shown in ((1.0, "–"), (3.0, "0.5")):
        size = replace(layer.sizes[BETWEEN], trace=trace, rank=0.4)
        noisy = replace(report, layers=(replace(layer, sizes={**layer.sizes, BETWEEN: size}),))
        assert noisy.rows()[0]["Trace"] == shown
    assert "<td>–</td>" in noisy.save(tmp_path).read_text(encoding="utf-8")
    assert [replace(layer, lowest=low).clear for low in (-0.2, -0.25, -0.3)] == [True, False, False]
    assert not replace(layer, residual=0.1).clear


def test_the_verdict_counts_what_is_above_all_controls(report: Report) -> None:
    """By value and by interval, among layers whose modes are clear; the first sentence of the table and of the page."""

    def layer(name: str, *mine: float, **changes: Any) -> Any:
        shares = {BETWEEN: Share(*mine), ALL: Share(0.3, 0.2, 0.4), NOISE: Share(0.1, 0.1, 0.1)}
        clear = {"step": shares, "copies": 1, "residual": 0.0, "lowest": 0.0}
        return replace(report.layers[1], name=name, **{**clear, **changes})

    layers = (
        layer("surely", 0.5, 0.45, 0.6),
        layer("by value", 0.5, 0.35, 0.6),
        layer("alike", 0.05, 0.01, 0.15),
        layer("less", 0.05, 0.01, 0.09),
        layer("last", 0.9, 0.9, 0.9, copies=3),
        layer("missed", 0.9, 0.9, 0.9, residual=0.2),
        layer("noisy", 0.9, 0.9, 0.9, lowest=-report.layers[1].values[-1]),
    )
    assert all(one.outcome == one.name for one in layers)
    told = replace(report, layers=layers).verdict()
    assert re.match(r"In 1 of 4 layers .* by its interval \(surely\), in 2 by its value\. 3 more are unclear\.", told)
    assert all(OUTCOMES[one.name].format(f" ({one.name})") in told for one in layers)
    assert replace(report, layers=layers[4:]).verdict().startswith("No layer could be judged. ")
    assert replace(report, layers=()).verdict() == "No layer could be judged: all were left out."


def test_the_page_is_whole_and_loads_nothing(report: Report, tmp_path: Path) -> None:
    told = replace(report, refused={"<odd>": "why & how"}, about={**report.about, "source": "<run>"})
    text = told.save(tmp_path).read_text(encoding="utf-8")
    soup = BeautifulSoup(text, "html.parser")
    assert "//" not in re.sub(r"data:[^'\"]+", "", text), "no address on another machine"
    assert not any(tag in text for tag in ("<script", "<odd>", "<run>", "{{", "{%"))
    tables, images = soup.find_all("table"), soup.find_all("img")
    assert (len(tables), len(images)) == (3, 2)
    for table in tables:
        heads = len(table.select("thead th[scope=col]"))
        assert len(table.select("tbody th[scope=row]")) == 3
        assert all(len(row.find_all(["th", "td"])) == heads for row in table.select("tbody tr"))
    assert all(image["alt"] and image["src"].startswith("data:image/svg+xml;base64,") for image in images)
    first, layer = tables[2].select("tbody tr")[0], report.layers[0]
    size, values = layer.sizes[BETWEEN], ", ".join(f"{value:.3g}" for value in layer.values)
    wanted = [values, f"{layer.lowest:.2g}", f"{size.trace:.3g} ± {size.trace_error:.3g}"]
    assert [cell.text for cell in first.find_all("td")][1:4] == wanted
    assert all(f"{layer.step[NOISE].value:.2g}" in text for layer in report.layers)


def test_a_long_inspection_says_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(measure, "LONG", 0.0)
    inspect_network(network(), pictures(), views=2, k=2)
    assert re.fullmatch(r"layer 2 of 3: 4; \d+ s left\nlayer 3 of 3: 6; \d+ s left\n", capsys.readouterr().err)


def test_a_layer_that_is_refused_leaves_the_others() -> None:
    net = nn.Sequential(nn.Flatten(), *[nn.Linear(64, 64)] * 2, nn.Linear(64, 4))
    report = inspect_network(net, pictures(), views=2)
    assert [layer.name for layer in report.layers] == ["3"]
    assert "1: left out, layer '1' must be applied once" in report.table()


SHORT = (*DIGITS, "epochs=1", "probes=1", "evaluate=0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = run_of("digits-simclr-nce", seed=3, changes=SHORT)
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(made.settings, folder, stop_after=2, device="cpu", quiet=True)
    return folder


def test_the_command_writes_a_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "report"
    some = ["--layers", "0.conv1", "1.linears.1", "--images", "8", "--views", "2", "--modes", "2", "--out", str(out)]
    assert main(["inspect", str(run), "digits", *some]) == 0
    told = capsys.readouterr()
    assert told.err == "", "it is done in seconds"
    assert f"Written: {out / 'report.html'}" in told.out
    report = saved(out)
    about, layers = report["about"], report["layers"]
    assert [layer["name"] for layer in layers] == ["0.conv1", "1.linears.1"]
    assert (about["seed of the run"], about["step of the run"], about["images"]) == (3, 2, 8)
    assert layers[0]["weights"][UNTRAINED] != layers[0]["weights"][BETWEEN]
    checkpoint = next(run.glob("step-*.pt"))
    assert main(["inspect", str(checkpoint), "digits", *some]) == 0
    same = saved(out)
    assert same["layers"] == layers
    assert same["about"]["checkpoint sha256"] == about["checkpoint sha256"]


def test_the_command_takes_a_folder_of_pictures(run: Path, tmp_path: Path) -> None:
    for number in range(5):
        Image.effect_noise((9, 8 + number), 60).save(tmp_path / f"{number}.png")
    some = ["--layers", "1.linears.1", "--images", "4", "--views", "2", "--size", "8", "--loss", "simple"]
    assert main(["inspect", str(run), str(tmp_path), *some]) == 0
    assert (run.parent / "digits-inspect" / "report.html").is_file()


def test_a_command_that_cannot_be_done(run: Path, capsys: pytest.CaptureFixture) -> None:
    (run / "log.csv").touch()
    for arguments, message in (
        (["nowhere", "digits"], "there is no checkpoint, and no folder of a run with one, at"),
        ([str(run), "digitz"], "No such file or directory: 'digitz'"),
        ([str(run / "log.csv"), "digits"], "is no whole checkpoint"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["inspect", *arguments])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
