"""Estimates of a spectrum against dense matrices, and whether their errors are what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sslbook.networks import mlp
from sslbook.operators import covariance_operator
from sslbook.spectra import Estimate, MeanOperator, SpectralDensity, spectral_density, trace_estimate


@dataclass
class Dense:
    matrix: Tensor
    calls: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def matmat(self, matrix: Tensor) -> Tensor:
        self.calls += matrix.shape[1]
        return self.matrix @ matrix


def symmetric(values: Tensor, dtype: torch.dtype = torch.float64) -> Dense:
    size = len(values)
    basis = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    return Dense(((basis * values) @ basis.T).to(dtype))


SLOW = 1 / torch.arange(1, 61, dtype=torch.float64)
FAST = 0.8 ** torch.arange(60, dtype=torch.float64)
RANK = 5


def entropy_rank(values: Tensor) -> float:
    shares = values.clamp(min=0) / values.clamp(min=0).sum()
    return float((-torch.special.xlogy(shares, shares).sum()).exp())


def bell(values: Tensor) -> float:
    return float(torch.exp(-0.5 * ((values - 0.2) / 0.1).square()).mean() / (0.1 * (2 * torch.pi) ** 0.5))


def by_density(op: Dense, seed: int) -> SpectralDensity:
    return spectral_density(op, probes=16, steps=20, batch=16, seed=seed)


def density_there(op: Dense, seed: int) -> Estimate:
    value, error = by_density(op, seed).at(torch.tensor([0.2]), 0.1)
    return Estimate(float(value), float(error))


ESTIMATES: dict[str, tuple[Callable[[Dense, int], Estimate], Callable[[Tensor], float]]] = {
    "trace": (lambda op, seed: trace_estimate(op, products=48, batch=48, seed=seed), lambda v: float(v.sum())),
    "effective rank": (lambda op, seed: by_density(op, seed).effective_rank(), entropy_rank),
    "density": (density_there, bell),
    "trace of squares": (lambda op, seed: by_density(op, seed).trace_of(torch.square), lambda v: float((v**2).sum())),
}


@pytest.mark.parametrize("values", [SLOW, FAST], ids=["slow", "fast"])
@pytest.mark.parametrize("what", ESTIMATES)
def test_two_errors_hold_the_truth_in_nineteen_of_twenty_seeds(what: str, values: Tensor) -> None:
    """Of 16 probes, 94 % by Student's t; 200 seeds know it to 2 %, and small samples of skewed forms have less."""
    estimate, truth = ESTIMATES[what]
    op, wanted = symmetric(values), truth(values)
    found = [estimate(op, seed) for seed in range(200)]
    inside = sum(abs(e.value - wanted) <= 2 * e.error for e in found) / 200
    assert 0.86 <= inside <= 0.99
    mean = sum(e.value for e in found) / 200
    assert abs(mean - wanted) <= 0.02 * wanted


def test_the_sketch_pays_where_the_spectrum_falls() -> None:
    op = symmetric(FAST)
    plain = spectral_density(op, probes=48, steps=1, batch=48).trace_of(lambda nodes: nodes)
    op.calls = 0
    sketched = trace_estimate(op, products=48)
    assert op.calls == 48
    assert sketched.error < 0.2 * plain.error
    low = symmetric(torch.cat([torch.ones(RANK), torch.zeros(55)]).double())
    exact = trace_estimate(low, products=3 * 8)
    assert abs(exact.value - RANK) < 1e-12
    assert exact.error < 1e-12
    lopsided = Dense(low.matrix @ symmetric(SLOW).matrix.roll(3, 0))
    assert abs(trace_estimate(lopsided, products=3 * 8).value - float(lopsided.matrix.trace())) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_seeds_batches_and_precisions(dtype: torch.dtype) -> None:
    op = symmetric(SLOW, dtype)
    eps = torch.finfo(dtype).eps
    one, other = (trace_estimate(op, batch=batch, seed=3) for batch in (1, 7))
    assert abs(one.value - other.value) < 100 * eps
    assert one.value != trace_estimate(op, seed=4).value
    many = [spectral_density(op, batch=batch, seed=3) for batch in (1, 7)]
    assert many[0].nodes.dtype == torch.float64
    assert abs(many[0].effective_rank().value - many[1].effective_rank().value) < 1e4 * eps
    assert torch.allclose(many[0].weights.sum(1), torch.full((16,), 60.0, dtype=torch.float64), rtol=1e-6)


