r"""The operator of a loss of inner products against autograd, on random networks, with the nearest operators that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from sslbook import batch_losses, contrast
from sslbook.connection import Layer, vec
from sslbook.gaps import Gaps, worst
from sslbook.gram import Loss, gram_weights
from sslbook.mixing import Mixing, PairMixing
from sslbook.networks import instance_seeds, mlp, random_network
from sslbook.operators import CovarianceOperator, covariance_operator

SAMPLES = 6
CLASSES = torch.tensor([0, 0, 1, 1, 2, 2])
LOSSES: dict[str, Loss] = {
    "nt_xent": partial(batch_losses.nt_xent, tau=0.3),
    "supervised_contrastive": partial(batch_losses.supervised_contrastive, labels=CLASSES, tau=0.3),
    "decoupled": partial(batch_losses.decoupled, tau=0.3),
    "clip": partial(batch_losses.clip, tau=0.3),
    "sigmoid_pairs": partial(batch_losses.sigmoid_pairs, scale=5.0, bias=-2.0),
    "spectral_contrastive": batch_losses.spectral_contrastive,
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
    """Minus the gradient in the layer's weight, through all towers, by autograd; it knows nothing of connections."""
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (gradient,) = torch.autograd.grad(loss(outputs), net.get_parameter(f"{layer}.weight"))
    return -gradient


def step_gaps(loss: str, networks: int = 20, seed: int = 0) -> Gaps:
    r"""The step of a loss of :data:`LOSSES` against its operator, and how symmetric the matrix is.

    Broken: one tower alone, :math:`\Gamma` with its diagonal left out, and the weights of the same loss at outputs that stand a
    tenth off.  (A diagonal that is zero is left out of the last but one, and a layer that one tower alone moves is passed over.)
    """
    rows: list[Gaps] = []
    for net, layer, views in instances(networks, seed):
        op, truth = covariance_operator(net, layer, views, loss=LOSSES[loss]), step(net, layer, views, LOSSES[loss])
        assert isinstance(op.mixing, PairMixing)
        matrix, dense = op.mixing.matrix, op.dense()
        first = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(SAMPLES)[:, None]
        diagonal = torch.diag(matrix.diagonal())
        draw = torch.Generator().manual_seed(SAMPLES)
        noise = torch.randn(op.opened.output.shape, generator=draw, dtype=torch.float64)
        outputs = op.opened.output * (1 + 0.1 * noise)
        elsewhere = -2 * gram_weights(LOSSES[loss], outputs.unflatten(0, op.population))
        wrong = {"one tower": first * matrix, "weights a tenth off": elsewhere}
        if diagonal.any():
            wrong["diagonal left out"] = matrix - diagonal
        steps = {
            name: CovarianceOperator(op.opened, op.population, PairMixing(other)).exact_update()
            for name, other in wrong.items()
        }
        towers = (steps["one tower"], truth - steps["one tower"])
        if min(float(part.norm()) for part in towers) < 1e-6 * truth.norm():
            continue  # one tower's views don't move this layer: it only scales their outputs, which no cosine sees
        row = {"step": gap(op.exact_update(), truth), "symmetric": float((dense - dense.T).norm() / dense.norm())}
        if op.euler_gap() < 1e-10:  # biases, parallel paths and powers have no K^T vec(W) for an output
            row["operator"] = gap(op.update(), truth)
        rows.append(row | {f"broken: {name}": gap(found, truth) for name, found in steps.items()})
    return worst(rows)


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
    return {"growth": max(map(abs, growth)), "negative": min(negative), "instances": float(len(growth))}


