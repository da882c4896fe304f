r"""Losses as functions of pair distances, and of the embeddings of two views.

The papers measure every pair of outputs by half its squared Euclidean distance, :math:`r = \|a - b\|^2 / 2` (Section 4 of
[tian2020]).  An anchor has one positive partner, at distance ``r_pos``, and ``H`` negative ones, at distances ``r_neg``; a loss
is a function of these ``H + 1`` numbers.  All that the theory needs of it are its partial derivatives (`partials`) and, for the
weighted covariance operator, the weight of a pair (`pair_weight`).  A network is trained on `contrastive`.

Shapes: ``r_pos`` is ``(...,)``, ``r_neg`` is ``(..., H)``, and a loss has one value per anchor, ``(...,)``; the leading dimensions
(replicas, anchors) are the caller's.  Embeddings are ``(..., N, D)``.  Any floating dtype, any device; distances of ten thousand
temperatures give finite losses and gradients.  (``softplus`` of torch drops a term of 2e-9 beyond 20, which ``logsigmoid`` keeps.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere, default_device_of, with_gradients
from sslbook._check import require_number, require_one_of


class PairDistances(NamedTuple):
    """For ``A`` anchors, ``pos (..., A)`` are the distances to positives, and ``neg (..., A, H)`` those to negatives."""

    pos: Tensor
    neg: Tensor


class Partials(NamedTuple):
    """The partial derivatives of a loss are ``pos = dL/dr+ (...,)`` and ``neg = dL/dr_k- (..., H)``."""

    pos: Tensor
    neg: Tensor


def half_squared_distance(a: Tensor, b: Tensor) -> Tensor:
    r""":math:`r = \|a - b\|^2 / 2` over the last dimension; the others broadcast (Section 3 of [tian2020]).

    For unit vectors it is one minus their cosine.
    """
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
    Raises ValueError for other shapes, and for integers, of which bytes would wrap around.

    >>> z = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> pair_distances(z, z + 1, negatives="same_view")
    PairDistances(pos=tensor([1., 1.]), neg=tensor([[12.5000],
            [12.5000]]))
    """
    require_one_of("negatives", negatives, ("both_views", "other_view", "same_view"))
    if z1.shape != z2.shape or z1.ndim < 2 or z1.shape[-2] < 2 or not z1.is_floating_point():
        shapes = f"{tuple(z1.shape)} and {tuple(z2.shape)}"
        raise ValueError(f"z1 and z2 must be floating, of one shape (..., N, D), N >= 2, got {z1.dtype} {shapes}")
    n = z1.shape[-2]
    if normalize:
        z1, z2 = unit(z1), unit(z2)
    pos = half_squared_distance(z1, z2)
    # Distances don't change under a common shift, so the detached mean alters no derivative;
    # it keeps a large common component from cancelling away the digits of the Gram matrix.
    mean = 0.5 * (z1 + z2).detach().mean(-2, keepdim=True)
    z1, z2 = z1 - mean, z2 - mean
    if negatives == "both_views":
        pos, z1 = torch.cat([pos, pos], dim=-1), torch.cat([z1, z2], dim=-2)
    distances = cross_distances(z1, z2 if negatives == "other_view" else z1)
    square = distances.unflatten(-1, (-1, n)).unflatten(-3, (-1, n)).movedim(-2, -3)  # (..., view, view, N, N)
    # A sample with itself is every (N + 1)-st entry: the first is dropped, and the rest cut into N - 1 rows that end in one.
    others = square.flatten(-2)[..., 1:].unflatten(-1, (n - 1, n + 1))[..., :-1].flatten(-2).unflatten(-1, (n, n - 1))
    return PairDistances(pos, others.movedim(-3, -2).flatten(-2).flatten(-3, -2))


def unit(z: Tensor) -> Tensor:
    r""":math:`z / \|z\|` along the last axis; 0, without a gradient, where ``z`` is 0.

    (``torch.nn.functional.normalize`` alone has a gradient of 1e12 there, which one dead embedding would give to all weights.)
    """
    largest = z.detach().abs().amax(-1, keepdim=True)  # the quotient doesn't depend on it, and has a norm of 1 or more
    return F.normalize(z / torch.where(largest > 0, largest, math.inf), dim=-1, eps=1.0)


def cross_distances(a: Tensor, b: Tensor) -> Tensor:
    r"""Return all :math:`\|a_i - b_j\|^2 / 2` of ``(..., N, D)`` and ``(..., M, D)``, as ``(..., N, M)``.

    It is :math:`(\|a_i\|^2 + \|b_j\|^2)/2 - a_i^\top b_j`, which loses the digits of a large common part: take it off first.
    """
    half_norms = 0.5 * a.square().sum(-1)[..., :, None] + 0.5 * b.square().sum(-1)[..., None, :]
    return half_norms - a @ b.mT


