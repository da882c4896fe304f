r"""How a part's own block of the covariance operator grows during training: Figures 13, 14 of [tian2020], 9, 10 of [tian2021iclr].

The blocks are exact: the expectation given the root runs over all patterns of the leaves (:mod:`sslbook.trees.exact`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslbook.experiments.hltm import theory, tree_models
from sslbook.experiments.hltm.runs import TreeRun, train_chunks
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree
from sslbook.trees.network import TreeNetwork

PARTS = ("s0", "s1", "s010", "s1010")
"""The children of the root, and the two lower parts of Figure 10: left-right-left and right-left-right-left."""

EPOCHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 30, 40, 50)

BASE = TreeRun(depth=5, lower=0.8, width=10)

FACTORS: Mapping[str, tuple[float, ...]] = {"depth": (3, 4, 5), "lower": (0.7, 0.8, 0.9), "width": (2, 5, 10)}
"""What the figures vary; one factor at a time, the others as in :data:`BASE` (the papers don't say)."""


def operator_norms(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    r"""Frobenius norms of :math:`\mathrm{OP}_\mu`, the diagonal block of its layer's operator, for :data:`PARTS`, ``(R,)`` each.

    ``s0`` is the norm as defined, ``s0 released`` that of the released code, ``s0 weights`` the norm of the part's weights,
    ``s0 children`` that of the covariance of Theorem 6, of what the part reads: :math:`o_\mu \lVert a_\mu \rVert^2`.
    Parts that a shallow tree lacks are left out.
    """
    listed = exact.list_parts(tree, net)
    found: dict[str, Tensor] = {}
    for name in PARTS:
        if len(name) - 1 >= tree.depth:
            continue
        connection = theory.expected_connection(tree, net, listed, name)
        depth, index = trees.place(tree, name)
        found[name] = theory.operator_norm(tree, connection).cpu()
        found[f"{name} released"] = theory.operator_norm(tree, connection, "units").cpu()
        found[f"{name} weights"] = torch.linalg.matrix_norm(net.weights[depth][:, index].double()).cpu()
        read = theory.means_given_root(tree, listed, depth)[:, index : index + 1]
        found[f"{name} children"] = torch.linalg.matrix_norm(theory.covariance_over_root(tree, read))[:, 0].cpu()
    return found


def cells(base: TreeRun = BASE) -> dict[str, TreeRun]:
    """The seven protocols of the figures, by name (``depth 3``, ``lower 0.7``, ``width 2``, ``base`` ...)."""
    found = {"base": base}
    for factor, values in FACTORS.items():
        for value in values:
            if value != getattr(base, factor):
                changed: dict[str, Any] = {factor: value}
                found[f"{factor} {value}"] = replace(base, **changed)
    return found


def printed_loss(base: TreeRun = BASE) -> dict[str, TreeRun]:
    """Every width of the figures under the loss as printed, by name (``width 2`` ...): :data:`BASE` has the released one."""
    return {f"width {width:g}": replace(base, loss="printed", width=int(width)) for width in FACTORS["width"]}


def reach(protocol: TreeRun, seeds: Sequence[int], name: str) -> Tensor:
    r""":math:`\rho_{0\mu}^2` of part ``name`` in the trees of ``seeds``, ``(R,)``: what Theorem 6 has of the part's depth."""
    tree = tree_models.random_symmetric(seeds, protocol.depth, protocol.lower, signed=protocol.signed)
    depth, index = trees.place(tree, name)
    along: Tensor = trees.polarity(trees.from_root(tree)[depth])[:, index].square()
    return along


def curves(
    protocols: Mapping[str, TreeRun], seeds: Sequence[int], epochs: Sequence[int] = EPOCHS, *, processes: int = 2
) -> dict[str, dict[str, Tensor]]:
    """For each protocol, the norms over training: a part's name to ``(epochs, R)``."""
    runs = train_chunks(list(protocols.values()), seeds, max(epochs), operator_norms, epochs, processes=processes)
    return {
        name: {part: torch.stack([run[epoch][part] for epoch in epochs]) for part in run[epochs[0]]}
        for name, run in zip(protocols, runs)
    }