def bias_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""ReLU networks with biases: the operator on a layer's weights together with all biases from that layer up.

    There :math:`f_a = \tilde K_a^\top p` for these numbers ``p`` in one vector, and the step is
    :math:`-2 \sum \Gamma_{ab} \tilde K_a \tilde K_b^\top p`.  Broken: the weights alone.
    """
    rows: list[Gaps] = []
    loss = LOSSES["nt_xent"]
    for s in instance_seeds(networks, seed):
        net, draw = mlp((5, 7, 6, 4), bias=True, seed=s), torch.Generator().manual_seed(s)
        x = torch.randn(2 * SAMPLES, 5, generator=draw, dtype=torch.float64)
        chosen = {name: net.get_parameter(name).detach() for name in ("2.weight", "2.bias", "4.bias")}

        def outputs(given: dict[str, Tensor], net: nn.Module = net, x: Tensor = x) -> Tensor:
            found: Tensor = functional_call(net, given, (x,))
            return found

        jacobian = jacrev(outputs)(chosen)
        k = torch.cat([jacobian[name].detach().flatten(2) for name in chosen], dim=2)  # (views, outputs, numbers)
        p = torch.cat([part.flatten() for part in chosen.values()])
        leaf = outputs(chosen).detach().requires_grad_()
        (pull,) = torch.autograd.grad(loss(leaf.unflatten(0, (SAMPLES, 2))), leaf)
        truth = -torch.einsum("aoi,ao->i", k, pull)
        gamma = gram_weights(loss, leaf.detach().unflatten(0, (SAMPLES, 2)))
        op = -2 * torch.einsum("aoi,ab,boj->ij", k, gamma, k)
        size = chosen["2.weight"].numel()
        alone = op[:size, :size] @ p[:size]
        rows.append({"step": gap(op @ p, truth), "broken: weights alone": gap(alone, truth[:size])})
    return worst(rows)


def laplacian_gaps(seed: int = 0) -> Gaps:
    r""":math:`-2\Gamma` of losses of distances against :math:`\xi` of [tian2020] and :math:`\alpha` of [tian2023].

    xi: InfoNCE with one negative over all pairs of a batch without augmentation, against twice the mixing of Theorem 4.
    alpha: Eq. 1 of [tian2023], between the first views of two samples, against :math:`-(\alpha_{ij} + \alpha_{ji})`.
    rows: how far a row of :math:`\Gamma` is from adding up to zero.
    """
    samples, tau = 7, 0.7
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, 2, 3, generator=draw, dtype=torch.float64)
    alone = z[:, :1]

    def one_negative(z: Tensor) -> Tensor:
        r = contrast.square_distances(z[:, 0])
        return -torch.nn.functional.logsigmoid(r / tau).mean()

    def eq_1(z: Tensor) -> Tensor:
        return contrast.loss_value("info_nce", z[:, 0], z[:, 1], tau=tau, epsilon=1.0)

    xi = torch.sigmoid(-contrast.square_distances(alone[:, 0]) / tau) / tau
    eye = torch.eye(samples, dtype=torch.float64)[:, None]
    papers = 2 * Mixing(weights=xi)(eye)[:, 0]
    ours = -2 * gram_weights(one_negative, alone)
    alpha = contrast.weights("info_nce", z[:, 0], z[:, 1], tau=tau, epsilon=1.0)
    whole = -2 * gram_weights(eq_1, z)
    between = whole[::2, ::2] + torch.diag(torch.full((samples,), torch.nan, dtype=torch.float64))
    off = ~torch.eye(samples, dtype=torch.bool)
    return {
        "xi": gap(ours, papers),
        "broken: one tower": gap(ours, papers / 2),
        "alpha": gap(between[off], -(alpha + alpha.T)[off]),
        "broken: alpha of one anchor": gap(between[off], -2 * alpha[off]),
        "rows": float(whole.sum(1).norm() / whole.norm()),
    }


def between(matrix: Tensor, views: int = 2) -> Tensor:
    r""":math:`\bar C_{ij} = \sum_{vw} C_{iv,jw}`, ``(N, N)``: the weights between samples, whatever the view."""
    found: Tensor = matrix.unflatten(0, (-1, views)).unflatten(2, (-1, views)).sum((1, 3))
    return found


def lowest_between(loss: Loss, batches: int = 20, seed: int = 0) -> float:
    r"""The smallest eigenvalue of :func:`between`'s matrix over its largest, the least over random batches ``(6, 2, 4)``
    of views that differ less than samples do."""
    found = []
    for s in instance_seeds(batches, seed):
        draw = torch.Generator().manual_seed(s)
        z = torch.randn(SAMPLES, 1, 4, generator=draw, dtype=torch.float64)
        z = z + 0.2 * torch.randn(SAMPLES, 2, 4, generator=draw, dtype=torch.float64)
        values = torch.linalg.eigvalsh(between(-2 * gram_weights(loss, z)))
        found.append(float(values[0] / values[-1]))
    return min(found)


def turned(loss: Loss, outputs: Tensor, seed: int = 0) -> float:
    r"""By how much turning all outputs changes a loss, relative to the loss: :math:`|L(ZQ) - L(Z)| / |L(Z)|`."""
    draw = torch.Generator().manual_seed(seed)
    size = outputs.shape[-1]
    q = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=outputs.dtype))[0]
    value = loss(outputs)
    return float((loss(outputs @ q) - value).abs() / value.abs())


def gap(found: Tensor, wanted: Tensor) -> float:
    r""":math:`\|found - wanted\| / \|wanted\|` of all numbers together."""
    return float((found - wanted).norm() / wanted.norm())
