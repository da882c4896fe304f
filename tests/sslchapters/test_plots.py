"""`sslchapters.plots`: a palette that can be told apart, and helpers that draw what they say."""

from __future__ import annotations

import itertools

import matplotlib

matplotlib.use("Agg")

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


@pytest.mark.parametrize("deficiency", ["none", *DEFICIENCIES])
def test_the_first_colours_can_be_told_apart(deficiency: str) -> None:
    """The first four are what a figure should do with; a distance of 10 in CIELAB is seen at a glance."""
    matrix = np.eye(3) if deficiency == "none" else np.array(DEFICIENCIES[deficiency])
    seen = [lab(matrix @ linear(colour)) for colour in plots.PALETTE.values()]
    for count, least in ((4, 30), (len(seen), 20)):
        assert all(np.linalg.norm(a - b) > least for a, b in itertools.combinations(seen[:count], 2))
