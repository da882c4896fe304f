r"""A linear predictor (Corollary 2 of [tian2021iclr]): what it adds to the update, with and without stop-gradient.

Without a moving average :math:`K' = K_{base}` and :math:`K = K_{base} W_p^T`, so that Eq. 14 becomes

    sym(W) + E_x[\hat K_{base}\, W_p^T (I - W_p)\, \hat K_{base}^T] w,      \hat K = \bar K - E_x \bar K,

and with the gradient through both towers :math:`sym(W) + sym(W') - V_x[\bar K_{base} (I - W_p)^T] w`, where sym(W) has the
predictor inside and sym(W') has not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sslbook.arguments import require_number, require_one_of, require_whole
from sslbook.chapters.byol.terms import inter_matrix, intra, intra_matrix
from sslbook.chapters.byol.towers import BOTH, Pair, Tower, draw, random_pair, step, step_matrix, vec
from sslbook.gaps import Gaps, over_instances, relative

KINDS = ("scalar", "symmetric", "random", "positive")
"""beta I with beta in (0, 1); symmetric with eigenvalues in (0, 1); Gaussian entries; uniform positive entries."""


def predictors(kind: str, replicas: int, size: int, *, scale: float = 0.3, seed: int = 0) -> Tensor:
    """Random predictors ``(R, size, size)`` of one of :data:`KINDS`.

    scale says how small "small" is: entries of standard deviation ``scale / sqrt(size)`` (so that lengths are multiplied by
    about ``scale``), or uniform up to ``2 scale / size`` (so that the leading eigenvalue is about ``scale``).  The first two
    kinds ignore it.
    """
    require_one_of("kind", kind, KINDS)
    require_whole("replicas", replicas, least=1)
    require_whole("size", size, least=1)
    require_number("scale", scale, above=0)
    g = torch.Generator().manual_seed(seed)
    uniform = torch.rand(replicas, size, size, generator=g, dtype=torch.float64)
    if kind == "positive":
        return uniform * 2 * scale / size
    if kind == "random":
        return draw((replicas, size, size), g, scale * size**-0.5)
    values = uniform[:, 0].clamp(0.02, 0.98)
    if kind == "scalar":
        return torch.diag_embed(values[:, :1].expand(-1, size))
    basis = torch.linalg.qr(draw((replicas, size, size), g))[0]
    out: Tensor = basis @ torch.diag_embed(values) @ basis.mT
    return out


def middle(predictor: Tensor) -> Tensor:
    """:math:`W_p^T (I - W_p)`, ``(R, o, o)``."""
    return predictor.mT @ (torch.eye(predictor.shape[-1], dtype=predictor.dtype) - predictor)


def _symmetric_part(matrix: Tensor) -> Tensor:
    """``(M + M^T) / 2``, which alone enters a quadratic form."""
    return (matrix + matrix.mT) / 2


def base(pair: Pair) -> Tower:
    """The tower without its predictor, with the online weights."""
    return replace(pair.online, above=pair.online.above[:-1])


def shared_pair(predictor: Tensor, *, images: int = 4, wide: bool = False, seed: int = 0) -> Pair:
    """A random population under one network and its copy with a predictor: BYOL without a moving average.

    wide: layers of 64 units, so that the outputs do not all lie in a small subspace.
    """
    r, o, _ = predictor.shape
    sizes = (32, 64, 64, o) if wide else (5, 6, 4, o)
    return random_pair(r, images=images, sizes=sizes, predictor=predictor, shared=True, seed=seed)


def stopped(pair: Pair) -> Tensor:
    """Corollary 2's update with stop-gradient, from the base network's connections, ``(R, m k)``."""
    w, k = vec(pair.online.weight), base(pair).connections()
    matrix = inter_matrix(k, middle(pair.online.above[-1]))
    return (matrix @ w[..., None])[..., 0] - intra(pair.online.connections(), w)


def unstopped_operator(pair: Pair) -> Tensor:
    """The matrix of the update without stop-gradient, ``(R, m k, m k)``: minus two covariances within and one between."""
    k, predictor = base(pair).connections(), pair.online.above[-1]
    rest = torch.eye(predictor.shape[-1], dtype=k.dtype) - predictor
    return -intra_matrix(pair.online.connections()) - intra_matrix(k) - inter_matrix(k, rest.mT @ rest)


def corollary_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """Corollary 2 against autograd through BatchNorm (mean only) in both towers, for every kind of predictor; worst errors."""
    parts = []
    for kind in KINDS:
        pair = shared_pair(predictors(kind, count, 3, scale=0.6, seed=seed), seed=seed)
        w, k = vec(pair.online.weight), base(pair).connections()
        stop, through = step(pair, BOTH), step(pair, BOTH, both=True)
        sym, predictor = -intra(pair.online.connections(), w), pair.online.above[-1]
        total = (unstopped_operator(pair) @ w[..., None])[..., 0]
        gaps = {
            "stop-gradient": relative(stopped(pair), stop),
            "no stop-gradient": relative(total, through),
            "broken: twice sym, as printed": relative(total + sym + intra(k, w), through),
            "broken: predictor left out": relative(-intra(k, w), stop),
        }
        if kind in ("random", "positive"):
            turned = (inter_matrix(k, middle(predictor.mT)) @ w[..., None])[..., 0] + sym
            gaps["broken: the predictor transposed"] = relative(turned, stop)
        parts.append(gaps)
    return over_instances(*parts)


# -- beta I --------------------------------------------------------------------------------------------------------------------


def rate_law(beta: Tensor | float, between: Tensor | float, within: Tensor | float) -> Tensor:
    r""":math:`\beta (a - \beta (a + b))`: growth of :math:`\log\|w\|` under :math:`W_p = \beta I`.

    between, within: a and b, the variances of the base network's output between images and within augmentations, over
    :math:`\|w\|^2`.  Positive for :math:`0 < \beta < a / (a + b)`, largest at half of that.
    """
    return torch.as_tensor(beta * (between - beta * (between + within)))


def rate_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """:func:`rate_law` against :math:`w^T \\Delta w / |w|^2` of the autograd step, relative to the largest rate over beta."""
    measured, law, wrong = [], [], []
    for beta in (-0.5, 0.1, 0.3, 0.5, 0.8, 1.2):
        pair = _scalar_pair(beta, count, seed)
        w, k = vec(pair.online.weight), base(pair).connections()
        square = w.square().sum(1)
        within = (w * intra(k, w)).sum(1) / square
        between = torch.einsum("rp,rpq,rq->r", w, inter_matrix(k), w) / square
        measured.append((w * step(pair, BOTH)).sum(1) / square)
        law.append(rate_law(beta, between, within))
        wrong.append(beta * (1 - beta) * between - within)
    truth = torch.stack(measured)
    scale = truth.abs().amax(0)
    return over_instances(
        {
            "rate": (torch.stack(law) - truth).abs().amax(0) / scale,
            "broken: within augmentations without beta": (torch.stack(wrong) - truth).abs().amax(0) / scale,
        }
    )


def measured_rates(share: float, betas: Tensor, seed: int = 0) -> Tensor:
    """Autograd's rates for each of ``betas`` where a share ``a / (a + b)`` of the output's variance is between images.

    One population whose view noise is scaled so that ``a + b`` is one; linear, so that the output scales with it.
    Raises ValueError unless the share lies between 0 and 1.
    """
    require_number("share", share, least=0, most=1)
    g = torch.Generator().manual_seed(seed)
    image, noise = draw((1, 8, 1, 5), g), draw((1, 8, 4, 5), g)
    noise = noise - noise.mean(2, keepdim=True)
    weight, top = draw((1, 4, 5), g), draw((1, 3, 4), g)

    def variance(x: Tensor) -> Tensor:
        y = Tower(x, weight, (top,)).output()
        return (y - y.mean((1, 2), keepdim=True)).square().sum(-1).mean() / weight.square().sum()

    x = image * (share / variance(image)).sqrt() + noise * ((1 - share) / variance(noise)).sqrt()
    tower = Tower(
        x.expand(len(betas), -1, -1, -1), weight.expand(len(betas), -1, -1), (top.expand(len(betas), -1, -1),)
    )
    beta = betas[:, None, None] * torch.eye(3, dtype=torch.float64)
    pair = Pair(replace(tower, above=(*tower.above, beta)), tower)
    w = vec(pair.online.weight)
    return (w * step(pair, BOTH)).sum(1) / w.square().sum(1)


# -- other predictors ----------------------------------------------------------------------------------------------------------


def spectrum(kind: str, replicas: int = 100, *, scale: float = 0.3, seed: int = 0) -> Tensor:
    r"""Eigenvalues of the symmetric part of :math:`W_p^T (I - W_p)`, ascending, ``(R, 32)``."""
    out: Tensor = torch.linalg.eigvalsh(_symmetric_part(middle(predictors(kind, replicas, 32, scale=scale, seed=seed))))
    return out


def pulls(
    kind: str, replicas: int = 200, size: int = 32, *, scale: float = 0.3, traceless: bool = False, seed: int = 0
) -> Tensor:
    r"""What the predictor's term does to random weights: :math:`w^T E[\hat K M \hat K^T] w / |w|^2`, :math:`M = W_p^T (I - W_p)`.

    It equals :math:`E_x[\hat f^T M \hat f]` for the base network's output, averaged over views and centred, ``(R,)``; positive
    values make the weights grow.  traceless: a multiple of the identity takes the trace off each predictor first.
    """
    drawn = predictors(kind, replicas, size, scale=scale, seed=seed)
    if traceless:
        drawn = drawn - drawn.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(size, dtype=drawn.dtype)
    pair = shared_pair(drawn, images=40, wide=True, seed=seed + 1)
    tower = base(pair)
    f = tower.output().mean(2)
    f = f - f.mean(1, keepdim=True)
    form = torch.einsum("rno,rop,rnp->r", f, middle(pair.online.above[-1]), f) / f.shape[1]
    return form / tower.weight.square().sum((1, 2))


def largest_unstopped(count: int = 100, seed: int = 0) -> float:
    """Largest eigenvalue of the step's matrix without stop-gradient over the largest in size, all kinds: never above zero.

    The matrix is autograd's, through BatchNorm (mean only) in both towers, and knows nothing of :func:`unstopped_operator`.
    """
    pairs = (shared_pair(predictors(kind, count, 3, scale=1.5, seed=seed), seed=seed) for kind in KINDS)
    return max(float(_largest(step_matrix(pair, BOTH, both=True)).max()) for pair in pairs)


def largest_stopped(count: int = 100, seed: int = 0) -> Tensor:
    """The same with stop-gradient and ``I / 4``, ``(count,)``: a matrix that does have positive eigenvalues."""
    return _largest(step_matrix(_scalar_pair(0.25, count, seed), BOTH))


def _scalar_pair(beta: float, count: int, seed: int) -> Pair:
    return shared_pair(beta * torch.eye(3, dtype=torch.float64).repeat(count, 1, 1), seed=seed)


def _largest(matrix: Tensor) -> Tensor:
    found = torch.linalg.eigvalsh(_symmetric_part(matrix))
    out: Tensor = found[:, -1] / found.abs().amax(1)
    return out
