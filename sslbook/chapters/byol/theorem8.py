r"""Theorem 8 of [tian2021iclr] on random instances: where it holds, what each hypothesis is worth, batches, the deviation.

With Eq. 12 at layer ``l`` (or above it, as long as all between is linear) the expected step is Eq. 14.  The step is always
taken by autograd through :mod:`sslbook.normalization`; Eq. 14 comes from dense connections (:mod:`sslbook.chapters.byol.terms`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sslbook.chapters.byol.terms import predicted, terms
from sslbook.chapters.byol.towers import (
    BACKWARD,
    BOTH,
    FORWARD,
    Norm,
    Pair,
    Tower,
    mean_loss,
    random_pair,
    step,
    vec,
)
from sslbook.gaps import Gaps, over_instances, relative

VARIANTS: dict[str, Norm] = {"backward only": BACKWARD, "forward only": FORWARD, "both": BOTH}
"""The two halves of subtracting the mean, and their union."""

TOPS: dict[str, dict[str, object]] = {
    "linear": {},
    "leaky ReLU": {"act": "leaky_relu"},
    "ReLU": {"act": "relu"},
    "length 1": {"unit": True},
}
"""What stands above the layer; in the last, outputs are scaled to length 1."""


def identity_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """Eqs. 13 and 14 against autograd on ``count`` random pairs of towers with linear tops: relative errors."""
    pair = random_pair(count, seed=seed)
    t, plain, centred = terms(pair), step(pair), step(pair, BACKWARD)
    higher = pair.changed(norm_at=1)
    same = replace(pair.target, weight=pair.online.weight)  # W in place of W'
    swapped = terms(Pair(replace(pair.online, above=pair.target.above), pair.target))  # the predictor left out
    return over_instances(
        {
            "no BatchNorm": relative(t.plain, plain),
            "Eq. 13": relative(t.correction, centred - plain),
            "Eq. 14": relative(t.corrected, centred),
            "Eq. 14, forward only": relative(t.corrected, step(pair, FORWARD)),
            "Eq. 14, both halves": relative(t.corrected, step(pair, BOTH)),
            "Eq. 14, BatchNorm higher up": relative(t.corrected, step(higher, BACKWARD)),
            "broken: gradient not centred": relative(t.corrected, plain),
            "broken: within augmentations left out": relative(t.corrected - t.sym, centred),
            "broken: the variance left out": relative(t.corrected + t.variance, centred),
            "broken: the target's weights left out": relative(terms(Pair(pair.online, same)).corrected, centred),
            "broken: the predictor left out": relative(swapped.corrected, centred),
        }
    )


def variants(count: int = 100, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """How far each half's step is from Eq. 14, by what stands above: relative errors ``(count,)``, rows then columns.

    The last row, ``raw target``, has a linear top and a target whose mean is left in, as that of a target without BatchNorm is.
    """
    pair = random_pair(count, sizes=(5, 6, 12, 8), seed=seed)
    table: dict[str, dict[str, Tensor]] = {}
    for top, fields in TOPS.items():
        towers = pair.changed(**fields)
        table[top] = {name: relative(predicted(towers, norm), step(towers, norm)) for name, norm in VARIANTS.items()}
    raw: Norm = {"mean": "omit", "std": "omit"}
    table["raw target"] = {
        name: relative(predicted(pair, norm, target_norm=raw), step(pair, norm, target_norm=raw))
        for name, norm in VARIANTS.items()
    }
    return table


def covariance_gaps(count: int = 100, seed: int = 0) -> Gaps:
    r"""What Eq. 12 does under any top: the step is :math:`-Cov[f_{l-1}, g_l]` over the batch, and no bias below it moves.

    ``g_l`` is the gradient in the pre-activation without BatchNorm; relative errors, and the largest component of the sum of
    the centred gradients over the batch, relative to their largest.
    """
    pair = random_pair(count, sizes=(5, 6, 12, 8), seed=seed)
    parts = []
    for fields in TOPS.values():
        towers = pair.changed(**fields)
        online, t = towers.online, towers.target.output()
        pre = online.lift(online.weight).requires_grad_(True)
        g, centred = (
            torch.autograd.grad(mean_loss(online.climb(pre, norm), t).sum(), pre)[0].flatten(1, 2)
            for norm in (None, BACKWARD)
        )
        f = online.below.flatten(1, 2)
        product = vec(-(g - g.mean(1, keepdim=True)).mT @ (f - f.mean(1, keepdim=True)))
        found = step(towers, BACKWARD)
        parts.append(
            {
                "minus a covariance": relative(product, found),
                "sum of the gradients": _total(centred),
                "broken: product, not covariance": relative(vec(-g.mT @ f), found),
                "broken: sum without Eq. 12": _total(g),
            }
        )
    return over_instances(*parts)


def _total(g: Tensor) -> Tensor:
    out: Tensor = g.sum(1).norm(dim=1) / g.norm(dim=(1, 2))
    return out


# -- batches -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batches:
    """All batches of one kind, equally likely: which image, which view online and which at the target, ``(M, B)`` each."""

    image: Tensor
    first: Tensor
    second: Tensor


def all_batches(images: int, views: int, size: int, *, distinct: bool) -> Batches:
    """Every batch of ``size`` images with two independent views each; ``distinct`` images, or drawn with repetition.

    Raises ValueError if there are fewer images than a batch of distinct ones needs, or more than a million batches.
    """
    if size < 1 or (distinct and size > images):
        raise ValueError(f"size must be between 1 and {images if distinct else 'any number'}, got {size}")
    ways = views ** (2 * size)
    count = ways * (math.comb(images, size) if distinct else images**size)
    if count > 1_000_000:
        raise ValueError(f"images, views and size give {count} batches, at most 1000000 can be listed")
    draws = list(
        itertools.combinations(range(images), size) if distinct else itertools.product(range(images), repeat=size)
    )
    image = torch.tensor(draws).repeat_interleave(ways, 0)
    code = torch.arange(ways)[:, None] // views ** torch.arange(2 * size) % views
    first, second = code.repeat(len(draws), 1).chunk(2, dim=1)
    return Batches(image, first, second)


def batch_step(pair: Pair, batches: Batches, norm: Norm) -> Tensor:
    """The mean of the steps of all batches, each with statistics of its own, by autograd, ``(R, m k)``."""
    leaf = pair.online.weight.clone().requires_grad_(True)

    def outputs(tower: Tower, weight: Tensor, view: Tensor) -> Tensor:
        below = tower.below[:, batches.image, view]  # (R, M, B, m)
        return replace(tower, below=below).climb(replace(tower, below=below).lift(weight), norm, (2,))

    y = outputs(pair.online, leaf, batches.first)
    t = outputs(pair.target, pair.target.weight, batches.second).detach()
    loss = 0.5 * (y - t).square().sum(-1).flatten(1).mean(1)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return vec(-gradient)


def batch_gaps(seed: int = 0) -> Gaps:
    r"""The expected step of finite batches of ``B`` against exact multiples of the terms of Eq. 14; relative errors.

    Images drawn with repetition: :math:`(1 - 1/B)` times Eq. 14.  Distinct images, of ``N``:
    :math:`(1 - 1/B)\{sym + \frac{N}{N-1}(covariance - variance)\}`.
    """
    count = 100
    parts = []
    for n, sizes in ((3, (2, 3)), (2, (3,))):
        pair = random_pair(count, images=n, views=2, seed=seed)
        t = terms(pair)
        for size in sizes:
            for name, norm in VARIANTS.items() if size == 2 else (("both", BOTH),):
                found = batch_step(pair, all_batches(n, 2, size, distinct=False), norm)
                parts.append({f"repeated, {name}": relative((1 - 1 / size) * t.corrected, found)})
            parts.append({"broken: Eq. 14 itself": relative(t.corrected, found)})
    n = 4
    pair = random_pair(count, images=n, views=2, seed=seed + 1)
    t = terms(pair)
    for size in (2, 3, 4):
        found = batch_step(pair, all_batches(n, 2, size, distinct=True), BOTH)
        contrast = t.corrected - t.sym
        parts.append(
            {
                "distinct": relative((1 - 1 / size) * (t.sym + n / (n - 1) * contrast), found),
                "broken: distinct, as if repeated": relative((1 - 1 / size) * t.corrected, found),
            }
        )
    return over_instances(*parts) | {"instances": float(count)}


# -- the deviation -------------------------------------------------------------------------------------------------------------


def scaled_step(pair: Pair) -> Tensor:
    r"""Eq. 14 where BatchNorm also divides by :math:`\sigma`, a constant for the gradient, ``(R, k, m)``.

    Division belongs to the layers above, so it is Eq. 14 for :math:`W_l / \sigma`, and each row once more over its sigma.
    """
    scales = [t.lift(t.weight).flatten(1, 2).std(1, correction=0)[..., None] for t in (pair.online, pair.target)]
    online, target = (replace(t, weight=t.weight / s) for t, s in zip((pair.online, pair.target), scales, strict=True))
    found = terms(Pair(online, target)).corrected
    out: Tensor = found.unflatten(1, (-1, pair.online.weight.shape[1])).mT / scales[0]
    return out


def projected_step(pair: Pair) -> Tensor:
    r"""The step through a full BatchNorm, mean and deviation both differentiated, ``(R, k, m)``.

    With :math:`d_k`, a row of :func:`scaled_step`, and the covariance C of all activations below, over images and views,

        d_k - (w_k^T d_k) C w_k / (w_k^T C w_k),

    whose product with :math:`w_k` is zero: the length of a row does nothing, so the step does not change it to first order.
    """
    d, w = scaled_step(pair), pair.online.weight
    h = pair.online.below.flatten(1, 2)
    h = h - h.mean(1, keepdim=True)
    cw = w @ (h.mT @ h) / h.shape[1]
    return d - (w * d).sum(-1, keepdim=True) * cw / (w * cw).sum(-1, keepdim=True)


def deviation_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """:func:`scaled_step` and :func:`projected_step` against autograd through BatchNorm; Eq. 14 as printed ignores sigma."""
    pair = random_pair(count, images=5, seed=seed)
    detached: Norm = {"mean": "normal", "std": "detach", "eps": 0.0}
    full: Norm = {"mean": "normal", "std": "normal", "eps": 0.0}
    constant, whole, printed = step(pair, detached), step(pair, full), terms(pair).corrected
    scaled, projected = vec(scaled_step(pair)), vec(projected_step(pair))
    inner = (pair.online.weight * whole.unflatten(1, (-1, pair.online.weight.shape[1])).mT).sum(-1).abs()
    size = pair.online.weight.flatten(1).norm(dim=1) * whole.norm(dim=1)
    return over_instances(
        {
            "sigma constant": relative(scaled, constant),
            "sigma differentiated": relative(projected, whole),
            "orthogonal to every row": inner.amax(1) / size,
            "broken: Eq. 14 without sigma": relative(printed, constant),
            "broken: sigma a constant": relative(scaled, whole),
        }
    )
