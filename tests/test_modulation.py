"""Two layers: the identities and bounds of the theory, each on many random instances, with broken variants beside them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from gap_cases import assert_gaps
from held import hold

from sslbook.book.exercises import check
from sslbook.chapters.modulation import basin, crowd, decomposition, dynamics
from sslbook.gaps import over_instances, relative

SEEDS = [0, 1000]


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamics_of_two_layers(seed: int) -> None:
    gaps = dynamics.lemma4_gaps(100, seed)
    held = ("filters", "top layer", "filters, InfoNCE", "top layer, InfoNCE", "square, halved")
    assert_gaps(gaps, held, ("fields apart", "no gates"))
    assert gaps["instances"] == 100


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_filters_move_together(seed: int) -> None:
    gaps = dynamics.theorem4_gaps(100, seed)
    held = ("collinear", "against Lemma 4", "sum of w b", "critical", "path to identical filters")
    broken = ("printed path", "S of rank two", "another unit vector", "filters of unit length")
    assert_gaps(gaps, held, broken, free=["printed path"])
    assert float(dynamics.linear_filters(20, seed, steps=500).min()) > 1 - 1e-6
    assert float(dynamics.linear_filters(20, seed, steps=0).min()) < 0.9
    hold({"mean": float(dynamics.linear_filters(20, seed, steps=3).mean())})


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamics_with_batchnorm(seed: int) -> None:
    gaps = dynamics.lemma6_gaps(100, seed)
    assert_gaps(gaps, ("filters", "top layer", "mean detached"), ("deviation differentiated", "not divided"))
    gaps = decomposition.corollary3_gaps(100, seed)
    held = ("dynamics", "lambda below d", "negative factor", "variance one", "d formula", "scale of a field")
    assert_gaps(gaps, held, ("scale without BatchNorm", "deviation differentiated", "not divided"))


@pytest.mark.parametrize("seed", SEEDS)
def test_independent_fields(seed: int) -> None:
    gaps = decomposition.lemma5_gaps(120, seed)
    assert_gaps(gaps, ("Lemma 5", "rank"), ("one power of 1 - p", "no classes", "fields not independent"))
    gaps = decomposition.theorem5_gaps(100, seed)
    held = ("dynamics", "as if alone", "eigenvalue", "eigenvector", "second form", "share", "negative factor")
    assert_gaps(gaps, held, ("printed factor", "no modulation", "own field counted twice"))


def test_the_expectations_are_those_of_all_cases() -> None:
    drawn = decomposition.random_population(5, 3, classes=3, filters=2)
    cases, chance = drawn.listed(drawn.gated())
    assert torch.allclose(chance.sum((1, 2)), torch.ones(5, dtype=torch.float64))
    found = decomposition.parts(drawn)
    means = torch.einsum("rcs,rsp->rcp", chance, cases) / drawn.prior[..., None]
    assert torch.allclose(means, found.means.flatten(2))


def test_batchnorm_takes_scales_away_but_not_every_difference() -> None:
    before, after = decomposition.uniformity(400, 0, 2.0)["d"]
    assert after.mean() < 0.2 * before.mean()
    even = decomposition.uniformity(400, 0, 0.0)
    worse = {name: float((after > before).double().mean()) for name, (before, after) in even.items()}
    assert 0 < worse["d"] < 0.1, "a few are less uniform than they were"
    assert worse["factor"] > 0.2, "the factors of modulation themselves often are"
    for name, (_, after) in decomposition.uniformity(400, 0, 2.0).items():
        assert torch.allclose(after, even[name][1]), "scales leave no trace"


def test_only_two_classes_are_modulated() -> None:
    drawn = decomposition.random_population(2, 0, classes=3)
    with pytest.raises(ValueError, match="prior must have two classes, got 3"):
        decomposition.modulation(decomposition.parts(drawn), drawn.prior, drawn.weights[:, :, 0])


@pytest.mark.parametrize("seed", SEEDS)
def test_blow_up_times(seed: int) -> None:
    gaps = basin.closed_form_gaps(200, seed)
    held = ("Eq. 146", "at time 0", "at the blow-up", "Eq. 151", "a slope not negative")
    assert_gaps(gaps, held, ())
    assert min(gaps["broken: b forgotten"], gaps["broken: time 1/y(0)"]) > 5e-3
    assert basin.blow_up_time(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])).isinf().all()


def test_a_modulated_basin_grows() -> None:
    def shares_at(c: float) -> dict[str, float]:
        return {name: float(won.mean()) for name, won in basin.basin_shares(4, c, 2.0, 400, 0).items()}

    shares = [shares_at(c) for c in (0.0, 0.3, 0.8)]
    assert shares[0]["agreement"] == shares[0]["free agreement"] == 1
    hold({f"{name} at {c}": shares_at(c)[name] for c in (0.3, 0.8) for name in ("blow-up", "unit", "free", "lost")})
    for less, more in itertools.pairwise(shares):
        assert less["unit"] < more["unit"]
        assert less["free"] <= more["free"]
        assert more["lost"] == 0
        assert more["free agreement"] > 0.99
    assert shares[2]["agreement"] < 0.9, "blow-up times do not decide where filters keep their length"
    far = {c: shares_at(c) for c in (1.2, 1.45)}
    assert far[1.2]["side"] == far[1.45]["side"] == 1, "the sign of the start decides"
    assert max(shares[2]["side"], far[1.2]["free side"]) < 1
    assert far[1.2]["unit"] == far[1.45]["unit"], "all that can be won is won at 1"
    assert 0.05 < far[1.2]["opposite"] < 0.5, "the others rest at mixtures"
    assert far[1.45]["opposite"] == 1, "beyond the root of 2 all on the other side go to its end"
    unit, free = basin.edge_of_two(0.5, 2.0)
    angles = torch.tensor([free - 0.01, free + 0.01, unit - 0.01, unit + 0.01], dtype=torch.float64)
    start, b = torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([2.5, 2.0], dtype=torch.float64)
    assert basin.winners(start, b, unit=True).tolist() == [0, 0, 0, 1]
    assert basin.winners(start, b, unit=False).tolist() == [0, 1, 1, 1]
    assert basin.edge_of_two(1.0, 2.0)[0] == pytest.approx(math.pi / 2)
    around, won = basin.on_circle(0.5, 2.0)
    assert (won[(around > 0) & (around < 1.5)] == (around[(around > 0) & (around < 1.5)] > unit).int()).all()
    assert (won[(around > 3.2) & (around < 4.6)] == -1).all(), "both components negative"
    with pytest.raises(ValueError, match="c must be at least 0 and b above 0, got -1 and 2"):
        basin.edge_of_two(-1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_probability_of_winning(seed: int) -> None:
    found = basin.probability_scores(40_000, seed, (2, 5))
    assert found["standard errors"] < 4.5
    assert found["quadrature"] < 1e-13
    assert min(found["broken: 1/d"], found["broken: half forgotten"]) > 20
    factors = 2 * torch.rand(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = basin.win_probabilities(factors)
    error = (exact * (1 - exact) / 40_000).sqrt().clamp_min(1 / 40_000)
    assert ((basin.sampled_probabilities(factors, 40_000, seed) - exact).abs() / error).max() < 4.5
    with pytest.raises(ValueError, match="d must be at least 2, got 1"):
        basin.win_probability(0.0, 1)


def test_bounds_on_the_probability() -> None:
    near = basin.bound_slack(300, 6, 1.0, 0)
    assert near["lower"] > 0
    assert near["upper"] > 0
    assert near["lower tightest"] > 0.5
    assert near["upper tightest"] > 0.9
    far = basin.bound_slack(300, 6, 3.0, 0)
    assert far["lower violated"] > 0.05
    assert far["upper violated"] > 0.05
    assert min(far["lower mended"], far["upper mended"]) > -1e-12


def test_gaps_of_instances() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert relative(values * 1.5, values).tolist() == [0.5, 0.5]
    found = over_instances({"a": torch.tensor([0.1, 0.3]), "broken: b": torch.tensor([2.0, 1.0])})
    assert found == {"a": pytest.approx(0.3), "broken: b": 1.0, "instances": 2.0}
    with pytest.raises(ValueError, match="reference must not be zero in any instance"):
        relative(values, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="one shape"):
        relative(values, values[:1])


def test_the_exercise_on_shares() -> None:
    """By autograd of the eigenvalue, by 1 - pi_k, and by Theorem 5's factor."""
    drawn = decomposition.balanced(decomposition.random_population(20, 5, fields=4))
    m = decomposition.modulation(decomposition.parts(drawn), drawn.prior, drawn.weights[:, :, 0])
    by_factor = m.factor / (m.pq * m.s.square() + m.factor)
    cases = [(m.d[r], m.b[r], float(m.pq[r])) for r in range(20)]

    def share(d, b, pq):
        largest = torch.linalg.eigvalsh(torch.diag(d) + pq * torch.outer(b, b))[-1]
        return 1 - pq * b**2 / (largest - d)

    assert check(share, decomposition.others_share, cases, rtol=1e-6)
    assert not check(lambda d, b, pq: 1 - share(d, b, pq), decomposition.others_share, cases, rtol=1e-6)
    found = torch.stack([decomposition.others_share(*case) for case in cases])
    assert torch.allclose(found, by_factor, rtol=1e-6)
    assert torch.allclose((1 - found).sum(1), torch.ones(20, dtype=torch.float64))


