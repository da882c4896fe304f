"""The mixing of views against the matrix that it stands for, its transpose and its root."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sslbook.operator.view_weights import Mixing, PairMixing

sizes = st.integers(1, 6)
factors = st.floats(-2, 2)


def weights(n: int, seed: int, *, symmetric: bool = True) -> Tensor:
    xi = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return xi + xi.T if symmetric else xi


def matrix(mixing: Mixing, n: int, v: int) -> Tensor:
    """``C`` by its formula, entry by entry."""
    c = torch.zeros(n, v, n, v, dtype=torch.float64)
    for i in range(n):
        for a in range(v):
            for j in range(n):
                xi = 1.0 if mixing.weights is None else mixing.weights[i, j]
                c[i, a, i, :] += mixing.inter * xi / (n**2 * v * v)
                c[i, a, j, :] -= mixing.inter * xi / (n**2 * v * v)
            c[i, a, i, a] += mixing.intra / (n * v)
            c[i, a, i, :] -= mixing.intra / (n * v * v)
    return c.reshape(n * v, n * v)


def applied(mixing: Mixing, n: int, v: int, *, adjoint: bool = False) -> Tensor:
    eye = torch.eye(n * v, dtype=torch.float64).reshape(n, v, n * v)
    return mixing(eye, adjoint=adjoint).reshape(n * v, n * v)


@given(n=sizes, v=sizes, inter=factors, intra=factors, kind=st.sampled_from(["none", "even", "skew"]), seed=sizes)
@settings(deadline=None)
def test_it_is_its_matrix(n: int, v: int, inter: float, intra: float, kind: str, seed: int) -> None:
    xi = None if kind == "none" else weights(n, seed, symmetric=kind == "even")
    mixing = Mixing(inter, intra, xi)
    c = matrix(mixing, n, v)
    # entries are at most 4 and sums have at most 36 terms: 1e-14 is a few dozen units of rounding
    assert float((applied(mixing, n, v) - c).abs().max()) < 1e-14
    assert float((applied(mixing, n, v, adjoint=True) - c.T).abs().max()) < 1e-14
    assert float((applied(-mixing, n, v) + c).abs().max()) < 1e-14
    assert mixing.symmetric == (kind != "skew" or n == 1)


@given(n=sizes, v=sizes, inter=st.floats(0, 2), intra=st.floats(0, 2), weighted=st.booleans(), seed=sizes)
@settings(deadline=None)
def test_the_root_squares_to_it(n: int, v: int, inter: float, intra: float, weighted: bool, seed: int) -> None:
    mixing = Mixing(inter, intra, weights(n, seed) if weighted else None)
    root = mixing.root(n, v)
    assert root is not None
    half = applied(root, n, v)
    assert float((half - half.T).abs().max()) < 1e-12
    assert float((half @ half - matrix(mixing, n, v)).abs().max()) < 1e-12


def test_no_root_without_positivity() -> None:
    assert Mixing(intra=-0.1).root(3, 2) is None
    assert Mixing(inter=-1.0).root(3, 2) is None
    assert Mixing(weights=weights(3, 0, symmetric=False)).root(3, 2) is None
    assert Mixing(weights=-weights(3, 0)).root(3, 2) is None


def test_a_common_part_and_a_sample_with_itself_bring_no_rounding() -> None:
    """Both drop out of ``C u``; left in, they would cost ten and six digits here."""
    xi = weights(5, 0) * 1e-6 + 1e6 * torch.eye(5, dtype=torch.float64)
    off = xi - torch.diag(xi.diagonal())
    u = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for field, mixing in ((u, Mixing(weights=xi)), (u + 1e6, Mixing(weights=off))):
        mean = field.mean(1)
        wanted = (off[:, :, None] * (mean[:, None] - mean[None])).sum(1)[:, None] / 50
        assert float((mixing(field) - wanted).norm() / wanted.norm()) < 1e-13


def test_any_matrix_its_transpose_and_its_root() -> None:
    g = torch.Generator().manual_seed(0)
    a, u = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((6, 6), (3, 2, 4)))
    assert torch.allclose(PairMixing(a)(u).flatten(0, 1), a @ u.flatten(0, 1))
    assert torch.allclose(PairMixing(a)(u, adjoint=True).flatten(0, 1), a.T @ u.flatten(0, 1))
    for rows in (a, a[:, :2]):  # of full rank, and not
        whole = 0.5 * (rows @ rows.T + (rows @ rows.T).T)
        half = PairMixing(whole).root(3, 2)
        assert half is not None
        assert float((half.matrix @ half.matrix - whole).abs().max()) < 1e-12
    negative = torch.diag(torch.tensor([-1.0, 1, 2, 3, 4, 5], dtype=torch.float64))
    assert PairMixing(a).root(3, 2) is None
    assert PairMixing(negative).root(3, 2) is None
