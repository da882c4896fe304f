"""A report as one page of HTML that loads nothing: a template, tables, and charts that follow the reader's light or dark theme."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from string import Template

import matplotlib as mpl

from sslbook.inspect.report import ALL, BETWEEN, WITHIN, Report

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
ratio, (tr OP)² / ‖OP‖²; ± is a standard error. The residual is the largest ‖OP v − λ v‖ / λ₁ of the modes. The Euler gap is 0
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
    """Return the whole page; all that comes from the caller, as names of layers and of losses, is escaped."""
    about, k, parts, spectra = report.about, report.about["modes"], "", []
    for layer in report.layers:
        size, views, within = (layer.sizes[kind] for kind in (BETWEEN, ALL, WITHIN))
        ranks = [f"{part.rank:.3g} ± {part.rank_error:.3g}" for part in (size, views, within)]
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
    """Rows, each by the same heads, in a box that scrolls by itself; the first cell of a row heads it."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = ""
    for row in rows:
        name, *cells = map(escape, row.values())
        body += f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'
    table = f"<table><caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return f'<div class="wide" role="region" tabindex="0" aria-label="{caption}">{table}</div>'


def _terms(items: Mapping[str, object]) -> str:
    """Names and what they are; of settings within settings, each with its name."""
    found = ""
    for name, value in items.items():
        words = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, Mapping) else value
        found += f"<dt>{escape(name)}</dt><dd>{escape(str(words))}</dd>\n"
    return found