def simple(r_pos: Tensor, r_neg: Tensor, beta: float = 0.0) -> Tensor:
    r""":math:`L_{simp}^\beta = (1 + \beta) r_+ - \mathrm{mean}_k\, r_{k-}` (Section 4 and Corollary 1 of [tian2020]).

    The paper has one negative.  For ``H`` of them we take the mean, not the sum: the partials by :math:`r_{k-}` are then
    ``-1/H`` each, and all partials still add up to ``beta`` whatever ``H`` is.
    """
    _require_pairs(r_pos, r_neg)
    return (1.0 + beta) * r_pos - r_neg.mean(-1)


@anywhere
def soft_triplet(r_pos: Tensor, r_neg: Tensor, temperature: float, margin: float = 0.0) -> Tensor:
    r"""Return :math:`L_{tri}^\tau = \mathrm{mean}_k\, \tau \log(1 + e^{(r_+ - r_{k-} + r_0)/\tau})` (Section 4 of [tian2020]).

    The ``temperature`` is τ, and the ``margin`` is :math:`r_0`.  As in `simple`, the mean is over the negatives.  As
    :math:`\tau \to 0`, each term approaches the hinge loss :math:`\max(r_+ - r_{k-} + r_0, 0)` from above, to within τ log 2.

    >>> soft_triplet(torch.tensor(1.0), torch.tensor([3.0, 0.5]), temperature=1e-3)  # the mean of two hinges, 0 and 0.5
    tensor(0.2500)
    """
    _require_pairs(r_pos, r_neg)
    temperature = require_number("temperature", temperature, above=0)
    gap = (r_pos[..., None] - r_neg + margin) / temperature
    return -temperature * F.logsigmoid(-gap).mean(-1)


@anywhere
def info_nce(r_pos: Tensor, r_neg: Tensor, temperature: float, epsilon: float = 1.0) -> Tensor:
    r"""Return :math:`-\log \frac{e^{-r_+/\tau}}{\epsilon e^{-r_+/\tau} + \sum_k e^{-r_{k-}/\tau}}` (Eq. 2 of [tian2020]).

    The ``temperature`` is τ.  The usual loss has ``epsilon = 1``; in Eq. 1 of [tian2023], it varies and the loss is
    multiplied by τ.  With ``epsilon = 0`` the positive pair is not in the denominator.  The loss is computed as
    :math:`\log(\epsilon + \sum_k e^{(r_+ - r_{k-})/\tau})`.  So it depends only on differences of distances, and its partial
    derivatives add up to zero for *every* ``epsilon``.

    >>> info_nce(torch.tensor(0.5), torch.tensor([0.5, 0.5, 0.5]), temperature=0.1)  # log 4: four alike
    tensor(1.3863)
    """
    _require_pairs(r_pos, r_neg)
    temperature = require_number("temperature", temperature, above=0)
    gap = (r_pos[..., None] - r_neg) / temperature
    # torch differentiates logsumexp as exp(gap - value), which has lost digits where the value is large (2e-4 of it in
    # float32 at 1e4 temperatures); about the detached largest gap it is exact
    top = gap.detach().amax(-1, keepdim=True)
    log_sum = top.squeeze(-1) + torch.logsumexp(gap - top, dim=-1)
    if epsilon == 0:
        return log_sum
    # log(eps + e^s) = log eps + softplus(s - log eps), and softplus(x) = -logsigmoid(-x)
    log_epsilon = math.log(epsilon)
    return log_epsilon - F.logsigmoid(log_epsilon - log_sum)


def exact(
    r_pos: Tensor, r_neg: Tensor, r_clean: Tensor, temperature: float, margin: float = 0.0, *, weight: str = "info_nce"
) -> Tensor:
    r""":math:`L^{\tau,exact} = \sum_k \mathrm{sg}(\xi(r_k)) (r_+ - r_{k-})` (Eq. 7 of [tian2020]): Theorem 4 without its residue.

    ``r_clean (..., H)`` are the distances :math:`r_k` of the *un-augmented* samples; ξ is the `pair_weight` of the loss named
    by ``weight``, and no gradient flows through it.  The paper sums over ``k`` (nothing here divides by ``H``).
    """
    _require_pairs(r_pos, r_neg)
    xi = pair_weight(r_clean.detach(), weight, temperature=temperature, margin=margin)
    return (xi * (r_pos[..., None] - r_neg)).sum(-1)


def quadratic(r_pos: Tensor, r_neg: Tensor) -> Tensor:
    r""":math:`L_{quad} = r_+ - \frac1{H + 1} \sum_k r_{k-}`: every pair has the same weight (Eq. 3 of [tian2023], α = 1).

    The paper's sum runs over all :math:`N^2` ordered pairs of a batch; with ``H = N - 1`` negatives from the same view it is the
    mean of this loss.  The pairs ``i = j`` repel nothing but still attract the two views, so the partials add up to
    ``1/(H + 1)`` and not to zero: it is ``H/(H + 1)`` times `simple` with ``beta = 1/H``.

    >>> quadratic(torch.tensor(1.0), torch.tensor([2.0, 4.0]))  # 1 - 6 / 3
    tensor(-1.)
    """
    _require_pairs(r_pos, r_neg)
    return r_pos - r_neg.sum(-1) / (r_neg.shape[-1] + 1)


