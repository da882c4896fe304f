r"""Hierarchical latent tree models: categorical variables on a tree, of which only the leaves are seen.

The root :math:`z_0` says what object it is; every other variable is drawn given its parent, from a transition table
:math:`P_{\mu\nu} = [\mathbb P(z_\nu \mid z_\mu)]` (Section 6 of [tian2020]).  An augmentation redraws everything below the root.

Trees are complete, their tables are not tied: every edge of every replica has its own.  Depth 0 is the root, depth
:math:`L` the leaves (the papers count layers from the leaves).  A node's name is ``s`` and the path to it, as in the papers:
``s01`` is the right child of the left child of the root ``s``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sslbook._ambient import anywhere, methods_anywhere
from sslbook._random import Streams


@methods_anywhere
@dataclass(frozen=True)
class LatentTree:
    r"""This class holds ``R`` complete trees of one shape, each with its own tables.

    root: the prior of :math:`z_0`, ``(R, m_0)``.  tables: one tensor for each depth, with the children of a node side
    by side.  The shape of ``tables[d]`` is ``(R, nodes at depth d + 1, m_d, m_{d+1})``.  The rows (last axis) of
    each table sum to one.

    Of these it has: ``replicas``, ``R``; ``depth``, the number of edges from the root to a leaf; and by depth, root first, the
    number of ``nodes``, the number of ``values`` that a variable takes, and (not for the leaves) the number of a node's children,
    ``branching``.

    Raises ValueError for a depth of 0, shapes that don't fit, entries outside [0, 1], or rows that don't sum to one.
    """

    root: Tensor = field(repr=False)
    tables: tuple[Tensor, ...] = field(repr=False)
    replicas: int = field(init=False)
    depth: int = field(init=False)
    nodes: tuple[int, ...] = field(init=False)
    values: tuple[int, ...] = field(init=False)
    branching: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the tree off the shapes, and check them and the rows: 64 units of rounding for each value of a row are let pass."""
        shapes, nodes = [tuple(part.shape) for part in (self.root, *self.tables)], [1]
        fits = len(shapes) > 1 and self.root.ndim == 2
        for (*_, values), shape in itertools.pairwise(shapes if fits else ()):
            fits = fits and len(shape) == 4 and shape[::2] == (shapes[0][0], values) and shape[1] % nodes[-1] == 0
            nodes.append(shape[1] if fits else 1)
        if not fits:
            allowed = "a root (R, m_0) and one table or more, (R, a multiple of the nodes above, values above, values)"
            raise ValueError(f"a tree must have {allowed}; got {', '.join(map(str, shapes))}")
        for name, rows in {"root": self.root, **{f"tables[{d}]": table for d, table in enumerate(self.tables)}}.items():
            least, rounding = rows.min(), 64 * torch.finfo(rows.dtype).eps * rows.shape[-1]
            if not (least >= 0 and (rows.sum(-1) - 1).abs().max() <= rounding):  # which a NaN is not
                sums = f"sums of {rows.sum(-1).min():.6g} to {rows.sum(-1).max():.6g}, and {least:.6g} as the least"
                raise ValueError(f"every row of {name} must hold probabilities that sum to one, got {sums}")
        branching = tuple(below // above for above, below in itertools.pairwise(nodes))
        vars(self).update(replicas=shapes[0][0], depth=len(self.tables), nodes=tuple(nodes), branching=branching)
        vars(self).update(values=tuple(shape[-1] for shape in shapes))

    def sample(self, seeds: Sequence[int], count: int, root: Tensor | None = None) -> list[Tensor]:
        """Draw ``count`` samples of every tree: one tensor ``(R, nodes, count)`` for each depth, from root to leaves.

        Binary variables are booleans, and other variables are int64.  seeds: one number for each tree.
        root: the roots' values ``(R, count)``, which an augmentation keeps; by default, they are drawn.  Raises ValueError for
        another number of seeds.

        >>> views = symmetric_binary([torch.full((1, 2), 0.5)]).sample([0], 3)  # a root and its two leaves
        >>> [tuple(part.shape) for part in views]
        [(1, 1, 3), (1, 2, 3)]
        """
        if len(seeds) != self.replicas:
            raise ValueError(f"seeds must hold one number a tree, got {len(seeds)} for {self.replicas} trees")
        u = Streams(seeds, "samples").uniform((sum(self.nodes), count), torch.float64)
        return descend(self, draw_root(self, u[:, 0]) if root is None else root, u[:, 1:])


@anywhere
def symmetric_binary(polarities: Sequence[Tensor], root_polarity: float = 0.0) -> LatentTree:
    r"""Return binary trees (SB-HLTM) whose variables equal their parent with probability :math:`(1 + \rho_{\mu\nu})/2`.

    polarities: :math:`\rho_{\mu\nu}` in [-1, 1] at each depth, ``(R, nodes at depth d + 1)`` (Eq. 14 of [tian2020]).
    root_polarity: the polarity of the root, :math:`\rho_0 = \mathbb P(z_0 = 1) - \mathbb P(z_0 = 0)`.
    Raises ValueError for a polarity outside of its interval.

    >>> symmetric_binary([torch.full((1, 2), 0.5)]).tables[0][0, 0]
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """
    tables = [torch.stack([1 + rho, 1 - rho, 1 - rho, 1 + rho], -1).unflatten(-1, (2, 2)) / 2 for rho in polarities]
    root = polarities[0].new_tensor([1 - root_polarity, 1 + root_polarity]) / 2
    return LatentTree(root.expand(len(polarities[0]), 2), tuple(tables))


@anywhere
def random_categorical(
    seeds: Sequence[int],
    values: Sequence[int],
    branching: Sequence[int],
    table: Callable[[Tensor], Tensor] = lambda u: u / u.sum(-1, keepdim=True),
) -> LatentTree:
    """Return general categorical trees (HLTM), whose tables have uniformly drawn and normalised rows.

    seeds: one number for each tree.  values: how many values a variable takes at each depth, root first, at least 2.
    branching: how many children a variable has at each depth but the last.  Raises ValueError for others.  table: what makes
    tables of uniform numbers of their shape, ``(R, nodes, values above, values)``.

    The root's prior is drawn too, from numbers on [0.2, 1.2) that are normalised, so that no value is rare.

    >>> random_categorical([0, 1], values=(2, 3), branching=(2,))
    LatentTree(replicas=2, depth=1, nodes=(1, 2), values=(2, 3), branching=(2,))
    """
    if len(values) != len(branching) + 1 or any(b < 1 for b in branching) or any(m < 2 for m in values):
        wanted = "values must be 2 or more a depth, and branching 1 or more but the last"
        raise ValueError(f"{wanted}, got {values}, {branching}")
    streams = Streams(seeds, "tables")
    prior = 0.2 + streams.uniform((values[0],), torch.float64)
    nodes = itertools.accumulate(branching, lambda n, b: n * b)
    shapes = [(n, above, below) for n, (above, below) in zip(nodes, itertools.pairwise(values))]
    tables = tuple(table(streams.uniform(shape, torch.float64)) for shape in shapes)
    return LatentTree(prior / prior.sum(-1, keepdim=True), tables)


def from_root(tree: LatentTree) -> list[Tensor]:
    r"""Return :math:`P_{0\mu} = [\mathbb P(z_\mu \mid z_0)]` for all nodes, as products along paths (Lemma 6 of [tian2020]).

    One tensor a depth, ``(R, nodes, m_0, m_d)``; the root's is the identity.
    """
    m0 = tree.values[0]
    product = torch.eye(m0, dtype=tree.root.dtype, device=tree.root.device).expand(tree.replicas, 1, m0, m0)
    products = [product]
    for table, b in zip(tree.tables, tree.branching):
        product = product.repeat_interleave(b, 1) @ table
        products.append(product)
    return products


def polarity(table: Tensor) -> Tensor:
    r"""Return the polarity :math:`\rho = 2\,\mathbb P(z_\nu = 1 \mid z_\mu = 1) - 1` of tables ``(..., 2, 2)`` (Table 1).

    A symmetric table is :math:`\tfrac12 (1 + \rho)` on its diagonal: 1 copies the parent, 0 forgets it, -1 turns it round.
    """
    return 2 * table[..., 1, 1] - 1


def draw_root(tree: LatentTree, uniform: Tensor) -> Tensor:
    """Return values of the root for uniform numbers ``(R, B)`` in [0, 1): ``(R, B)``, boolean if there are two, else int64.

    A value is how many of the prior's cumulative sums are at or below the number.
    """
    edges = tree.root.cumsum(-1)[:, :-1].to(uniform.dtype)
    passed = uniform[..., None] >= edges[:, None]
    return passed[..., 0] if edges.shape[1] == 1 else passed.sum(-1)


def descend(tree: LatentTree, root: Tensor, uniform: Tensor) -> list[Tensor]:
    """Draw everything below the root: one tensor ``(R, nodes, B)`` a depth, the root's first, the leaves' last.

    root: values ``(R, B)``.  uniform: ``(R, nodes below the root, B)`` in [0, 1), the numbers of the upper depths first.
    Binary variables come as booleans, others as int64.
    """
    drawn = [root[:, None]]
    for table, b, u in zip(tree.tables, tree.branching, uniform.split(tree.nodes[1:], 1)):
        edge = table.cumsum(-1)[..., :-1].to(uniform.dtype)
        above, cuts = edge.shape[2:]
        parent = drawn[-1][:, :, None]
        # inverse of the cumulative distribution: one comparison a value
        if above == 2 and cuts == 1:  # the papers' case, several times faster than to gather
            if_0, if_1 = (u >= edge[:, :, value] for value in (0, 1))
            differs = (if_0 ^ if_1).unflatten(1, (-1, b)) & parent.bool()
            drawn.append(if_0 ^ differs.flatten(1, 2))
            continue
        index = parent.long().expand(-1, -1, b, -1).flatten(1, 2)[..., None].expand(-1, -1, -1, cuts)
        passed = u[..., None] >= edge.gather(2, index)
        drawn.append(passed[..., 0] if cuts == 1 else passed.sum(-1))
    return drawn
