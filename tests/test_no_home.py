"""A process without HOME, whose user the system does not know, as in a container; and ``~name`` of nobody."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

import sslbook
from bookbuild import execute as kernel
from sslbook import cli
from sslbook.images import datasets, enumerated
from sslchapters import records as store

RUN = ("train", "digits-simclr-nce", "--epochs", "1", "--set", "subset=64", "--set", "batch=64", "--quiet")
ASKS = "SSLBOOK_DATA must name the folder of the images here"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(uid: object) -> None:
        raise KeyError(uid)

    for name in [*(name for name in os.environ if name.startswith(("XDG_", "SSLBOOK_R"))), "HOME", "SSLBOOK_DATA"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)


def status(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as stop:  # argparse's own way out
        return int(stop.code or 0)


@pytest.mark.parametrize(
    "line",
    [
        "train cifar10-small",
        "train digits-simclr-nce --folder ~/runs",
        "table A-Tab2 --run --seeds 1 --download",
        "table A-Tab2 --folder ~nobody-such/runs",
        "inspect ~/run digits",
        "inspect RUN ~/pictures",
        "inspect RUN cifar10",
    ],
)
def test_a_command_that_needs_a_home_asks_for_the_folder(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "RUN" in line:
        assert status(*RUN, "--folder", ".") == 0
        line = line.replace("RUN", str(next(Path().glob("digits*"))))
    assert status(*line.split()) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    asked = [word for word in line.split() if word.startswith("~")]
    assert (f"{asked[0]}: there is no home folder for {asked[0].partition('/')[0]} here" if asked else ASKS) in said


@pytest.mark.parametrize(
    "line", [(*RUN, "--folder", "runs"), ("train", "--list"), ("table", "A-Tab2"), ("gpu", "--plan")]
)
def test_a_command_that_needs_none_works(line: tuple[str, ...]) -> None:
    assert status(*line) == 0


@pytest.mark.parametrize("call", [sslbook.read_images, lambda where: store.runs_folder(Path(where))])
def test_a_function_says_which_home_there_is_not(call) -> None:
    with pytest.raises(ValueError, match="~/x: there is no home folder for ~ here; write the whole path"):
        call("~/x")


def test_images_without_a_place_are_not_here() -> None:
    assert not datasets.available("mnist")
    assert not enumerated.readable("mnist")
    with pytest.raises(ValueError, match=ASKS):
        sslbook.load_dataset("mnist", "test")


def test_a_kernel_has_a_home() -> None:
    with kernel.environment() as variables:
        assert Path(variables["HOME"]).is_dir()
