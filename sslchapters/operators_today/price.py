"""The record ``operators-today-ingredients`` as the chapter and its details read it: how near each theory comes to a real step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CALLED = {
    "averaged over views": "averaged",
    "of cosines": "cosines",
    "no view its own partner": "all pairs alike",
    "weights at clean images": "one negative, clean",
    "weights at the views": "one negative",
    "all negatives, clean weights": "all negatives, clean",
}
"""What the pages call a theory of the record, where that is not its own name."""

CASES = {
    f"{images}, {when}": (images, steps)
    for images in ("digits", "photographs")
    for when, steps in (("before", "0"), ("after", "100"))
}
"""Images, and before or after training: what is recorded of each, by the pages' names."""


def cosines(
    record: Any, theory: str, case: str, tau: float, kind: str = "batch", layer: str = "2"
) -> NDArray[np.float64]:
    """A theory's cosines with the real step, one a seed.

    ``kind``: "batch", the mean over single batches, or "mean", of the mean step of all batches. ``layer``: "0" or "2", the
    first or the second convolution.
    """
    images, steps = CASES[case]
    return np.array(record["cosines"][images][steps][str(tau)][layer][theory][kind])


def largest(record: Any, theory: str, when: str = "after", over: Any = np.mean) -> float:
    """The largest of a theory's cosines over images, temperatures, convolutions and kinds: of the mean over seeds, or ``over``."""
    return max(
        float(over(cosines(record, theory, case, tau, kind, layer)))
        for case in CASES
        if when in case
        for tau in (0.05, 0.1, 0.5)
        for kind in ("batch", "mean")
        for layer in ("0", "2")
    )
