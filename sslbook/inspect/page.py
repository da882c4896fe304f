"""A report as one HTML page: no script, no request, charts as SVG that follow the reader's light or dark theme."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sslbook.inspect.spectrum import ALL, BETWEEN, CONTROLS, NOISE, RANDOM, UNTRAINED, WITHIN

if TYPE_CHECKING:
    from sslbook.inspect.report import LayerReport, Report, Share

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1a1a1a; --faint: #5c5c5c; --line: #cfcfcf;
  --c0: #084573; --c1: #b03e09; --c2: #0b7a61; --c3: #a11f9f; --c4: #8a5600; --c5: #555; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8e8e8; --faint: #adadad; --line: #444;
  --c0: #7cc1f5; --c1: #ff9a6a; --c2: #4fd6b6; --c3: #f08eee; --c4: #f0b450; --c5: #b5b5b5; } }
body { background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem;
  margin: 0 auto; padding: 1rem; }
h1, h2 { line-height: 1.25; } code { overflow-wrap: anywhere; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: 1rem 0; }
.wide:focus-visible { outline: 3px solid var(--c0); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
th { font-weight: 600; } tbody th, th:first-child { text-align: left; } thead th { border-top: 0; vertical-align: bottom; }
caption { text-align: left; padding: .5rem .6rem; color: var(--faint); } td small { color: var(--faint); display: block; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); } svg { display: block; min-width: 40rem; width: 100%; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } .key { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem;
  list-style: none; padding: 0; } .key svg { display: inline; min-width: 0; width: 14px; vertical-align: -2px; }
img { image-rendering: pixelated; width: 100%; min-width: 20rem; max-width: 46rem; display: block; background: #808080; }
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


def page(report: Report) -> str:
    """The whole page."""
    about, k = report.about, report.about["modes"]
    parts = [
        "<h1>What the layers hold of the covariance operator</h1>",
        f"<p>{len(report.layers)} layers of {escape(str(about.get('source', about['network'])))}, looked at with "
        f"{about['views']} random views of each of {about['images']} images ({escape(str(about['image source']))}), "
        f"and the step of the loss <i>{escape(about['loss'])}</i>.</p>",
        _reading(k),
        *(_shares(report.layers, part, k) for part in ("step", "weights")),
        _spectra(report.layers, k),
        _pictures(report),
        _refused(report),
        _about(about),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<title>Covariance operators, layer by layer</title>"
        f'\n<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _reading(k: int) -> str:
    return (
        "<h2>How to read it</h2>\n<p>To first order, training with pairs of views multiplies a layer’s weights by the covariance, "
        f"between images, of the layer’s connection averaged over views. A <b>share</b> is the part of a squared length that lies "
        f"in the {k} leading eigenvectors of it. Compare it with the controls in the same row, not with 0.</p>\n"
        "<p><b>What a high share does not show.</b> Gradients of a network lie in few directions whatever the loss is: steps "
        "towards random targets show how much of that any step has. And the covariances of all views, and within views, share "
        "leading directions with the one between images. Only where the first number is clear of <i>all</i> its controls does the "
        "layer speak for what survives augmentation. With the simple loss, and where the Euler gap is 0, the step is the operator "
        "times the weights, so that its high share is arithmetic, not evidence.</p>\n"
        "<p>Below each share stands where 95 % of its redraws lie: for modes, of the images with replacement, while weights and "
        "step stay. The step is of the same images as the modes, so that these may lie below it: modes of other images fit it "
        "less well.</p>\n"
        f"<p>A layer is marked “unclear” where its {k} eigenvalues are not all twice as large as its most negative one, which only "
        "the draw of the views can make negative (more views and more images help); where the search did not find them (a residual "
        "above 0.1); and where it is the last one and linear: each of its eigenvalues is there once for every output, so that no "
        f"{k} modes are the leading ones. The shares of such a layer say little.</p>"
    )


# --- shares ----------------------------------------------------------------------------------------------------------


def _shares(layers: Sequence[LayerReport], part: str, k: int) -> str:
    if not layers:
        return ""
    kinds = [name for name in CONTROLS if any(name in getattr(layer, part) for layer in layers)]
    what = {"step": "the step", "weights": "the weights"}[part]
    rows = [
        [*(_cell(getattr(layer, part).get(kind)) for kind in kinds), f"{_chance(layer, k):.1e}"] for layer in layers
    ]
    heads = [*(kind.capitalize() for kind in kinds), "Expected of a random direction"]
    key = "".join(
        f'<li><svg viewBox="-7 -7 14 14" aria-hidden="true">{_mark(CONTROLS.index(kind), 0, 0)}</svg> '
        f"<b>{kind}</b>: {MEANING[kind]}</li>"
        for kind in kinds
    )
    table = _table(f"Share of {what} in {k} leading modes", heads, [_name(layer) for layer in layers], rows)
    return f'<h2>Share of {what}</h2>\n<ul class="key">{key}</ul>\n{_chart(layers, part, kinds, what)}\n{table}'


def _name(layer: LayerReport) -> str:
    return layer.name + ("" if layer.clear else " (unclear)")


def _cell(share: Share | None) -> str:
    return "–" if share is None else f"{share.value:.2g}<small>{share.low:.2g} to {share.high:.2g}</small>"


def _chance(layer: LayerReport, k: int) -> float:
    return min(k, layer.size) / layer.size


def _chart(layers: Sequence[LayerReport], part: str, kinds: Sequence[str], what: str) -> str:
    """A row a layer, a mark a control, on a logarithmic axis of shares."""
    left = 20 + max(6 * len(_name(layer)) for layer in layers)
    width, high = left + 570, 18
    shares = [share.value for layer in layers for share in getattr(layer, part).values() if share.value > 0]
    lowest = math.floor(math.log10(max(min(shares, default=0.1), 1e-9)))

    def x(share: float) -> float:
        return left + (width - left - 20) * (1 - math.log10(max(share, 10**lowest)) / lowest) if lowest else left

    bottom = high * (len(layers) + 1)
    lines = []
    for power in range(lowest, 1):
        at = f"{x(10**power):.1f}"
        name = f"{10.0**power:g}"
        lines.append(f'<line x1="{at}" x2="{at}" y1="8" y2="{bottom}" stroke="var(--line)"/>')
        lines.append(f'<text x="{at}" y="{bottom + 14}" text-anchor="middle">{name}</text>')
    for row, layer in enumerate(layers):
        y, found = high * (row + 1), getattr(layer, part)
        lines.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(_name(layer))}</text>')
        main = found[BETWEEN]
        span = f'x1="{x(main.low):.1f}" x2="{x(main.high):.1f}" y1="{y}" y2="{y}"'
        lines.append(f'<line {span} stroke="var(--c0)" stroke-width="2"/>')
        lines += [_mark(CONTROLS.index(kind), x(found[kind].value), y) for kind in reversed(kinds) if kind in found]
    told = f"Chart: share of {what} in the leading modes of {len(layers)} layers, beside controls; the table has the numbers"
    return (
        f'<figure><div class="wide" role="region" tabindex="0" aria-label="Chart, share of {what}">'
        f'<svg viewBox="0 0 {width} {bottom + 34}" role="img" aria-label="{told}">{"".join(lines)}'
        f'<text x="{(left + width) / 2}" y="{bottom + 30}" text-anchor="middle">share of {what}, logarithmic</text></svg></div>'
        f"<figcaption>The line is where 95 % of the first mark’s redraws lie.</figcaption></figure>"
    )


def _mark(number: int, x: float, y: float) -> str:
    """A mark of its own shape and colour."""
    colour, r = f"var(--c{number})", 4.5
    at = f'transform="translate({x:.1f} {y:.1f})"'
    if number == 0:
        return f'<circle r="{r}" {at} fill="{colour}"/>'
    shape = (
        f"M{-r} {-r}H{r}V{r}H{-r}Z",
        f"M0 {-r - 1}L{r + 1} 0L0 {r + 1}L{-r - 1} 0Z",
        f"M0 {-r}L{r} {r}H{-r}Z",
        f"M{-r} {-r}L{r} {r}M{-r} {r}L{r} {-r}",
        f"M{-r} 0H{r}M0 {-r}V{r}",
    )[number - 1]
    return f'<path d="{shape}" {at} fill="none" stroke="{colour}" stroke-width="2"/>'


# --- spectra and the rest --------------------------------------------------------------------------------------------


def _spectra(layers: Sequence[LayerReport], k: int) -> str:
    heads = [
        "Weights",
        f"{k} leading eigenvalues",
        "Lowest eigenvalue",
        "Trace",
        "Share of the trace in them",
        "Effective rank",
        "Of all views",
        "Within views",
        "Trace within / between",
        "Residual",
        "Euler gap",
    ]
    rows = []
    for layer in layers:
        size, all_views, within = (layer.sizes[kind] for kind in (BETWEEN, ALL, WITHIN))
        rows.append([
            f"{' × '.join(map(str, layer.shape))}<small>{layer.kind}, {layer.size:,}</small>",
            ", ".join(f"{value:.3g}" for value in layer.values),
            f"{layer.lowest:.2g}",
            f"{size.trace:.3g}<small>± {size.trace_error:.3g}</small>",
            f"{layer.leading:.2g}",
            *(f"{part.rank:.3g}<small>± {part.rank_error:.3g}</small>" for part in (size, all_views, within)),
            f"{within.trace / size.trace:.2g}",
            f"{layer.residual:.0e}",
            f"{layer.euler_gap:.1g}",
        ])  # fmt: skip
    return (
        "<h2>Spectra</h2>\n<p>Of the covariance between images; what few views leave in it of the covariance within views is taken "
        "away. The effective rank is the participation ratio, (tr OP)² / ‖OP‖², of this many images: exact along the directions "
        "that the search for the modes asked about, by random signs beside them; ± is a standard error over these signs. The "
        "residual is the largest ‖OP v − λ v‖ / λ₁ of the modes. The Euler gap is 0 where the step of the simple loss is the "
        "operator times the weights (no biases, no shift of BatchNorm, no parallel path), and near 1 where it is far from it.</p>"
        f"\n{_table('Spectra, layer by layer', heads, [_name(layer) for layer in layers], rows)}"
    )


def _table(caption: str, heads: Iterable[str], names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in a box that scrolls by itself; cells are HTML already."""
    head = "".join(f'<th scope="col">{text}</th>' for text in ("Layer", *heads))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in row)}</tr>\n'
        for name, row in zip(names, rows, strict=True)
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _pictures(report: Report) -> str:
    """The first convolution's weights and leading modes, each a row of the filters that are longest in it."""
    if not report.filters:
        return ""
    shown = [
        ("its weights", report.filters["weights"], "The weights"),
        ("the leading modes between images", report.filters[BETWEEN], "Leading modes between images, largest first"),
        ("the leading modes within views", report.filters[WITHIN], "Control: leading modes within views"),
    ]
    figures = [
        f'<figure><div class="wide" role="region" tabindex="0" aria-label="Filters of {what}">'
        f'<img alt="Filters of {what}, a row each; zero is grey" src="data:image/png;base64,{_png(np.array(rows))}"></div>'
        f"<figcaption>{caption}.</figcaption></figure>"
        for what, rows, caption in shown
    ]
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


def _refused(report: Report) -> str:
    if not report.refused:
        return ""
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(why)}</li>" for name, why in report.refused.items())
    return f"<h2>Layers left out</h2>\n<ul>{items}</ul>"


def _about(about: Any) -> str:
    items = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(_words(value))}</dd>" for name, value in about.items())
    return f"<h2>What was looked at</h2>\n<dl>{items}</dl>"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
