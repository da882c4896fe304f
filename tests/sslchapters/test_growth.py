"""What grows: what is measured of planted directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sslbook._random import Streams
from sslchapters.growth import dose, records, zero


def test_planted_directions_have_their_doses_and_seeds_their_own_streams() -> None:
    data = dose.Images(Streams((0, 1), "test"))
    x = torch.cat([data.batch(600)[0].unflatten(1, (2, -1))[..., dose.PIXELS :] for _ in range(8)], 2)
    s2, u2 = torch.tensor(dose.DOSES).T
    torch.testing.assert_close((x[:, 0] * x[:, 1]).mean((0, 1))[:16], s2, rtol=0.1, atol=0.004)
    torch.testing.assert_close((x[:, 0] - x[:, 1]).square().mean((0, 1))[:16] / 2, u2, rtol=0.05, atol=0)
    for name in ("InfoNCE, τ = 0.5", "BYOL"):
        together, alone = dose.train(name, (3, 4), (2, 3)), dose.train(name, (4,), (2, 3))
        torch.testing.assert_close(together["growth"][1], alone["growth"][0], rtol=1e-4, atol=1e-6)


def test_a_response_tells_amount_from_share() -> None:
    s2, u2 = np.array(dose.DOSES).T
    amount, share = (dose.response(np.tile(each, (3, 1))) for each in (s2, s2 / (s2 + u2)))
    assert amount.amount == pytest.approx(1) == pytest.approx(share.share[0])
    assert amount.lead.mean < 0 < share.lead.mean
    power = dose.response(np.log(s2 / u2**0.7)[None] * np.array([[1.0], [2.0]]))
    assert power.theta.mean == pytest.approx(0.7)


def test_records_hold_every_cell_and_a_linear_network_s_zero_is_its_share(tmp_path: Path) -> None:
    found = records.doses((0, 1), (1, 2), parts=tmp_path)
    assert {np.shape(of) for of in found["growth"].values()} == {(2, 2, 22)}
    assert set(found["growth"]) == set(dose.METHODS)
    linear = zero.measured(range(6), "linear", batches=20)
    assert float((linear["zero"] - linear["output"]).abs().mean()) < 0.08
