r"""Kinds of latent trees that the chapter draws, and a part's own block of its layer's covariance operator.

The trees: the papers' symmetric binary ones, and the regularised ones of Definition 3.  The block, by the finite sums of
:mod:`sslbook.trees.exact`: which
child a unit listens to (its selectivity), the connection expected given the root, and its covariance over the root.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook._random import Streams
from sslbook.trees.exact import Parts, TreeNetwork
from sslbook.trees.latent import LatentTree, from_root, random_categorical, symmetric_binary


def random_polarities(
    seeds: Sequence[int], depth: int, lower: float, *, branching: int = 2, signed: bool = True
) -> list[Tensor]:
    r"""Polarities :math:`|\rho| \sim U[\text{lower}, 1]` for :func:`symmetric_binary`, one tree a seed, float64.

    signed: with a random sign each, as in the released experiments; the paper prints :math:`U[\text{lower}, 1]` without one.
    """
    streams = Streams(seeds, "polarities")
    drawn = []
    for d in range(depth):
        u = streams.uniform((2, branching ** (d + 1)), torch.float64)
        rho = lower + (1 - lower) * u[:, 0]
        drawn.append(torch.where(u[:, 1] < 0.5, -rho, rho) if signed else rho)
    return drawn


def random_symmetric(
    seeds: Sequence[int], depth: int, lower: float, *, branching: int = 2, signed: bool = True
) -> LatentTree:
    """Binary SB-HLTMs with the polarities of :func:`random_polarities` and a uniform root: the data of the papers' tables."""
    return symmetric_binary(random_polarities(seeds, depth, lower, branching=branching, signed=signed))


def place(tree: LatentTree, name: str) -> tuple[int, int]:
    """Depth and index of the node called ``name``: ``s`` and one digit a step, such as ``s01``."""
    index = 0
    for digit, b in zip(name[1:], tree.branching):
        index = index * b + int(digit)
    if name[:1] != "s" or len(name) - 1 > tree.depth or any(int(d) >= b for d, b in zip(name[1:], tree.branching)):
        raise ValueError(f"name must be s and at most {tree.depth} digits, each below {tree.branching}, got {name!r}")
    return len(name) - 1, index


def joint(tree: LatentTree) -> tuple[list[Tensor], Tensor]:
    r"""Every assignment of every variable, listed, with its probability: the slow, independent oracle for small trees.

    Returns the assignments as :meth:`LatentTree.sample` returns samples, ``(1, nodes, A)`` a depth, and probabilities ``(R, A)``.
    """
    counts = [m for m, n in zip(tree.values, tree.nodes) for _ in range(n)]
    listed = torch.cartesian_prod(*(torch.arange(m) for m in counts)).T
    assignments = [part[None] for part in listed.split(list(tree.nodes))]
    probability = tree.root[:, assignments[0][0, 0]]
    for d, table in enumerate(tree.tables):
        parent = assignments[d].repeat_interleave(tree.branching[d], 1)[0]
        for node in range(table.shape[1]):
            probability = probability * table[:, node, parent[node], assignments[d + 1][0, node]]
    return assignments, probability


def random_regularized(seeds: Sequence[int], values: Sequence[int], branching: Sequence[int]) -> LatentTree:
    r"""TR-HLTMs (Definition 3 of [tian2020]) with ``values[d]`` values at depth ``d`` and a random prior of the root.

    :math:`P_{\mu\nu} = \frac{1}{m_\nu} 1 1^\top + C_{\mu\nu}` with :math:`C 1 = 0` and :math:`1^\top C = 0`: a random doubly
    centred matrix, times a random 0.3 to 1 of the factor that would make the table's smallest entry 0.
    """

    def centred(c: Tensor) -> Tensor:
        c = c - c.mean(-1, keepdim=True)
        return c - c.mean(-2, keepdim=True)

    def regularized(u: Tensor) -> Tensor:
        c = centred(u)
        lowest = c.flatten(-2).min(-1).values[..., None, None]
        c = centred(c / lowest)  # again: to divide by a small number magnifies what rounding left
        return (1 - c * (0.3 + 0.7 * u[..., :1, :1])) / u.shape[-1]

    return random_categorical(seeds, values, branching, regularized)


def selectivity(parts: Parts) -> Tensor:
    r""":math:`s_j = \frac12 (v_j(1) - v_j(0))` of binary trees, ``(R, nodes, width)``."""
    v = parts.pre.relu() @ parts.given.mT  # E[f_j | z], (R, nodes, width, m)
    return (v[..., 1] - v[..., 0]) / 2


def child_selectivity(tree: LatentTree, listed: dict[int, Parts], depth: int) -> Tensor:
    r""":math:`a_\mu = [\rho_{\mu\nu(k)} s_k]` for the nodes of one depth of a binary tree, ``(R, nodes, fan-in)`` (Eq. 110)."""
    below = listed[depth + 1]
    table = tree.tables[depth].double()
    rho = table[..., 1, 1] + table[..., 0, 0] - 1
    return (rho[..., None] * selectivity(below)).unflatten(1, (-1, tree.branching[depth])).flatten(2)


