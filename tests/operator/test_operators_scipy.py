"""The operator among SciPy's: all kinds of it, with vectors of all kinds of number, against the matrix; and vectors of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg
from scipy.sparse.linalg import (
    LinearOperator,
    aslinearoperator,
    cg,
    eigs,
    eigsh,
    expm_multiply,
    gmres,
    lobpcg,
    svds,
)

from sslbook.bench.covariance import operators, population
from sslbook.networks.small import convnet, mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator

BAR = {np.dtype("f8"): 1e-12, np.dtype("f4"): 1e-5}
DRAW = np.random.default_rng(0)


def kinds() -> dict[str, CovarianceOperator]:
    clean, views = population((6,), 8, 3, seed=0, dtype=torch.float64)
    net, give = mlp((6, 8, 3), "leaky_relu"), partial(covariance_operator, layer="0")
    found = dict(operators(net, "0", views, clean))
    found |= {
        "one layer": covariance_operator(mlp((6, 5)), "0", views),
        "nt_xent": give(net, views=views, loss="nt_xent", tau=0.5),
        "in chunks": give(net, views=views, chunk=5),
        "conv": give(convnet((2, 3, 4), 5, 3), views=population((2, 5, 5), 6, 2, seed=0, dtype=torch.float64)[1]),
    }
    net = mlp((6, 8, 3), "leaky_relu").float()
    found |= {
        "float32": give(net, views=views.float()),
        "float32, l2": give(net, views=views.float(), normalize=True),
    }
    return found | {"bfloat16": give(net.bfloat16(), views=views.bfloat16())}


KINDS = kinds()
VECTORS: dict[str, Callable[[int], Any]] = {
    "complex": lambda n: DRAW.standard_normal(n) + 1j * DRAW.standard_normal(n),
    "imaginary": lambda n: 1j * DRAW.standard_normal(n),
    "complex64": lambda n: (DRAW.standard_normal(n) + 1j * DRAW.standard_normal(n)).astype("c8"),
    **{kind: lambda n, kind=kind: (4 * DRAW.standard_normal(n)).round().astype(kind) for kind in ("i8", "i2", ">i4")},
    **{kind: lambda n, kind=kind: DRAW.integers(0, 2, n).astype(kind) for kind in ("u8", "u1", "?")},
    **{kind: lambda n, kind=kind: DRAW.standard_normal(n).astype(kind) for kind in ("f2", "f4", "f8", "g", "G", ">f8")},
    "backwards": lambda n: DRAW.standard_normal(n)[::-1],
    "each other": lambda n: DRAW.standard_normal(2 * n)[::2],
    "read-only": lambda n: np.frombuffer(DRAW.standard_normal(n).tobytes()),
    "a column": lambda n: DRAW.standard_normal((n, 1)),
    "a matrix of NumPy": lambda n: np.matrix(DRAW.standard_normal((n, 1))),
    "columns": lambda n: DRAW.standard_normal((n, 3)),
    "complex columns, Fortran's order": lambda n: np.asfortranarray(DRAW.standard_normal((n, 2)) * (1 + 2j)),
    "columns backwards": lambda n: DRAW.standard_normal((n, 3))[::-1, ::-1],
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_every_kind_of_vector(kind: str) -> None:
    op = KINDS[kind]
    linear, dense = op.to_scipy(), op.dense().numpy()
    shift = 2 * aslinearoperator(np.eye(len(dense), dtype=dense.dtype))
    pairs: dict[str, tuple[LinearOperator, np.ndarray]] = {
        "A": (linear, dense),
        "A.T": (linear.T, dense.T),
        "A.H": (linear.H, dense.T),
        "A + 2": (linear + shift, dense + 2 * np.eye(len(dense))),
        "A A.T": (linear @ linear.T, dense @ dense.T),
        "2i A": (2j * linear, 2j * dense),
    }
    for what, draw in VECTORS.items():
        given = draw(len(dense))
        before = given.copy()
        for name, (one, matrix) in pairs.items():
            found, wanted = one @ given, matrix @ np.asarray(given, "c16" if np.iscomplexobj(given) else "f8")
            assert found.shape == wanted.shape, (what, name)
            assert np.iscomplexobj(found) == np.iscomplexobj(wanted), (what, name)
            assert np.abs(found - wanted).max() <= BAR[dense.dtype] * np.abs(wanted).max(), (what, name)
        for one in (linear, linear.T, linear.H):
            assert one.dtype == dense.dtype
            assert (one @ given).dtype == (dense.dtype if not np.iscomplexobj(given) else np.result_type(dense, "c8"))
        assert np.array_equal(given, before), what


def top(values: np.ndarray) -> np.ndarray:
    return np.sort(np.abs(values))[-3:]


SOLVERS: dict[str, tuple[Callable[[LinearOperator, np.ndarray], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "eigs": (
        lambda a, b: top(eigs(a, 3, v0=b.astype(a.dtype), return_eigenvectors=False)),
        lambda a, b: top(linalg.eigvals(a)),
    ),
    "svds": (
        lambda a, b: np.sort(svds(a, 3, v0=b, return_singular_vectors=False)),
        lambda a, b: top(linalg.svdvals(a)),
    ),
    "gmres": (
        lambda a, b: gmres(a + 1j * eye(a), b, rtol=1e-8)[0],
        lambda a, b: linalg.solve(a + 1j * np.eye(len(a)), b),
    ),
    "expm, i": (lambda a, b: expm_multiply(-1j * a, b, traceA=0.0), lambda a, b: linalg.expm(-1j * a) @ b),
}
SYMMETRIC = {
    "eigsh": (
        lambda a, b: np.sort(eigsh(a, 3, which="LA", v0=b.astype(a.dtype), return_eigenvectors=False)),
        lambda a, b: linalg.eigvalsh(a)[-3:],
    ),
    "lobpcg": (
        lambda a, b: np.sort(lobpcg(a, DRAW.standard_normal((len(b), 3)), maxiter=200, tol=1e-4)[0]),
        lambda a, b: linalg.eigvalsh(a)[-3:],
    ),
    "cg": (lambda a, b: cg(a + 3 * eye(a), b, rtol=1e-8)[0], lambda a, b: linalg.solve(a + 3 * np.eye(len(a)), b)),
}


def eye(like: LinearOperator) -> LinearOperator:
    return aslinearoperator(np.eye(like.shape[0], dtype=like.dtype))


@pytest.mark.parametrize("solver", [*SOLVERS, *SYMMETRIC])
@pytest.mark.parametrize("kind", ["simple", "l2", "nt_xent", "in chunks", "conv", "float32", "float32, l2"])
def test_solvers_find_what_they_find_with_the_dense_matrix(kind: str, solver: str) -> None:
    op = KINDS[kind]
    if solver in SYMMETRIC and not op.symmetric:
        return
    by_products, by_matrix = {**SOLVERS, **SYMMETRIC}[solver]
    start = np.random.default_rng(1).standard_normal(op.shape[0])
    found, wanted = by_products(op.to_scipy(), start), by_matrix(op.dense().double().numpy(), start)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["simple", "l2", "in chunks"])
def test_vectors_of_torch_in_any_layout(kind: str) -> None:
    op = KINDS[kind]
    dense, n = op.dense(), op.shape[0]
    draw = torch.randn(2 * n, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for given in (
        draw[::2],
        draw[:n].flip(0),
        draw[::2, ::2],
        draw.T.reshape(12, n).T,
        draw[:n].clone().requires_grad_(),
    ):
        bar = 1e-12 * float(dense.abs().max() * given.detach().norm())
        assert float((op.matmat(given) - dense @ given).detach().norm()) < bar
        assert float((op.matvec(given[:, 1]) - dense @ given[:, 1]).detach().norm()) < bar
        assert float((op.rmatvec(given[:, 1]) - dense.T @ given[:, 1]).detach().norm()) < bar
