"""A process without HOME, whose user the system does not know, as in a container."""

from __future__ import annotations

import pwd

import pytest

import sslbook
from sslbook import cli


def test_what_needs_a_home_asks_for_the_folder(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def unknown(uid: object) -> None:
        raise KeyError(uid)

    for name in ("HOME", "SSLBOOK_DATA", "SSLBOOK_RUNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", "digits-simclr-nce", "--folder", "~/runs"])
    assert "~/runs: there is no home folder for ~ here" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(ValueError, match="~/x: there is no home folder for ~ here; write the whole path"):
        sslbook.read_images("~/x")
