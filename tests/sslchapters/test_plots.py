"""`sslchapters.plots`: a palette that can be told apart, and helpers that draw what they say."""

from __future__ import annotations

import itertools
import re

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from sslchapters import plots

# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of a linear RGB colour (D65)."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    x = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    """Of two colours in linear RGB, as WCAG defines it."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    high, low = sorted((float(weights @ a), float(weights @ b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def nearest(colours: list[str], matrix: np.ndarray) -> float:
    seen = [lab(matrix @ linear(colour)) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("deficiency", ["none", *DEFICIENCIES])
def test_the_first_colours_can_be_told_apart(deficiency: str) -> None:
    """The first four are what a figure should do with; a distance of 10 in CIELAB is seen at a glance."""
    matrix = np.eye(3) if deficiency == "none" else np.array(DEFICIENCIES[deficiency])
    assert nearest(list(plots.PALETTE.values())[:4], matrix) > 30
    assert nearest(list(plots.PALETTE.values()), matrix) > 20


def in_the_dark(colour: str, page: str = "#14181d") -> np.ndarray:
    """What book.css makes of a colour in the dark theme: invert, hue-rotate(180deg), brightness(.92), screen; linear RGB."""
    luma = np.array([[0.213, 0.715, 0.072]] * 3)
    turned = np.clip((2 * luma - np.eye(3)) @ (1 - np.array(to_rgb(colour))), 0, 1) * 0.92
    mixed = 1 - (1 - turned) * (1 - np.array(to_rgb(page)))
    return np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("name", plots.PALETTE)
def test_every_colour_stands_out_from_the_page(name: str) -> None:
    assert contrast(linear(plots.PALETTE[name]), linear("#ffffff")) >= 2.99
    assert contrast(in_the_dark(plots.PALETTE[name]), linear("#14181d")) >= 3


def test_a_signed_heatmap_is_white_at_zero() -> None:
    _, ax = plots.figure()
    plots.heatmap(ax, [[0.0, 2.0], [-1.0, 0.0]], label="entry")
    image = ax.collections[0]
    assert image.get_clim() == (-2.0, 2.0)
    assert min(image.cmap(image.norm(0.0))[:3]) > 0.95
    plots.heatmap(plots.figure()[1], np.zeros((2, 2)))  # no entry to scale by
    plt.close("all")


def test_seeds_are_shown_with_their_mean_and_its_interval() -> None:
    _, ax = plots.figure()
    plots.over_seeds(ax, {"one": [1.0, 2.0, 3.0], "other": [4.0, 4.5]}, label="accuracy", colors={"other": "vermilion"})
    interval, mean = ax.lines[:2]
    half = 4.302652729911275 / 3**0.5  # the t-quantile of two degrees of freedom
    assert interval.get_xdata() == pytest.approx([2 - half, 2 + half])
    assert list(mean.get_xdata()) == [2.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "other"]
    plt.close("all")


def test_an_image_row_has_one_scale() -> None:
    _, axes = plots.figure(2)
    plots.image_row(axes, np.arange(8.0).reshape(2, 2, 2), titles=["a", "b"])
    assert {ax.images[0].get_clim() for ax in axes} == {(0.0, 7.0)}, "one scale for all, or they could not be compared"
    plt.close("all")


def test_slope_draws_its_power() -> None:
    _, ax = plots.figure()
    ax.set(xscale="log", yscale="log")
    plots.slope(ax, -0.5, through=(10.0, 3.0), span=100.0, label="rate")
    x, y = ax.lines[0].get_data()
    assert np.diff(np.log(y)) / np.diff(np.log(x)) == pytest.approx([-0.5])
    assert (x[0], y[0]) == (10.0, 3.0)
    plt.close("all")


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(1e-6, 1.0, []), (0.08, 2.0, []), (0.06, 0.7, ["2", "5"]), (0.15, 0.9, ["2", "5"])],
)
def test_minor_labels_of_a_logarithmic_axis(low: float, high: float, labels: list[str]) -> None:
    plots.style()
    fig, ax = plots.figure()
    ax.plot([1, 2], [low, high])
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    fig.canvas.draw()
    texts = [label.get_text() for label in ax.yaxis.get_ticklabels(minor=True)]
    shown = [re.sub(r".*?(\d)\\times.*", r"\1", text) for text in texts if text]
    plt.close(fig)
    assert sorted(set(shown)) == labels