@anywhere
def pair_weight(r: Tensor, loss: str = "info_nce", *, temperature: float | None = None, margin: float = 0.0) -> Tensor:
    r"""Weight :math:`\xi(r)` of a pair of distinct samples at clean distance ``r`` (Theorem 4, Eq. 6 of [tian2020]).

    It is :math:`-\partial L/\partial r_-` of the loss with one negative, at :math:`r_+ = 0` and :math:`r_- = r`:

    - simple: 1
    - soft_triplet: :math:`\sigma((r_0 - r)/\tau)`, with :math:`r_0` = ``margin``
    - info_nce: :math:`\sigma(-r/\tau)/\tau`

    ``temperature``, τ, is required except for simple, and ``margin`` is for soft_triplet alone.  Any shape; the result
    has the shape of ``r``.
    """
    require_one_of("loss", loss, ("simple", "soft_triplet", "info_nce"))  # those of Theorem 2
    if loss == "simple":
        return torch.ones_like(r)
    tau = require_number("temperature", temperature, above=0)
    return torch.sigmoid((margin - r) / tau) if loss == "soft_triplet" else torch.sigmoid(-r / tau) / tau


@with_gradients
def partials(loss_fn: Callable[[Tensor, Tensor], Tensor], r_pos: Tensor, r_neg: Tensor) -> Partials:
    r"""Return the partial derivatives of ``loss_fn(r_pos, r_neg)`` with respect to each distance, by autograd.

    The function ``loss_fn`` must treat anchors independently, as all losses of this module do.  Bind a loss's parameters
    with ``functools.partial`` or a lambda.  For simple, soft_triplet and info_nce, Theorem 2 of [tian2020] states that
    ``pos > 0``, ``neg < 0`` and ``pos + neg.sum(-1) == 0``.

    >>> partials(simple, torch.tensor([1.0]), torch.tensor([[2.0, 3.0]]))
    Partials(pos=tensor([1.]), neg=tensor([[-0.5000, -0.5000]]))
    """
    leaves = (r_pos.detach().clone().requires_grad_(), r_neg.detach().clone().requires_grad_())
    with default_device_of(r_pos):
        losses = loss_fn(*leaves)
    pos, neg = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
    return Partials(pos, neg)


OF_DISTANCES: dict[str, Callable[..., Tensor]] = {
    loss.__name__: loss for loss in (simple, soft_triplet, quadratic, exact, info_nce)
}
"""The losses of this module by name: functions of ``r_pos (...,)`` and ``r_neg (..., H)``, and of their own keywords."""


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
    r"""Return the loss of a batch of two views, the mean of ``loss`` over the anchors of `pair_distances`.

    For embeddings ``z1, z2 (..., N, D)`` the result is ``(...,)``, a scalar for one batch or one value per replica.
    The arguments ``params``, such as ``temperature``, ``margin`` and ``beta``, are those of the loss.
    The loss "exact" also needs ``clean (..., N, D)``, the embeddings of the un-augmented samples.

    SimCLR's NT-Xent is ``contrastive(z1, z2, temperature=0.5)``, because ``r = 1 - cos`` for unit vectors, and the
    factor :math:`e^{-1/\tau}` cancels.  Every loss except simple and quadratic needs ``temperature``, which has no default.
    Losses of a whole batch, such as clip and vicreg, are in :mod:`sslbook.losses.batch`.

    >>> z = torch.eye(4)  # four samples at right angles: log(1 + 6 exp(-1 / 0.5))
    >>> contrastive(z, z, temperature=0.5)
    tensor(0.5944)
    """
    require_one_of("loss", loss, OF_DISTANCES)
    r_pos, r_neg = pair_distances(z1, z2, normalize=normalize, negatives=negatives)
    own: dict[str, Any] = dict(params)
    if clean is not None:
        own["r_clean"] = pair_distances(clean.detach(), clean.detach(), normalize=normalize, negatives=negatives).neg
    return OF_DISTANCES[loss](r_pos, r_neg, **own).mean(-1)


def _require_pairs(r_pos: Tensor, r_neg: Tensor) -> None:
    """Raise ValueError where the shapes don't fit: by broadcasting, one anchor would silently stand for all."""
    if r_neg.shape[:-1] != r_pos.shape or r_neg.ndim != r_pos.ndim + 1:
        shapes = f"{tuple(r_pos.shape)} and {tuple(r_neg.shape)}"
        raise ValueError(f"r_neg must have the shape of r_pos and one more dimension, (..., H), got {shapes}")
