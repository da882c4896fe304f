"""What the chapter on the covariance operator draws: kernels of a mode, a spectrum with its signs, two images in a plane."""

from __future__ import annotations

import numpy as np
import torch

from sslbook.book import plots
from sslbook.chapters.covariance import pictures


def test_a_mode_is_a_row_of_kernels_with_gaps() -> None:
    mode = torch.arange(1.0, 19.0).reshape(2, 1, 3, 3)
    fig, ax = plots.figure()
    pictures.kernels(ax, mode, "7%")
    shown = ax.images[0].get_array().filled(np.nan)
    assert np.array_equal(shown[:, :3], mode[0, 0])
    assert np.array_equal(shown[:, 4:], mode[1, 0])
    assert np.isnan(shown[:, 3]).all()
    assert ax.images[0].get_clim() == (-18, 18)
    assert ax.get_ylabel() == "7%"
    fig.clear()


def test_bars_below_zero_are_hatched() -> None:
    fig, ax = plots.figure()
    pictures.signed_spectrum(ax, torch.tensor([-2.0, -1.0, 3.0]), plots.PALETTE)
    bars = sorted((bar.get_x(), bar.get_height(), bar.get_hatch()) for bar in ax.patches)
    assert [height for _, height, _ in bars] == [3, -1, -2]
    assert [bool(hatch) for *_, hatch in bars] == [False, True, True]
    fig.clear()


def test_a_weight_is_as_high_as_the_histogram_and_the_first_cosine_is_on_top() -> None:
    fig, (left, right) = plots.figure(2)
    at = torch.linspace(0, 2, 5)
    pictures.weights_of_pairs(left, torch.tensor([0.5, 0.6, 1.5]), at, torch.exp(-at), plots.PALETTE)
    (line,) = left.lines
    assert left.get_xlim() == (0, 2)
    assert np.allclose(line.get_ydata() / line.get_ydata()[0], torch.exp(-at))
    assert line.get_ydata()[0] >= max(bar.get_height() for bar in left.patches)
    pictures.cosines(right, {"operator": 0.7, "rival": -0.2}, plots.PALETTE)
    assert [bar.get_width() for bar in right.patches] == [0.7, -0.2]
    assert right.yaxis_inverted()
    fig.clear()


def test_rings_lie_at_the_means() -> None:
    views = torch.tensor([[[2.0, 0.0], [2.0, 2.0]], [[0.0, 0.0], [0.0, 2.0]]])
    fig, ax = plots.figure()
    pictures.images_in_a_plane(ax, views, ("A", "B"), plots.PALETTE)
    rings = [line.get_xydata().tolist() for line in ax.lines if line.get_markerfacecolor() == "none"]
    assert rings == [[[2, 1]], [[0, 1]]]
    pictures.steps_in_a_plane(ax, {"means": (1, 0)}, plots.PALETTE)
    assert [text.get_text() for text in ax.texts] == ["A", "B", "", "means"]
    fig.clear()
