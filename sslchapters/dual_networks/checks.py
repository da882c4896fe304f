r"""Two towers and one distance: the gradient of contrastive losses through connections (chapter "Dual networks").

Everything is per pair: a batch of ``B`` pairs has connections ``k`` of shape ``(B, n, n_L)`` with ``n = n_l n_{l-1}``,
and gradients ``(B, n)`` in the order of :func:`sslbook.operator.layer.vec`.  The ``*_gradient`` functions are the paper's formulas;
:func:`autograd_gradient` is the independent answer.  The ``*_gaps`` functions compare the two on random networks and
return relative errors by name; those whose name starts with ``broken:`` belong to variants that must *not* agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from sslbook.losses import pairs as losses
from sslbook.networks.small import Power, initialize, mlp
from sslbook.operator.covariance import relative_gap
from sslbook.operator.layer import Layer, connection, open_layer, vec
from sslchapters.checks import Comparison, Gaps, over
from sslchapters.energies import project
from sslchapters.instances import DEGREE_ONE, Residual, in_weight, instance_seeds, random_network, residual_net

# --- Reversible layers: the matrices whose product a network is, and the degree of its homogeneity -------------------
#
# A network without biases is a product of matrices whose *gates* depend on the input; for one of its modules
#
#     module(u) = G(u) u        and        d module(u) / du = Q(u) G(u).
#
# Definition 2 of [tian2020] calls such a layer *reversible*.


def stage_matrices(module: nn.Module, u: Tensor) -> tuple[Tensor, Tensor]:
    r"""Per-sample matrices :math:`(G, QG)` of one module at its input ``u`` of shape ``(B, ...)``.

    Shapes ``(B, out, in)`` on flattened features.  Sequential modules multiply, residual blocks add, element-wise activations are
    diagonal: ReLU and leaky ReLU have :math:`Q = I`, the monomial :math:`u^p` has :math:`G = \mathrm{diag}(u^{p-1})`,
    :math:`Q = pI`.  Everything else must be a linear map without bias and is read off from its action on a basis.
    """
    if isinstance(module, nn.Sequential):
        return _product(list(module), u)
    if isinstance(module, Residual):
        skip, branch = stage_matrices(module.skip, u), stage_matrices(module.branch, u)
        return skip[0] + branch[0], skip[1] + branch[1]
    if isinstance(module, Power):
        gate = torch.diag_embed(u.flatten(1) ** (module.p - 1))
        return gate, module.p * gate
    if isinstance(module, (nn.ReLU, nn.LeakyReLU)):
        closed = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
        gate = torch.diag_embed(torch.where(u > 0, torch.ones_like(u), torch.full_like(u, closed)).flatten(1))
        return gate, gate
    size = u[0].numel()
    basis = torch.eye(size, dtype=u.dtype, device=u.device).reshape(size, *u.shape[1:])
    matrix = module(basis).reshape(size, -1).T
    return matrix.expand(len(u), -1, -1), matrix.expand(len(u), -1, -1)


def _product(stages: Sequence[nn.Module], u: Tensor) -> tuple[Tensor, Tensor]:
    size = u[0].numel()
    eye = torch.eye(size, dtype=u.dtype, device=u.device).expand(u.shape[0], -1, -1)
    secant, tangent = eye, eye
    for stage in stages:
        g, qg = stage_matrices(stage, u)
        secant, tangent, u = g @ secant, qg @ tangent, stage(u)
    return secant, tangent


@torch.no_grad()
def transitions(net: nn.Sequential, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Transition matrices :math:`V^f_l, V^b_l` above member ``layer`` of a reversible ``net`` (Lemma 1 of [tian2020]).

    Both ``(B, n_L, n_l)``: the first takes the pre-activation :math:`\tilde f_l`, which comes third, flattened, to the output; the
    second is the output's Jacobian in it.  :math:`V^f_{l-1} = V^f_l G_l` and :math:`V^b_{l-1} = V^b_l Q_l G_l`, starting from
    the identity at the output.
    """
    preactivation: Tensor = net[: layer + 1](x)
    return *_product(list(net)[layer + 1 :], preactivation), preactivation.flatten(1)


def degree(net: nn.Sequential, layer: int) -> int:
    r"""Degree of homogeneity :math:`\kappa_l` of a reversible network's output in the pre-activation of member ``layer``.

    :math:`J_l \tilde f_l = \kappa_l f_L` by Euler's theorem: the product of the degrees of the monomial activations above.
    """
    return math.prod(module.p for module in net[layer + 1 :].modules() if isinstance(module, Power))


