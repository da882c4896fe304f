"""What an inspection found: values that can be printed, drawn, and written to JSON and to a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sslbook._files import user_path, write_text
from sslbook._machine import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETWEEN, ALL, WITHIN = KINDS = ("between images", "all views", "within views")
"""The operator, and two that it is easily mistaken for: views not averaged, and what varies among the views of one image."""
UNTRAINED, RANDOM, NOISE = "untrained network", "random direction", "random targets"
MARKS = {
    BETWEEN: "o#084573",
    ALL: "s#b03e09",
    WITHIN: "D#0b7a61",
    UNTRAINED: "^#a11f9f",
    NOISE: "x#8a5600",
    RANDOM: "+#555555",
}
"""In the order of tables, with a form and a colour: the modes between images, and the controls.  They are the same share in other
operators' modes, then other directions' share in these.  The page's dark theme turns the colours' lightness round."""


@dataclass(frozen=True)
class Size:
    r"""Trace, and participation ratio :math:`(\operatorname{tr})^2 / \|\mathrm{OP}\|_F^2`, each with its standard error."""

    trace: float
    trace_error: float
    rank: float
    rank_error: float


@dataclass(frozen=True)
class Share:
    """A share of a squared length, in [0, 1], and where 95 % of its redraws lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerReport:
    r"""The measurements of one layer.  values: the ``k`` leading eigenvalues of the covariance between images.

    lowest: the lowest eigenvalue found.  Only noise makes it negative, so eigenvalues of this size may be noise.
    copies: the multiplicity of each eigenvalue by construction.  In a last linear layer it is the number of outputs, so
    no few modes lead.  residual: the largest :math:`\|\mathrm{OP} v - \lambda v\| / \lambda_1` of the modes.
    sizes: trace and participation ratio, by operator.  weights, step: their shares in the modes, by :data:`MARKS`.
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
        return math.prod(self.shape)

    @property
    def clear(self) -> bool:
        """Whether the modes are found and their own, and twice as high as the noise that the draw of the views leaves."""
        return self.copies == 1 and self.residual < 0.1 and self.values[-1] > 2 * max(-self.lowest, 0.0)

    @property
    def title(self) -> str:
        """Its name, and whether it is unclear."""
        return self.name if self.clear else f"{self.name} (unclear)"

    def ahead(self, low: str = "value", high: str = "value") -> bool:
        """Whether the step's share in its modes is above all controls, by value, or its ``low`` end above their ``high`` ones."""
        most = max(getattr(share, high) for name, share in self.step.items() if name != BETWEEN)
        return bool(getattr(self.step[BETWEEN], low) > most)

    @property
    def leading(self) -> float:
        """The share of the trace in the leading modes: what a step towards random targets has there on average."""
        return sum(self.values) / self.sizes[BETWEEN].trace


@dataclass(frozen=True)
class Report:
    """A report holds the settings, the measured layers, and the layers that can't be measured, each with a reason."""

    about: Mapping[str, Any]
    layers: tuple[LayerReport, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.html`` into a folder, which is made if needed; return the path of ``report.html``."""
        from sslbook.inspect.page import page  # and with it matplotlib, which a report that is printed does not need

        place = user_path(folder)
        write_text(place / "report.json", json.dumps({"format": 1, **asdict(self)}, indent=1, allow_nan=False) + "\n")
        write_text(place / "report.html", page(self))
        return place / "report.html"

    def verdict(self) -> str:
        """Say in how many layers the step's share exceeds all controls, by value and by interval; suggest more data."""
        clear = [layer for layer in self.layers if layer.clear]
        if not clear:
            why = "all are lost in the noise of so few images and views, not found, or not a layer's own"
            return f"No layer could be judged: {why if self.layers else 'all were left out'}."
        surely = [layer.name for layer in clear if layer.ahead("low", "high")]
        ahead = [layer.name for layer in clear if layer.ahead()]
        found = f"In {len(surely)} of {len(clear)} layers the step's share in the leading modes is above all controls by its "
        found += "interval" + f" ({', '.join(surely)})" * bool(surely)
        found += f", in {len(ahead)} by its value" + f" ({', '.join(ahead)})" * (ahead != surely) + "."
        if unclear := len(self.layers) - len(clear):
            found += f" {unclear} more {'is' if unclear == 1 else 'are'} unclear."
        more = " More images narrow the intervals; more views make more layers clear."
        return found + more * (len(surely) < len(self.layers))

    def rows(self, part: str = "step", *, ends: bool = True) -> list[dict[str, str]]:
        """Return a row for each layer, by heads: the shares of its ``step`` or ``weights`` in the leading modes.

        The share of the trace comes first, which a step towards random targets has on average.  ends: of the intervals, too.
        """
        rows = []
        for layer in self.layers:
            row = {"Layer": layer.title, "Trace": f"{layer.leading:.2g}"}
            for kind, share in getattr(layer, part).items():
                row[kind.capitalize()] = f"{share.value:.2g}" + f" ({share.low:.2g} to {share.high:.2g})" * ends
            rows.append(row)
        return rows

    def table(self) -> str:
        """Return the verdict, and a row for each layer: the shares of the trace and of the step in the leading modes."""
        lines, rows = [self.verdict(), f"Shares in the {self.about['modes']} leading modes:"], self.rows(ends=False)
        cells = [list(row) for row in rows[:1]] + [list(row.values()) for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, *values in cells:
            right = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *right]))
        return "\n".join([*lines, *(f"{name}: left out, {why}" for name, why in self.refused.items())])

    def __repr__(self) -> str:
        return self.table()

    def plot(self, part: str = "step") -> Figure:
        """Draw a row for each layer: the share of its ``step`` or ``weights`` in the leading modes, and the controls."""
        rows, shares = range(len(self.layers)), [getattr(layer, part) for layer in self.layers]
        drawn = figure(figsize=(9, 1.5 + 0.25 * len(rows)))
        axes = drawn.subplots()
        axes.set(xscale="log", xlabel=f"share of the {part}", yticks=rows)
        axes.set_yticklabels([layer.title for layer in self.layers])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", color="#cfcfcf")
        low, high = ([max(getattr(share[BETWEEN], end), 1e-9) for share in shares] for end in ("low", "high"))
        axes.hlines(rows, low, high, colors=MARKS[BETWEEN][1:])
        for kind in reversed(shares[0] if shares else {}):  # the first above all others
            marker, colour = MARKS[kind][0], MARKS[kind][1:]
            values = [max(share[kind].value, 1e-9) for share in shares]
            filled = colour if kind == BETWEEN else "none"
            axes.plot(values, rows, marker, color=colour, markerfacecolor=filled, markeredgewidth=1.5, label=kind)
        drawn.legend(loc="outside upper center", ncols=3, frameon=False, reverse=True)
        return drawn
