"""A process without HOME, whose user the system does not know, as in a container."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

import sslbook
from sslbook import cli

RUN = ("train", "digits-simclr-nce", "--epochs", "1", "--set", "subset=64", "--set", "batch=64", "--quiet")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(uid: object) -> None:
        raise KeyError(uid)

    for name in [*(name for name in os.environ if name.startswith(("XDG_", "SSLBOOK_R"))), "HOME", "SSLBOOK_DATA"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)


def test_a_command_that_needs_a_home_asks_for_the_folder_and_others_work(capsys: pytest.CaptureFixture[str]) -> None:
    for line, sentence in (
        ("train cifar10-small", "~/.cache: there is no home folder for ~ here"),
        ("train digits-simclr-nce --folder ~/runs", "~/runs: there is no home folder for ~ here"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(line.split())
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert cli.main([*RUN, "--folder", "runs"]) == 0
    with pytest.raises(ValueError, match="~/x: there is no home folder for ~ here; write the whole path"):
        sslbook.read_images("~/x")