def test_a_step_of_the_crowd_climbs_the_largest_eigenvalue() -> None:
    w = crowd.random_filters(5, 4, 0).requires_grad_()
    d, b = (torch.tensor(crowd.WITHIN, dtype=torch.float64) * w.square()).sum(-1), w[..., 1]
    spread = torch.diag_embed(d) + crowd.PQ * b[..., None] * b[..., None, :]
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(spread)[..., -1].sum() / 2, w)
    w = w.detach()
    stepped = torch.nn.functional.normalize(w + 0.5 * slope, dim=-1)
    assert torch.allclose(crowd.turned(w), stepped, atol=1e-12)
    assert not torch.allclose(crowd.turned(w, "deaf"), stepped, atol=1e-3)
    assert not torch.allclose(crowd.turned(w, "printed"), stepped, atol=1e-3)
    alone = crowd.random_filters(5, 1, 0)
    assert torch.allclose(crowd.turned(alone), crowd.turned(alone, "deaf"), atol=1e-12), "nobody else to listen to"
    with pytest.raises(ValueError, match="theory must be one of"):
        crowd.turned(w, "other")


def test_a_crowd_learns_the_class_from_the_fourth_field_on() -> None:
    for fields, known in ((1, 0.0), (3, 0.0), (4, 1.0), (6, 1.0)):
        taken, heard = crowd.heard(crowd.course(crowd.random_filters(8, fields, 1), 600)[-1])
        assert taken.shape == (8, fields)
        assert torch.allclose(taken.sum(-1), torch.ones(8, dtype=torch.float64))
        assert torch.allclose(heard, torch.full((8,), known, dtype=torch.float64), atol=1e-6)
    path = crowd.course(crowd.random_filters(2, 3, 0), 5)
    assert len(path) == 6
    assert torch.equal(crowd.random_filters(2, 3, 0), path[0])


@pytest.mark.parametrize(("within", "fields"), [(0.1, 4), (0.4, 3), (0.6, 2), (0.9, 1)])
def test_how_many_a_crowd_takes(within: float, fields: int) -> None:
    assert crowd.fewest((1.0, within)) == fields
    if fields > 2:
        with pytest.raises(ValueError, match="most must be larger, got 2"):
            crowd.fewest((1.0, within), most=2)
