"""One layer: the loss of all pairs, and units that climb alone; the rest is held by the pages."""

from __future__ import annotations

import itertools

import torch

from sslbook._random import Streams
from sslchapters.landscape import layers


def test_info_nce_of_all_pairs_is_its_formula() -> None:
    z = torch.nn.functional.normalize(torch.randn(4, 3, 5, dtype=torch.float64), dim=-1)
    terms = []
    for i, v, w in itertools.product(range(4), range(3), range(3)):
        if v != w:
            away = sum((z[i, v] @ z[j, u] / 0.5).exp() for j in range(4) if j != i for u in range(3))
            near = (z[i, v] @ z[i, w] / 0.5).exp()
            terms.append(-(near / (near + away)).log())
    torch.testing.assert_close(layers.info_nce(z, 0.5), torch.stack(terms).mean())


def test_linear_units_that_climb_alone_end_at_the_leading_eigenvector() -> None:
    draw = Streams([0], "units")
    x, start = (draw.normal(shape)[0] for shape in ((20, 3, 4), (6, 4)))
    ends = layers.climbed(start / start.norm(dim=1, keepdim=True), x, layers.RULES["alone, linear"], draw)
    lead = torch.linalg.eigh(torch.cov(x.mean(1).T, correction=0))[1][:, -1]
    torch.testing.assert_close((ends @ lead).abs(), torch.ones(6, dtype=torch.float64))
