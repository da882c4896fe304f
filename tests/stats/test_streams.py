"""Streams: replica r draws alone what it draws in a batch; seeds and purposes are kept apart."""

from __future__ import annotations

import pytest
import torch

from sslbook.stats.replica_rng import Streams


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_replica_draws_what_it_draws_alone(dtype: torch.dtype) -> None:
    together, alone = Streams([3, 4, 5], "data"), Streams([4], "data")
    for shape in [(7,), (2, 5), (1,)]:
        assert together.uniform(shape, dtype)[1].equal(alone.uniform(shape, dtype)[0])
        assert together.normal(shape, dtype)[1].equal(alone.normal(shape, dtype)[0])
    assert len(together) == 3


def test_into_a_buffer_the_same_numbers() -> None:
    buffer = torch.empty(2, 3, 4)
    assert Streams([1, 2]).uniform((3, 4), out=buffer) is buffer
    assert buffer.equal(Streams([1, 2]).uniform((3, 4)))


def test_seeds_and_purposes_are_kept_apart() -> None:
    draws = [Streams([seed], purpose).uniform((4,)) for seed in (0, 1) for purpose in ("", "a", "b", "ab")]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == len(draws)


def test_the_numbers_are_uniform_and_normal() -> None:
    n = 200_000
    u = Streams([0, 1]).uniform((n,), torch.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert ((u.mean(1) - 0.5).abs() < 5 / (12 * n) ** 0.5).all()
    x = Streams([0, 1]).normal((n,))
    assert (x.mean(1).abs() < 5 / n**0.5).all()
    assert ((x.square().mean(1) - 1).abs() < 5 * (2 / n) ** 0.5).all()
    between = torch.stack([torch.corrcoef(u)[0, 1], torch.corrcoef(x)[0, 1]])  # of different seeds
    assert (between.abs() < 5 / n**0.5).all()


@pytest.mark.parametrize("seeds", [[], [-1], [1.5]])
def test_bad_seeds(seeds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"seeds must be one or more whole numbers of at least 0, got \["):
        Streams(seeds)  # type: ignore[arg-type]
