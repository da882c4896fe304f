"""What an inspection found, as values that can be printed or written to JSON, and as a page that loads nothing."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from sslbook._files import user_path, write_text
from sslbook._machine import figure
from sslchapters.tables import as_html, as_text

FORMAT = 1
"""Of ``report.json``."""
BETWEEN, ALL, WITHIN = KINDS = ("between images", "all views", "within views")
"""The operator, and two that it is easily mistaken for: views not averaged, and what varies among the views of one image."""
UNTRAINED, RANDOM, NOISE = "untrained network", "random direction", "random targets"
CONTROLS = (BETWEEN, ALL, WITHIN, UNTRAINED, NOISE, RANDOM)
"""In the order of tables: the modes between images, the same share in other operators' modes, other directions' share in these."""


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

    def __str__(self) -> str:
        return f"{self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"


@dataclass(frozen=True)
class LayerReport:
    r"""The measurements of one layer.  values: the ``k`` leading eigenvalues of the covariance between images.

    lowest: the lowest eigenvalue found.  Only noise makes it negative, so eigenvalues of this size may be noise.
    copies: the multiplicity of each eigenvalue by construction.  In a last linear layer it is the number of outputs, so
    no few modes lead.  residual: the largest :math:`\|\mathrm{OP} v - \lambda v\| / \lambda_1` of the modes.
    sizes: trace and participation ratio, by operator.  weights, step: their shares in the modes, by :data:`CONTROLS`.
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
    """A report holds the settings, the measured layers, and the layers that can't be measured, each with a reason.

    filters: the weights of the first convolution with one or three input channels, and the leading modes of its
    covariance between images and of that within views.  Each is a nested list ``(k, out, in, height, width)``.
    """

    about: Mapping[str, Any]
    layers: tuple[LayerReport, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.json`` and ``report.html`` into a folder, which is made if needed; return the path of ``report.html``."""
        place = user_path(folder)
        content = {"format": FORMAT, **asdict(self)}
        write_text(place / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
        write_text(place / "report.html", _page(self))
        return place / "report.html"

    def verdict(self) -> str:
        """Say in how many layers the step's share exceeds all controls, by value and by interval; suggest more data."""
        able = [layer for layer in self.layers if layer.clear]
        if not able:
            why = "all are lost in the noise of so few images and views, not found, or not a layer's own"
            return f"No layer could be judged: {why if self.layers else 'all were left out'}."
        ahead = [layer.name for layer in able if layer.ahead()]
        surely = [layer.name for layer in able if layer.ahead("low", "high")]
        found = f"In {len(surely)} of {len(able)} layers the step's share in the leading modes is above all controls by its "
        found += "interval" + f" ({', '.join(surely)})" * bool(surely) + f", in {len(ahead)} by its value"
        found += f" ({', '.join(ahead)})." if ahead != surely else "."
        unclear = len(self.layers) - len(able)
        more = f" {unclear} more {'is' if unclear == 1 else 'are'} unclear." * bool(unclear)
        if len(surely) < len(self.layers):
            more += " More images narrow the intervals; more views make more layers clear."
        return found + more

    def table(self) -> str:
        """Return the verdict and a row for each layer: its size, effective rank, share of the trace, and shares of the step."""
        rows = []
        for layer in self.layers:
            shares = [f"{layer.step[name].value:.1e}" if name in layer.step else "–" for name in SHORT]
            rank = f"{layer.sizes[BETWEEN].rank:.1f}"
            rows.append((layer.name + "*" * (not layer.clear), str(layer.size), rank, f"{layer.leading:.2f}", *shares))
        heads = ("layer", "weights", "rank", "trace", *SHORT.values())
        lines = [self.verdict(), f"Share of the trace, and of the step, in the {self.about['modes']} leading modes:"]
        lines += [as_text(heads, rows)] * bool(rows)
        if not all(layer.clear for layer in self.layers):
            lines.append(
                "* unclear: lost in the noise of so few images and views, not found, or, in a last layer, not its own"
            )
        return "\n".join([*lines, *(f"{name}: left out, {why}" for name, why in self.refused.items())])

    def __repr__(self) -> str:
        return self.table()

    def plot(self, part: str = "step") -> Figure:
        """Draw a row for each layer: the share of its ``step`` or ``weights`` in the leading modes, and the controls."""
        return _chart(self.layers, part)


SHORT = {BETWEEN: "between", ALL: "all", WITHIN: "within", UNTRAINED: "untrained", NOISE: "targets", RANDOM: "random"}
"""The controls, in the heads of :meth:`Report.table`."""


# --- the page: no script, no request, charts that follow the reader's light or dark theme ---------------------------------

LEAST = 1e-9
"""Shares below are drawn there, on a logarithmic axis."""
MARKS = {
    BETWEEN: ("o", "#084573"),
    ALL: ("s", "#b03e09"),
    WITHIN: ("D", "#0b7a61"),
    UNTRAINED: ("^", "#a11f9f"),
    NOISE: ("x", "#8a5600"),
    RANDOM: ("+", "#555555"),
}
"""A form and a colour for each control; the page's dark theme turns their lightness round."""
STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1a1a1a; --faint: #5c5c5c; --line: #cfcfcf; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8e8e8; --faint: #adadad; --line: #444; }
  .chart { filter: invert(1) hue-rotate(180deg); } }
