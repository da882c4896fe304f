r"""The operator of a loss of inner products against autograd, on random networks, with the nearest operators that are wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from sslbook.losses import batch, pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, relative_gap
from sslbook.operator.layer import Layer, connection, open_layer, vec
from sslbook.operator.view_weights import Loss, Mixing, PairMixing, gram_weights
from sslchapters import energies
from sslchapters.checks import Comparison, Gaps, gap, over
from sslchapters.instances import instance_seeds, random_network

SAMPLES = 6
CLASSES = torch.tensor([0, 0, 1, 1, 2, 2])
LOSSES: dict[str, Loss] = {
    "info_nce": partial(batch.info_nce, temperature=0.3),
    "supervised_contrastive": partial(batch.supervised_contrastive, labels=CLASSES, temperature=0.3),
    "decoupled": partial(batch.decoupled, temperature=0.3),
    "clip": partial(batch.clip, temperature=0.3),
    "sigmoid_pairs": partial(batch.sigmoid_pairs, scale=5.0, bias=-2.0),
    "spectral_contrastive": batch.spectral_contrastive,
}
"""The losses of the chapter with numbers, of outputs ``(6, 2, d)``."""


def instances(networks: int, seed: int) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Random networks, each seventh with biases, a layer of each and a batch ``(6, 2, ...)``.

    A network that gives nothing for some view is passed over, and one that gives all views one direction: no cosine moves it.
    """
    for s in instance_seeds(networks, seed):
        net, shape = random_network(s, outputs=4)
        if s % 7 == 6:
            net, shape = mlp((5, 7, 6, 4), bias=True, seed=s), (5,)
        draw = torch.Generator().manual_seed(s)
        sample = torch.randn(SAMPLES, 1, *shape, generator=draw, dtype=torch.float64)
        views = sample + 0.4 * torch.randn(SAMPLES, 2, *shape, generator=draw, dtype=torch.float64)
        layers = [name for name, part in net.named_modules() if isinstance(part, Layer)]
        with torch.no_grad():
            outputs = net(views.flatten(0, 1)).flatten(1)
        size = outputs.norm(dim=1, keepdim=True)
        if bool((size > 0).all()) and float((outputs / size).std(0).max()) > 1e-6:
            yield net, layers[s % len(layers)], views


def step(net: nn.Module, layer: str, views: Tensor, loss: Loss) -> Tensor:
    """Minus the gradient in the layer's weight, through all copies, by autograd; it knows nothing of connections."""
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (gradient,) = torch.autograd.grad(loss(outputs), net.get_parameter(f"{layer}.weight"))
    return -gradient


@over(instances, error=gap)
def step_gaps(instance: tuple[nn.Module, str, Tensor], loss: str) -> Iterator[Comparison]:
    r"""The step of a loss of :data:`LOSSES` against its operator, and how symmetric the matrix is.

    Broken: one copy alone, :math:`\Gamma` with its diagonal left out, and the weights of the same loss at outputs that stand a
    tenth off.  (A diagonal that is zero is left out of the last but one, and a layer that one copy alone moves is passed over.)
    """
    op, truth = covariance_operator(*instance, loss=LOSSES[loss]), step(*instance, LOSSES[loss])
    assert isinstance(op.mixing, PairMixing)
    matrix, dense = op.mixing.matrix, op.dense()
    first = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(SAMPLES)[:, None]
    diagonal = torch.diag(matrix.diagonal())
    draw = torch.Generator().manual_seed(SAMPLES)
    noise = torch.randn(op.opened.output.shape, generator=draw, dtype=torch.float64)
    outputs = op.opened.output * (1 + 0.1 * noise)
    elsewhere = -2 * gram_weights(LOSSES[loss], outputs.unflatten(0, op.population))
    wrong = {"one copy": first * matrix, "weights a tenth off": elsewhere}
    if diagonal.any():
        wrong["diagonal left out"] = matrix - diagonal
    steps = {
        name: CovarianceOperator(op.opened, op.population, PairMixing(other)).exact_update()
        for name, other in wrong.items()
    }
    copies = (steps["one copy"], truth - steps["one copy"])
    if min(float(part.norm()) for part in copies) < 1e-6 * truth.norm():
        return  # one copy's views don't move this layer: it only scales their outputs, which no cosine sees
    yield "step", op.exact_update(), truth
    yield "symmetric", dense.T, dense
    if op.euler_gap() < 1e-10:  # biases, parallel paths and powers have no K^T vec(W) for an output
        yield "operator", op.update(), truth
    yield from ((f"broken: {name}", found, truth) for name, found in steps.items())


