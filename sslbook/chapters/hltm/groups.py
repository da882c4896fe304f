r"""Where Theorem 5 of [tian2020] meets over-parameterised children: units that read the same child variable.

Eq. 155 adds the variances of the children as if all of them were independent given :math:`z_\mu`.
Units of one part :math:`\mathcal N_\nu` are not: they see the same leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.chapters.hltm import lucky, tree_operator
from sslbook.chapters.hltm.training import Protocol, start
from sslbook.trees import exact
from sslbook.trees import latent as trees


@dataclass(frozen=True)
class SharedChildren:
    """Lucky units above two binary children of ``copies`` identical units each, exact over the four patterns.

    exceeding: share of the lucky units whose conditional variance exceeds Eq. 158.  worst: largest ratio of the two.
    margin: smallest gap :math:`(v^+)^2 - (v^-)^2` over the bound of Eq. 130.
    """

    lucky: int
    exceeding: float
    worst: float
    margin: float


def shared_children(copies: int, rho: float, c: float, *, units: int, seed: int) -> SharedChildren:
    r"""Draw ``units`` units with :math:`\sigma_w = 1` over children of polarities ``rho`` and ``-rho``; look at the lucky ones."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(copies)
    part = lucky.LeafPart(rho * signs)
    weights = lucky.uniform_weights((units, 2 * copies), 1.0, seed)
    found = weights[lucky.is_lucky(weights, part.h, part.a, c, 1.0)]
    if not len(found):
        raise ValueError(f"none of {units} units is lucky for copies = {copies}, rho = {rho:g} and c = {c:g}")
    sums = found.unflatten(1, (2, copies)).sum(2)  # identical children: only the sum of their weights counts
    patterns = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    active = (sums @ patterns.T).relu()
    chance = torch.tensor([1 + rho, 1 - rho], dtype=torch.float64) / 2
    up, down = (active @ torch.where(patterns == 1, p, 1 - p).prod(1) for p in (chance, chance.flip(0)))
    variance = sums.square().sum(1) * (1 - rho**2) / 4
    allowed = 3 / 4 * (1 - rho**2)
    bound = 3 * float(lucky.bracket(part.s, part.rho, c, torch.tensor(0.0, dtype=torch.float64)))
    gaps = (up.square() - down.square()).abs()
    return SharedChildren(
        len(found),
        float((variance > allowed * (1 + 1e-9)).double().mean()),
        float(variance.max()) / allowed,
        float(gaps.min()) / bound,
    )


def promising_parts(
    protocol: Protocol,
    seeds: Sequence[int],
    c: float,
    bracket: Callable[..., Tensor] = lucky.bracket,
    *,
    group: int = 1,
) -> list[float]:
    """Share of the parts of untrained networks for which the bracket is positive, one number a depth, root first.

    bracket: that of Eq. 130, or :func:`lucky.sharper_bracket`, for independent children or for groups of ``group`` (from the
    second depth above the leaves on, as a leaf is alone).
    """
    tree, net = start(protocol, seeds)
    listed = exact.list_parts(tree, net)
    shares = []
    for depth in range(tree.depth):
        b = tree.branching[depth]
        below = exact.parts_below(tree, listed, depth)
        rho = trees.polarity(tree.tables[depth])  # (R, children)
        s, sigma = tree_operator.selectivity(below), exact.activation_variances(below).amax((-1, -2))
        wide = rho[..., None].expand_as(s).unflatten(1, (-1, b)).flatten(2)
        alone = 1 if depth == tree.depth - 1 else group
        found = bracket(s.unflatten(1, (-1, b)).flatten(2), wide, c, sigma.unflatten(1, (-1, b)).amax(-1), group=alone)
        shares.append(float((found > 0).double().mean()))
    return shares
