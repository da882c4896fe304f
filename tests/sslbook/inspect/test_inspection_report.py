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
from torch import Tensor, nn
from training_cases import DIGITS

from sslbook.cli import main
from sslbook.inspect import measure
from sslbook.inspect.measure import inspect_network
from sslbook.inspect.report import ALL, BETWEEN, NOISE, RANDOM, UNTRAINED, WITHIN, Report, Share, page
from sslbook.training.presets.papers import run_of
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
    assert not report.layers[2].clear, "the last layer's modes are there three times each"
    layer = replace(report.layers[1], values=(1.0, 0.5), lowest=0.0, residual=0.0)
    row = Report(report.about, (layer,)).rows()[0]
    assert row["Trace"] == "–", "no share is above one"
    size = replace(layer.sizes[BETWEEN], trace=3.0, rank=0.4)
    noisy = replace(layer, sizes={**layer.sizes, BETWEEN: size})
    assert Report(report.about, (noisy,)).rows()[0]["Trace"] == "0.5"
    assert "<td>–</td>" in page(Report(report.about, (noisy,))), "no rank is below one"
    assert [replace(layer, lowest=low).clear for low in (-0.2, -0.25, -0.3)] == [True, False, False]
    assert not replace(layer, residual=0.1).clear
    rows = report.table().splitlines()
    assert len([row for row in rows if row.startswith(("0 ", "4 ", "6 "))]) == 3
    assert repr(report) == report.table()
    assert report.table().startswith(report.verdict())
    report.save(tmp_path / "new")
    again = saved(tmp_path / "new")
    assert again == json.loads(json.dumps({"format": 1, **asdict(report)}))
    assert again["about"]["seed"] == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.json"]


def test_the_verdict_counts_what_is_above_all_controls(report: Report) -> None:
    """By value and by interval, among layers whose modes are clear; the first sentence of the table and of the page."""

    def layer(name: str, *mine: float, **changes: Any) -> Any:
        shares = {BETWEEN: Share(*mine), ALL: Share(0.3, 0.2, 0.4), NOISE: Share(0.1, 0.1, 0.1)}
        clear = {"step": shares, "copies": 1, "residual": 0.0, "lowest": 0.0}
        return replace(report.layers[1], name=name, **{**clear, **changes})

    layers = (
        layer("surely", 0.5, 0.45, 0.6),
        layer("by value", 0.5, 0.35, 0.6),
        layer("alike", 0.2, 0.15, 0.25),
        layer("wide", 0.05, 0.01, 0.15),
        layer("less", 0.05, 0.01, 0.09),
        layer("blurred", 0.9, 0.9, 0.9, copies=3),
    )
    told = replace(report, layers=layers).verdict()
    assert re.match(r"In 1 of 5 layers .* by its interval \(surely\), in 2 by its value\. 1 more is unclear\.", told)
    noisy, missed = replace(layers[0], lowest=-layers[0].values[-1]), replace(layers[0], residual=0.2)
    told += replace(report, layers=(replace(noisy, name="noisy"), replace(missed, name="missed"))).verdict()
    for sentence in (
        "no control explains its share (surely): see the modes by",
        "Its interval overlaps a control's (by value), so that other images may decide otherwise: four times as many",
        "The step lies less there than steps towards random targets do (less): it moves other directions",
        "A control has as large a share (alike, wide), which is no sign of what survives then: the table says which one",
        "Each mode of a last linear layer is there once for every output (blurred), and no few of them lead: look at",
        "The noise of few views is as large as the last of the leading modes (noisy): take more views, or ask for fewer",
        "The search did not find all modes (missed): ask for fewer.",
    ):
        assert sentence in told
    assert replace(report, layers=layers[5:]).verdict().startswith("No layer could be judged. Each mode")
    assert replace(report, layers=()).verdict() == "No layer could be judged: all were left out."
    assert len(report.plot().axes[0].get_yticks()) == len(report.layers)


def test_the_page_is_whole_and_loads_nothing(report: Report, tmp_path: Path) -> None:
    told = replace(report, refused={"<odd>": "why & how"}, about={**report.about, "source": "<run>"})
    text = told.save(tmp_path).read_text(encoding="utf-8")
    soup = BeautifulSoup(text, "html.parser")
    assert "//" not in re.sub(r"data:[^'\"]+", "", text), "no address on another machine"
    assert not any(tag in text for tag in ("<script", "<odd>", "<run>"))
    tables, images = soup.find_all("table"), soup.find_all("img")
    assert (len(tables), len(images)) == (3, 2)
    for table in tables:
        assert table.caption
        assert len(table.select("tbody th[scope=row]")) == 3
        heads = len(table.select("thead th[scope=col]"))
        assert all(len(row.find_all(["th", "td"])) == heads for row in table.select("tbody tr"))
        assert table.parent["class"] == ["wide"]
    assert all(image["alt"] and image["src"].startswith("data:image/svg+xml;base64,") for image in images)
    assert all(f"{layer.step[NOISE].value:.2g}" in text for layer in report.layers)
    assert report.about["image digest"] in text


def test_a_long_inspection_says_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(measure, "LONG", 0.0)
    inspect_network(network(), pictures(), views=2, k=2)
    assert capsys.readouterr().err.startswith("layer 2 of 3: 4; about 1 s left\nlayer 3 of 3: 6; about 1 s left\n")
    said: list[tuple[int, int, str]] = []
    inspect_network(network(), pictures(), views=2, k=2, progress=lambda *told: said.append(told))
    assert said == [(0, 3, "0"), (1, 3, "4"), (2, 3, "6"), (3, 3, "")]
    assert capsys.readouterr().err == ""


def test_a_layer_that_is_refused_leaves_the_others() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(self.one(x.flatten(1)).relu()))

    report = inspect_network(Twice(), pictures(), views=2)
    assert [layer.name for layer in report.layers] == ["two"]
    assert "must be applied once in a forward pass, it was applied 2 times" in report.refused["one"]
    assert "one: left out, layer 'one' must be applied once" in report.table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 1}, "views must be at least 2, got 1"),
        ({"layers": ["7"]}, "layer '7' must be one of the network's"),
        ({"loss": "simpel"}, "loss must be one of simple, info_nce, got 'simpel'; did you mean simple"),
        ({"loss": lambda z: 1.0}, "loss must map the outputs"),
        ({"images": pictures(1)}, "images must hold two images or more"),
        ({"net": nn.Flatten()}, "net must have linear or convolutional layers, and this Flatten has none"),
    ],
)
def test_bad_input_gets_a_sentence(changes: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        inspect_network(**{"net": network(), "images": pictures(), **changes})


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
    torch.save(nn.Linear(2, 1).state_dict(), run / "weights.pt")
    for arguments, message in (
        (["nowhere", "digits"], "there is no checkpoint, and no folder of a run with one, at"),
        (
            [str(run), "digitz"],
            "IMAGES must be a folder of pictures or one of digits, mnist, cifar10, stl10, got digitz",
        ),
        ([str(run / "log.csv"), "digits"], "is no whole checkpoint of sslbook train"),
        ([str(run / "weights.pt"), "digits"], "load them into your network and call sslbook.inspect_network"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["inspect", *arguments])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