def signals(tree: LatentTree, listed: dict[int, Parts]) -> list[Tensor]:
    r"""Of each part of a symmetric binary tree :math:`o_\mu \lVert a_\mu \rVert^2`, ``(R, nodes)`` a depth, root first.

    It is the trace of the covariance over the root of what the part reads, :math:`o_\mu a_\mu a_\mu^\top`.
    """
    spread = 4 * tree.root.double().prod(-1, keepdim=True)  # 1 - rho_0^2
    found = []
    for depth, product in enumerate(from_root(tree)[: tree.depth]):
        path = product[..., 1, 1] + product[..., 0, 0] - 1
        found.append(spread * path.square() * child_selectivity(tree, listed, depth).square().sum(-1))
    return found


def means_given_root(tree: LatentTree, listed: dict[int, Parts], depth: int) -> Tensor:
    r""":math:`[\mathbb E[f_k \mid z_0]]` for the nodes of one depth (Eq. 167), ``(R, nodes, m_0, fan-in)``."""
    below, b = listed[depth + 1], tree.branching[depth]
    means = (below.pre.relu() @ below.given.mT).mT  # given the node itself, (R, nodes, m, width)
    given_root = from_root(tree)[depth + 1].double() @ means  # (R, children, m0, width)
    return given_root.unflatten(1, (-1, b)).movedim(2, 3).flatten(3)


def covariance_over_root(tree: LatentTree, means: Tensor) -> Tensor:
    """Covariance over :math:`z_0` of means given the root (Eq. 166): ``(R, nodes, m_0, n)`` to ``(R, nodes, n, n)``."""
    prior = tree.root.double()[:, None, :, None]
    centred = means - (prior * means).sum(2, keepdim=True)
    return (prior * centred).transpose(2, 3) @ centred


def expected_connection(tree: LatentTree, net: TreeNetwork, listed: dict[int, Parts], name: str) -> Tensor:
    r""":math:`\bar K_\mu(z_0) = \mathbb E[f_{\mathcal N_\mu^{ch}} \otimes J_\mu^\top \mid z_0]` at the weights of part ``name``.

    Shape ``(R, m_0, fan-in, outputs, width)``: child unit, output of the root's part (before the division by its length), unit.

    It needs :math:`\sum \mathbb P(\text{pattern}, \text{rest} \mid z_0)\, J_\mu` over leaves outside the part, which is kept in two
    factors, ``gated (R, m_0, outputs or 1, width, patterns)`` and ``pending (R, outputs, width)`` or ones: right below the root the
    Jacobian is the root's weight times a gate, and not to multiply them out saves a factor ``outputs`` where patterns are most.
    """
    depth, index = place(tree, name)
    below, b = listed[depth + 1], tree.branching[depth]
    if depth == 0:  # J is the identity
        means = means_given_root(tree, listed, 0)[:, 0]
        eye = torch.eye(net.width, dtype=torch.float64, device=means.device)
        return means[..., None, None] * eye
    first, top, width = listed[1], int(name[1]), net.width
    given = (tree.tables[0].double() @ first.given)[:, top]  # (R, m0, patterns)
    gated = (given[:, :, None] * (first.pre[:, top] > 0)[:, None])[:, :, None]
    pending = net.weights[0].double()[:, 0, :, top * width : (top + 1) * width]
    node = top
    for level, step in enumerate(map(int, name[2:]), 1):
        parts, children = listed[level + 1], tree.branching[level]
        alone = _sum_over_siblings(gated, step, children, parts.pre.shape[-1]) * pending[:, None, :, :, None]
        down = net.weights[level].double()[:, node, :, step * width : (step + 1) * width]
        node, pending = node * children + step, torch.ones_like(pending[:, :1])
        gated = torch.einsum("rzaeq,rec->rzacq", alone, down) * (parts.pre[:, node] > 0)[:, None, None]
    pieces = []
    for child in range(b):
        alone = _sum_over_siblings(gated, child, b, below.pre.shape[-1])
        pieces.append(torch.einsum("riq,rzacq->rziac", below.pre[:, index * b + child].relu(), alone))
    return torch.cat(pieces, 2) * pending[:, None, None]


def _sum_over_siblings(weighted: Tensor, child: int, children: int, patterns: int) -> Tensor:
    """Sum ``(..., patterns of all children)`` over the patterns of all but one."""
    others = [k - children for k in range(children) if k != child]
    digits = weighted.unflatten(-1, (patterns,) * children)
    return digits.sum(others) if others else digits


def operator_norm(tree: LatentTree, connection: Tensor, contract: str = "outputs") -> Tensor:
    r"""Frobenius norm of :math:`\mathbb V_{z_0}[\bar K_\mu(z_0)]`, ``(R,)``.

    contract: the axis over which the two connections are multiplied: ``outputs`` as in Definition 1 and Theorem 3 of [tian2020],
        ``units`` (the part's own) as in the released code.  The trace is the same, the norm is not.
    """
    prior = tree.root.double()[:, :, None, None, None]
    centred = prior.sqrt() * (connection - (prior * connection).sum(1, keepdim=True))
    inner = centred.movedim(3 if contract == "outputs" else 4, 2).flatten(3).flatten(1, 2)  # (R, m0 x contracted, kept)
    return torch.linalg.matrix_norm(inner @ inner.transpose(1, 2))