def growth_gaps(loss: str, networks: int = 20, seed: int = 0) -> Gaps:
    r"""How much of :math:`w^\top \mathrm{OP}\, w` is left, in units of :math:`\|w\| \|\mathrm{OP}\, w\|`, and the most negative
    eigenvalue over the largest in modulus (as the least of its sizes), for networks of degree 1."""
    growth, negative = [], []
    for net, layer, views in instances(networks, seed):
        op = covariance_operator(net, layer, views, loss=LOSSES[loss])
        if op.euler_gap() > 1e-10:
            continue
        w, move = vec(op.opened.weight), vec(op.update())
        values = torch.linalg.eigvalsh(op.dense())
        growth.append(float(w @ move / (w.norm() * move.norm())))
        negative.append(float(-values[0] / values.abs().max()))
    return {"growth": max(map(abs, growth)), "negative": min(negative)}


def sign_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""The signs of the eigenvalues of a table :math:`C = -2\Gamma`, and of the operators of networks with independent connections.

    trace: of the table over its norm, the largest for losses of distances and for those with a zero diagonal; the smallest for
    cosines, where it does not vanish.  smaller end: the lesser of the two ends of the spectrum over the larger, least over all
    losses; pull alone: the same for a loss that only attracts.  count: by how much the operator's numbers of positive and negative
    eigenvalues differ from ``n_L`` times the table's, at most; table's own, dependent: the least difference from the table's own
    numbers, and of a layer with fewer weights than the connections have columns.
    """
    distances: list[Loss] = [
        partial(of_distances, loss="simple"),
        partial(of_distances, loss="soft_triplet", temperature=0.7),
        partial(of_distances, loss="info_nce", temperature=0.7),
    ]
    diagonal_free: list[Loss] = [batch.spectral_contrastive, _find_partner]
    cosines = [LOSSES[name] for name in LOSSES if name != "spectral_contrastive"]
    found: dict[str, list[float]] = defaultdict(list)
    for s in instance_seeds(networks, seed):
        draw = torch.Generator().manual_seed(s)
        z = torch.randn(SAMPLES, 2, 4, generator=draw, dtype=torch.float64)
        for name, losses in (("distances", distances), ("zero diagonal", diagonal_free), ("cosines", cosines)):
            for loss in losses:
                table = -2 * gram_weights(loss, z)
                found[f"trace, {name}"].append(abs(float(table.trace() / table.norm())))
                found["smaller end"].append(_smaller_end(table))
        pull = -2 * gram_weights(lambda z: 0.5 * (z[:, 0] - z[:, 1]).square().sum(1).mean(), z)
        found["pull alone"].append(_smaller_end(pull))
        for loss in (distances[-1], diagonal_free[0], LOSSES["info_nce"]):
            for size, key in (((9, 8, 3), "count"), ((2, 3, 3), "dependent")):
                net = mlp(size, "leaky_relu", seed=s)
                x = torch.randn(3, 2, size[0], generator=draw, dtype=torch.float64) + 0.5
                op = covariance_operator(net, "0", x, loss=loss)
                assert isinstance(op.mixing, PairMixing)
                ours, own = _inertia(op.dense()), _inertia(op.mixing.matrix)
                found[key].append(float((ours - size[-1] * own).abs().max()))
                if key == "count":
                    found["table's own"].append(float((ours - own).abs().max()))
    most = ("trace, distances", "trace, zero diagonal", "pull alone", "count")
    return {name: max(each) if name in most else min(each) for name, each in found.items()}


def of_distances(z: Tensor, *, loss: str, normalize: bool = False, **numbers: Any) -> Tensor:
    """A loss of half squared distances between outputs ``(N, 2, d)``; negatives are all views of other images."""
    first, second = z.unbind(-2)
    return pairs.contrastive(first, second, loss, normalize=normalize, **numbers)


def _find_partner(z: Tensor) -> Tensor:
    """The cross-entropy of inner products with the partner as the target, the loss of the chapter's example."""
    rows = z.flatten(0, 1)
    own = torch.eye(len(rows), dtype=torch.bool)
    return torch.nn.functional.cross_entropy((rows @ rows.T).masked_fill(own, -torch.inf), torch.arange(len(rows)) ^ 1)


