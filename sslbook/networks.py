r"""Networks whose layers can be opened: homogeneous MLPs, small conv nets, residual blocks.

Every network here is a plain ``torch.nn.Sequential`` without biases (unless asked for), so that the forward
pass is a product of matrices whose *gates* depend on the input:

    module(u) = G(u) u        and        d module(u) / du = Q(u) G(u).

Definition 2 of [tian2020] calls such a layer *reversible*.  :func:`transitions` multiplies these matrices
from a layer up to the output and returns both products, :math:`V^f_l` and :math:`V^b_l` of Lemma 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.arguments import require_one_of, require_whole

ACTIVATIONS = ("linear", "relu", "leaky_relu", "power")


class Power(nn.Module):
    r"""Monomial activation :math:`\psi(u) = u^p` with integer ``p >= 1`` (Eq. 18 of [tian2020])."""

    def __init__(self, p: int = 2) -> None:
        super().__init__()
        require_whole("p", p, least=1)
        self.p = p

    def forward(self, u: Tensor) -> Tensor:
        """``u ** p``, element by element."""
        return u**self.p

    def extra_repr(self) -> str:
        """What ``print`` shows in the parentheses."""
        return f"p={self.p}"


class Residual(nn.Module):
    r"""Residual block ``u -> skip(u) + branch(u)``; the skip is the identity unless given."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip

    def forward(self, u: Tensor) -> Tensor:
        """``skip(u) + branch(u)``."""
        out: Tensor = self.skip(u) + self.branch(u)
        return out


def activation(name: str, *, slope: float = 0.1, power: int = 2) -> nn.Module:
    """The activation module called ``name``; ``slope`` belongs to leaky ReLU, ``power`` to the monomial."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": nn.Identity,
        "relu": nn.ReLU,
        "leaky_relu": lambda: nn.LeakyReLU(slope),
        "power": lambda: Power(power),
    }
    require_one_of("activation", name, ACTIVATIONS)
    return makers[name]()


def initialize(net: nn.Module, seed: int, gain: float = math.sqrt(2.0)) -> nn.Module:
    """Draw every weight from ``N(0, gain^2 / fan_in)`` and every bias from ``N(0, 0.1^2)``; returns ``net``."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            std = gain / math.sqrt(parameter[0].numel()) if parameter.ndim > 1 else 0.1
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net


def mlp(
    widths: Sequence[int],
    act: str = "relu",
    *,
    bias: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    slope: float = 0.1,
    power: int = 2,
) -> nn.Sequential:
    r"""MLP with layer widths ``(n_0, n_1, ..., n_L)``; no activation at the top (Section 3 of [tian2020]).

    The linear layers are the even members: layer :math:`l` of the paper is ``net[2 * (l - 1)]``.
    """
    if len(widths) < 2 or any(w < 1 for w in widths):
        raise ValueError(f"widths must hold at least two positive integers, got {tuple(widths)}")
    stages: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        stages += [nn.Linear(fan_in, fan_out, bias=bias, dtype=dtype), activation(act, slope=slope, power=power)]
    net = nn.Sequential(*stages[:-1])
    initialize(net, seed)
    return net


