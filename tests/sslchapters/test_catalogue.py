"""The catalogue of records and tables: every record has its maker and its seeds, every table its declaration."""

from __future__ import annotations

import importlib

import pytest

from sslbook import cli
from sslbook._check import InputError
from sslchapters import catalogue
from sslchapters.catalogue import RECORDERS, TABLES
from sslchapters.records import recorded, results_folder


@pytest.mark.parametrize("name", RECORDERS)
def test_a_study_is_there_and_knows_the_seeds_of_its_record(name: str) -> None:
    study = catalogue.study(name)
    assert callable(study.values)
    assert recorded(name).provenance.seeds == study.seeds


def test_no_declared_record_is_left_out() -> None:
    modules = {module: importlib.import_module(module) for module in set(RECORDERS.values())}
    assert {name for module in modules.values() for name in module.STUDIES} == set(RECORDERS)


def test_every_record_has_a_recorder_or_is_a_table() -> None:
    assert {path.stem for path in results_folder().glob("*.json")} <= RECORDERS.keys() | TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_declared_once_and_named_as_it_is_declared(name: str) -> None:
    table = catalogue.table(name)
    assert table.name == name
    assert table.record in {"", name, *RECORDERS}
    assert table.seeds
    if table.record in RECORDERS:
        assert set(table.seeds) <= set(catalogue.study(table.record).seeds)


def test_no_declared_table_is_left_out() -> None:
    modules = {module: importlib.import_module(module) for module in set(TABLES.values())}
    assert {name for module in modules.values() for name in module.TABLES} == set(TABLES)


def test_a_name_that_means_several_experiments_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        InputError, match=r"run in several ways; name one of B-Tab3-digits-convnet, .*-cifar10-resnet18"
    ):
        catalogue.table("B-Tab3")
    assert cli.main(["table", "A-Tab5"]) == 2
    assert "printed table: got 'A-Tab5'; did you mean" in capsys.readouterr().err
    assert cli.main(["table"]) == cli.main(["table", "--list"]) == 0
    assert "C-Fig11" in capsys.readouterr().out
    assert cli.main(["table", "--list", "b-tab3", "convnet"]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == ["B-Tab3-digits-convnet, B-Tab3-cifar10-convnet"]
    assert cli.main(["table", "--list", "resnet19"]) == 2
    assert "printed table: got 'resnet19'" in capsys.readouterr().err
