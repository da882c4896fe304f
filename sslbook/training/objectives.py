r"""What a network is trained to minimise: functions of :class:`~sslbook.networks.siamese.Outputs`, to a scalar.

The losses themselves are those of :mod:`sslbook.losses.pairs` and :mod:`sslbook.losses.batch`; embeddings are divided
by their norms, so that a pair's distance is :math:`r = \|a - b\|^2/2 = 1 - \cos`, except for barlow_twins and vicreg.  Where
processes share a batch, they gather it first (:mod:`sslbook.training.run.step`), so that each objective is that of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere
from sslbook._check import require_number, require_one_of
from sslbook.losses import batch, pairs
from sslbook.networks.siamese import Outputs

Objective = Callable[[Outputs], Tensor]
"""Outputs ``(N, D)`` to a scalar."""


def of_views(outputs: Outputs, *, name: str, **settings: Any) -> Tensor:
    r"""A loss of the two views' embeddings alone, by its name in :data:`OF_VIEWS`.

    Of pairs of distances, averaged over the anchors of both views, with the formulas of :mod:`sslbook.losses.pairs`: info_nce is
    SimCLR's NT-Xent; quadratic has the negatives of the anchor's own view alone (Eq. 3 of [tian2023], :math:`\alpha = 1`).

    Of the batch, with the formulas of :mod:`sslbook.losses.batch`: supervised_contrastive asks for ``labels`` in the outputs (its
    authors train at a temperature of 0.1 or 0.07).  spectral_contrastive sees embeddings of norm :math:`\sqrt\mu`; the released
    code leaves those inside of that sphere as they are.  What CLIP and SigLIP learn stays at the settings' values.
    """
    if name in ("info_nce", "simple", "soft_triplet", "quadratic"):
        negatives = "same_view" if name == "quadratic" else "both_views"
        return pairs.contrastive(outputs.z1, outputs.z2, name, negatives=negatives, **settings)
    views = torch.stack(outputs[:2], dim=1)
    if name == "spectral_contrastive":
        return batch.spectral_contrastive(math.sqrt(settings["mu"]) * pairs.unit(views))
    if name == "supervised_contrastive":
        assert outputs.labels is not None
        return batch.supervised_contrastive(views, outputs.labels, **settings)
    loss: Callable[..., Tensor] = getattr(batch, name)
    return loss(views, **settings)


def exact(outputs: Outputs, *, temperature: float, beta: float, weights: str, over: str) -> Tensor:
    r""":math:`\sum_k \mathrm{sg}(\xi(r_k)) ((1 + \beta) r_+ - r_{k-})`, :math:`\xi(r) = \sigma(-r/\tau)/\tau`: Eq. 7 of [tian2020].

    weights: distances :math:`r_k` of the "augmented" images, as released for the paper's table; of the "clean" ones, as
    printed; or of two "further" views, drawn independently of the two.  The last two need ``w1`` and ``w2`` in the
    outputs.  over: "mean" divides by the number of negatives, as released; "sum", as printed, does not.
    """
    r_pos, r_neg = pairs.pair_distances(outputs.z1, outputs.z2, normalize=True)
    r_seen = r_neg.detach()
    if weights != "augmented":
        assert outputs.w1 is not None
        assert outputs.w2 is not None
        r_seen = pairs.pair_distances(outputs.w1, outputs.w2, normalize=True).neg.detach()
    loss = pairs.exact(r_pos, r_neg, r_seen, temperature)
    if beta:
        loss = loss + beta * pairs.pair_weight(r_seen, temperature=temperature).sum(-1) * r_pos
    return loss.mean() / (r_neg.shape[-1] if over == "mean" else 1)


def beta(outputs: Outputs, *, temperature: float, beta: float, form: str) -> Tensor:
    r"""info_nce whose partial derivatives by the distances do not add up to zero (Section 4.2 and Table 3 of [tian2020]).

    "released", the loss of the table: :math:`(L_\text{nce} + \beta (r_+ - 1)/\tau)/(1 + \beta)`, for :math:`\beta > -1`.  Its
    partials add up to :math:`\beta/(\tau(1 + \beta))`.  "printed": :math:`L_\text{nce} + \beta r_+`, whose partials add up to
    :math:`\beta`, as the paper's condition says.
    """
    r_pos, r_neg = pairs.pair_distances(outputs.z1, outputs.z2, normalize=True)
    nce = pairs.info_nce(r_pos, r_neg, temperature).mean()
    if form == "released":
        return (nce + beta * (r_pos.mean() - 1) / temperature) / (1 + beta)
    return nce + beta * r_pos.mean()


def byol(outputs: Outputs, *, stop_gradient: bool) -> Tensor:
    r""":math:`-\frac2N\sum_i (\cos(p_{1i}, t_{2i}) + \cos(p_{2i}, t_{1i}))`, in [-4, 4], as in the released code.

    stop_gradient: the targets are constants.  No gradient reaches a target tower in either case.  With a predictor and no target
    tower it is 4 times the loss of SimSiam [chen2021].  An output that is 0, as behind a new predictor whose units are all off, has
    no direction: its cosine is 0, and so is its gradient, which would be 1e8 times that of the others.
    """
    ends = (outputs.p1, outputs.p2, outputs.t1, outputs.t2)
    p1, p2, t1, t2 = (z / torch.where((z != 0).any(-1, keepdim=True), 1.0, math.inf) for z in ends)
    if stop_gradient:
        t1, t2 = t1.detach(), t2.detach()
    return -2 * (F.cosine_similarity(p1, t2) + F.cosine_similarity(p2, t1)).mean()


OF_VIEWS: dict[str, dict[str, float]] = {
    "info_nce": {"temperature": 0.5},
    "simple": {"beta": 0.0},
    "soft_triplet": {"temperature": 0.5, "margin": 0.0},
    "quadratic": {},
    "supervised_contrastive": {"temperature": 0.5},
    "spectral_contrastive": {"mu": 1.0},
    "decoupled": {"temperature": 0.5},
    "clip": {"temperature": 0.07},
    "sigmoid_pairs": {"scale": 10.0, "bias": -10.0},
    "barlow_twins": {"weight": 5e-3},
    "vicreg": {"variance": 25.0, "invariance": 25.0, "covariance": 1.0},
}
"""The names of :func:`of_views`, with the settings of each and their defaults."""
TAKES: dict[str, dict[str, Any]] = {
    **OF_VIEWS,
    "exact": {"temperature": 0.5, "beta": 0.0, "weights": "augmented", "over": "mean"},
    "beta": {"temperature": 0.5, "beta": 0.0, "form": "released"},
    "byol": {"stop_gradient": True},
}
"""The settings of every objective, with their defaults."""
ARGUMENTS = frozenset(chain.from_iterable(TAKES.values()))
"""What any objective takes."""
OBJECTIVES: dict[str, Callable[..., Tensor]] = {name: partial(of_views, name=name) for name in OF_VIEWS}
OBJECTIVES |= {"exact": exact, "beta": beta, "byol": byol}
"""By name: functions of outputs, and of the settings that they take by keyword."""
CHOICES = {"weights": ("augmented", "clean", "further"), "over": ("mean", "sum"), "form": ("released", "printed")}


def checked(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """An objective's settings, as they were given, numbers as floats.

    Raises ValueError for a setting that there is not, and ValueError or TypeError for a value that is not allowed.
    """
    allowed, found = TAKES[name], dict[str, Any](settings)
    for setting, value in settings.items():
        if setting not in allowed:
            raise ValueError(f"{name} takes {', '.join(allowed) or 'no settings'}, got {setting!r}")
        if isinstance(allowed[setting], float):
            bounds = {"above": 0} if setting in ("temperature", "mu") else {}
            found[setting] = float(require_number(setting, value, **bounds))
        elif isinstance(allowed[setting], str):
            require_one_of(setting, value, CHOICES[setting])
        elif not isinstance(value, bool):
            raise TypeError(f"{setting} must be true or false, got {value!r}")
    if name == "beta" and {**allowed, **found}["form"] == "released" and found.get("beta", 0.0) <= -1:
        raise ValueError(f"beta must be above -1, since the released loss divides by 1 + beta, got {found['beta']}")
    return found


def objective(name: str, **settings: Any) -> Objective:
    """The objective of that name as a function of outputs alone; raises what :func:`checked` raises.

    It is computed in float32 or float64, also under autocast: products in bfloat16 would move the gradient of info_nce by up to
    1e-3 of it.

    >>> ends = [torch.eye(3), torch.eye(3).roll(1, 0)]
    >>> float(objective("byol")(Outputs(*ends, *ends, *ends[::-1])))  # predictions that are the other view's targets
    -4.0
    """
    loss, given = OBJECTIVES[name], {**TAKES[name], **checked(name, settings)}

    def value(outputs: Outputs) -> Tensor:
        parts = [x.float() if x is not None and x.is_floating_point() and x.itemsize < 4 else x for x in outputs]
        return loss(Outputs._make(parts), **given)

    return anywhere(value)


def least(name: str, batch: int, **settings: Any) -> float | None:
    r"""The value that the objective can't fall below, in batches of so many images; None where no closed form is known.

    byol: -4, that of predictions along their targets, which a collapse reaches too.  barlow_twins, vicreg: 0.  info_nce: that of a
    regular simplex, where views of one image have the cosine 1 and all others :math:`-1/(N - 1)`, which takes N - 1 outputs:
    :math:`\log(1 + 2(N - 1) e^{-N/((N - 1)\tau)})`, by Jensen's inequality and :math:`\|\sum_i u_i\|^2 \ge 0`.

    >>> least("byol", 64), round(least("info_nce", 64), 3)
    (-4.0, 2.863)
    """
    if name == "info_nce":
        temperature = settings.get("temperature", OF_VIEWS[name]["temperature"])
        return math.log1p(2 * (batch - 1) * math.exp(-batch / ((batch - 1) * temperature)))
    return {"byol": -4.0, "barlow_twins": 0.0, "vicreg": 0.0}.get(name)


def sees(name: str, **settings: Any) -> str:
    """What the objective sees besides the two views' embeddings.

    "labels": the images' classes, which every other objective must not see.  "clean": embeddings of the un-augmented images, or
    "further": of two more views of each, from which "exact" takes the weights of its pairs.  Otherwise "", nothing.

    >>> sees("exact", weights="clean"), sees("info_nce")
    ('clean', '')
    """
    if name == "supervised_contrastive":
        return "labels"
    weights = settings.get("weights", "augmented") if name == "exact" else "augmented"
    return "" if weights == "augmented" else str(weights)
