"""Finite populations, each a table ``p(v | x)`` of its views: the book's square, crops of digits, and a latent tree."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from sslbook.trees.latent import LatentTree
from sslchapters import enumerated


class World(NamedTuple):
    """table: ``(N, n)``.  views: what each view shows, ``(n, pixels)``.  labels: of the images, ``(N,)``."""

    table: Tensor
    views: Tensor
    labels: Tensor


def square(q: float) -> World:
    """The square with jitter 1 across, which takes a view of A (at 2) or B (at −2) to 0 with probability ``q`` in (0, 1)."""
    places = [[float(x), float(up)] for x in (2, 0, -2) for up in (-1, 1)]
    a = [(1 - q) / 2] * 2 + [q / 2] * 2
    table = torch.tensor([[*a, 0, 0], [0, 0, *a[2:], *a[:2]]], dtype=torch.float64)
    return World(table, torch.tensor(places, dtype=torch.float64), torch.tensor([0, 1]))


def crops(size: int, count: int, digits: tuple[int, ...] = (0, 1, 4), *, stamps: int = 0) -> World:
    """Digits in black and white (1 and −1), through every square window of ``size`` pixels of 8; 0 is what a view does not show.

    ``stamps``: each image also carries one of so many marks, at random, and every view shows it; the labels are the marks then.
    """
    data = enumerated.digits(dtype=torch.float64)
    chosen = torch.isin(data.labels, torch.tensor(digits)).nonzero()[:, 0]
    draws = torch.Generator().manual_seed(0)
    chosen = chosen[torch.randperm(len(chosen), generator=draws)[:count]]
    ink, places = (data.pixels[chosen, 0] > 0.5).double() * 2 - 1, range(9 - size)
    masks = torch.zeros(len(places) ** 2, 8, 8, dtype=torch.float64)
    for number, mask in enumerate(masks):
        top, left = divmod(number, len(places))
        mask[top : top + size, left : left + size] = 1
    shown = (ink[:, None] * masks).flatten(2)
    labels = torch.searchsorted(torch.tensor(digits), data.labels[chosen])
    if stamps:
        labels = torch.randint(stamps, (len(shown),), generator=draws)
        mark = torch.nn.functional.one_hot(labels, stamps).double()
        shown = torch.cat([shown, mark[:, None].expand(-1, len(masks), -1)], 2)
    return listed(shown, labels)


def listed(shown: Tensor, labels: Tensor) -> World:
    """The population of views ``(N, V, pixels)``, all of an image equally likely: equal views are one."""
    views, which = shown.flatten(0, 1).unique(dim=0, return_inverse=True)
    table = torch.zeros(len(shown), len(views), dtype=torch.float64)
    table.scatter_add_(
        1, which.view(shown.shape[:2]), torch.full(shown.shape[:2], 1 / shown.shape[1], dtype=torch.float64)
    )
    return World(table, views, labels)


def leaves(tree: LatentTree) -> Tensor:
    """The probabilities of all patterns of a tree's leaves, given its root, ``(values, patterns)``, of its first replica."""

    def together(one: Tensor, other: Tensor) -> Tensor:
        return torch.einsum("zp,zq->zpq", one, other).flatten(1)

    below = [torch.eye(tree.values[-1], dtype=torch.float64)] * tree.nodes[-1]
    for tables, above in zip(reversed(tree.tables), reversed(tree.nodes[:-1])):
        given = [step @ patterns for step, patterns in zip(tables[0], below)]
        each = len(given) // above
        below = [reduce(together, given[node * each : (node + 1) * each]) for node in range(above)]
    return below[0]
