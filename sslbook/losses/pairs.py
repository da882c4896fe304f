"""Contrastive losses, as functions of pair distances and of embeddings.

The papers measure every pair by half the squared Euclidean distance of its outputs,
``r = ||a - b||^2 / 2`` (Section 4 of [tian2020]).  An anchor has one positive partner, at distance
``r_pos``, and ``H`` negative ones, at distances ``r_neg``; a loss is a function of these ``H + 1``
numbers.  All that the theory needs of a loss are its partial derivatives (`partials`) and, for the
weighted covariance operator, the weight of a pair (`pair_weight`).

Shapes.  ``r_pos`` is ``(...,)`` and ``r_neg`` is ``(..., H)``: the leading dimensions (replicas,
anchors) are the caller's, and every loss returns one value per anchor, in the shape of ``r_pos``.
Embeddings are ``(..., N, D)``.  Any floating dtype, any device.

Stability.  All exponentials go through ``logsumexp`` and ``logsigmoid``: distances of ten thousand
temperatures give finite losses and gradients.  (``torch.nn.functional.softplus`` is not used: beyond
its threshold of 20 it drops a term of 2e-9, which float64 checks see.)

Sources: A is [tian2020], arXiv 2010.00578; C is [tian2023], ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere, beside, with_gradients
from sslbook._check import (
    refuse_unused,
    require_floating,
    require_number,
    require_one_of,
    require_temperature,
)

_WEIGHTS = ("simple", "soft_triplet", "info_nce")
_NEGATIVES = ("both_views", "other_view", "same_view")


class PairDistances(NamedTuple):
    """For ``A`` anchors, ``pos (..., A)`` are the distances to positives, and ``neg (..., A, H)`` those to negatives."""

    pos: Tensor
    neg: Tensor


class Partials(NamedTuple):
    """The partial derivatives of a loss are ``pos = dL/dr+ (...,)`` and ``neg = dL/dr_k- (..., H)``."""

    pos: Tensor
    neg: Tensor


# ---------------------------------------------------------------------------------- distances


def half_squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """``r = ||a - b||^2 / 2`` over the last dimension; the others broadcast (A, Section 3).

    For unit vectors this is one minus their cosine.
    """
    require_floating(a=a, b=b)
    return 0.5 * (a - b).square().sum(-1)


@anywhere
def pair_distances(z1: Tensor, z2: Tensor, *, normalize: bool = False, negatives: str = "both_views") -> PairDistances:
    """Return the distances of each anchor in a batch to its positive and to its negatives.

    The rows ``z1[..., i, :]`` and ``z2[..., i, :]`` are the embeddings of two views of sample ``i``.  Both tensors have
    the shape ``(..., N, D)`` with ``N >= 2``.  With ``normalize=True``, every embedding is first divided by its norm.

    ==============  =========================  ==========================  =====================
    ``negatives``   anchors                    negatives of ``z1[i]``      shapes
    ==============  =========================  ==========================  =====================
    both_views      ``z1``, then ``z2``        ``z1[j]`` and ``z2[j]``     (2N,), (2N, 2N - 2)
    other_view      ``z1``                     ``z2[j]``                   (N,), (N, N - 1)
    same_view       ``z1``                     ``z1[j]``                   (N,), (N, N - 1)
    ==============  =========================  ==========================  =====================

    Here ``j`` runs over all samples but ``i`` in increasing order; in both_views, negatives from ``z1`` come first.
    SimCLR's NT-Xent uses both_views, and Eq. 1 of [tian2023] uses same_view.

    Distances to negatives are computed from one Gram matrix, in ``O(N^2)`` memory.  Their rounding error is a few
    units in the last place of the largest squared distance to the batch mean.  Distances to positives come from differences.
    """
    require_floating(z1=z1, z2=z2)
    if z1.shape != z2.shape or z1.ndim < 2 or not z1.shape[-1]:
        shapes = f"{tuple(z1.shape)} and {tuple(z2.shape)}"
        raise ValueError(f"z1 and z2 must have one shape (..., N, D) with D >= 1, got {shapes}")
    n = z1.shape[-2]
    if n < 2:
        raise ValueError(f"z1 must hold N >= 2 samples (one alone has no negatives), got N = {n}")
    require_one_of("negatives", negatives, _NEGATIVES)
    if normalize:
        z1, z2 = unit(z1), unit(z2)

    pos = half_squared_distance(z1, z2)
    # Distances don't change under a common shift, so the detached mean alters no derivative;
    # it keeps a large common component from cancelling away the digits of the Gram matrix.
    mean = 0.5 * (z1 + z2).detach().mean(-2, keepdim=True)
    z1, z2 = z1 - mean, z2 - mean
    if negatives == "other_view":
        return PairDistances(pos, _off_diagonal(cross_distances(z1, z2)))
    if negatives == "same_view":
        return PairDistances(pos, _off_diagonal(cross_distances(z1, z1)))
    z = torch.cat([z1, z2], dim=-2)
    blocks = cross_distances(z, z).reshape(*z.shape[:-2], 2, n, 2, n)  # by view and sample of each side
    neg = _off_diagonal(blocks.movedim(-2, -3)).movedim(-3, -2)  # (..., 2, N, 2, N - 1)
    return PairDistances(torch.cat([pos, pos], dim=-1), neg.flatten(-2).flatten(-3, -2))


def unit(z: Tensor) -> Tensor:
    """``z / |z|`` along the last axis, for every norm that the dtype can hold; 0, without a gradient, where ``z`` is 0."""
    size = z.detach().abs().amax(-1, keepdim=True)  # the quotient doesn't depend on it, and has a norm of 1 or more
    return F.normalize(z / torch.where(size > 0, size, math.inf), dim=-1, eps=1.0)


def octave(z: Tensor, dim: int = -1) -> Tensor:
    """The power of two by which ``z`` is to be divided along an axis, so that its squares neither under- nor overflow.

    No digit changes, and where all of ``z`` is 0 it is infinite, so that the quotient is 0 without a gradient.
    """
    size = z.detach().abs().amax(dim, keepdim=True)
    return torch.where(size > 0, size / (2 * torch.frexp(size).mantissa), math.inf)


def length(z: Tensor) -> Tensor:
    """``|z|`` along the last axis, which is kept, for every norm that the dtype can hold; NaN where ``z`` is 0."""
    scale = octave(z)
    size: Tensor = scale * (z / scale).norm(dim=-1, keepdim=True)
    return size


def cross_distances(a: Tensor, b: Tensor) -> Tensor:
    """All ``||a_i - b_j||^2 / 2``, from inner products: ``(..., N, D)``, ``(..., M, D)`` -> ``(..., N, M)``."""
    half_norms = 0.5 * a.square().sum(-1)[..., :, None] + 0.5 * b.square().sum(-1)[..., None, :]
    return half_norms - a @ b.mT


def _off_diagonal(square: Tensor) -> Tensor:
    """Rows of ``(..., N, N)`` without their diagonal entry, in order: ``(..., N, N - 1)``."""
    n = square.shape[-1]
    # In row-major order the diagonal is every (N+1)-st entry: drop the first, then cut the rest
    # into N - 1 rows of N + 1 whose last entry is diagonal.
    tail = square.flatten(-2)[..., 1:].reshape(*square.shape[:-2], n - 1, n + 1)
    return tail[..., :-1].reshape(*square.shape[:-1], n - 1)


# --------------------------------------------------------------------------- losses of distances


def simple(r_pos: Tensor, r_neg: Tensor, beta: float = 0.0) -> Tensor:
    """``L_simp^beta = (1 + beta) r+ - mean_k r_k-`` (A, Section 4 and Corollary 1).

    The paper has one negative.  For ``H`` of them we take the mean, not the sum: the partials by
    ``r_k-`` are then ``-1/H`` each, and all partials still add up to ``beta`` whatever ``H`` is.
    """
    _require_pairs(r_pos, r_neg)
    beta = require_number("beta", beta)
    return (1.0 + beta) * r_pos - r_neg.mean(-1)


@anywhere
def soft_triplet(r_pos: Tensor, r_neg: Tensor, temperature: float, margin: float = 0.0) -> Tensor:
    """Return ``L_tri^τ = mean_k τ log(1 + exp((r+ - r_k- + r_0) / τ))`` (Section 4 of [tian2020]).

    The ``temperature`` is τ, and the ``margin`` is ``r_0 >= 0``.  As in `simple`, the mean is over the negatives.  As
    ``τ -> 0``, each term approaches the hinge loss ``max(r+ - r_k- + r_0, 0)`` from above, to within ``τ log 2``.
    """
    _require_pairs(r_pos, r_neg)
    temperature = require_temperature(temperature, r_neg.dtype)
    margin = require_number("margin", margin, least=0)
    gap = (r_pos[..., None] - r_neg + margin) / temperature
    return -temperature * F.logsigmoid(-gap).mean(-1)


@anywhere
def info_nce(r_pos: Tensor, r_neg: Tensor, temperature: float, epsilon: float = 1.0) -> Tensor:
    """Return ``L_nce^τ = -log[exp(-r+/τ) / (epsilon exp(-r+/τ) + sum_k exp(-r_k-/τ))]`` (Eq. 2 of [tian2020]).

    The ``temperature`` is τ.  The usual loss has ``epsilon = 1``; in Eq. 1 of [tian2023], it varies and the loss is
    multiplied by ``τ``.  With ``epsilon = 0`` the positive pair is not in the denominator.  The loss is computed as
    ``log(epsilon + sum_k exp((r+ - r_k-)/τ))``.  So it depends only on differences of distances, and its partial
    derivatives add up to zero for *every* ``epsilon``.
    """
    _require_pairs(r_pos, r_neg)
    temperature = require_temperature(temperature, r_neg.dtype)
    epsilon = require_number("epsilon", epsilon, least=0)
    limit = torch.finfo(r_neg.dtype).max
    gap = ((r_pos[..., None] - r_neg) / temperature).clamp(-limit, limit)  # one infinitely far pushes nothing
    # torch's logsumexp differentiates as exp(gap - value), whose exponent has lost its digits where the value is large
    # (relative errors of 2e-4 in float32 at 1e4 temperatures). About the detached largest gap it is exact.
    top = gap.detach().amax(-1, keepdim=True)
    log_sum = top.squeeze(-1) + torch.logsumexp(gap - top, dim=-1)
    if epsilon == 0:
        return log_sum.masked_fill(r_neg.isposinf().all(-1), -math.inf)
    # log(eps + e^s) = log eps + softplus(s - log eps), and softplus(x) = -logsigmoid(-x)
    log_epsilon = math.log(epsilon)
    return log_epsilon - F.logsigmoid(log_epsilon - log_sum)


def exact(
    r_pos: Tensor,
    r_neg: Tensor,
    r_clean: Tensor,
    temperature: float,
    margin: float = 0.0,
    *,
    weight: str = "info_nce",
) -> Tensor:
    """``L^{τ,exact} = sum_k sg(xi(r_k)) (r+ - r_k-)`` (A, Eq. 7): Theorem 4 without its residue.

    ``r_clean (..., H)`` are the distances ``r_k`` of the *un-augmented* samples; ``xi`` is `pair_weight`
    of the loss named by ``weight``, and no gradient flows through it (that of simple has no temperature).  The paper
    sums over ``k`` (nothing here divides by ``H``).
    """
    _require_pairs(r_pos, r_neg)
    xi = pair_weight(r_clean.detach(), weight, temperature=None if weight == "simple" else temperature, margin=margin)
    return (xi * (r_pos[..., None] - r_neg)).sum(-1)


def quadratic(r_pos: Tensor, r_neg: Tensor) -> Tensor:
    """``L_quad = r+ - (1 / (H + 1)) sum_k r_k-``: uniform pairwise importance (C, Eq. 3, ``alpha = 1``).

    C maximises ``tr C_alpha[f, f]``, whose sum runs over all ``N^2`` ordered pairs of a batch.  With
    ``alpha = 1``, ``H = N - 1`` negatives from the same view and half squared distances,
    ``-tr C_1[f, f] = mean_i r_i+ - (1/N^2) sum_{i != j} r_ij``: the mean of this loss over the anchors.

    The pairs ``i = j`` repel nothing but still attract the two views, so the partials add up to
    ``1/(H + 1)`` and not to zero: it is ``H/(H + 1)`` times `simple` with ``beta = 1/H``.
    """
    _require_pairs(r_pos, r_neg)
    return r_pos - r_neg.sum(-1) / (r_neg.shape[-1] + 1)


# ------------------------------------------------------------------------------ what theory asks


@anywhere
def pair_weight(r: Tensor, loss: str = "info_nce", *, temperature: float | None = None, margin: float = 0.0) -> Tensor:
    """Weight ``xi(r)`` of a pair of distinct samples at clean distance ``r`` (A, Theorem 4, Eq. 6).

    It is ``-dL/dr_-`` of the loss with one negative, at ``r+ = 0`` and ``r_- = r``:

    - simple: 1
    - soft_triplet: ``sigmoid((r_0 - r) / τ)``, with ``r_0`` = ``margin``
    - info_nce: ``sigmoid(-r / τ) / τ``

    ``temperature``, τ, is required except for simple.  Any shape; the result has the shape of ``r``.
    Raises ValueError for a temperature or a margin that the loss has no use for.
    """
    require_floating(r=r)
    require_one_of("loss", loss, _WEIGHTS)
    margin = require_number("margin", margin, least=0)
    if loss != "soft_triplet":
        refuse_unused(f"loss={loss!r}", margin=margin, **({"temperature": temperature} if loss == "simple" else {}))
    if loss == "simple":
        return torch.ones_like(r)
    temperature = require_temperature(temperature, r.dtype)
    assert temperature is not None  # for the type checker: it was refused
    if loss == "soft_triplet":
        return torch.sigmoid((margin - r) / temperature)
    return torch.sigmoid(-r / temperature) / temperature


def joint_pair_weight(r: Tensor, temperature: float) -> Tensor:
    """InfoNCE's weights for ``H`` negatives at once (A, Eq. 80): ``(..., H) -> (..., H)``.

    ``xi_k = (1/τ) exp(-r_k/τ) / (1 + sum_j exp(-r_j/τ))``, that is ``-dL/dr_k-`` of `info_nce`
    at ``r+ = 0``.  Each weight depends on all ``H`` distances, which is what stops Theorem 4 at ``H = 1``.
    (Eq. 80 as printed lacks the minus sign of the derivative and the factor ``1/τ``, and writes
    ``||x - x'_k||^2`` for ``r_k``.)
    """
    logits = -r / temperature
    # the 1 of the denominator is the positive pair's e^0: one more logit, whose share is cut off
    return torch.softmax(torch.cat([torch.zeros_like(logits[..., :1]), logits], -1), -1)[..., 1:] / temperature


@with_gradients
def partials(loss_fn: Callable[[Tensor, Tensor], Tensor], r_pos: Tensor, r_neg: Tensor) -> Partials:
    """Return the partial derivatives of ``loss_fn(r_pos, r_neg)`` with respect to each distance, by autograd.

    The function ``loss_fn`` must treat anchors independently, as all losses of this module do.  Bind a loss's parameters
    with ``functools.partial`` or a lambda.  For simple, soft_triplet and info_nce, Theorem 2 of [tian2020] states that
    ``pos > 0``, ``neg < 0`` and ``pos + neg.sum(-1) == 0``.
    """
    _require_pairs(r_pos, r_neg)
    leaves = (r_pos.detach().clone().requires_grad_(), r_neg.detach().clone().requires_grad_())
    with beside(r_pos):
        losses = loss_fn(*leaves)
    require_floating(**{"what loss_fn returns": losses})
    pos, neg = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
    return Partials(pos, neg)


# -------------------------------------------------------------------------- losses of embeddings


LOSSES: dict[str, Callable[..., Tensor]] = {
    "simple": simple,
    "soft_triplet": soft_triplet,
    "info_nce": info_nce,
    "exact": exact,
    "quadratic": quadratic,
}
"""The losses of distances by name; ``tests/losses/test_losses_contracts.py`` holds each to what all promise."""


@anywhere
def contrastive(
    z1: Tensor,
    z2: Tensor,
    loss: str = "info_nce",
    *,
    normalize: bool = True,
    negatives: str = "both_views",
    clean: Tensor | None = None,
    **params: float | str,
) -> Tensor:
    """Return the loss of a batch of two views, the mean of ``loss`` over the anchors of `pair_distances`.

    For embeddings ``z1, z2 (..., N, D)`` the result is ``(...,)``, a scalar for one batch or one value per replica.
    The arguments ``params``, such as ``temperature``, ``margin`` and ``beta``, are those of the loss.
    The loss "exact" also needs ``clean (..., N, D)``, the embeddings of the un-augmented samples.

    SimCLR's NT-Xent is ``contrastive(z1, z2, temperature=0.5)``, because ``r = 1 - cos`` for unit vectors, and the
    factor ``exp(-1/τ)`` cancels.  Every loss except simple and quadratic needs ``temperature``, which has no default.
    """
    elsewhere = "losses of a whole batch, such as barlow_twins, vicreg and clip, are in sslbook.losses.batch"
    require_one_of("loss", loss, LOSSES, elsewhere)
    r_pos, r_neg = pair_distances(z1, z2, normalize=normalize, negatives=negatives)
    if loss == "exact":
        if clean is None:
            raise ValueError("loss='exact' needs clean, the embeddings of the un-augmented samples")
        if clean.shape != z1.shape:
            raise ValueError(f"clean must have the shape of z1, got {tuple(clean.shape)} and {tuple(z1.shape)}")
        clean = clean.detach()
        r_clean = pair_distances(clean, clean, normalize=normalize, negatives=negatives).neg
        return exact(r_pos, r_neg, r_clean, **params).mean(-1)  # type: ignore[arg-type]
    if clean is not None:
        raise ValueError(f"clean is for loss='exact' alone, got it with loss={loss!r}")
    return LOSSES[loss](r_pos, r_neg, **params).mean(-1)


# -------------------------------------------------------------------------------------- energies
#
# With two views f_i, f_i' of each of N samples and weights alpha (Section 2 of C), the contrastive covariance is
#
#     C_alpha[a, b] = 1 / (2 N^2) sum_ij alpha_ij [(a_i - a_j)(b_i - b_j)^T - (a_i - a_i')(b_i - b_i')^T].
#
# The energy of a network is tr C_alpha[f, f] / 2, and a step of gradient descent on a loss is a step of ascent on it with alpha
# held fixed.  All functions take leading batch dimensions.

ENERGIES = ("info_nce", "quadratic", "hinge_triplet", "soft_triplet")
"""Losses that are energies: InfoNCE (Eq. 1, with any epsilon), quadratic, and triplet with a hinge or a softplus."""


def square_distances(f: Tensor) -> Tensor:
    r""":math:`d_{ij}^2 = \|f_i - f_j\|^2 / 2`: ``(..., N, D)`` -> ``(..., N, N)``."""
    return half_squared_distance(f[..., :, None, :], f[..., None, :, :])


def contrastive_covariance(
    a: Tensor, a2: Tensor, alpha: Tensor, b: Tensor | None = None, b2: Tensor | None = None
) -> Tensor:
    r""":math:`C_\alpha[a, b]` of Eq. 3 of [tian2023], :math:`C_\alpha[a, a]` without ``b``: ``(..., D, E)``.

    a, a2: first and second views, ``(..., N, D)``; b, b2: the same, ``(..., N, E)``.  alpha: ``(..., N, N)``.

    The double sum is :math:`a^T L b` with the Laplacian :math:`L = \operatorname{diag}(\alpha 1 + \alpha^T 1) - \alpha - \alpha^T`.
    """
    b, b2 = (a, a2) if b is None or b2 is None else (b, b2)
    n = a.shape[-2]
    rows, columns = alpha.sum(-1), alpha.sum(-2)
    laplacian = torch.diag_embed(rows + columns) - alpha - alpha.mT
    da, db = a - a2, b - b2
    out: Tensor = (a.mT @ laplacian @ b - (rows[..., None] * da).mT @ db) / (2 * n**2)
    return out


def energy(f: Tensor, f2: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\frac12 \operatorname{tr} C_\alpha[f, f] = \frac1{2 N^2} \sum_{ij} \alpha_{ij} (d_{ij}^2 - d_i^2)`: ``(...)``.

    f, f2: two views ``(..., N, D)``.  alpha: ``(..., N, N)``.  The right side is what is computed.
    """
    far, near = square_distances(f), half_squared_distance(f, f2)[..., None]
    return (alpha * (far - near)).sum((-2, -1)) / (2 * f.shape[-2] ** 2)


def weights(
    loss: str, f: Tensor, f2: Tensor, *, temperature: float = 1.0, epsilon: float = 0.0, margin: float = 0.0
) -> Tensor:
    r"""Pairwise weights ``alpha (..., N, N)`` of a loss at the outputs ``f, f2 (..., N, D)``, without gradient.

    ``alpha_ij`` is minus the loss's derivative by :math:`d_{ij}^2`, and zero for ``i = j`` except in the quadratic loss:

    - info_nce: :math:`e^{-d_{ij}^2/\tau} / (\epsilon e^{-d_i^2/\tau} + \sum_{k \ne i} e^{-d_{ik}^2/\tau})`
    - quadratic: 1
    - hinge_triplet: 1 where :math:`d_i^2 - d_{ij}^2 + r_0 > 0`, else 0;  soft_triplet: the sigmoid of that over :math:`\tau`

    ``margin`` is :math:`r_0`.  Raises ValueError for a loss that is not among :data:`ENERGIES`.
    """
    require_one_of("loss", loss, ENERGIES)
    with torch.no_grad():
        far, near = square_distances(f), half_squared_distance(f, f2)[..., None]
        apart = ~torch.eye(f.shape[-2], dtype=torch.bool, device=f.device)
        if loss == "quadratic":
            return torch.ones_like(far)
        if loss == "info_nce":
            gap = ((near - far) / temperature).masked_fill(~apart, -torch.inf)
            # the positive pair's share, as one more logit
            own = gap.new_full((*gap.shape[:-1], 1), math.log(epsilon) if epsilon else -torch.inf)
            return torch.softmax(torch.cat([gap, own], -1), -1)[..., :-1]
        gap = near - far + margin
        on = (gap > 0).to(f.dtype) if loss == "hinge_triplet" else torch.sigmoid(gap / temperature)
        return on * apart


def loss_value(
    loss: str, f: Tensor, f2: Tensor, *, temperature: float = 1.0, epsilon: float = 0.0, margin: float = 0.0
) -> Tensor:
    """The loss itself, summed over anchors and pairs as in Eq. 1 of [tian2023]: ``f, f2 (..., N, D)`` -> ``(...)``.

    Raises ValueError for a loss that is not among :data:`ENERGIES`.
    """
    require_one_of("loss", loss, ENERGIES)
    pos, neg = pair_distances(f, f2, negatives="same_view")
    n = f.shape[-2]
    if loss == "info_nce":
        return temperature * info_nce(pos, neg, temperature, epsilon).sum(-1)
    if loss == "quadratic":
        return n * quadratic(pos, neg).sum(-1)
    if loss == "soft_triplet":
        return (n - 1) * soft_triplet(pos, neg, temperature, margin).sum(-1)
    return (pos[..., None] - neg + margin).relu().sum((-1, -2))


def project(w: Tensor, v: Tensor) -> Tensor:
    r""":math:`P^\perp_w v`: ``v`` without its part along the unit vectors ``w``, both ``(..., d)``."""
    return v - (w * v).sum(-1, keepdim=True) * w


# ------------------------------------------------------------------------------------ bad input


def _require_pairs(r_pos: Tensor, r_neg: Tensor) -> None:
    require_floating(r_pos=r_pos, r_neg=r_neg)
    # No broadcasting between anchors: a forgotten dimension must not pass as a valid pairing.
    if r_neg.ndim != r_pos.ndim + 1 or r_neg.shape[:-1] != r_pos.shape:
        raise ValueError(
            "r_neg must have the shape of r_pos and one more dimension, (..., H), "
            f"got {tuple(r_pos.shape)} and {tuple(r_neg.shape)}"
        )
    if r_neg.shape[-1] < 1:
        raise ValueError(f"r_neg must hold H >= 1 negatives, got shape {tuple(r_neg.shape)}")
