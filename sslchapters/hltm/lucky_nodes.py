r"""Lucky nodes: units that prefer one value of their variable before any training (Lemmas 3 to 5, 8 and Theorem 5 of [tian2020]).

A unit of part :math:`\mu` has the mean pre-activations :math:`\tilde v^\pm = w^\top (h \pm a)`, with :math:`h = \bar v` the
children's mean activations and :math:`a = a_\mu` their selectivities times the polarities.  For random weights this is a Gaussian
pair, nearly; the unit is *lucky* if :math:`\tilde v^+ \ge \sqrt c\, \sigma_w \lVert h + a \rVert / \sqrt n` and :math:`\tilde v^-
< 0`.

Where children are over-parameterised, several units read the same child variable.  Eq. 155 adds the variances of the children
as if all of them were independent given :math:`z_\mu`. Units of one part :math:`\mathcal N_\nu` are not: they see the same leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import integrate, special, stats
from torch import Tensor


def mills_ratio(y: float) -> float:
    r""":math:`R(y) = \int_0^\infty e^{-yt - t^2/2} dt = \sqrt{\pi/2}\, \mathrm{erfcx}(y / \sqrt 2)` (Eq. 116), for any y."""
    return float(math.sqrt(math.pi / 2) * special.erfcx(y / math.sqrt(2)))


def residue(c: float, gamma: float) -> float:
    r"""The factor :math:`\hat R(c, \gamma)` of Lemma 8 (Eq. 121).

    :math:`\hat R = \max[R(\kappa_1)\, R(\kappa_2 + \gamma e(\kappa_1)),\ R(\kappa_2)\, R(\kappa_1 + \gamma e(\kappa_2))]` with
    :math:`\kappa_1 = \sqrt{c / (1 - \gamma^2)}`, :math:`\kappa_2 = \gamma \kappa_1`, :math:`e(y) = 1/R(y) - y`.
    """
    first = math.sqrt(c / (1 - gamma * gamma))
    second = gamma * first
    return max(
        mills_ratio(a) * mills_ratio(b + gamma * (1 / mills_ratio(a) - a))
        for a, b in ((first, second), (second, first))
    )


def residue_asymptote(c: float, gamma: float) -> float:
    r""":math:`(1 - \gamma^2) / (\gamma c)`: :math:`\hat R` for large c and :math:`\gamma` near 1 (Eq. 126)."""
    return (1 - gamma * gamma) / (gamma * c)


def tail_bound(c: float, gamma: float, *, as_printed: bool = False) -> float:
    r"""Lower bound of :func:`tail_probability`.

    :math:`\frac{1}{2\pi} e^{-c / (2(1 - \gamma^2))} \sqrt{1 - \gamma^2}\, \hat R(c, \gamma)`.

    as_printed: with :math:`e^{-c/2}`, as Eq. 112 has it, which takes :math:`y_0^\top M y_0` for c; it is
        :math:`c / (1 - \gamma^2)`.
    """
    rest = 1 - gamma * gamma
    exponent = c if as_printed else c / rest
    return math.exp(-exponent / 2) * math.sqrt(rest) * residue(c, gamma) / (2 * math.pi)


def tail_probability(c: float, gamma: float) -> float:
    r""":math:`\mathbb P(y_+ \ge \sqrt c, y_- \ge 0)` for standard Gaussians of correlation :math:`-\gamma`, by quadrature."""
    slope = gamma / math.sqrt(1 - gamma * gamma)
    start = math.sqrt(c)
    value, _ = integrate.quad(
        lambda t: stats.norm.pdf(t) * stats.norm.cdf(-slope * t), start, start + 40, epsabs=0, epsrel=1e-11, limit=200
    )
    return float(value)


def width_needed(c: float, gamma: float, eta: float, *, as_printed: bool = False) -> float:
    r"""Units that part :math:`\mu` needs so that one is lucky with probability :math:`1 - \eta` (Eq. 128)."""
    return math.log(1 / eta) / tail_bound(c, gamma, as_printed=as_printed)


def is_lucky(weights: Tensor, h: Tensor, a: Tensor, c: float, sigma_w: float) -> Tensor:
    r"""Which units are lucky, ``(..., units)``, for ``weights`` ``(..., units, n)``: the event of Eq. 143, in either orientation.

    With :math:`\sum_{a_k \ge 0} a_k^2 < \sum_{a_k < 0} a_k^2` the roles of the two values of :math:`z_\mu` are exchanged, as the
    proof says, so that the pre-activation gap is negative.
    """
    flip = torch.where(a.clamp_min(0).square().sum(-1) >= a.clamp_max(0).square().sum(-1), 1.0, -1.0)[..., None]
    up = (weights * (h + flip * a)[..., None, :]).sum(-1)
    down = (weights * (h - flip * a)[..., None, :]).sum(-1)
    threshold = math.sqrt(c / h.shape[-1]) * sigma_w * (h + flip * a).norm(dim=-1)
    return (up >= threshold[..., None]) & (down < 0)


def bracket(
    s: Tensor, rho: Tensor, c: float, sigma_l2: Tensor, *, group: int = 1, gain: float = 1 / 6, loss: float = 1.0
) -> Tensor:
    r"""The bracket of Eq. 130, :math:`\frac1n \sum_k s_k^2 (\frac{c+6}{6}\rho^2 - 1) - \sigma_l^2`, over the last axis.

    group: :math:`|\mathcal N_\nu|`, units that read the same child variable.  They are not independent given :math:`z_\mu`, as
        Eq. 155 takes them to be; with a group of g the variance can be g times larger, and the bracket is
        :math:`\frac1n \sum_k s_k^2 (\frac c6 \rho^2 - g (1 - \rho^2)) - g \sigma_l^2`.  ``group=1`` is the printed one.
    gain, loss: in the place of :math:`\frac16`, and what multiplies g.
    """
    terms = s.square() * (gain * c * rho.square() - loss * group * (1 - rho.square()))
    return terms.mean(-1) - loss * group * sigma_l2


sharper_bracket = partial(bracket, gain=2 / 3, loss=1 / 4)
r"""The bracket with the best constants: Lemma 5 with its sharp half, squared, and :math:`\lVert h + a \rVert^2 \ge 2 \lVert a
\rVert^2`, as :math:`h_k \ge |a_k|` where activations are not negative; :func:`extreme_unit` comes as near to it as one likes."""


# --- A world in which the hypotheses hold: one part that reads leaves ------------------------------------------------


@dataclass(frozen=True)
class LeafPart:
    r"""A part over ``n`` leaves :math:`x_k \in \{0, 1\}` with polarities :math:`\rho_k`.

    :math:`h = \frac12`, :math:`s_k = \frac12`, :math:`\sigma_l = 0`.
    """

    rho: Tensor

    @property
    def h(self) -> Tensor:
        """Mean activations of the children, and their selectivities."""
        return torch.full_like(self.rho, 0.5)

    s = h

    @property
    def a(self) -> Tensor:
        """Child selectivity vector."""
        return self.rho / 2

    @property
    def gamma(self) -> float:
        r"""The correlation of :math:`\tilde v^+` and :math:`\tilde v^-` over random weights (Eq. 129)."""
        h, a = self.h, self.a
        return float((h.square().sum() - a.square().sum()) / ((h - a).norm() * (h + a).norm()))


def balanced_part(n: int, lower: float, upper: float, seed: int) -> LeafPart:
    r""":math:`|\rho_k| \sim U[\text{lower}, \text{upper}]`, every other one negative: with one sign :math:`\gamma` is near 1."""
    rho = lower + (upper - lower) * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return LeafPart(rho * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(-(-n // 2))[:n])


def uniform_weights(shape: tuple[int, ...], sigma_w: float, seed: int) -> Tensor:
    r"""Weights from :math:`U[-1, 1]\, \sigma_w \sqrt{3 / n}`, of variance :math:`\sigma_w^2 / n`, with n the last of ``shape``."""
    u = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * u - 1) * sigma_w * math.sqrt(3 / shape[-1])


def uniform_chance(part: LeafPart, c: float, terms: int = 100) -> float:
    r"""The chance that a unit with uniform weights is lucky: what :func:`tail_probability` is for a Gaussian pair.

    The density of the pair, over a square that holds all of it but what no float64 sees, is a Fourier series whose coefficients
    are products of sines, one a weight; it is integrated term by term over the quadrant.  ``terms`` frequencies either side of 0.
    """
    a = part.a if part.a.clamp_min(0).square().sum() >= part.a.clamp_max(0).square().sum() else -part.a
    up, down = (3**0.5 * v / v.norm() for v in (part.h + a, part.h - a))  # of weights from U[-1, 1]: unit variances
    half = 1.01 * min(math.sqrt(3 * len(a)), 12.0)
    k = torch.arange(-terms, terms + 1, dtype=torch.float64) * math.pi / half

    def between(low: float, high: float) -> Tensor:
        found = (torch.exp(-1j * k * low) - torch.exp(-1j * k * high)) / (1j * torch.where(k == 0, 1.0, k))
        return torch.where(k == 0, high - low, found)

    series = torch.ones(len(k), len(k), dtype=torch.float64)
    for x, y in zip(up, down):
        series *= torch.sinc((k[:, None] * x + k * y) / math.pi)
    return float((between(math.sqrt(c), half) @ (series + 0j) @ between(-half, 0.0)).real) / (2 * half) ** 2


def some_unit(chance: float, width: int) -> float:
    """The chance that one of ``width`` independent units is lucky, each with ``chance``."""
    return -math.expm1(width * math.log1p(-chance))


def mean_activations(part: LeafPart, weights: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`v_j^+, v_j^-` of units ``(units, n)``, exact: over all patterns of the leaves whose polarity is not 1 or -1."""
    open_ = part.rho.abs() < 1
    k = int(open_.sum())
    on = torch.from_numpy((np.arange(2**k)[:, None] >> np.arange(k)) & 1).double()
    means = []
    for sign in (1, -1):
        chance = (1 + sign * part.rho) / 2
        sure = weights[:, ~open_] @ chance[~open_]
        p = torch.where(on == 1, chance[open_], 1 - chance[open_]).prod(1)
        means.append((weights[:, open_] @ on.T + sure[:, None]).relu() @ p)
    return means[0], means[1]


def extreme_unit(pairs: int, c: float) -> tuple[LeafPart, Tensor]:
    r"""A lucky unit ``(1, n)`` whose gap is as small as can be, with :math:`\sigma_w = 1`, over ``n = 2 pairs + 1`` leaves.

    One leaf is noise and has the largest weight there is; ``pairs`` leaves of polarity 1 bring :math:`\tilde v^+` to the threshold,
    and as many of polarity -1 bring :math:`\tilde v^-` to just below 0.
    """
    n = 2 * pairs + 1
    rho = torch.tensor([0.0] + [1.0] * pairs + [-1.0] * pairs, dtype=torch.float64)
    part, most = LeafPart(rho), math.sqrt(3 / n)
    up = (math.sqrt(c / n) * float((part.h + part.a).norm()) * (1 + 1e-12) - most / 2) / pairs
    down = -most / 2 / pairs * (1 + 1e-12)
    return part, torch.tensor([[most] + [up] * pairs + [down] * pairs], dtype=torch.float64)
