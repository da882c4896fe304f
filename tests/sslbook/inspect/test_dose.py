"""Planted features: a linear network trained by an exact law grows as the law says, and the answer says which law it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sslbook.inspect.dose import DOSES, DoseResponse, Draw, dose

N, RATE = 4096, 0.02
IMAGES = torch.randn(N, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def step(of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Draw], None]:
    """A small step ``W += RATE W M`` with a matrix made of W and of the covariances of views, between images and in all."""

    def train(net: nn.Module, draw: Draw) -> None:
        one, two = (x - x.mean(0) for x in (draw(torch.arange(N)), draw(torch.arange(N))))
        between, whole = (one.mT @ two + two.mT @ one) / (2 * N), (one.mT @ one + two.mT @ two) / (2 * N)
        weight = net.get_parameter("weight")
        weight.data += RATE * weight.data @ of(weight.data, between, whole)

    return train


def share_law(w: Tensor, between: Tensor, whole: Tensor) -> Tensor:
    c = (w @ between @ w.mT).trace() / (w @ whole @ w.mT).trace()
    return between - c * whole


def found(train: Callable[[nn.Module, Draw], object], **chosen: object) -> DoseResponse:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(20, 400, bias=False).double()  # so many outputs that its columns are nearly orthogonal
    before = net.weight.clone()
    answer = dose(net, IMAGES, train, **chosen)
    assert torch.equal(net.weight, before), "a copy is trained"
    return answer


def test_the_simple_loss_grows_the_amount_and_its_law_is_exact() -> None:
    answer = found(step(lambda w, between, whole: between))
    excess = answer.growth / (2 * RATE) - answer.shared
    assert float(excess.std()) < 0.15 * answer.shared.std()
    assert abs(answer.slopes[1] / answer.slopes[0]) < 0.15
    assert str(answer).startswith("This training ranks features by the amount that survives")


def test_the_law_of_the_share_grows_what_exceeds_the_output_s_share() -> None:
    generator = torch.Generator().manual_seed(1)
    answer = found(step(share_law), view=lambda x: x + 0.6 * torch.randn(x.shape, generator=generator, dtype=x.dtype))
    total = answer.shared + answer.unshared
    c = (answer.shared.sum() + 20) / (total.sum() + 20 * 1.36)  # white images, white noise on them, orthogonal columns
    grown = answer.growth / (2 * RATE)
    law = answer.shared - c * total
    for other, small in ((law, True), (answer.shared, False), (answer.shared - total / 2, False), (-total, False)):
        assert bool((grown - other).std() < 0.15 * law.std()) == small
    assert str(answer).startswith("This training ranks features by the share that survives")


def test_no_training_amplifies_nothing_and_the_picture_has_the_grid() -> None:
    answer = found(lambda net, draw: None)
    assert abs(answer.growth).max() < 1e-12
    assert str(answer).startswith("This training moved no direction more than another")
    assert answer.ranks == (0, 0)
    assert answer.plot().axes[0].images[0].get_array().shape == (4, 4)


@pytest.mark.parametrize(
    ("seed", "by_amount", "by_share", "told"),
    [
        (0, -1.0, 0.0, "This training amplifies neither"),
        (0, 1.0, 0.0, "This training ranks features by the amount"),
        (0, 0.0, 1.0, "This training ranks features by the share"),
        (0, 1.0, 2.0, "This training amplifies what survives, undecided whether by amount or by share"),
        (1, 0.0, 0.0, "Undecided"),
    ],
)
def test_a_verdict_follows_its_intervals(seed: int, by_amount: float, by_share: float, told: str) -> None:
    shared, unshared = torch.tensor(DOSES, dtype=torch.float64).T.numpy()
    noise = torch.randn(16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    growth = by_amount * shared + by_share * shared / (shared + unshared) + 0.05 * noise
    assert str(DoseResponse(shared, unshared, growth)).startswith(told)


def test_an_average_over_positions_is_told_from_what_a_training_does() -> None:
    """Of a pattern such a network sees the mean colour alone; the same layers without the average tell sixteen apart."""
    images = torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(0))

    def train(net: nn.Module, draw: Draw) -> None:
        for weight in net.parameters():
            weight.data += 0.01 * weight.data.cos()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
        blind = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64))
        seeing = nn.Sequential(*body, nn.Flatten(), nn.Linear(128, 64))
    blurred, sharp = (dose(net, images, train) for net in (blind, seeing))
    assert blurred.told_apart < 8 < sharp.told_apart
    assert str(blurred).startswith("Your network cannot tell these directions apart")
    assert "cannot tell" not in str(sharp)
