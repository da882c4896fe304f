r"""What a network is trained to minimise, as functions of two views' embeddings.

======================  ====================================================================================================
info_nce                SimCLR's NT-Xent: cosines, temperature, all :math:`2N - 2` others as negatives (Eq. 2 of [tian2020])
exact                   its covariance operator without the residue (Eq. 7 of [tian2020])
beta                    info_nce with more or less weight on the positive pair (Section 4.2 and Table 3 of [tian2020])
simple                  :math:`(1 + \beta) r_+ - r_-` (Corollary 1 of [tian2020])
soft_triplet            the soft triplet loss (Section 4 of [tian2020]); ``triplet`` in recorded runs
quadratic               uniform pairwise importance (Eq. 3 of [tian2023])
byol                    two cosines, of predictions and targets (Section 2 of [tian2021iclr]); also SimSiam's, times 4
decoupled               info_nce without the positive in the denominator [yeh2022]
supervised_contrastive  info_nce whose positives are all views of the anchor's class [khosla2020]; sees the images' labels
clip                    cross-entropies between the views, as if each had a tower of its own [radford2021]
sigmoid_pairs           SigLIP's: every pair between the views is a decision of its own [zhai2023]
spectral_contrastive    products of positive pairs, squares of those of negative ones [haochen2021]
barlow_twins            the correlation of the views' coordinates is to be the identity [zbontar2021]
vicreg                  variances of the coordinates above 1, covariances 0, views alike [bardes2022]
======================  ====================================================================================================

The losses themselves are those of :mod:`sslbook.losses.pairs` and :mod:`sslbook.losses.batch`; embeddings are divided
by their norms, so that a pair's distance is :math:`r = \|a - b\|^2/2 = 1 - \cos`, except for the last two.  Where
processes share a batch, each objective is that of the whole batch.

All are computed in float32 or float64, also under autocast: products in bfloat16 would move the gradient of info_nce by up to
1e-3 of it.  Precisions that are set by ``set_float32_matmul_precision`` reach gradients that are asked for outside alone.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere
from sslbook._check import nearest, require_number, require_one_of, require_temperature
from sslbook.losses import pairs
from sslbook.losses.batch import BATCH_LOSSES
from sslbook.networks.siamese import Outputs
from sslbook.training.run.distributed import gather, world

Objective = Callable[[Outputs], Tensor]
"""Outputs ``(N, D)`` to a scalar."""
WEIGHTS = ("augmented", "clean", "further")
"""What the weights of a loss can look at: the two views themselves, the images before augmentation, two more views."""


def info_nce(temperature: float = 0.5) -> Objective:
    r""":math:`-\frac1{2N}\sum_i \log\frac{e^{-r_i^+/\tau}}{e^{-r_i^+/\tau} + \sum_k e^{-r_{ik}/\tau}}`; anchors of both views."""
    temperature = require_temperature(temperature, torch.float32)
    return partial(_contrast, loss="info_nce", temperature=temperature)


def exact(temperature: float = 0.5, beta: float = 0.0, weights: str = "augmented", over: str = "mean") -> Objective:
    r""":math:`\sum_k \mathrm{sg}(\xi(r_k)) ((1 + \beta) r_+ - r_{k-})`, :math:`\xi(r) = \sigma(-r/\tau)/\tau`: Eq. 7 of [tian2020].

    weights: distances :math:`r_k` of the "augmented" images, as released for the paper's table; of the "clean" ones, as
    printed; or of two "further" views, drawn independently of the two.  The last two need ``w1`` and ``w2`` in the
    outputs.  over: "mean" divides by the number of negatives, as released; "sum", as printed, does not.
    """
    temperature = require_temperature(temperature, torch.float32)
    beta = require_number("beta", beta)
    require_one_of("weights", weights, WEIGHTS)
    require_one_of("over", over, ("mean", "sum"))
    return partial(_exact, temperature=temperature, beta=beta, weights=weights, mean=over == "mean")


def beta(temperature: float = 0.5, beta: float = 0.0, form: str = "released") -> Objective:
    r"""info_nce whose partial derivatives by the distances do not add up to zero (Section 4.2 and Table 3 of [tian2020]).

    "released", the loss of the table: :math:`(L_\text{nce} + \beta (r_+ - 1)/\tau)/(1 + \beta)`.  Its partials add up to
    :math:`\beta/(\tau(1 + \beta))`.  "printed": :math:`L_\text{nce} + \beta r_+`, whose partials add up to :math:`\beta`, as the
    paper's condition says.  Raises ValueError for a released ``beta`` of -1 or less.
    """
    temperature = require_temperature(temperature, torch.float32)
    beta = require_number("beta", beta)
    require_one_of("form", form, ("released", "printed"))
    if form == "released" and beta <= -1:
        raise ValueError(f"beta must be above -1, since the released loss divides by 1 + beta, got {beta}")
    return partial(_beta, temperature=temperature, beta=beta, released=form == "released")


def simple(beta: float = 0.0) -> Objective:
    r""":math:`(1 + \beta) r_+ - \frac1H\sum_k r_{k-}`, averaged over both views' anchors (Corollary 1 of [tian2020])."""
    beta = require_number("beta", beta)
    return partial(_contrast, loss="simple", beta=beta)