body { background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; max-width: 76rem;
  margin: 0 auto; padding: 1rem; }
h1, h2 { line-height: 1.25; } code { overflow-wrap: anywhere; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: 1rem 0; }
.wide:focus-visible { outline: 3px solid; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-top: 1px solid var(--line); }
th { font-weight: 600; } tbody th { white-space: nowrap; }
tbody th, th:first-child { text-align: left; } thead th { border-top: 0; vertical-align: bottom; }
caption { text-align: left; padding: .5rem .6rem; color: var(--faint); }
figure { margin: 1rem 0; } figcaption { color: var(--faint); } img { display: block; width: 100%; }
.chart { min-width: 40rem; } .filters { image-rendering: pixelated; min-width: 20rem; max-width: 46rem; background: #808080; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--faint); } dd { margin: 0;
  overflow-wrap: anywhere; } @media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
"""
MEANING = {
    BETWEEN: "in the modes of the covariance between images, each image averaged over its views: the theory's operator",
    ALL: "control: in the modes of the covariance of all views, not averaged",
    WITHIN: "control: in the modes of the covariance within the views of one image, which training would have to lose",
    UNTRAINED: "control: the untrained network's, in its own modes between images",
    NOISE: "control: in the same modes, of steps towards random targets, one an image",
    RANDOM: "control: in the same modes, of random directions",
}
READING = (
    "<h2>How to read it</h2>\n<p>To first order, training with pairs of views multiplies a layer’s weights by the covariance, "
    "between images, of the layer’s connection averaged over views. A <b>share</b> is the part of a squared length that lies "
    "in the {k} leading eigenvectors of it. Compare it with the controls in the same row, not with 0.</p>\n"
    "<p><b>What a high share does not show.</b> Gradients of a network lie in few directions whatever the loss is: steps "
    "towards random targets show how much of that any step has. And the covariances of all views, and within views, share "
    "leading directions with the one between images. Only where the first number is clear of <i>all</i> its controls does the "
    "layer speak for what survives augmentation. With the simple loss, and where the Euler gap is 0, the step is the operator "
    "times the weights, so that its high share is arithmetic, not evidence.</p>\n"
    "<p>In brackets stands where 95 % of a share’s redraws lie: for modes, of the images with replacement, while weights and "
    "step stay. The step is of the same images as the modes, so that these may lie below it: modes of other images fit it "
    "less well.</p>\n"
    "<p>A layer is marked “unclear” where its {k} eigenvalues are not all twice as large as its most negative one, which only "
    "the draw of the views can make negative (more views and more images help); where the search did not find them (a residual "
    "above 0.1); and where it is the last one and linear: each of its eigenvalues is there once for every output, so that no "
    "{k} modes are the leading ones. The shares of such a layer say little.</p>"
)


def _page(report: Report) -> str:
    """The whole page."""
    about, k = report.about, report.about["modes"]
    parts = [
        "<h1>What the layers hold of the covariance operator</h1>",
        f"<p>{len(report.layers)} layers of {escape(str(about.get('source', about['network'])))}, looked at with "
        f"{about['views']} random views of each of {about['images']} images ({escape(str(about['image source']))}), "
        f"and the step of the loss <i>{escape(about['loss'])}</i>.</p>",
        f"<p><b>{escape(report.verdict())}</b></p>",
        READING.format(k=k),
        *(_shares(report.layers, part, k) for part in ("step", "weights") if report.layers),
        _spectra(report.layers, k) if report.layers else "",
        _pictures(report),
        "<h2>Layers left out</h2>" * bool(report.refused),
        _list((f"<code>{escape(name)}</code>", why) for name, why in report.refused.items()),
        "<h2>What was looked at</h2>",
        _list((escape(str(name)), _words(value)) for name, value in about.items()),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<title>Covariance operators, layer by layer</title>"
        f'\n<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _shares(layers: Sequence[LayerReport], part: str, k: int) -> str:
    kinds = _kinds(layers, part)
    what = f"the {part}"
    rows = []
    for layer in layers:
        found = [getattr(layer, part).get(kind) for kind in kinds]
        cells = [
            "–" if share is None else f"{share.value:.2g} ({share.low:.2g} to {share.high:.2g})" for share in found
        ]
        rows.append([_name(layer), *cells, f"{min(k, layer.size) / layer.size:.1e}"])
    heads = ["Layer", *(kind.capitalize() for kind in kinds), "Expected of a random direction"]
    told = f"Chart: share of {what} in the leading modes of {len(layers)} layers, beside controls; the table has the numbers"
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "sslbook"}):
        _chart(layers, part).savefig(file, format="svg", transparent=True, metadata={"Date": None})
    picture = base64.b64encode(file.getvalue().encode()).decode()
    return (
        f"<h2>Share of {what}</h2>\n<ul>{''.join(f'<li><b>{kind}</b>: {MEANING[kind]}</li>' for kind in kinds)}</ul>\n"
        f"<figure>{_wide(f'Chart, share of {what}', _image('chart', told, 'svg+xml', picture))}"
        "<figcaption>The line is where 95 % of the first mark’s redraws lie.</figcaption></figure>\n"
        + _table(f"Share of {what} in {k} leading modes", heads, rows)
    )


def _name(layer: LayerReport) -> str:
    return layer.name + ("" if layer.clear else " (unclear)")


def _kinds(layers: Sequence[LayerReport], part: str) -> list[str]:
    return [name for name in CONTROLS if any(name in getattr(layer, part) for layer in layers)]


def _chart(layers: Sequence[LayerReport], part: str) -> Figure:
    """A row a layer, a mark a control, on a logarithmic axis of shares."""
    drawn = figure(figsize=(9, 1.5 + 0.25 * len(layers)))
    axes, rows = drawn.subplots(), range(len(layers))
    shares = [getattr(layer, part) for layer in layers]
    axes.set(xscale="log", xlabel=f"share of the {part}", yticks=rows, yticklabels=[_name(layer) for layer in layers])
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.grid(axis="x", color="#cfcfcf")
    low, high = ([max(getattr(share[BETWEEN], end), LEAST) for share in shares] for end in ("low", "high"))
    axes.hlines(rows, low, high, colors=MARKS[BETWEEN][1])
    for kind in reversed(_kinds(layers, part)):  # the first above all others
        marker, colour = MARKS[kind]
        found = [max(share[kind].value, LEAST) if kind in share else math.nan for share in shares]
        filled = colour if kind == BETWEEN else "none"
        axes.plot(found, rows, marker, color=colour, markerfacecolor=filled, markeredgewidth=1.5, label=kind)
    drawn.legend(loc="outside upper center", ncols=3, frameon=False, reverse=True)
    return drawn


def _spectra(layers: Sequence[LayerReport], k: int) -> str:
    rows = []
    for layer in layers:
        size, all_views, within = (layer.sizes[kind] for kind in (BETWEEN, ALL, WITHIN))
        ranks = [f"{part.rank:.3g} ± {part.rank_error:.3g}" for part in (size, all_views, within)]
        rows.append({
            "Layer": _name(layer),
            "Weights": f"{' × '.join(map(str, layer.shape))} ({layer.kind}, {layer.size:,})",
            f"{k} leading eigenvalues": ", ".join(f"{value:.3g}" for value in layer.values),
            "Lowest eigenvalue": f"{layer.lowest:.2g}",
            "Trace": f"{size.trace:.3g} ± {size.trace_error:.3g}",
            "Share of the trace in them": f"{layer.leading:.2g}",
            **dict(zip(("Effective rank", "Of all views", "Within views"), ranks, strict=True)),
            "Trace within / between": f"{within.trace / size.trace:.2g}",
            "Residual": f"{layer.residual:.0e}",
            "Euler gap": f"{layer.euler_gap:.1g}",
        })  # fmt: skip
    return (
        "<h2>Spectra</h2>\n<p>Of the covariance between images; what few views leave in it of the covariance within views is taken "
        "away. The effective rank is the participation ratio, (tr OP)² / ‖OP‖², of this many images: exact along the directions "
        "that the search for the modes asked about, by random signs beside them; ± is a standard error over these signs. The "
        "residual is the largest ‖OP v − λ v‖ / λ₁ of the modes. The Euler gap is 0 where the step of the simple loss is the "
        "operator times the weights (no biases, no shift of BatchNorm, no parallel path), and near 1 where it is far from it.</p>"
        f"\n{_table('Spectra, layer by layer', list(rows[0]), [list(row.values()) for row in rows])}"
    )


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Where a cell is too wide, its lines end after a comma and before a bracket alone."""
    whole = {" ": "\N{NO-BREAK SPACE}", "-": "\N{MINUS SIGN}"}
    kept = [
        [name, *(re.sub(r"(?<!,) (?!\()|-", lambda found: whole[found[0]], cell) for cell in cells)]
        for name, *cells in rows
    ]
    return _wide(escape(caption), as_html(caption, heads, kept))


