"""What an inspection found: values that can be printed, drawn, and written to JSON and to a page.

The page is HTML that loads nothing: the Jinja template ``report.html`` beside this file, with all its tables, and charts that
follow the reader's light or dark theme.  Below is ``sslbook inspect``: a checkpoint of ``sslbook train``, and images, to a report.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sslbook._check import positive, seed
from sslbook._files import write_text
from sslbook._machine import device, figure, keep_freed_memory

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
        place = Path(folder).expanduser()
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
        """Return the verdict, for each layer the shares of the trace and of the step in the leading modes, and what is left out.

        This is what ``sslbook inspect`` prints.  Its columns are those of :meth:`rows`, without the intervals: "Between images" is
        the step's own share, and the controls, to its right, are to be compared with it line by line.
        """
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


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Run ``sslbook inspect`` and return its exit status: 2 for what can't be looked at, with one sentence that says why.

    The report's table goes to the standard output, the progress from layer to layer to the other one.
    """
    from sslbook.images import datasets, own  # these need PyTorch, and a report that is drawn does not
    from sslbook.inspect.measure import NAMED, inspect_network

    parser = argparse.ArgumentParser(
        prog="sslbook inspect",
        description="What the layers of a trained network hold of their covariance operators, beside controls.",
        epilog="It takes some hundred passes, forward and back, of images times views a layer, and tells the time that is left.",
    )
    add, names = parser.add_argument, ", ".join(datasets.NAMES)
    add("checkpoint", type=Path, metavar="RUN", help="a folder of sslbook train, or a checkpoint in it")
    add("images", metavar="IMAGES", help=f"a folder of pictures, or test images of {names}")
    layers = "these layers (default: all); 0. begins names in the encoder, 1. in the projector"
    add("--layers", nargs="+", metavar="NAME", help=layers)
    add("--views", type=positive, default=8, metavar="N", help="views of each image (default: 8)")
    add("--images", type=positive, default=32, metavar="N", dest="count", help="images (default: 32)")
    add("--size", type=positive, metavar="N", help="cut pictures of a folder to squares of N pixels")
    add("--modes", type=positive, default=5, metavar="N", help="leading modes (default: 5)")
    add("--loss", choices=NAMED, default="info_nce", help="whose step is looked at (default: info_nce)")
    add("--seed", type=seed, default=0, metavar="N", help="of images, views and draws (default: 0)")
    add("--out", type=Path, metavar="DIR", help="where the report goes (default: RUN, and -inspect)")
    add("--device", type=device, default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        place = options.checkpoint.expanduser()
        run = open_run(place)
        if options.images in datasets.NAMES:
            images = datasets.load_dataset(options.images, "test")
        else:
            images = own.read_images(options.images, size=options.size)
        report = inspect_network(
            **run,
            images=datasets.subset(images, min(options.count, len(images)), options.seed),
            layers=options.layers,
            views=options.views,
            loss=options.loss,
            k=options.modes,
            seed=options.seed,
            device=options.device,
        )
        place = place.resolve()
        written = report.save(options.out or place.with_name(f"{place.name}-inspect"))
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        parser.error(f"{error}".partition("\n")[0])
    print(report.table())
    print(f"Written: {written}, and report.json beside it")
    return 0


def open_run(path: Path) -> dict[str, Any]:
    """Return what :func:`inspect_network` takes of a run: its networks now and untrained, its pipeline, and what it was.

    path: a run's folder, of which the newest whole checkpoint is read, or a checkpoint's file.  Raises FileNotFoundError where
    there is none, and ValueError for a file that is none, and for a run with a network of one's own.
    """
    from torch import nn

    from sslbook.networks.siamese import build
    from sslbook.training.augment import PIPELINES
    from sslbook.training.run import checkpoints
    from sslbook.training.run.settings import stored_settings

    content = checkpoints.latest(path)
    if content is None:
        raise FileNotFoundError(f"there is no checkpoint, and no folder of a run with one, at {path}")
    settings = stored_settings(content["settings"])
    if settings.own:
        raise ValueError(f"{path} lacks your own network: call inspect_network on that of load_run(folder, backbone)")
    model, first = (build(settings.networks, settings.seed) for _ in range(2))
    model.load_state_dict(content["model"])
    file = path if path.is_file() else path / f"step-{content['step']:09d}.pt"
    about = {
        "source": path.name if path.is_dir() else f"{path.parent.name}/{path.name}",
        "step of the run": content["step"],
        "seed of the run": settings.seed,
        "hash of its settings": content["hash"],
        "checkpoint sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    net, untrained = (
        nn.Sequential(each.encoder, each.projector).eval() for each in (model, first)
    )  # as the loss sees it
    return {"net": net, "untrained": untrained, "pipeline": PIPELINES[settings.pipeline], "about": about}
