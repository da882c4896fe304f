"""What the tests of the losses share: random pairs, embeddings, and the losses of Theorem 2."""

from __future__ import annotations

import functools

import torch
from hypothesis import strategies as st
from torch import Tensor

from sslbook.losses.pairs import info_nce, simple, soft_triplet

VIEWS = ("both_views", "other_view", "same_view")


def distances(*shape: int, h: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    r_pos = scale * torch.rand(shape, generator=generator, dtype=torch.float64)
    r_neg = scale * torch.rand((*shape, h), generator=generator, dtype=torch.float64)
    return r_pos, r_neg


def embeddings(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return z1, z1 + 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)


taus = st.floats(-3, 3).map(lambda exponent: 10**exponent)
margins = st.floats(0, 100, allow_subnormal=False)


def theorem2_losses(tau: float, margin: float):
    return {
        "simple": simple,
        "soft_triplet": functools.partial(soft_triplet, temperature=tau, margin=margin),
        "info_nce": functools.partial(info_nce, temperature=tau),
    }