def _smaller_end(matrix: Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix)
    return float(torch.minimum(-values[0], values[-1]) / values.abs().max())


def _inertia(matrix: Tensor) -> Tensor:
    """The numbers of positive and of negative eigenvalues; those below 1e-9 of the largest count as zero."""
    values = torch.linalg.eigvalsh(matrix)
    least = 1e-9 * values.abs().max()
    return torch.stack([(values > least).sum(), (values < -least).sum()])


@over(instance_seeds, error=gap)
def bias_gaps(seed: int) -> Iterator[Comparison]:
    r"""ReLU networks with biases: the operator on a layer's weights together with all biases from that layer up.

    There :math:`f_a = \tilde K_a^\top p` for these numbers ``p`` in one vector, and the step is
    :math:`-2 \sum \Gamma_{ab} \tilde K_a \tilde K_b^\top p`.  Broken: the weights alone.
    """
    net, draw, loss = mlp((5, 7, 6, 4), bias=True, seed=seed), torch.Generator().manual_seed(seed), LOSSES["info_nce"]
    x = torch.randn(2 * SAMPLES, 5, generator=draw, dtype=torch.float64)
    chosen = {name: net.get_parameter(name).detach() for name in ("2.weight", "2.bias", "4.bias")}

    def outputs(given: dict[str, Tensor]) -> Tensor:
        return functional_call(net, given, (x,))

    jacobian = jacrev(outputs)(chosen)
    k = torch.cat([jacobian[name].detach().flatten(2) for name in chosen], dim=2)  # (views, outputs, numbers)
    p = torch.cat([part.flatten() for part in chosen.values()])
    leaf = outputs(chosen).detach().requires_grad_()
    (pull,) = torch.autograd.grad(loss(leaf.unflatten(0, (SAMPLES, 2))), leaf)
    truth = -torch.einsum("aoi,ao->i", k, pull)
    gamma = gram_weights(loss, leaf.detach().unflatten(0, (SAMPLES, 2)))
    op = -2 * torch.einsum("aoi,ab,boj->ij", k, gamma, k)
    size = chosen["2.weight"].numel()
    yield "step", op @ p, truth
    yield "broken: weights alone", op[:size, :size] @ p[:size], truth[:size]


def laplacian_gaps(seed: int = 0) -> Gaps:
    r""":math:`-2\Gamma` of losses of distances against :math:`\xi` of [tian2020] and :math:`\alpha` of [tian2023].

    xi: InfoNCE with one negative over all pairs of a batch without augmentation, against twice the mixing of Theorem 4.
    alpha: Eq. 1 of [tian2023], between the first views of two samples, against :math:`-(\alpha_{ij} + \alpha_{ji})`.
    rows: how far a row of :math:`\Gamma` is from adding up to zero.
    """
    samples, tau = 7, 0.7
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, 2, 3, generator=draw, dtype=torch.float64)
    alone, eq_1 = z[:, :1], {"temperature": tau, "epsilon": 1.0}
    xi = torch.sigmoid(-energies.square_distances(alone[:, 0]) / tau) / tau
    eye = torch.eye(samples, dtype=torch.float64)[:, None]
    papers = 2 * Mixing(weights=xi)(eye)[:, 0]
    ours = -2 * gram_weights(
        lambda z: -torch.nn.functional.logsigmoid(energies.square_distances(z[:, 0]) / tau).mean(), alone
    )
    alpha = energies.weights("info_nce", z[:, 0], z[:, 1], **eq_1)
    whole = -2 * gram_weights(lambda z: energies.loss_value("info_nce", z[:, 0], z[:, 1], **eq_1), z)
    between = whole[::2, ::2] + torch.diag(torch.full((samples,), torch.nan, dtype=torch.float64))
    off = ~torch.eye(samples, dtype=torch.bool)
    return {
        "xi": gap(ours, papers),
        "broken: one copy": gap(ours, papers / 2),
        "alpha": gap(between[off], -(alpha + alpha.T)[off]),
        "broken: alpha of one anchor": gap(between[off], -2 * alpha[off]),
        "rows": float(whole.sum(1).norm() / whole.norm()),
    }


# --- Losses that look at each coordinate of the outputs by itself: one table of weights for each ---------------------
#
# Such a loss does not change when the sign of a coordinate is flipped in all views, so that it is a function of the Gram matrices
# G_d = z_d z_d^T of the single coordinates, (D, 2N, 2N), rows in the order of the flattened views: the first of all images are ::2.


