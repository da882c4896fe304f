"""The chapter's identities and bounds, its growth law and its shared children: what must hold holds, what is broken is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gap_cases import assert_gaps
from held import hold

from sslbook.chapters.hltm import groups, growth, identities, lucky, recorded, tables
from sslbook.chapters.hltm.training import Protocol
from sslbook.gaps import relative_gap


@pytest.mark.parametrize("seed", [0, 1000])
def test_sampling_and_message_passing(seed: int) -> None:
    assert identities.sampling_score(4, 100_000, seed) < 5
    assert identities.sampling_score(4, 100_000, seed, flatter=0.02) > 7
    gaps = identities.message_gaps(8, seed)
    assert_gaps(gaps, ("correlation", "conditional mean", "operator"), ("roots exchanged",))


@pytest.mark.parametrize("seed", [0, 1000])
def test_lemmas_on_nonlinearities(seed: int) -> None:
    for bound, broken in [
        (identities.squashing, {"power": 1}),
        (identities.sharpened_jensen, {"half": 0.25}),
        (identities.relu_jensen, {"factor": 0.45}),
    ]:
        held = bound(500, seed)
        assert held.least > -1e-12
        assert held.tightest <= 1 + 1e-12
        assert bound(500, seed, **broken).least < -0.05
    assert identities.relu_jensen(500, seed, factor=0.5).tightest == pytest.approx(1), "half is enough, and is reached"


@pytest.mark.parametrize("seed", [0, 1000])
def test_products_and_growth(seed: int) -> None:
    gaps = identities.product_gaps(8, seed)
    assert max(gaps[name] for name in ("Lemma 6", "Lemma 7", "columns of C")) < 1e-12
    assert gaps["broken: any tables"] > 1e-3
    hold(gaps)
    gaps = identities.activation_gaps(6, seed)
    assert max(gaps["Lemma 9"], gaps["Theorem 6"]) < 1e-11
    assert min(gap for name, gap in gaps.items() if name.startswith("broken:")) > 1e-4
    hold(gaps)
    gaps = identities.lemma9_gaps(6, seed)
    assert gaps["Lemma 9"] < 1e-11
    assert gaps["broken: not centred"] > 1e-2
    hold(gaps)
    gaps = growth.growth_gaps(5, seed)
    rivals = ("printed o", "lean forgotten", "step of both towers", "each part alone orthonormal")
    assert_gaps(gaps, ("growth",), rivals)
    assert min(gaps[f"broken: {name}"] for name in rivals) > 1e-2


def test_the_siblings_of_a_part_are_a_path_around_it() -> None:
    """Its step is what its own block gives and what the block that couples it to its sibling gives, and neither alone."""
    steps = growth.part_steps(range(6), lower=0.5, width=4)
    assert steps.true.shape == steps.own.shape == steps.coupled.shape == (6, 4, 2)
    assert relative_gap(steps.own + steps.coupled, steps.true) < 1e-13
    missed = torch.stack([coupled.norm() / true.norm() for coupled, true in zip(steps.coupled, steps.true)])
    assert (steps.off - missed).abs().max() < 1e-13
    assert steps.off.min() > 0.05
    assert steps.cosine.max() < 1
    alone = growth.part_steps([3], lower=0.5, width=4)
    assert alone.off == pytest.approx(float(steps.off[3]))
    assert float(alone.cosine) == pytest.approx(
        float((alone.own * alone.true).sum() / alone.own.norm() / alone.true.norm())
    )


def test_shared_children() -> None:
    found = groups.shared_children(4, 0.9, 1.0, units=20_000, seed=0)
    assert found.lucky > 100
    assert found.worst > 1, "units that read one variable are not independent"
    assert found.exceeding > 0
    with pytest.raises(ValueError, match="none of 1000 units is lucky for copies = 1"):
        groups.shared_children(1, 0.9, 4.0, units=1000, seed=0)
    two, signs = groups.shared_children(2, 0.9, 1.0, units=2000, seed=0), torch.tensor([1.0, 1.0, -1.0, -1.0])
    part, drawn = lucky.LeafPart(0.9 * signs.double()), lucky.uniform_weights((2000, 4), 1.0, 0)
    sums = drawn[lucky.is_lucky(drawn, part.h, part.a, 1.0, 1.0)].view(-1, 2, 2).sum(2)
    means = [
        sum(
            (1 + sign * 0.9 * (2 * a - 1))
            * (1 - sign * 0.9 * (2 * b - 1))
            / 4
            * (a * sums[:, 0] + b * sums[:, 1]).relu()
            for a in (0, 1)
            for b in (0, 1)
        )
        for sign in (1, -1)
    ]
    share, gap = sums.square().sum(1) / 3, (means[0].square() - means[1].square()).abs()
    assert two.lucky == len(sums)
    assert (two.worst, two.exceeding) == (pytest.approx(float(share.max())), float((share > 1).double().mean()))
    assert two.margin == pytest.approx(float(gap.min()) / (0.75 * (0.81 / 6 - 0.19)))
    shares = groups.promising_parts(Protocol(depth=3, width=3, lower=0.9), [0, 1], 9.0)
    assert len(shares) == 3
    assert all(0 <= share <= 1 for share in shares)


def test_untrained_networks_are_those_before_training() -> None:
    protocol = Protocol(depth=3, width=2, epoch_size=128)
    found = tables.untrained(protocol, [1, 2, 3], ("s", "s01"), block=2)
    (run,) = tables.rerun([protocol], [1, 2, 3], latents=("s", "s01"), epochs=(0,), processes=1, samples=128)
    assert (found - run["population"][0]).abs().max() < 1e-12


def test_narrow_values() -> None:
    base = replace(Protocol(), depth=2, width=2, epoch_size=128)
    values = recorded.narrow_values([1, 2], base=base, epochs=(0, 1), processes=1)
    for loss in ("printed", "released"):
        for statistic in tables.STATISTICS:
            assert torch.tensor(values[loss][statistic]).shape == (3, 3, 2, 2)  # latents, lower, epochs, trials
    assert values["printed"]["population"][0][0][0] == values["released"]["population"][0][0][0], "untrained"


def test_a_column_of_our_own_trials_is_likely_and_a_shifted_one_is_not() -> None:
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 1, 50, generator=draw)  # the cells of a trial go together
    trials = shared + 0.3 * torch.randn(3, 3, 50, generator=draw)
    own, others = trials[..., :40], trials[..., 40:]
    column = tables.Column(others.mean(-1), others.std(-1), trials=10)
    assert tables.chance_of_column(own, column, draws=200, seed=1) > 0.05
    shifted = replace(column, mean=column.mean + 2)
    assert tables.chance_of_column(own, shifted, draws=200, seed=1) < 0.02
    error = (own.var(-1) / 40 + column.std.square() / 10).sqrt()
    by_hand = ((own.mean(-1) - column.mean) / error).square().mean().sqrt()
    assert tables.distance(own, column) == pytest.approx(float(by_hand))


def test_promising_parts_of_a_small_tree_are_counted() -> None:
    few = Protocol(depth=3, width=3, lower=0.8)
    assert groups.promising_parts(few, range(8), 9.0) == [0.25, 0.75, 1.0]
    assert groups.promising_parts(few, range(8), 9.0, group=2) == [0.125, 0.375, 1.0]
    for group in (1, 2, 3):
        alone = groups.promising_parts(replace(few, depth=2, lower=0.5), range(40), 9.0, group=group)
        hold({f"depth {depth}": share for depth, share in enumerate(alone)})
