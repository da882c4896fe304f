"""The chapter's kinds of trees: the range of their polarities, residuals without column sums."""

from __future__ import annotations

import torch
from hltm_cases import constructed
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbook.chapters.hltm import kinds


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_regularized_tables_have_residuals_without_column_sums(seed: int, shape: int) -> None:
    for table in constructed("regularized", [seed], shape).tables:
        assert kinds.residual_table(table).sum(-2).abs().max() < 1e-14
        assert kinds.residual_table(table).abs().amax((-1, -2)).min() > 1e-6, "not merely uniform"
    free = constructed("categorical", [seed], shape).tables[0]
    assert kinds.residual_table(free).sum(-2).abs().max() > 1e-3


def test_random_polarities_lie_in_their_range_with_and_without_signs() -> None:
    signed = torch.cat(kinds.random_polarities(range(20), 5, 0.7), 1)
    assert signed.shape == (20, 62)
    assert signed.abs().min() >= 0.7
    assert signed.abs().max() < 1
    assert ((signed < 0).double().mean() - 0.5).abs() < 5 * 0.5 / 1240**0.5
    assert (signed.abs().mean() - 0.85).abs() < 5 * 0.3 / (12 * 1240) ** 0.5
    assert torch.cat(kinds.random_polarities(range(20), 5, 0.7, signed=False), 1).equal(signed.abs())


def test_regular_tables_survive_a_nearly_uniform_draw() -> None:
    """A doubly centred matrix of rounding errors, scaled up, would no longer have rows that sum to one."""
    tree = kinds.random_regularized(range(2000), (2, 2, 2), (2, 2))
    for table in tree.tables:
        assert float((table.sum(-1) - 1).abs().max()) < 1e-14
        assert float(kinds.residual_table(table).sum(-2).abs().max()) < 1e-13
        assert float(table.min()) >= 0