# --- What is drawn: pairs of networks of many kinds, a layer of them, and pairs of inputs ----------------------------


@dataclass(frozen=True)
class Instance:
    """One random network with a twin of other weights, ``pairs`` input pairs, and one of its layers.

    index: the layer's position among the members.  weight, other: its weight in the network and in the twin.
    """

    net: nn.Sequential
    twin: nn.Sequential
    layer: str
    index: int
    weight: Tensor
    other: Tensor
    x1: Tensor
    x2: Tensor


def _layers(*kinds: str, pairs: int = 8) -> Callable[[int, int], Iterator[Instance]]:
    """Every top-level linear or convolutional layer of random networks, with ``pairs`` random pairs each, for :func:`over`.

    Networks with a zero output, or with outputs in a single direction, are passed over: they leave nothing to compare.
    """

    def draw(networks: int, seed: int) -> Iterator[Instance]:
        for s in instance_seeds(networks, seed):
            (net, shape), (twin, _) = random_network(s, kinds), random_network(s, kinds)
            initialize(twin, s + 1_000_003)
            x1, x2 = torch.randn(2, pairs, *shape, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
            with torch.no_grad():
                outputs = torch.stack([torch.stack([each(x1), each(x2)]) for each in (net, twin)])
            parallel = torch.cosine_similarity(outputs[:, 0], outputs[:, 1], dim=-1).abs() >= 1 - 1e-12
            if bool(outputs.any(-1).all()) and not bool(parallel.all(-1).any()):
                for name in (name for name, module in net.named_children() if isinstance(module, Layer)):
                    w, v = (each.get_parameter(f"{name}.weight").detach() for each in (net, twin))
                    yield Instance(net, twin, name, int(name), w, v, x1, x2)

    return draw


# -- the formulas -------------------------------------------------------------------------------------------------------


def lifted(k: Tensor, weight: Tensor) -> Tensor:
    r""":math:`K^T vec(W)`, ``(B, n_L)``: the output, where Theorem 1 applies."""
    return k.mT @ vec(weight)


def tower_gradient(k1: Tensor, w1: Tensor, k2: Tensor, w2: Tensor) -> Tensor:
    r""":math:`K_1 [K_1^T vec(W_1) - K_2^T vec(W_2)]`: the gradient in the first tower's weights (Theorem 1, Eq. 1)."""
    return _times(k1, lifted(k1, w1) - lifted(k2, w2))


def tied_gradient(k1: Tensor, k2: Tensor, weight: Tensor) -> Tensor:
    r""":math:`(K_1 - K_2)(K_1 - K_2)^T vec(W)`: the gradient of :math:`r` when *both* towers share and train the weights."""
    return _times(k1 - k2, lifted(k1 - k2, weight))


def _times(k: Tensor, u: Tensor) -> Tensor:
    return (k @ u[..., None])[..., 0]


# -- the independent answer ---------------------------------------------------------------------------------------------


def autograd_gradient(
    net1: nn.Module,
    net2: nn.Module,
    layer: str,
    x1: Tensor,
    x2: Tensor,
    *,
    normalize: bool = False,
    both: bool = False,
) -> Tensor:
    r"""Per-pair autograd gradient of :math:`r = \frac12 \|f_1 - f_2\|^2` in the layer's weights, ``(B, n)``.

    The second tower is held fixed, unless ``both`` (then ``net2`` must be ``net1``: one set of weights in both places).
    """
    (one, weight), (two, other) = in_weight(net1, layer), in_weight(net2, layer)

    def distance(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        f1, f2 = one(w, a[None])[0], two(w if both else other, b[None])[0]
        if normalize:
            f1, f2 = f1 / f1.norm(), f2 / f2.norm()
        return losses.half_squared_distance(f1, f2)

    return _per_pair(vmap(grad(distance), in_dims=(None, 0, 0))(weight, x1, x2))


def _per_pair(gradients: Tensor) -> Tensor:
    """Gradients in a layer's weight, one a pair, as vectors: ``(B, n)``."""
    return torch.stack([vec(each) for each in gradients])


# -- checks on random networks ------------------------------------------------------------------------------------------


@over(_layers("linear", "relu", "leaky_relu", "power"))
def connection_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Definition 1: Kronecker products :math:`f_{l-1} \otimes J_l^T` against autograd's Jacobian of the output in the weights."""
    outputs, weight = in_weight(it.net, it.layer)
    jacobian = vmap(jacrev(lambda w, x: outputs(w, x[None])[0]), in_dims=(None, 0))(weight, it.x1)
    opened, truth = open_layer(it.net, it.layer, it.x1), torch.stack([_per_pair(one).T for one in jacobian])
    factors = zip(opened.below, opened.jacobian(), strict=True)
    yield "kronecker", opened.connections(), truth
    if min(it.weight.shape) > 1:  # with one row or one column the two orders are the same
        swapped = torch.stack([torch.kron(j.T.contiguous(), f[:, None]) for f, j in factors])
        yield "broken: factors swapped", swapped, truth


@over(_layers("linear", "relu", "leaky_relu", "power", "conv", "residual"))
def recursion_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Lemma 1: :math:`V^{b\top}_1 [V^f_1 \tilde f_1 - V^f_2 \tilde f_2]` against autograd, at every layer."""
    (forward, backward, pre), (other, _, pre2) = (
        transitions(net, it.index, x) for net, x in ((it.net, it.x1), (it.twin, it.x2))
    )
    first, second = _times(forward, pre), _times(other, pre2)
    above, h = it.net[it.index + 1 :], it.net[: it.index + 1](it.x1).detach().requires_grad_(True)
    r = losses.half_squared_distance(above(h).flatten(1), it.twin(it.x2).flatten(1).detach())
    truth = torch.autograd.grad(r.sum(), h)[0].flatten(1)
    yield "lemma", _times(backward.mT, first - second), truth
    if degree(it.net, it.index) > 1:
        yield "broken: forward matrices both ways (power)", _times(forward.mT, first - second), truth
    if it.index + 1 < len(it.net) and not all(isinstance(m, (nn.Identity, nn.Linear)) for m in it.net):
        swapped = _times(backward.mT, first - _times(forward, pre2))
        yield "broken: one tower's gates for both", swapped, truth


@over(_layers(*DEGREE_ONE))
def distance_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Theorem 1 for ReLU, leaky ReLU, linear, convolutional and residual networks (degree 1), tied weights and different ones."""
    k1, k2 = connection(it.net, it.layer, it.x1), connection(it.twin, it.layer, it.x2)
    same, w, v = connection(it.net, it.layer, it.x2), it.weight, it.other
    different = autograd_gradient(it.net, it.twin, it.layer, it.x1, it.x2)
    first, both = (autograd_gradient(it.net, it.net, it.layer, it.x1, it.x2, both=both) for both in (False, True))
    kronecker, alone, tied = tower_gradient(k1, w, k2, v), tower_gradient(k1, w, same, w), tied_gradient(k1, same, w)
    yield "different weights", kronecker, different
    yield "tied, first tower", alone, first
    yield "tied, both towers", tied, both
    yield "broken: sum for difference", tower_gradient(k1, w, -k2, v), different
    yield "broken: second tower's weights replaced by the first's", tower_gradient(k1, w, k2, w), different
    yield "broken: Eq. 40 for both towers", alone, both
    yield "broken: both towers for the first", tied, first
    if isinstance(it.net[it.index], nn.Linear):
        a, b = open_layer(it.net, it.layer, it.x1), open_layer(it.twin, it.layer, it.x2)
        ends = ((a, w), (b, v))
        first, second = (torch.einsum("bon,nm,bm->bo", end.jacobian(), weight, end.below) for end, weight in ends)
        matrix = torch.einsum("bon,bo,bm->bnm", a.jacobian(), first - second, a.below)
        yield "matrix form", torch.stack([vec(m) for m in matrix]), kronecker


@over(_layers("power"))
def power_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Theorem 1 for monomials, where :math:`K_l^T vec(W_l) = \kappa_l f_L`: as printed, and divided by :math:`\kappa_l`."""
    kappa = degree(it.net, it.index)
    if kappa > 1:
        k1, k2 = connection(it.net, it.layer, it.x1), connection(it.twin, it.layer, it.x2)
        printed = tower_gradient(k1, it.weight, k2, it.other)
        truth = autograd_gradient(it.net, it.twin, it.layer, it.x1, it.x2)
        yield "divided by kappa", printed / kappa, truth
        yield "broken: as printed", printed, truth


def _with_pairs(nets: Iterable[tuple[int, nn.Sequential]]) -> Iterator[tuple[nn.Sequential, Tensor, Tensor]]:
    for seed, net in nets:
        x1, x2 = torch.randn(2, 32, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        yield net, x1, x2


@over(lambda count, seed: _with_pairs((s, residual_net(6, 2, 5, 3, seed=s)) for s in instance_seeds(count, seed)))
def branch_gaps(instance: tuple[nn.Sequential, Tensor, Tensor]) -> Iterator[Comparison]:
    r"""Theorem 1 inside a residual branch: :math:`K^T vec(W)` lacks the skip's output; :math:`K_1 [f_1 - f_2]` is right."""
    net, x1, x2 = instance
    for name in (f"{at}.branch.{i}" for at, block in enumerate(net) if isinstance(block, Residual) for i in (0, 2)):
        one, two = open_layer(net, name, x1), open_layer(net, name, x2)
        truth = autograd_gradient(net, net, name, x1, x2)
        k1, k2 = one.connections(), two.connections()
        yield "outputs in place of K^T vec(W)", _times(k1, one.output - two.output), truth
        yield "broken: as printed", tower_gradient(k1, one.weight, k2, one.weight), truth


@over(lambda count, seed: _with_pairs((s, mlp((5, 7, 6, 3), bias=True, seed=s)) for s in instance_seeds(count, seed)))
def bias_gaps(instance: tuple[nn.Sequential, Tensor, Tensor]) -> Iterator[Comparison]:
    """Theorem 1 in ReLU networks with biases: the theorem's hypothesis dropped."""
    net, x1, x2 = instance
    for name in ("0", "2"):  # in the top layer the biases of the two towers cancel
        one, k2 = open_layer(net, name, x1), connection(net, name, x2)
        gradient = tower_gradient(one.connections(), one.weight, k2, one.weight)
        yield "broken: with biases", gradient, autograd_gradient(net, net, name, x1, x2)


@over(_layers(*DEGREE_ONE))
def normalized_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Eq. 41: the gradient with l2-normalised outputs; broken without the projection, and with unscaled connections."""
    one, two = open_layer(it.net, it.layer, it.x1), open_layer(it.net, it.layer, it.x2)
    k1, k2, w = one.connections(), two.connections(), it.weight
    truth = autograd_gradient(it.net, it.net, it.layer, it.x1, it.x2, normalize=True)
    n1, n2 = k1 / one.output.norm(dim=1)[:, None, None], k2 / two.output.norm(dim=1)[:, None, None]
    pull = lifted(n1 - n2, w)  # Eq. 41: K_1^n P_y1 [K_1^n - K_2^n]^T vec(W)
    unit = one.output / one.output.norm(dim=1, keepdim=True)
    value, straight = _times(n1, project(unit, pull)), _times(n1, pull)
    if truth.norm() < 1e-6 * straight.norm():
        return  # the layer cannot turn its output: nothing but rounding is left
    yield "Eq. 41", value, truth
    yield "gradient along the weights", _along(w, value, straight), None
    yield "broken: projection left out", straight, truth
    yield "broken: along the weights without projection", _along(w, straight, straight), None
    yield "broken: connections not scaled", _times(k1, project(unit, lifted(k1 - k2, w))), truth


@over(_layers("power"))
def power_directions(it: Instance) -> Iterator[Comparison]:
    """With powers as activations and l2-normalised outputs, autograd's gradient along the weights; broken with plain outputs."""
    scale = connection(it.net, it.layer, it.x1).flatten(1) / it.net(it.x1).detach().norm(dim=1, keepdim=True)
    projected, whole = (
        autograd_gradient(it.net, it.net, it.layer, it.x1, it.x2, normalize=normalize) for normalize in (True, False)
    )
    yield "gradient along the weights", _along(it.weight, projected, scale), None
    yield "broken: along the weights without projection", _along(it.weight, whole, whole), None


def _along(weight: Tensor, gradient: Tensor, scale: Tensor) -> float:
    """Largest component of a gradient along the weights, over the batch, in units of the largest ``scale``."""
    return float((gradient @ vec(weight)).abs().max() / (scale.norm(dim=1).max() * weight.norm()))


PairLoss = Callable[[Tensor, Tensor], Tensor]

PAIR_LOSSES: dict[str, PairLoss] = {
    "simple": lambda p, n: losses.simple(p, n),
    "soft_triplet": lambda p, n: losses.soft_triplet(p, n, temperature=0.7, margin=0.3),
    "info_nce": lambda p, n: losses.info_nce(p, n, temperature=0.7),
}


PRINTED: dict[str, PairLoss] = {
    "simple": lambda p, n: p - n.mean(1),
    "soft_triplet": lambda p, n: (0.7 * (1 + ((p[:, None] - n + 0.3) / 0.7).exp()).log()).mean(1),
    "info_nce": lambda p, n: -((-p / 0.7).exp() / ((-p / 0.7).exp() + (-n / 0.7).exp().sum(1))).log(),
}
"""The losses of ``PAIR_LOSSES`` letter by letter: unsafe for large distances, independent of :mod:`sslbook.losses.pairs`."""


def partial_sums(count: int = 400, seed: int = 0) -> Gaps:
    r"""Theorem 2, for the formulas as printed: the largest sum of all partials, the smallest partial of the right sign.

    ``library`` is the largest difference between these partials and those of :mod:`sslbook.losses.pairs`.

    Broken: :math:`L^\beta` (sums to beta), and an InfoNCE whose denominator has a temperature of its own (another loss that is
    easily written by mistake).
    """
    draw = torch.Generator().manual_seed(seed)
    r_pos = torch.rand(count, generator=draw, dtype=torch.float64) * 3
    r_neg = torch.rand(count, 5, generator=draw, dtype=torch.float64) * 3
    partials = partial(losses.partials, r_pos=r_pos, r_neg=r_neg)

    def detuned(p: Tensor, n: Tensor) -> Tensor:
        return p / 0.7 + torch.logsumexp(torch.cat([-p[..., None], -n], -1), -1)

    def exchanged(loss: PairLoss) -> losses.Partials:  # the positive and its one negative
        return losses.partials(lambda p, n: loss(n[:, 0], p[:, None]), r_pos, r_neg[:, :1])

    def margin(pair: losses.Partials) -> float:
        return float(torch.cat([pair.pos, -pair.neg.flatten()]).min())

    def total(pair: losses.Partials) -> Tensor:
        return (pair.pos + pair.neg.sum(-1)).abs()

    found = {name: partials(loss) for name, loss in PRINTED.items()}
    return {
        "sum": max(float(total(pair).max()) for pair in found.values()),
        "library": max(relative_gap(partials(PAIR_LOSSES[name]).neg, pair.neg) for name, pair in found.items()),
        "smallest sign margin": min(margin(pair) for pair in found.values()),
        "broken: pairs exchanged": max(margin(exchanged(loss)) for loss in PAIR_LOSSES.values()),
        "broken: extended loss": float(total(partials(lambda p, n: losses.simple(p, n, beta=0.25))).min()),
        "broken: two temperatures": float(total(partials(detuned)).min()),
    }


TUPLES, NEGATIVES = 8, 4


@over(_layers("relu", "leaky_relu", "conv", "linear", pairs=TUPLES * (2 + NEGATIVES)))
def contrastive_gaps(it: Instance) -> Iterator[Comparison]:
    r"""Lemma 2 for the three losses: one anchor, one positive, four negatives, against autograd through the network."""
    opened, shape = open_layer(it.net, it.layer, it.x1), (TUPLES, 2 + NEGATIVES)
    k, y = opened.connections().unflatten(0, shape), opened.output.unflatten(0, shape)
    r_pos = losses.half_squared_distance(y[:, 0], y[:, 1])
    r_neg = losses.half_squared_distance(y[:, :1], y[:, 2:])

    def lemma(d_neg: Tensor, partners: int = 0) -> Tensor:  # Eq. 46: K(x1) sum_k dL/dr_k- (K(x+) - K(x_k-))^T vec(W)
        gaps = lifted(k[:, 1:2] - k[:, 2:].roll(partners, 0), opened.weight)
        return _times(k[:, 0], torch.einsum("bh,bho->bo", d_neg, gaps))

    outputs, own = in_weight(it.net, it.layer)

    def autograd(loss: PairLoss) -> Tensor:  # in the layer's weights, through the anchor's tower alone, (tuples, n)
        def value(w: Tensor, x: Tensor) -> Tensor:
            anchor, others = outputs(w, x[:1]), outputs(own, x[1:])
            near, far = (losses.half_squared_distance(anchor, part) for part in (others[:1], others[1:]))
            return loss(near, far[None]).sum()

        return _per_pair(vmap(grad(value), in_dims=(None, 0))(own, it.x1.unflatten(0, shape)))

    for name, loss in PAIR_LOSSES.items():
        d_neg = losses.partials(loss, r_pos, r_neg).neg
        truth = autograd(loss)
        yield f"lemma, {name}", lemma(d_neg), truth
        yield "broken: negatives exchanged", lemma(d_neg, partners=1), truth
        if name != "simple":
            alike = d_neg.mean(1, keepdim=True).expand_as(d_neg)
            yield "broken: negatives push alike", lemma(alike), truth
    extended = partial(losses.simple, beta=0.5)
    d_neg = losses.partials(extended, r_pos, r_neg).neg
    yield "broken: partials that sum to beta", lemma(d_neg), autograd(extended)