def soft_triplet(temperature: float = 0.5, margin: float = 0.0) -> Objective:
    r""":math:`\frac1H\sum_k \tau\log(1 + e^{(r_+ - r_{k-} + r_0)/\tau})`, with margin :math:`r_0` (Section 4 of [tian2020])."""
    temperature = require_temperature(temperature, torch.float32)
    margin = require_number("margin", margin, least=0)
    return partial(_contrast, loss="soft_triplet", temperature=temperature, margin=margin)


def quadratic() -> Objective:
    r""":math:`r_+ - \frac1{H+1}\sum_k r_{k-}`, negatives from the anchor's own view (Eq. 3 of [tian2023], :math:`\alpha = 1`)."""
    return partial(_contrast, loss="quadratic", negatives="same_view")


def byol(stop_gradient: bool = True) -> Objective:
    r""":math:`-\frac2N\sum_i (\cos(p_{1i}, t_{2i}) + \cos(p_{2i}, t_{1i}))`, in [-4, 4], as in the released code.

    stop_gradient: the targets are constants.  No gradient reaches a target tower in either case.  With a predictor and no target
    tower it is 4 times the loss of SimSiam [chen2021].
    """
    if not isinstance(stop_gradient, bool):
        raise TypeError(f"stop_gradient must be true or false, got {stop_gradient!r}")
    return partial(_byol, stop_gradient=stop_gradient)


def decoupled(temperature: float = 0.5) -> Objective:
    """`~sslbook.losses.batch.decoupled`: info_nce without the positive pair in the denominator."""
    temperature = require_temperature(temperature, torch.float32)
    return partial(_of_batch, loss="decoupled", temperature=temperature)


def supervised_contrastive(temperature: float = 0.5) -> Objective:
    """`~sslbook.losses.batch.supervised_contrastive` of the labels in the outputs: each image must have one.

    (Its authors train with a temperature of 0.1 or 0.07; the default is info_nce's, which it is when no two labels are alike.)
    """
    temperature = require_temperature(temperature, torch.float32)
    return partial(_of_classes, temperature=temperature)


def clip(temperature: float = 0.07) -> Objective:
    """`~sslbook.losses.batch.clip` between the two views; CLIP learns ``temperature`` from this value on, which stays here."""
    temperature = require_temperature(temperature, torch.float32)
    return partial(_of_batch, loss="clip", temperature=temperature)


def sigmoid_pairs(scale: float = 10.0, bias: float = -10.0) -> Objective:
    """`~sslbook.losses.batch.sigmoid_pairs` between the two views; SigLIP learns both numbers from these on, which stay here."""
    scale = require_number("scale", scale)
    bias = require_number("bias", bias)
    return partial(_of_batch, loss="sigmoid_pairs", scale=scale, bias=bias)


def spectral_contrastive(mu: float = 1.0) -> Objective:
    r"""`~sslbook.losses.batch.spectral_contrastive` of embeddings of norm :math:`\sqrt\mu`, as its authors train with it.

    (The released code leaves embeddings inside of that sphere as they are.)
    """
    mu = require_number("mu", mu, above=0)
    return partial(_of_batch, loss="spectral_contrastive", norm=math.sqrt(mu))


def barlow_twins(weight: float = 5e-3) -> Objective:
    """`~sslbook.losses.batch.barlow_twins`; ``weight`` is that of the correlations between different coordinates."""
    weight = require_number("weight", weight, least=0)
    return partial(_of_batch, loss="barlow_twins", weight=weight)


def vicreg(variance: float = 25.0, invariance: float = 25.0, covariance: float = 1.0) -> Objective:
    """`~sslbook.losses.batch.vicreg`, with the weights of its three terms."""
    weights = {"variance": variance, "invariance": invariance, "covariance": covariance}
    weights = {name: require_number(name, weight, least=0) for name, weight in weights.items()}
    return partial(_of_batch, loss="vicreg", **weights)


_MADE: tuple[Callable[..., Objective], ...] = (
    *(info_nce, exact, beta, simple, soft_triplet, quadratic, byol, decoupled, supervised_contrastive),
    *(clip, sigmoid_pairs, spectral_contrastive, barlow_twins, vicreg),
)
OBJECTIVES = {made.__name__: made for made in _MADE} | {"triplet": soft_triplet}  # the word that recorded runs have
"""What makes an objective of its arguments, by name."""


def arguments(name: object) -> dict[str, Any]:
    """What the objective of that name takes, with its defaults; nothing where there is none."""
    made = OBJECTIVES.get(name) if isinstance(name, str) else None
    return {} if made is None else {n: p.default for n, p in inspect.signature(made).parameters.items()}


ARGUMENTS = frozenset(argument for name in OBJECTIVES for argument in arguments(name))
"""What any objective takes."""


