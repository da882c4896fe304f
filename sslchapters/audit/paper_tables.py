"""The papers' image tables of full runs: which preset, after how many epochs, is in which cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sslbook.training.presets.papers import EPOCHS, IMAGES, ROWS
from sslchapters.tables import Printed, printed, unprinted

SIMCLR = {
    "A-Tab2": ("simclr-exact", "simclr-exact-noise", "simclr-nce"),
    "A-Tab3": ("simclr-beta-minus-0.5", "simclr-beta-plus-0.2"),
}
"""The rows of each table, on CIFAR-10 and then on STL-10; columns are :data:`EPOCHS`."""
BYOL = {
    table: [row["name"] for row in ROWS if table in row["tables"].split()]
    for table in ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
}
"""The cells of each table, row by row, after a hundred epochs."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: which preset after how many epochs, and what the paper prints, in percent (None: nothing)."""

    label: str
    preset: str
    epochs: int
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class PaperTable:
    """A printed table as cells to run, row by row."""

    name: str
    target: Printed
    cells: tuple[Cell, ...]


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """The tables by name: A-Tab2, A-Tab3, and each of B's on STL-10, where the paper has it, and on CIFAR-10."""
    found = []
    for name, slugs in SIMCLR.items():
        runs = [(f"{data}-{slug}", epochs) for data in IMAGES for slug in slugs for epochs in EPOCHS]
        found.append(_table(name, printed(name), runs))
    for data in ("stl10", "cifar10"):
        for name, names in BYOL.items():
            target, whole = printed(name), f"{name}-{data}-resnet18"
            if data != "stl10":
                source = f"{target.source}, which is on STL-10; here on CIFAR-10, where nothing is printed"
                target = unprinted(whole, source, target.axes)
            found.append(_table(whole, target, [(f"{data}-{slug}", EPOCHS[0]) for slug in names]))
    return {table.name: table for table in found}


def _table(name: str, target: Printed, runs: Sequence[tuple[str, int]]) -> PaperTable:
    cells = zip(target.cells, runs, target.numbers(), strict=True)
    return PaperTable(name, target, tuple(Cell(label, *run, *numbers) for label, run, numbers in cells))
