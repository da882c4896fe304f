"""What the command line can record and show, by name: strings, so that a list of names loads no experiment."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sslbook._check import InputError, unknown
from sslchapters.data_files import folder, read_yaml

if TYPE_CHECKING:
    from sslchapters.sweep import Study

_READ = read_yaml(folder() / "catalogue.yml", dict)
RECORDERS: dict[str, str] = {
    name: f"sslchapters.{module}" for module, names in _READ["records"].items() for name in names.split()
}
"""The module whose ``STUDIES`` declares each record of `data/results` that no table of full runs is."""
TABLES: dict[str, str] = {
    f"{name}{way}": f"sslchapters.audit.{module}"
    for name, row in _READ["tables"].items()
    for way, module in ([("", row["module"])] if "module" in row else [(f"-{w}", m) for w, m in _READ["ways"].items()])
}
"""The module whose ``TABLES`` declares each table: the paper's name of it, and where it is one
of several experiments, its images and its network."""
WORDS: dict[str, str] = {name: row["what"] for name, row in _READ["tables"].items()}
"""What each table of a paper compares, by the paper's name of it."""


def printed_name(name: str) -> str:
    """The paper's name of a table, without where we run it: ``B-Tab3`` of ``B-Tab3-digits-convnet``."""
    return "-".join(name.split("-")[:2])


def study(name: str) -> Study:
    """What makes the record of a name, and with which seeds; raises InputError, with the names that are meant, for another."""
    if name not in RECORDERS:
        raise unknown("recorded run", name, RECORDERS)
    return importlib.import_module(RECORDERS[name]).STUDIES[name]


def table(name: str) -> Any:
    """The declared `sslchapters.tables.Table` of a name; raises InputError, with the names that are meant, for another."""
    if kin := [known for known in TABLES if known.startswith(f"{name}-")]:
        raise InputError(f"printed table: {name} is run in several ways; name one of {', '.join(kin)}")
    if name not in TABLES:
        raise unknown("printed table", name, TABLES)
    return importlib.import_module(TABLES[name]).TABLES[name]