def vicreg(grams: Tensor) -> Tensor:
    r"""`~sslbook.losses.batch.vicreg` of the coordinates' Gram matrices, with its weights 25, 25 and 1.

    Its sum of squared covariances is :math:`\|H G H\|_F^2 / (N - 1)^2` less the squared variances, ``H`` the centring: beside the
    variances it sees inner products alone.
    """
    n = grams.shape[1] // 2
    apart = _trace(grams[:, ::2, ::2]) + _trace(grams[:, 1::2, 1::2]) - 2 * _trace(grams[:, ::2, 1::2])
    loss: Tensor = 25 * apart.mean() / n
    for view in (0, 1):
        centred = _centred(grams[:, view::2, view::2])
        spread = _trace(centred) / (n - 1)
        between = centred.sum(0).square().sum() / (n - 1) ** 2 - spread.square().sum()
        hinge = torch.relu(1 - (spread + 1e-4).sqrt()).mean()
        loss = loss + 25 / 2 * hinge + between / len(grams)
    return loss


def barlow_twins(grams: Tensor, weight: float) -> Tensor:
    r"""`~sslbook.losses.batch.barlow_twins` of the coordinates' Gram matrices, each of which is divided by its own variance."""
    n = grams.shape[1] // 2
    one, two, cross = (_centred(grams[:, a::2, b::2]) for a, b in ((0, 0), (1, 1), (0, 1)))
    first, second = (1 / (_trace(view) / n + 1e-5) for view in (one, two))
    own = _trace(cross) / n * (first * second).sqrt()
    whole = (torch.tensordot(first, one, 1) * torch.tensordot(second, two, 1)).sum() / n**2
    return (1 - own).square().sum() + weight * (whole - own.square().sum())


COORDINATE_LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "vicreg": (vicreg, batch.vicreg),
    "barlow_twins": (partial(barlow_twins, weight=0.01), partial(batch.barlow_twins, weight=0.01)),
}
"""Each as a function of the coordinates' Gram matrices, and as it is used, of outputs ``(N, 2, D)``."""