def _wide(label: str, content: str) -> str:
    """A box that scrolls by itself, also by keys."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{label}">{content}</div>'


def _image(kind: str, alt: str, format: str, content: str) -> str:
    return f'<img class="{kind}" alt="{alt}" src="data:image/{format};base64,{content}">'


def _pictures(report: Report) -> str:
    """The first convolution's weights and leading modes, each a row of the filters that are longest in it."""
    if not report.filters:
        return ""
    shown = {
        "its weights": ("weights", "The weights"),
        "the leading modes between images": (BETWEEN, "Leading modes between images, largest first"),
        "the leading modes within views": (WITHIN, "Control: leading modes within views"),
    }
    figures = []
    for what, (part, caption) in shown.items():
        picture = _png(np.array(report.filters[part]))
        image = _image("filters", f"Filters of {what}, a row each; zero is grey", "png", picture)
        figures.append(f"<figure>{_wide(f'Filters of {what}', image)}<figcaption>{caption}.</figcaption></figure>")
    return (
        f"<h2>The first convolution, <code>{escape(report.filters['layer'])}</code></h2>\n<p>Each row is one direction of weights: "
        "its sixteen longest filters, longest first, in the colours of the image; grey is zero, and the sign of a row means "
        f"nothing.</p>\n{''.join(figures)}"
    )


def _png(rows: np.ndarray) -> str:
    """Rows of filters ``(k, out, in, height, width)`` as a PNG in base64, a pixel a weight, a clear pixel between filters."""
    strips = []
    for filters in rows:
        longest = np.argsort(-np.square(filters).sum((1, 2, 3)), kind="stable")[:16]
        levels = filters[longest] / (np.abs(filters).max() or 1.0)
        tiles = np.pad(np.round(127.5 + 127 * levels), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
        strips.append(np.concatenate(list(tiles), axis=-1))
    whole = np.concatenate(strips, axis=1)
    whole = np.broadcast_to(whole, (3, *whole.shape[1:]))
    clear = np.where(whole[:1] < 0, 0, 255)
    pixels = np.concatenate([np.clip(whole, 0, 255), clear]).astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _list(items: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(words)}</dd>' for name, words in items)}</dl>"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
