"""What the page on BYOL shows: towers by hand, tables with header cells, the wiring, digits on a circle."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from drawing_cases import GREYS, geometry
from matplotlib.figure import Figure

from sslbook.chapters.byol import drawing, sheet, tables
from sslbook.chapters.byol.towers import BACKWARD, Pair, by_hand, step
from sslbook.tables.printed import printed

COLORS = {name: name for name in ("blue", "green")} | {"vermilion": "red", "ink": "black"}


def test_a_tower_by_hand_is_what_is_written() -> None:
    tower = by_hand([[[1.0, 2.0], [3.0, 4.0]]], [[1.0, -1.0]], 0.5)
    assert tower.below.shape == (1, 1, 2, 2)
    assert tower.output().flatten().tolist() == [-0.5, -0.5]
    assert by_hand([[[2.0]]], torch.tensor([[3.0]])).output().item() == 6.0


def test_the_contrast_by_hand() -> None:
    """Two images, 1 and 3, views 1/2 around them: 19/16 without BatchNorm, 3/16 with the gradient centred."""
    views = [[[0.5], [1.5]], [[2.5], [3.5]]]
    pair = Pair(by_hand(views, 1.0, 0.5), by_hand(views, 1.0))
    assert step(pair).item() == 19 / 16
    assert step(pair, BACKWARD).item() == 3 / 16


def test_a_sheet_has_header_cells_a_caption_and_a_text() -> None:
    narrow = sheet.Sheet("a < b", ("cell", "n"), (("x", "-1"), ("y", "2")))
    html = narrow._repr_html_()
    assert "<em>a &lt; b</em>" in html
    assert 'aria-label="a &lt; b"' in html
    assert html.count('scope="col"') == 2
    assert html.count('scope="row"') == 2
    assert "<td>−1</td>" in html
    assert repr(narrow).splitlines() == ["a < b", "cell  n", "x     -1", "y     2"]
    assert "<tbody><tr><td" in sheet.Sheet("", tuple("abcd"), (tuple("wxyz"),))._repr_html_()
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        sheet.Sheet("", ("a", "b"), (("x",),))


@pytest.mark.parametrize("name", ["B-Tab3", "B-Tab5"])
def test_a_listing_shows_what_was_found(name: str) -> None:
    found = {
        cell: {m: torch.tensor([0.5, 0.7]) for m in ("accuracy", "rank", "likeness")} for cell in printed(name).cells
    }
    listed = sheet.listing(tables.filled(name, found), "")
    assert all(row[2].startswith("60.0±") and row[3:] == ("0.6", "0.600") for row in listed.rows)
    assert len(listed.rows) == len(found)


def test_a_grid_shows_printed_and_found() -> None:
    target = printed("B-Tab10")
    found = {cell: {m: torch.tensor([0.5]) for m in ("accuracy", "rank", "likeness")} for cell in target.cells}
    shown = sheet.grid(tables.filled("B-Tab10", found), "")
    assert len(shown.rows) == target.mean.shape[0]
    assert shown.rows[0][1] == f"{target.mean[0, 0]:.1f} | 50.0"


def test_the_wiring_names_its_parts_in_letters_that_can_be_read() -> None:
    ax = Figure().subplots()
    drawing.wiring(ax, COLORS, size=12.0)
    said = {text.get_text().split("\n")[0] for text in ax.texts}
    assert {"image", "view", "online", "target", "predictor", "loss", "stop-gradient", "gradient", "moving"} <= said
    assert min(float(text.get_fontsize()) for text in ax.texts if text.get_text()) >= 12


def test_digits_on_the_circle_have_colours_and_marks_of_their_own() -> None:
    with mpl.rc_context():
        ax = Figure().subplots()
        labels = torch.tensor([0, 1, 4, 4, 7])
        drawing.circle(ax, torch.nn.functional.normalize(torch.randn(5, 2), dim=1), labels, COLORS)
    assert [np.size(line.get_xdata()) for line in ax.lines] == [1, 1, 2]
    assert len({line.get_marker() for line in ax.lines}) == 3


def test_every_part_of_the_drawings_is_where_it_was() -> None:
    assert geometry(lambda ax: drawing.wiring(ax, GREYS)) == pytest.approx(272824.5531120277, rel=1e-9)
    outputs, labels = torch.tensor([[0.6, 0.8], [-1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 4])
    assert geometry(lambda ax: drawing.circle(ax, outputs, labels, GREYS)) == pytest.approx(272.0300987)