def test_enough_steps_make_it_exact_for_each_probe() -> None:
    op = symmetric(
        torch.tensor([3.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    )  # three values: invariant after three steps
    found = spectral_density(op, probes=4, steps=50)
    forms = [found.trace_of(f) for f in (torch.ones_like, torch.sin)]
    assert forms[0] == Estimate(pytest.approx(6.0, abs=1e-12), pytest.approx(0.0, abs=1e-12))
    draw = torch.Generator().manual_seed(0)
    probes = torch.stack([torch.randint(0, 2, (6,), generator=draw) for _ in range(4)], 1).double() * 2 - 1
    values, vectors = torch.linalg.eigh(op.matrix)
    sines = (probes * ((vectors * values.sin()) @ vectors.T @ probes)).sum(0)
    assert abs(forms[1].value - float(sines.mean())) < 1e-12


def test_an_operator_of_a_network() -> None:
    net = mlp((6, 8, 3))
    views = torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    op = covariance_operator(net, "0", views)
    values = torch.linalg.eigvalsh(op.dense())
    found = trace_estimate(op, products=90)
    assert abs(found.value - op.trace()) <= 4 * found.error + 1e-12
    rank = spectral_density(op, probes=64, steps=30).effective_rank()
    assert abs(rank.value - entropy_rank(values)) <= 4 * rank.error


def test_what_has_no_rank_says_so() -> None:
    for values in (torch.tensor([1.0, -0.1, 0.5]), torch.zeros(3)):
        with pytest.raises(ValueError, match="positive operator that isn't zero"):
            spectral_density(symmetric(values.double())).effective_rank()


def test_numbers_that_do_not_fit() -> None:
    op = symmetric(SLOW)
    with pytest.raises(ValueError, match="products must be at least 6, got 5"):
        trace_estimate(op, products=5)
    with pytest.raises(ValueError, match="probes must be at least 2, got 1"):
        spectral_density(op, probes=1)
    with pytest.raises(TypeError, match="steps must be a whole number"):
        spectral_density(op, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        trace_estimate(op, batch=0)
    with pytest.raises(ValueError, match="width must be above 0"):
        spectral_density(op).at(torch.zeros(1), 0.0)


# -- means over batches -----------------------------------------------------------------------------------------------------------


def batches(count: int, seed: int) -> list[Dense]:
    """Operators ``diag(1 ... 6)`` and noise that is drawn anew for each."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 6, 6, generator=draw, dtype=torch.float64)
    return [Dense(torch.diag(torch.arange(1.0, 7.0).double()) + part + part.T) for part in noise]


def test_a_mean_operator_is_the_mean_of_its_parts() -> None:
    parts = batches(5, 0)
    mean, dense = MeanOperator(tuple(parts)), torch.stack([part.matrix for part in parts]).mean(0)
    assert (mean.shape, mean.dtype, mean.device) == ((6, 6), torch.float64, dense.device)
    assert torch.allclose(mean.matmat(torch.eye(6).double()), dense, rtol=1e-14)
    assert trace_estimate(mean, products=18).value == pytest.approx(float(dense.trace()), rel=1e-12)
    found = spectral_density(mean, probes=2, steps=6).trace_of(torch.square).value
    assert found == pytest.approx(float(dense.square().sum()), rel=0.5)


def test_errors_over_batches_are_what_they_say() -> None:
    """Of 200 means of 16 batches, about 68 % lie within one standard error, as few as 60 % with this many in each."""
    direction = torch.eye(6).double()[:, 2:4]
    inside = []
    for seed in range(200):
        for truth, found in zip((3.0, 4.0), MeanOperator(tuple(batches(16, seed))).forms(direction), strict=True):
            inside.append(abs(found.value - truth) < found.error)
    assert 0.60 < sum(inside) / len(inside) < 0.74


def test_the_operators_of_real_batches_have_a_mean() -> None:
    net, draw = mlp((5, 6, 3), seed=1), torch.Generator().manual_seed(0)
    views = torch.randn(4, 6, 2, 5, generator=draw, dtype=torch.float64)
    parts = tuple(covariance_operator(net, "0", batch, loss="nt_xent", tau=0.5) for batch in views)
    dense = torch.stack([part.dense() for part in parts]).mean(0)
    gap = MeanOperator(parts).matmat(torch.eye(30).double()) - dense
    assert float(gap.norm()) < 1e-13 * float(dense.norm())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (batches(1, 0), "the number of parts must be at least 2, got 1"),
        ([*batches(1, 0), symmetric(SLOW)], r"operators of one layer, got shapes \(6, 6\) and \(60, 60\)"),
    ],
)
def test_parts_of_a_mean_must_fit(parts: list[Dense], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeanOperator(tuple(parts))


def test_scales_bounds_and_defaults() -> None:
    with pytest.raises(ValueError, match="positive operator"):
        spectral_density(symmetric(1e-8 * torch.tensor([1.0, -0.1, 0.5]).double())).effective_rank()
    for name in ("steps", "batch"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            spectral_density(symmetric(SLOW), **{name: 0})
    assert spectral_density(symmetric(SLOW)).nodes.shape == (16, 20)
