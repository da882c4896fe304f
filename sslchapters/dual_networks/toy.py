r"""The smallest pair of copies with a gate: a 2-2-1 network whose numbers can be followed with a pencil, and its picture.

Weights :math:`W_1 = (1, 0; 1, -1)` and :math:`W_2 = (1, 1)`, inputs :math:`x_1 = (2, 1)` and :math:`x_2 = (1, 2)`.  Only
:math:`W_1` moves.  The second unit is on in the first copy and off in the second.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor, nn

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.layer import connection, vec

BELOW, ABOVE = ((1.0, 0.0), (1.0, -1.0)), ((1.0, 1.0),)
INPUTS = ((2.0, 1.0), (1.0, 2.0))


def network(below: Tensor | None = None) -> nn.Sequential:
    """The 2-2-1 ReLU network; ``below (2, 2)`` in the place of :math:`W_1`."""
    net = mlp((2, 2, 1))
    with torch.no_grad():
        weights = torch.tensor(BELOW, dtype=torch.float64) if below is None else below
        for parameter, value in zip(net.parameters(), (weights, torch.tensor(ABOVE, dtype=torch.float64)), strict=True):
            parameter.copy_(value)
    return net


def inputs() -> Tensor:
    """The two inputs, ``(2, 2)``."""
    return torch.tensor(INPUTS, dtype=torch.float64)


def distance(net: nn.Module) -> Tensor:
    r""":math:`r = \frac12 \|f(x_1) - f(x_2)\|^2` of the two inputs."""
    one, two = net(inputs())
    return pairs.half_squared_distance(one, two)


def _stepped(rate: float) -> Tensor:
    net = network()
    below = next(net.parameters())
    (gradient,) = torch.autograd.grad(distance(net), below)
    return below.detach() - rate * gradient


def stepped(rate: float) -> nn.Sequential:
    r"""The network after one step :math:`-\eta\, (K_1 - K_2)(K_1 - K_2)^T vec(W)` of its lower layer; it needs no gradient."""
    return network(_stepped(rate)).requires_grad_(False)


def frozen(rate: float) -> float:
    r"""What :math:`r` would be after that step if no gate switched: the outputs are then linear in the weights."""
    k = connection(network(), "0", inputs())[..., 0]
    return float(0.5 * ((k[0] - k[1]) @ vec(_stepped(rate))) ** 2)


def on(before: Tensor) -> Tensor:
    """Which units are on; a pre-activation of 0, up to rounding, is off."""
    return before > 1e-12


def draw_step(axes: Sequence[Axes], rate: float, *, colors: Mapping[str, str]) -> None:
    """Both copies after a step of ``rate``; in the third of ``axes`` the distance for steps up to 0.2, real and frozen."""
    net = stepped(rate)
    for ax, x, name in zip(axes, inputs(), ("copy 1", "copy 2"), strict=False):
        _draw_copy(ax, net, x, color=colors["blue"], ink=colors["ink"])
        ax.set_title(name)
    rates = [0.2 * k / 80 for k in range(81)]
    axes[2].plot(rates, [float(distance(stepped(t))) for t in rates], color=colors["blue"])
    axes[2].plot(rates, [frozen(t) for t in rates], "--", color=colors["vermilion"])
    for word, place, color in (("frozen gates", (0.2, 0.42), "vermilion"), ("real", (0.2, -0.33), "blue")):
        axes[2].text(*place, word, ha="right", va="bottom", color=colors[color])
    axes[2].plot(rate, float(distance(net)), "o", color=colors["blue"])
    axes[2].set(xlabel=r"step $\eta$", title="distance r", ylim=(-0.35, 2.2))


def _draw_copy(ax: Axes, net: nn.Sequential, x: Tensor, *, color: str, ink: str) -> None:
    """One copy: a circle for each unit with its value in it, a line for each weight; a unit that is off is hollow and dashed."""
    with torch.no_grad():
        before: Tensor = net[0](x)
        output = float(net(x))
    works = on(before).tolist()
    places = {"x": [(0.0, 0.0), (1.1, 0.0)], "unit": [(0.0, 1.1), (1.1, 1.1)], "out": [(0.55, 2.2)]}
    for start, alive in zip(places["unit"], works, strict=True):
        for end in (*places["x"], *places["out"]):
            pattern = "-" if alive else (0, (2, 3))
            ax.plot(
                *zip(start, end, strict=True), color=ink, linewidth=1.6 if alive else 1.0, linestyle=pattern, zorder=1
            )
    values, alight = (*x.tolist(), *before.tolist(), output), (*[True] * len(x), *works, True)
    for at, value, alive in zip(itertools.chain(*places.values()), values, alight, strict=True):
        face, rim, text = (color, color, "white") if alive else ("white", ink, ink)
        ax.add_patch(Circle(at, 0.37, facecolor=face, edgecolor=rim, linestyle="-" if alive else "--", zorder=2))
        ax.text(*at, f"{value:.2f}".removesuffix(".00").replace("-", "\u2212"), color=text, ha="center", va="center")
    ax.set(xlim=(-0.45, 1.55), ylim=(-0.45, 2.65), aspect="equal")
    ax.axis("off")
