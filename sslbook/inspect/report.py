"""What an inspection found: values that can be printed, drawn, and written to JSON and to a page.

The page is HTML that loads nothing: a template, tables, and charts that follow the reader's light or dark theme.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from string import Template
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
    "surely": "There the step amplifies what survives augmentation, and no control explains its share{}.",
    "behind": "A control has as large a share{}: any gradient would lie there.",
    "by value": "Other images may decide otherwise{}.",
    "noisy": "The noise of few views is as large as the last of the leading modes{}.",
    "missed": "The search did not find all modes{}: ask for fewer.",
    "last": "Each mode of a last linear layer is there once for every output{}: no data makes a few of them lead.",
}
"""What each outcome of a layer means, in the order in which a verdict says so."""


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
    def size(self) -> int:
        """Number of weights, the product of ``shape``."""
        return math.prod(self.shape)

    @property
    def clear(self) -> bool:
        """Whether the modes are found and their own, and twice as high as the noise that the draw of the views leaves.

        That is: each eigenvalue is there once, the residual is below 0.1, and the lowest eigenvalue, which is negative by noise
        alone, is less than half as far below zero as the last mode's is above it.
        """
        return self.copies == 1 and self.residual < 0.1 and self.values[-1] > 2 * max(-self.lowest, 0.0)

    @property
    def title(self) -> str:
        """Its name as tables and charts show it, which says so where it is not :attr:`clear`."""
        return self.name if self.clear else f"{self.name} (unclear)"

    @property
    def outcome(self) -> str:
        """One of :data:`OUTCOMES`: what its numbers mean."""
        if self.clear:
            return "behind" if not self.ahead() else "surely" if self.ahead("low", "high") else "by value"
        return "last" if self.copies > 1 else "missed" if self.residual >= 0.1 else "noisy"

    def settled_by(self) -> float:
        """Return how many times as many images, or where it is not clear as many views, would settle what the layer leaves open.

        An interval's width falls with the root of the number of images, and the noise that the draw of the views leaves with the
        number of views or faster.  Half is added to the first, as large differences shrink, and a quarter to the second.
        """
        if not self.clear:
            return 2.5 * -self.lowest / self.values[-1] if self.values[-1] > 0 else math.inf
        rival = max((share for name, share in self.step.items() if name != BETWEEN), key=lambda share: share.value)
        mine, gap = self.step[BETWEEN], self.step[BETWEEN].value - rival.value
        return 1.5 * ((mine.value - mine.low + rival.high - rival.value) / gap) ** 2 if gap > 0 else math.inf

    def ahead(self, low: str = "value", high: str = "value") -> bool:
        """Return whether the step's share in its modes is above all controls: its ``low`` above their ``high``.

        By default both are the values; ``ahead("low", "high")`` asks whether the intervals are apart.
        """
        most = max(getattr(share, high) for name, share in self.step.items() if name != BETWEEN)
        return bool(getattr(self.step[BETWEEN], low) > most)


@dataclass(frozen=True)
class Report:
    """A report holds the settings, the measured layers, and the layers that can't be measured, each with a reason."""

    about: Mapping[str, Any]
    layers: tuple[LayerReport, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.html`` into a folder, which is made if needed; return the path of ``report.html``.

        JSON holds all numbers, as the fields of this class are named; each file is whole or not there.
        """
        place = user_path(folder)
        write_text(place / "report.json", json.dumps({"format": 1, **asdict(self)}, indent=1, allow_nan=False) + "\n")
        write_text(place / "report.html", page(self))
        return place / "report.html"

    def verdict(self) -> str:
        """Say in how many clear layers the step's share exceeds all controls, what each outcome means, and what would settle it.

        Time grows with the numbers of images and of views; more than 16 times as much is out of reach.
        """
        by = {kind: [layer for layer in self.layers if layer.outcome == kind] for kind in OUTCOMES}
        surely, ahead = by["surely"], [layer for layer in self.layers if layer.clear and layer.ahead()]
        clear, unclear = len(ahead + by["behind"]), sum(not layer.clear for layer in self.layers)
        if not clear:
            said = ["No layer could be judged" + ("." if self.layers else ": all were left out.")]
        else:
            found = f"In {len(surely)} of {clear} layers the step's share in the leading modes is above all controls by its "
            found += f"interval{_names(surely)}, in {len(ahead)} by its value{_names(ahead) * (ahead != surely)}."
            said = [found, *[f"{unclear} more {'is' if unclear == 1 else 'are'} unclear."] * bool(unclear)]
        said += [OUTCOMES[kind].format(_names(layers)) for kind, layers in by.items() if layers]
        for kind, axis in (("by value", "images"), ("noisy", "views")):
            far = [layer for layer in by[kind] if layer.settled_by() > 16]
            if reached := [layer for layer in by[kind] if layer not in far]:
                more, size = (
                    max(layer.settled_by() for layer in reached),
                    {n: self.about[n] for n in ("images", "views")},
                )
                size[axis] = math.ceil(size[axis] * more)
                time = duration(self.about["seconds"] / len(self.layers) * len(reached) * more)
                said.append(
                    f"About {size['images']} images x {size['views']} views, {time}, would settle{_names(reached)}."
                )
            said += [f"More than 16 times as many {axis} would be needed{_names(far)}."] * bool(far)
        return " ".join(said)

    def rows(self, part: str = "step", *, ends: bool = True) -> list[dict[str, str]]:
        """Return a row for each layer, by heads: the shares of its ``step`` or ``weights`` in the leading modes.

        The share of the trace comes first, which a step towards random targets has on average.  ends: of the intervals, too.
        """
        rows = []
        for layer in self.layers:
            trace = layer.sizes[BETWEEN].trace  # with few views its noise may be larger than what it estimates
            row = {
                "Layer": layer.title,
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


def _names(layers: Sequence[LayerReport]) -> str:
    return f" ({', '.join(layer.name for layer in layers)})" * bool(layers)


def duration(seconds: float) -> str:
    """A time as one says it.

    >>> duration(0.3), duration(100), duration(9000)
    ('about 1 s', 'about 2 min', 'about 2.5 h')
    """
    number, unit = next(
        (seconds / size, unit)
        for size, unit in ((3600, "h"), (60, "min"), (1, "s"))
        if seconds > 1.5 * size or size == 1
    )
    return f"about {number:.1f} h" if unit == "h" else f"about {max(round(number), 1)} {unit}"


PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Covariance operators, layer by layer</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; } @media (prefers-color-scheme: dark) { img { filter: invert(1) hue-rotate(180deg); } }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; }
.wide { overflow-x: auto; border: 1px solid #888; border-radius: 4px; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-top: 1px solid #888; } caption { text-align: left; padding: .5rem; }
tbody th, th:first-child { text-align: left; white-space: nowrap; } dd, code { overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { display: block; width: 100%; min-width: 40rem; }
</style>
</head>
<body>
<main>
<h1>What the layers hold of the covariance operator</h1>
<p>$count layers of $source, looked at with $views random views of each of $images images ($image_source), and the step of the
loss <i>$loss</i>.</p>
<p><b>$verdict</b></p>
<h2>How to read it</h2>
<p>To first order, training with pairs of views multiplies a layer’s weights by the covariance, between images, of the layer’s
connection averaged over views. A <b>share</b> is the part of a squared length in its $k leading eigenvectors, with the interval of
95 % of redrawn images. Gradients lie in few directions whatever the loss is, and the covariances have leading directions in common:
only where the first number is clear of <i>all</i> its controls does the layer speak for what survives augmentation. With the simple
loss and an Euler gap of 0, the step is the operator times the weights, and its high share arithmetic.</p>
<p>A layer is “unclear” where its $k eigenvalues are not all twice as large as its most negative one, which only the draw of the
views can make negative; where the search did not find them (a residual above 0.1); and where it is the last one and linear: each
eigenvalue is there once for every output, so that no $k modes are the leading ones.</p>
<ul><li><b>Between images</b>: in the modes of the covariance between images, each averaged over its views: that of theory</li>
<li><b>All views</b>: control: in the modes of the covariance of all views, not averaged</li>
<li><b>Within views</b>: control: in the modes of the covariance within the views of one image, to be lost by training</li>
<li><b>Untrained network</b>: control: the untrained network’s, in its own modes between images</li>
<li><b>Random targets, random direction</b>: controls: in the same modes, of steps towards random targets, and of no step</li></ul>
$shares
<h2>Spectra</h2>
<p>Of the covariance between images, less what few views leave in it of that within views. The effective rank is the participation
ratio, (tr OP)² / ‖OP‖²; ± is a standard error, and – stands where noise is larger than what is estimated: a share above 1, a rank
below. The residual is the largest ‖OP v − λ v‖ / λ₁ of the modes. The Euler gap is 0
where the step of the simple loss is the operator times the weights (no biases, no shift of BatchNorm, no parallel path).</p>
$spectra
<h2>Layers left out</h2>
<dl>$refused</dl>
<h2>What was looked at</h2>
<dl>$about</dl>
</main>
</body>
</html>
""")


