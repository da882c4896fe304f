"""What an inspection found, as values that can be printed, written to JSON and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sslbook.inspect.spectrum import ALL, BETWEEN, NOISE, RANDOM, UNTRAINED, WITHIN, Size
from sslbook.runtime.atomic_io import user_path, write_text

FORMAT = 1
"""Of ``report.json``."""


@dataclass(frozen=True)
class Share:
    """A share of a squared length, in [0, 1], and where 95 % of its redraws lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"


@dataclass(frozen=True)
class LayerReport:
    r"""A layer.

    values: the leading ``k`` eigenvalues of the covariance between images.  lowest: the lowest one that was met, which only noise
    can push below 0: eigenvalues of its size are not to be told from noise.  copies: how many times each eigenvalue is there by
    construction: in a last linear layer once for each output, so that no few modes are the leading ones.  residual: the largest
    :math:`\|\mathrm{OP} v - \lambda v\| / \lambda_1` of its modes.  sizes: trace and participation ratio, by operator.
    weights, step: the share of the weights, and of the step, in ``k`` leading modes, by :data:`CONTROLS`.
    euler_gap: 0 where Theorem 1 of [tian2020] applies: no biases, no shift of BatchNorm, no parallel path.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    values: tuple[float, ...]
    lowest: float
    copies: int
    residual: float
    sizes: Mapping[str, Size]
    weights: Mapping[str, Share]
    step: Mapping[str, Share]
    euler_gap: float

    @property
    def size(self) -> int:
        """How many weights it has."""
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def clear(self) -> bool:
        """Whether the modes are found and their own, and twice as high as the noise that the draw of the views leaves."""
        return self.copies == 1 and self.residual < 0.1 and self.values[-1] > 2 * max(-self.lowest, 0.0)

    @property
    def leading(self) -> float:
        """The share of the trace in the leading modes: what a step towards random targets has there on average."""
        return sum(self.values) / self.sizes[BETWEEN].trace


@dataclass(frozen=True)
class Report:
    """All layers; what was looked at, and how; the layers that the operator refuses, each with its sentence.

    filters: of the first convolution, if it looks at an image's own channels, the weights and the leading modes of the covariance
    between images and within views, each ``(k, out, in, height, width)`` as nested lists.
    """

    about: Mapping[str, Any]
    layers: tuple[LayerReport, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.html``, which is returned, into a folder that is made if it is not there."""
        from sslbook.inspect.page import page

        place = user_path(folder)
        content = {"format": FORMAT, **asdict(self)}
        write_text(place / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
        write_text(place / "report.html", page(self))
        return place / "report.html"

    def table(self) -> str:
        """A row a layer: size, effective rank, share of the trace, and of weights and step, each beside its controls."""
        rows = [("layer", "weights", "rank", "trace in modes", *(f"{x}: {c}" for x in "ws" for c in SHORT.values()))]
        for layer in self.layers:
            shares = [
                f"{part[name].value:.1e}" if name in part else "–"
                for part in (layer.weights, layer.step)
                for name in SHORT
            ]
            rank = f"{layer.sizes[BETWEEN].rank:.1f}"
            rows.append((layer.name + "*" * (not layer.clear), str(layer.size), rank, f"{layer.leading:.2f}", *shares))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
            for row in rows
        ]
        told = f"Share of the weights (w) and of the step (s) in the {self.about['modes']} leading modes:"
        if not all(layer.clear for layer in self.layers):
            lines.append(
                "* unclear: lost in the noise of so few images and views, not found, or, in a last layer, not its own"
            )
        return "\n".join([told, *lines, *(f"{name}: left out, {why}" for name, why in self.refused.items())])

    def __repr__(self) -> str:
        return self.table()


SHORT = {BETWEEN: "between", ALL: "all", WITHIN: "within", UNTRAINED: "untrained", NOISE: "targets", RANDOM: "random"}
"""The controls, in the heads of :meth:`Report.table`."""


def read_report(path: str | Path) -> Report:
    """A ``report.json`` that :meth:`Report.save` wrote; raises ValueError, naming the file, if it is something else."""
    path = user_path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        layers = tuple(_layer(layer) for layer in content.pop("layers"))
        return Report(layers=layers, **content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no report of sslbook inspect: {error}") from None


def _layer(content: Any) -> LayerReport:
    content["sizes"] = {name: Size(**size) for name, size in content["sizes"].items()}
    for part in ("weights", "step"):
        content[part] = {name: Share(**share) for name, share in content[part].items()}
    for part in ("shape", "values"):
        content[part] = tuple(content[part])
    return LayerReport(**content)