def convnet(
    channels: Sequence[int],
    size: int,
    outputs: int,
    act: str = "relu",
    *,
    kernel: int = 3,
    bias: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """Conv net on square images of ``size`` pixels: ``len(channels) - 1`` convolutions, the last of stride 2, a linear head."""
    if len(channels) < 2 or size < 2 or outputs < 1:
        raise ValueError(
            f"convnet needs two or more channels, size >= 2, outputs >= 1; got {tuple(channels)}, {size}, {outputs}"
        )
    stages: list[nn.Module] = []
    last = len(channels) - 2
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(channels)):
        stride = 2 if i == last else 1
        stages += [
            nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, bias=bias, dtype=dtype),
            activation(act),
        ]
        size = (size + 2 * (kernel // 2) - kernel) // stride + 1
    stages += [nn.Flatten(), nn.Linear(channels[-1] * size * size, outputs, bias=bias, dtype=dtype)]
    net = nn.Sequential(*stages)
    initialize(net, seed)
    return net


def residual_net(
    width: int, blocks: int, inputs: int, outputs: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """Linear stem, ``blocks`` residual blocks ``u + W2 relu(W1 u)`` each followed by ReLU, linear head."""
    stages: list[nn.Module] = [nn.Linear(inputs, width, bias=False, dtype=dtype), nn.ReLU()]
    for _ in range(blocks):
        branch = nn.Sequential(
            nn.Linear(width, width, bias=False, dtype=dtype),
            nn.ReLU(),
            nn.Linear(width, width, bias=False, dtype=dtype),
        )
        stages += [Residual(branch), nn.ReLU()]
    net = nn.Sequential(*stages, nn.Linear(width, outputs, bias=False, dtype=dtype))
    initialize(net, seed)
    return net


# ---------------------------------------------------------------------------------------------------------------------
# Reversible layers: G and QG, and their products


def gates(module: nn.Module, u: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""Diagonals of :math:`G` and :math:`QG` for an element-wise activation at ``u``; ``None`` for other modules.

    ReLU and leaky ReLU have :math:`Q = I`; the monomial :math:`u^p` has :math:`G = \mathrm{diag}(u^{p-1})`, :math:`Q = pI`.
    """
    if isinstance(module, nn.ReLU):
        gate = (u > 0).to(u.dtype)
        return gate, gate
    if isinstance(module, nn.LeakyReLU):
        gate = torch.where(u > 0, torch.ones_like(u), torch.full_like(u, module.negative_slope))
        return gate, gate
    if isinstance(module, Power):
        gate = u ** (module.p - 1)
        return gate, module.p * gate
    return None


def stage_matrices(module: nn.Module, u: Tensor) -> tuple[Tensor, Tensor]:
    r"""Per-sample matrices :math:`(G, QG)` of one module at its input ``u`` of shape ``(B, ...)``.

    Shapes ``(B, out, in)`` on flattened features.  Sequential modules multiply, residual blocks add, activations are
    diagonal, everything else must be a linear map without bias and is read off from its action on a basis.
    """
    batch = u.shape[0]
    pair = gates(module, u)
    if pair is not None:
        return torch.diag_embed(pair[0].reshape(batch, -1)), torch.diag_embed(pair[1].reshape(batch, -1))
    if isinstance(module, nn.Sequential):
        return _product(list(module), u)
    if isinstance(module, Residual):
        skip, branch = stage_matrices(module.skip, u), stage_matrices(module.branch, u)
        return skip[0] + branch[0], skip[1] + branch[1]
    if getattr(module, "bias", None) is not None:
        raise ValueError(f"{type(module).__name__} has a bias: it isn't reversible (Definition 2)")
    if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Identity, nn.AvgPool2d)):
        raise TypeError(f"no gate form is known for {type(module).__name__}")
    size = u[0].numel()
    basis = torch.eye(size, dtype=u.dtype, device=u.device).reshape(size, *u.shape[1:])
    matrix = module(basis).reshape(size, -1).T
    return matrix.expand(batch, -1, -1), matrix.expand(batch, -1, -1)


def _product(stages: Sequence[nn.Module], u: Tensor) -> tuple[Tensor, Tensor]:
    size = u[0].numel()
    eye = torch.eye(size, dtype=u.dtype, device=u.device).expand(u.shape[0], -1, -1)
    secant, tangent = eye, eye
    for stage in stages:
        g, qg = stage_matrices(stage, u)
        secant, tangent, u = g @ secant, qg @ tangent, stage(u)
    return secant, tangent


@dataclass(frozen=True)
class Transitions:
    r"""Lemma 1's transition matrices at one layer, for a batch of ``B`` inputs.

    forward:  :math:`V^f_l`, shape ``(B, n_L, n_l)``: the output is ``forward @ preactivation``.
    backward: :math:`V^b_l`, shape ``(B, n_L, n_l)``: the Jacobian of the output in the pre-activation.
    preactivation: :math:`\tilde f_l`, shape ``(B, n_l)``, flattened.
    """

    forward: Tensor
    backward: Tensor
    preactivation: Tensor


@torch.no_grad()
def transitions(net: nn.Sequential, layer: int, x: Tensor) -> Transitions:
    r"""Transition matrices :math:`V^f_l, V^b_l` above member ``layer`` of a reversible ``net`` (Lemma 1 of [tian2020]).

    :math:`V^f_{l-1} = V^f_l G_l` and :math:`V^b_{l-1} = V^b_l Q_l G_l`, starting from the identity at the output.
    """
    require_whole("layer", layer, least=0, most=len(net) - 1)
    preactivation: Tensor = net[: layer + 1](x)
    forward, backward = _product(list(net)[layer + 1 :], preactivation)
    return Transitions(forward, backward, preactivation.flatten(1))


def degree(net: nn.Sequential, layer: int) -> int:
    r"""Degree of homogeneity :math:`\kappa_l` of the output in the pre-activation of member ``layer``.

    :math:`J_l \tilde f_l = \kappa_l f_L` by Euler's theorem; :math:`\kappa_l = p^m` for ``m`` monomial activations above,
    1 for ReLU networks.  The skip and the branch of a residual block must have one degree.

    Raises ValueError where the output isn't homogeneous (a bias, a block of two degrees), TypeError for a module whose degree
    isn't known.
    """
    require_whole("layer", layer, least=0, most=len(net) - 1)
    above = net[layer + 1 :]
    if any(getattr(m, "bias", None) is not None for m in [net[layer], *above.modules()]):
        raise ValueError("a bias at or above this layer: the output isn't homogeneous in its pre-activation")
    return _degree(above)


DEGREE_ONE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.PReLU),
    *(nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd),
    *(nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd),
    nn.modules.dropout._DropoutNd,
)


def _degree(module: nn.Module) -> int:
    if isinstance(module, nn.Sequential):
        return math.prod(_degree(stage) for stage in module)
    if isinstance(module, Residual):
        skip, branch = _degree(module.skip), _degree(module.branch)
        if skip != branch:
            raise ValueError(f"a residual block adds terms of degree {skip} and {branch}: not homogeneous")
        return skip
    if isinstance(module, Power):
        return module.p
    if not isinstance(module, DEGREE_ONE) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.training):
        raise TypeError(f"no degree of homogeneity is known for {type(module).__name__}")
    return 1


# ---------------------------------------------------------------------------------------------------------------------
# Random instances: an identity is checked on many networks, not on a lucky one

KINDS = ("linear", "relu", "leaky_relu", "power", "conv", "residual")


def instance_seeds(count: int, seed: int) -> range:
    """The seeds of ``count`` (up to 1,000) random instances; another ``seed`` shares none of them."""
    require_whole("count", count, least=1, most=1000)
    return range(1000 * seed, 1000 * seed + count)


def random_network(seed: int, kinds: Sequence[str] = KINDS, outputs: int = 3) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A small random float64 network and the shape of one input; at most 3,000 weights a layer.

    The ``kinds`` take turns by ``seed``, so that as many consecutive seeds as there are kinds give each of them once.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise ValueError(f"kinds must be drawn from {', '.join(KINDS)}, got {', '.join(unknown) or 'none'}")
    draw = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    kind = kinds[seed % len(kinds)]
    if kind == "conv":
        size = pick(4, 6)
        channels = (pick(1, 2), *(pick(2, 4) for _ in range(pick(1, 2))))
        return convnet(channels, size, outputs, seed=seed), (channels[0], size, size)
    if kind == "residual":
        inputs = pick(3, 6)
        return residual_net(pick(4, 7), pick(1, 2), inputs, outputs, seed=seed), (inputs,)
    depth = pick(2, 3) if kind == "power" else pick(2, 5)
    widths = [pick(3, 8) for _ in range(depth)]
    return mlp((*widths, outputs), kind, seed=seed, power=pick(2, 3)), (widths[0],)