def page(report: Report) -> str:
    """Return a report as a whole page; all that comes from the caller, as names of layers and of losses, is escaped.

    Charts are in it as SVG, the same to the byte for the same numbers.
    """
    import matplotlib as mpl  # a second, which a report that is printed does not need

    about, k, parts, spectra = report.about, report.about["modes"], "", []
    for layer in report.layers:
        size, views, within = (layer.sizes[kind] for kind in (BETWEEN, ALL, WITHIN))
        ranks = [
            f"{part.rank:.3g} ± {part.rank_error:.3g}" if part.rank >= 1 else "–" for part in (size, views, within)
        ]
        spectra.append({
            "Layer": layer.title,
            "Weights": f"{' × '.join(map(str, layer.shape))} ({layer.kind}, {layer.size:,})",
            f"{k} leading eigenvalues": ", ".join(f"{value:.3g}" for value in layer.values),
            "Lowest eigenvalue": f"{layer.lowest:.2g}",
            "Trace": f"{size.trace:.3g} ± {size.trace_error:.3g}",
            **dict(zip(("Effective rank", "Of all views", "Within views"), ranks, strict=True)),
            "Trace within / between": f"{within.trace / size.trace:.2g}",
            "Residual": f"{layer.residual:.0e}",
            "Euler gap": f"{layer.euler_gap:.1g}",
        })  # fmt: skip
    for part in ("step", "weights") if report.layers else ():
        with mpl.rc_context({"svg.hashsalt": "sslbook"}):
            report.plot(part).savefig(file := io.BytesIO(), format="svg", transparent=True, metadata={"Date": None})
        alt = f"Chart: share of the {part} in the leading modes of each layer, beside controls: numbers are below"
        caption = "The line is where 95 % of the first mark’s redraws lie."
        image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}">'
        chart = f'<div class="wide" role="region" tabindex="0" aria-label="{caption}">{image}</div>'
        parts += f"<h2>Share of the {part}</h2>\n<figure>{chart}<figcaption>{caption}</figcaption></figure>\n"
        parts += _table(f"Share of the trace and of the {part} in {k} leading modes", report.rows(part))
    return PAGE.substitute(
        count=len(report.layers),
        source=escape(str(about.get("source", about["network"]))),
        views=about["views"],
        images=about["images"],
        image_source=escape(str(about["image source"])),
        loss=escape(about["loss"]),
        verdict=escape(report.verdict()),
        k=k,
        shares=parts,
        spectra=_table("Spectra, layer by layer", spectra) if spectra else "",
        refused=_terms(report.refused) or "<dd>None.</dd>",
        about=_terms(about),
    )


def _table(caption: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows, each by the same heads, as a table in a box that scrolls by itself; the first cell of a row heads it."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = ""
    for row in rows:
        name, *cells = map(escape, row.values())
        body += f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'
    table = f"<table><caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return f'<div class="wide" role="region" tabindex="0" aria-label="{caption}">{table}</div>'


def _terms(items: Mapping[str, object]) -> str:
    """Return names and what they are as the terms of a list; of settings within settings, each with its name."""
    found = ""
    for name, value in items.items():
        words = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, Mapping) else value
        found += f"<dt>{escape(name)}</dt><dd>{escape(str(words))}</dd>\n"
    return found
