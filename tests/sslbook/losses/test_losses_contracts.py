"""What every loss of distances promises: a loss that is added to the registry is tested here without a line of its own."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from losses_cases import distances, embeddings
from torch import Tensor

from sslbook.losses.pairs import LOSSES, contrastive, partials

GIVEN = {"temperature": 0.3}
"""What a parameter without a default is given."""

names = pytest.mark.parametrize("name", LOSSES)


def parameters(value: Callable[..., Tensor]) -> dict[str, Any]:
    """The parameters of a loss but for the two kinds of distances, with their defaults."""
    return {name: part.default for name, part in list(inspect.signature(value).parameters.items())[2:]}


def bound(value: Callable[..., Tensor], r_clean: Tensor, scale: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss as a function of distances in units of ``scale``; ``r_clean`` goes to one that asks for it."""
    given = {**{name: scale * number for name, number in GIVEN.items()}, "r_clean": r_clean}
    asked = parameters(value)
    missing = {name for name, default in asked.items() if default is inspect.Parameter.empty} - set(given)
    assert not missing, f"GIVEN says nothing about {', '.join(missing)}"
    return functools.partial(value, **{name: part for name, part in given.items() if name in asked})


def flaws(name: str) -> set[str]:
    """Which promises a loss breaks; all but one are of differences of distances alone."""
    loss = LOSSES[name]
    r_pos, r_neg = distances(4, h=3)
    clean = distances(4, h=3, seed=1)[1]
    ours = bound(loss, clean)
    value, slopes = ours(r_pos, r_neg), partials(ours, r_pos, r_neg)
    if value.shape != r_pos.shape:
        return {"one number an anchor"}
    order, anchors = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0])
    far = [1e4 * part.float() for part in (r_pos, r_neg, clean)]
    apart = bound(loss, far[2])
    moved = (ours(r_pos + 0.2, r_neg + 0.2) - value).abs().max() > 1e-12
    leaves = (r_pos.clone().requires_grad_(), r_neg.clone().requires_grad_())
    kept = {
        "gradient": torch.autograd.gradcheck(ours, leaves, raise_exception=False, atol=1e-8),
        "attracts the positive": bool((slopes.pos > 0).all()),
        "repels the negatives": bool((slopes.neg < 0).all()),
        "order of negatives": torch.allclose(bound(loss, clean[:, order])(r_pos, r_neg[:, order]), value),
        "anchors apart": torch.allclose(bound(loss, clean[anchors])(r_pos[anchors], r_neg[anchors]), value[anchors]),
        "shift": bool(moved) == (name == "quadratic"),
        "ten thousand temperatures": bool(apart(*far[:2]).isfinite().all())
        and all(bool(part.isfinite().all()) for part in partials(apart, *far[:2])),
        "precision": bound(loss, clean.float())(r_pos.float(), r_neg.float()).dtype == torch.float32,
    }
    return {name for name, holds in kept.items() if not holds}


@names
def test_a_loss_keeps_its_promises(name: str) -> None:
    assert flaws(name) == set()


def batch_loss(name: str, z1: Tensor, z2: Tensor, clean: Tensor) -> Tensor:
    given = {key: number for key, number in GIVEN.items() if key in parameters(LOSSES[name])}
    needs = "r_clean" in parameters(LOSSES[name])
    return contrastive(z1, z2, name, clean=clean if needs else None, **given)


@names
def test_a_batch_has_no_order_and_replicas_are_apart(name: str) -> None:
    z1, z2 = embeddings(3, 5, 4)
    clean = embeddings(3, 5, 4, seed=1)[0]
    value = batch_loss(name, z1, z2, clean)
    assert value.shape == (3,)
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(batch_loss(name, z1[:, order], z2[:, order], clean[:, order]), value)
    torch.testing.assert_close(batch_loss(name, z1[1], z2[1], clean[1]), value[1])
    torch.testing.assert_close(batch_loss(name, 3 * z1, 3 * z2, 3 * clean), value)


@names
def test_bad_input_is_refused(name: str) -> None:
    r_pos, r_neg = distances(4, h=3)
    ours = bound(LOSSES[name], r_neg)
    for pair in [(r_pos[:1], r_neg), (r_pos, r_neg[:, 0]), (r_pos, r_neg[:, :0])]:  # no anchor stands for another
        with pytest.raises(ValueError, match="r_neg"):
            ours(*pair)
    for key, default in parameters(LOSSES[name]).items():
        if key in GIVEN or isinstance(default, float):
            with pytest.raises(ValueError, match=key):
                functools.partial(ours, **{key: math.nan})(r_pos, r_neg)
