"""What an inspection found: values that can be printed, drawn, and written to JSON and to a page.

The page is HTML that loads nothing: the Jinja template ``report.html`` beside this file, with all its tables, and charts that
follow the reader's light or dark theme.
"""

from __future__ import annotations

import base64
import io
import json
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


OUTCOMES = {
    "surely": "There the step amplifies what survives augmentation, and no control explains its share{}: see the modes by "
    "sslbook.covariance_operator(net, layer, views).top_eigenpairs().plot().",
    "by value": "Its interval overlaps a control's{}, so that other images may decide otherwise: four times as many halve it.",
    "less": "The step lies less there than steps towards random targets do{}: it moves other directions than the leading modes; "
    "ask for more modes, or look at other layers.",
    "alike": "A control has as large a share{}, which is no sign of what survives then: the table says which one; look at other "
    "layers.",
    "noisy": "The noise of few views is as large as the last of the leading modes{}: take more views, or ask for fewer modes.",
    "missed": "The search did not find all modes{}: ask for fewer.",
    "last": "Each mode of a last linear layer is there once for every output{}, and no few of them lead: look at the layers below.",
}
"""What each outcome of a layer means, and what to do next, in the order in which a verdict says so."""


@dataclass(frozen=True)
class Size:
    r"""Trace, and participation ratio :math:`(\operatorname{tr})^2 / \|\mathrm{OP}\|_F^2`, each with its standard error."""

    trace: float
    trace_error: float
    rank: float
    rank_error: float


@dataclass(frozen=True)
class Share:
    """A share of a squared length, in [0, 1], or a ratio, and where 95 % of its redraws lie."""

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
    def clear(self) -> bool:
        """Whether the modes are found and their own, and twice as high as the noise that the draw of the views leaves.

        That is: each eigenvalue is there once, the residual is below 0.1, and the lowest eigenvalue, which is negative by noise
        alone, is less than half as far below zero as the last mode's is above it.
        """
        return self.copies == 1 and self.residual < 0.1 and self.values[-1] > 2 * max(-self.lowest, 0.0)

    @property
    def outcome(self) -> str:
        """One of :data:`OUTCOMES`: what its numbers mean.

        Ahead of all controls it is so "surely", by intervals, or "by value".  Behind, it is "less" where its interval is below the
        mean share of steps towards random targets, which no image asks for; else a control is "alike".
        """
        if not self.clear:
            return "last" if self.copies > 1 else "missed" if self.residual >= 0.1 else "noisy"
        mine, controls = self.step[BETWEEN], [share for name, share in self.step.items() if name != BETWEEN]
        if mine.value > max(share.value for share in controls):
            return "surely" if mine.low > max(share.high for share in controls) else "by value"
        return "less" if mine.high < self.step[NOISE].value else "alike"


@dataclass(frozen=True)
class Report:
    """A report holds the settings, the measured layers, and the layers that can't be measured, each with a reason."""

    about: Mapping[str, Any]
    layers: tuple[LayerReport, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.html`` into a folder, which is made if needed; return the path of ``report.html``.

        JSON holds all numbers, as the fields of this class are named.  The page has its charts within it, as SVG, the same to the
        byte for the same numbers; all that comes from the caller, as names of layers and of losses, is escaped.  Each file is whole
        or not there.
        """
        import jinja2  # with matplotlib a second, which a report that is printed does not need
        import matplotlib as mpl

        charts = {}
        for part in ("step", "weights") if self.layers else ():
            with mpl.rc_context({"svg.hashsalt": "sslbook"}):
                self.plot(part).savefig(file := io.BytesIO(), format="svg", transparent=True, metadata={"Date": None})
            charts[part] = base64.b64encode(file.getvalue()).decode()
        page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
            Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        )
        place = user_path(folder)
        write_text(place / "report.json", json.dumps({"format": 1, **asdict(self)}, indent=1, allow_nan=False) + "\n")
        write_text(place / "report.html", page.render(report=self, about=self.about, charts=charts, kinds=KINDS))
        return place / "report.html"

    def verdict(self) -> str:
        """Say in how many clear layers the step's share exceeds all controls, what each outcome means, and what to do next."""
        by = {kind: [layer.name for layer in self.layers if layer.outcome == kind] for kind in OUTCOMES}
        told = {kind: f" ({', '.join(names)})" for kind, names in by.items() if names}
        clear, surely = sum(layer.clear for layer in self.layers), len(by["surely"])
        if not clear:
            said = "No layer could be judged" + ("." if self.layers else ": all were left out.")
        else:
            said = f"In {surely} of {clear} layers the step's share in the leading modes is above all controls by its "
            said += f"interval{told.get('surely', '')}, in {surely + len(by['by value'])} by its value."
            if unclear := len(self.layers) - clear:
                said += f" {unclear} more {'is' if unclear == 1 else 'are'} unclear."
        return " ".join([said, *(OUTCOMES[kind].format(names) for kind, names in told.items())])

    def rows(self, part: str = "step", *, ends: bool = True) -> list[dict[str, str]]:
        """Return a row for each layer, by heads: the shares of its ``step`` or ``weights`` in the leading modes.

        The share of the trace comes first, which a step towards random targets has on average.  ends: of the intervals, too.
        """
        rows = []
        for layer in self.layers:
            trace = layer.sizes[BETWEEN].trace  # with few views its noise may be larger than what it estimates
            row = {
                "Layer": layer.name + " (unclear)" * (not layer.clear),
                "Trace": f"{sum(layer.values) / trace:.2g}" if trace > sum(layer.values) else "–",
            }
            for kind, share in getattr(layer, part).items():
                row[kind.capitalize()] = f"{share.value:.2g}" + f" ({share.low:.2g} to {share.high:.2g})" * ends
            rows.append(row)
        return rows

    def table(self) -> str:
        """Return the verdict, for each layer the shares of the trace and of the step in the leading modes, and what is left out."""
        lines, rows = [self.verdict(), f"Shares in the {self.about['modes']} leading modes:"], self.rows(ends=False)
        cells = [list(row) for row in rows[:1]] + [list(row.values()) for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, *values in cells:
            right = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *right]))
        return "\n".join([*lines, *(f"{name}: left out, {why}" for name, why in self.refused.items())])

    __repr__ = table

    def plot(self, part: str = "step") -> Figure:
        """Draw a row for each layer: the share of its ``step`` or ``weights`` in the leading modes, and the controls.

        The axis is logarithmic, from 1e-9 on; a line shows where 95 % of the first mark's redraws lie (:data:`MARKS`).
        """
        rows, shares = range(len(self.layers)), [getattr(layer, part) for layer in self.layers]
        drawn = figure(figsize=(9, 1.5 + 0.25 * len(rows)))
        axes = drawn.subplots()
        axes.set(xscale="log", xlabel=f"share of the {part}", yticks=rows)
        axes.set_yticklabels([row["Layer"] for row in self.rows(part)])
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