def tables(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    r""":math:`C^{(d)} = -2\, \partial \ell / \partial G^{(d)}`, symmetrised: ``(D, 2N, 2N)`` of outputs ``(N, 2, D)``."""
    columns = outputs.detach().flatten(0, 1).T
    grams = (columns[:, :, None] * columns[:, None]).requires_grad_()
    (slope,) = torch.autograd.grad(loss(grams), grams)
    return -(slope + slope.mT)


@over(instances, error=gap)
def table_gaps(instance: tuple[nn.Module, str, Tensor], name: str) -> Iterator[Comparison]:
    r"""The step of a loss of :data:`COORDINATE_LOSSES` against :math:`\sum_d \sum_{ab} C^{(d)}_{ab} K^{(d)}_a K^{(d)\top}_b`.

    operator: on the weights, in networks of degree 1.  Broken: the mean of all tables for each coordinate, which is the nearest
    that a loss of inner products comes; the next coordinate's; the matrix between different coordinates counted too.
    A network whose outputs lie within a hundredth of one line is passed over: terms of the step cancel there, and digits with them.
    """
    of_grams, loss = COORDINATE_LOSSES[name]
    net, layer, views = instance
    opened = open_layer(net, layer, views.flatten(0, 1))
    longest, next_to_it, *_ = torch.linalg.svdvals(opened.output)
    if next_to_it < longest / 100:
        return
    outputs, columns, truth = opened.output.unflatten(0, (-1, 2)), opened.output.T, step(*instance, loss)
    matrices = tables(of_grams, outputs)
    k, weight = opened.connections(), vec(opened.weight)
    op = torch.einsum("and,dab,bmd->nm", k, matrices, k)
    yield "value", of_grams(columns[:, :, None] * columns[:, None]), loss(outputs)
    for what, each in (
        ("step", matrices),
        ("broken: one table for all", matrices.mean(0).expand_as(matrices)),
        ("broken: another coordinate's", matrices.roll(1, 0)),
    ):
        yield what, opened.vjp((each @ columns[:, :, None])[..., 0].T.contiguous()), truth
    if relative_gap(opened.jvp(opened.weight), opened.output) < 1e-10:
        yield "operator", op @ weight, vec(truth)
        yield "broken: coordinates mixed", torch.einsum("and,dab,bmo->nm", k, matrices, k) @ weight, vec(truth)


def _centred(blocks: Tensor) -> Tensor:
    return blocks - blocks.mean(1, keepdim=True) - blocks.mean(2, keepdim=True) + blocks.mean((1, 2), keepdim=True)


def _trace(blocks: Tensor) -> Tensor:
    return blocks.diagonal(dim1=1, dim2=2).sum(1)


# --- Where symmetry is lost: targets that are held constant; and where there are two networks ------------------------


def cross_entropy(anchors: Tensor, keys: Tensor) -> Tensor:
    """InfoNCE between rows: row ``i`` of anchors is to find row ``i`` of keys, by inner products ``(n, n)``."""
    return nn.functional.cross_entropy(anchors @ keys.T, torch.arange(len(anchors)))


def _cross_weights(anchors: Tensor, keys: Tensor) -> Tensor:
    r""":math:`M = \partial \ell / \partial (A B^\top)` of :func:`cross_entropy`, ``(n, n)``: a softmax less the identity, by n."""
    return ((anchors @ keys.T).softmax(1) - torch.eye(len(anchors), dtype=anchors.dtype)).detach() / len(anchors)


@over(instance_seeds, error=gap)
def stop_gradient_gaps(seed: int) -> Iterator[Comparison]:
    r"""Keys that carry no gradient: the step is that of :math:`-M`, not symmetric; with the gradient, of :math:`-(M + M^\top)`.

    Anchors and keys are views of one network.
    """
    net, draw = mlp((6, 8, 7, 4), "leaky_relu", seed=seed), torch.Generator().manual_seed(seed)
    sample = torch.randn(5, 1, 6, generator=draw, dtype=torch.float64)
    views = sample + 0.4 * torch.randn(5, 2, 6, generator=draw, dtype=torch.float64)
    opened = open_layer(net, "2", views.flatten(0, 1))
    slope = torch.zeros(10, 10, dtype=torch.float64)
    slope[::2, 1::2] = _cross_weights(opened.output[::2], opened.output[1::2])
    held, free, turned = (CovarianceOperator(opened, (5, 2), PairMixing(-m)) for m in (slope, slope + slope.T, slope.T))
    anchors, keys, weight = net(views[:, 0]), net(views[:, 1]), net.get_parameter("2.weight")
    (stopped,) = torch.autograd.grad(cross_entropy(anchors, keys.detach()), weight, retain_graph=True)
    (whole,) = torch.autograd.grad(cross_entropy(anchors, keys), weight)
    yield "held", held.update(), -stopped
    yield "through both", free.update(), -whole
    yield "broken: half of both", 0.5 * free.update(), -stopped
    yield "broken: transposed", turned.update(), -stopped


@over(instance_seeds, error=gap)
def two_network_gaps(seed: int) -> Iterator[Comparison]:
    r"""Two networks (CLIP): :math:`\Delta w_1 = B w_2`, :math:`\Delta w_2 = B^\top w_1`, :math:`B = -\sum M_{ij} K_i K_j'^\top`.

    pairs: the eigenvalues of both layers' joint operator against plus and minus the singular values of ``B``.
    """
    one, two = mlp((6, 8, 7, 4), "leaky_relu", seed=seed), mlp((5, 8, 7, 4), "leaky_relu", seed=seed + 5000)
    draw = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(5, size, generator=draw, dtype=torch.float64) for size in (6, 5))
    a, b = one(x), two(y)
    k, k2 = connection(one, "2", x), connection(two, "2", y)
    cross = -torch.einsum("ino,ij,jmo->nm", k, _cross_weights(a, b), k2)
    weights = one.get_parameter("2.weight"), two.get_parameter("2.weight")
    first, second = torch.autograd.grad(cross_entropy(a, b), weights)
    size, other = cross.shape
    joint = torch.zeros(size + other, size + other, dtype=torch.float64)
    joint[:size, size:], joint[size:, :size] = cross, cross.T
    singular = torch.linalg.svdvals(cross)
    w, w2 = (vec(weight.detach()) for weight in weights)
    yield "first", cross @ w2, vec(-first)
    yield "second", cross.T @ w, vec(-second)
    yield "pairs", torch.linalg.eigvalsh(joint).flip(0)[: len(singular)], singular
    yield "broken: its own weights", cross @ w, vec(-first)