def objective(name: str, **settings: Any) -> Objective:
    """The objective of that name; raises ValueError for a name or a setting that there is not, with the nearest ones."""
    require_one_of("objective", name, OBJECTIVES)
    allowed = arguments(name)
    for setting in settings:
        if setting not in allowed:
            near = [] if setting in ARGUMENTS else nearest(setting, allowed)
            hint = f"; did you mean {near[0]!r}?" if near else f": it has no {setting}"
            raise ValueError(f"{name} takes {', '.join(allowed) or 'no settings'}; got {setting!r}{hint}")
    return OBJECTIVES[name](**settings)


def weighed_by(name: str, **settings: Any) -> str:
    """What that objective takes its weights from: a name of :data:`WEIGHTS`."""
    return str(settings.get("weights", WEIGHTS[0])) if name == "exact" else WEIGHTS[0]


def asks_labels(name: str) -> bool:
    """Whether that objective sees the images' classes, which the others must not."""
    return name == "supervised_contrastive"


# --- the functions ---------------------------------------------------------------------------------------------------


def _outside_autocast(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``value`` of embeddings in float32 at least, its products too, wherever it is called."""

    @functools.wraps(value)
    def whole(outputs: Outputs, **numbers: Any) -> Tensor:
        half = {
            name: part.float()
            for name, part in outputs._asdict().items()
            if part is not None and part.is_floating_point() and part.itemsize < 4
        }
        return value(outputs._replace(**half), **numbers)

    return anywhere(whole)


def _whole_batch(*parts: Tensor) -> tuple[Tensor, ...]:
    """All processes' rows of each, in one exchange."""
    if world() == 1:
        return parts
    together = gather(torch.cat(parts, dim=1))
    return tuple(torch.split(together, [part.shape[1] for part in parts], dim=1))


@_outside_autocast
def _contrast(outputs: Outputs, *, loss: str, **numbers: Any) -> Tensor:
    z1, z2 = _whole_batch(outputs.z1, outputs.z2)
    return pairs.contrastive(z1, z2, loss, **numbers)


@_outside_autocast
def _exact(outputs: Outputs, *, temperature: float, beta: float, weights: str, mean: bool) -> Tensor:
    beside = [] if weights == "augmented" else [w.detach() for w in (outputs.w1, outputs.w2) if w is not None]
    if weights != "augmented" and len(beside) < 2:
        raise ValueError(f"w1 and w2 must be the embeddings that exact's {weights} weights are taken from, got None")
    z1, z2, *others = _whole_batch(outputs.z1, outputs.z2, *beside)
    r_pos, r_neg = pairs.pair_distances(z1, z2, normalize=True)
    r_seen = pairs.pair_distances(*others, normalize=True).neg if others else r_neg.detach()
    loss = pairs.exact(r_pos, r_neg, r_seen, temperature)
    if beta:
        loss = loss + beta * pairs.pair_weight(r_seen, temperature=temperature).sum(-1) * r_pos
    return loss.mean() / (r_neg.shape[-1] if mean else 1)


@_outside_autocast
def _beta(outputs: Outputs, *, temperature: float, beta: float, released: bool) -> Tensor:
    z1, z2 = _whole_batch(outputs.z1, outputs.z2)
    r_pos, r_neg = pairs.pair_distances(z1, z2, normalize=True)
    nce = pairs.info_nce(r_pos, r_neg, temperature).mean()
    if released:
        return (nce + beta * (r_pos.mean() - 1) / temperature) / (1 + beta)
    return nce + beta * r_pos.mean()


@_outside_autocast
def _byol(outputs: Outputs, *, stop_gradient: bool) -> Tensor:
    t1, t2 = (outputs.t1.detach(), outputs.t2.detach()) if stop_gradient else (outputs.t1, outputs.t2)
    p1, p2, t1, t2 = _whole_batch(outputs.p1, outputs.p2, t1, t2)
    # F.cosine_similarity squares, and has a floor
    p1, p2, t1, t2 = (part / pairs.octave(part) for part in (p1, p2, t1, t2))
    return -2 * (F.cosine_similarity(p1, t2) + F.cosine_similarity(p2, t1)).mean()


@_outside_autocast
def _of_batch(outputs: Outputs, *, loss: str, norm: float | None = None, **numbers: Any) -> Tensor:
    z = torch.stack(_whole_batch(outputs.z1, outputs.z2), dim=1)
    if norm is not None:
        z = norm * pairs.unit(z)
    return BATCH_LOSSES[loss].value(z, **numbers)


@_outside_autocast
def _of_classes(outputs: Outputs, *, temperature: float) -> Tensor:
    if outputs.labels is None:
        raise ValueError("labels must be the images' classes, which supervised_contrastive asks for, got None")
    z = torch.stack(_whole_batch(outputs.z1, outputs.z2), dim=1)
    return BATCH_LOSSES["supervised_contrastive"].value(z, gather(outputs.labels), temperature=temperature)
