r"""What is measured of networks in the middle of their training: probes that are not at their ceiling, Theorem 8's terms.

Above the projector's last layer, of weights W, a predictor of one layer is linear: :math:`f_L = M h` with the projector's outputs
:math:`h = W z` and :math:`M = W_p`, or :math:`W_p \operatorname{diag}(1/\sigma)` below BatchNorm, sigma a constant.  There
:math:`K = z \otimes M^T`, and of Eq. 14 of [tian2021iclr]

    Cov_x[\bar K, \bar K'] = Cov[\bar z, \bar z'] (x) M^T
    w^T Cov_x[\bar K, \bar K'] w' = tr Cov[M \bar h, \bar h']      w^T V_x[\bar K] w = tr V[M \bar h]

The second line holds at every layer below, as long as what lies between is linear or ReLU: :math:`K_l^T w_l` is the output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslbook.chapters.byol import siamese
from sslbook.chapters.byol.ablation import Measure, Protocol, Split, State, features, measure
from sslbook.chapters.byol.probe import few_labels
from sslbook.chapters.byol.siamese import NONE
from sslbook.chapters.byol.views import NUMBERS, augment
from sslbook.streams import Streams

FEW = (1, 5)
"""Labels a class of the harder probes."""

IMAGES, VIEWS = 256, 4
"""What the terms are taken over: so many images, so many views of each."""

EPSILON = 1e-5
"""BatchNorm's, added to the variance."""

DIRECTIONS = 12
"""Of the covariance of the hidden units, so many axes are kept where the term's eigenvalues are listed."""


def probes(state: State, data: Split) -> dict[str, Tensor]:
    """The usual measures, and the accuracy with one and five labels a class."""
    train, test = features(state, data)
    labels, truth = (part.labels.to(train.device) for part in (data.train, data.test))
    few = {f"labels {count}": few_labels(train, labels, test, truth, count) for count in FEW}
    return measure(state, data) | few


def probes_and_terms(protocol: Protocol) -> Measure:
    """The same, and for predictors of one layer `terms` over views of this protocol."""

    def both(state: State, data: Split) -> dict[str, Tensor]:
        pixels = data.train.pixels[:IMAGES]
        u = Streams([0], "byol terms").uniform((len(pixels) * VIEWS, NUMBERS))[0]
        views = augment(pixels.to(torch.float32).repeat_interleave(VIEWS, 0), u, protocol.augmentation)
        return probes(state, data) | terms(state, views)

    return both


def terms(state: State, views: Tensor) -> dict[str, Tensor]:
    r"""Theorem 8's terms along the weights, ``(R,)`` each, and how definite the covariance term is.

    views: ``(N * VIEWS, C, H, W)``, image by image.  pull: :math:`w^T Cov[\bar K, \bar K'] w'`; against:
    :math:`w^T V_x[\bar K] w`; within: :math:`w^T E_x V_{x'}[K] w`; spread: the variance of the target's outputs between images.
    definite: the positive eigenvalues' share of all eigenvalues' sizes, of the symmetric part of the term's matrix, restricted to
    the `DIRECTIONS` in which the hidden units vary most; held: their share of that variance.  A product of two means over views
    takes them over different views, so that it has no part of what varies within an image.
    """
    if state.kind.predictor != 1:
        raise ValueError(f"kind: terms are those of a predictor of one layer, got {state.kind.predictor}")
    z, h = _hidden(state, state.online, views)
    z_target, h_target = (z, h) if state.target is None else _hidden(state, state.target, views)
    top = state.online["predictor1.weight"].double()
    if state.kind.head != NONE:
        top = top * (h.flatten(1, 2).var(1) + EPSILON).rsqrt()[:, None]
    out = h @ top.mT[:, None]
    (a, b), (goal_a, goal_b) = _halves(out), _halves(h_target)
    (left, right), (left_target, right_target) = _halves(z), _halves(z_target)
    images = h.shape[1]
    covariance = (left.mT @ right_target + right.mT @ left_target) / (2 * images)
    definite, held = _definite(covariance, top)
    return {
        "pull": (a * goal_b + b * goal_a).sum((1, 2)) / (2 * images),
        "against": (a * b).sum((1, 2)) / images,
        "within": (out - out.mean(2, keepdim=True)).square().sum((1, 2, 3)) / (images * (VIEWS - 1)),
        "spread": (goal_a * goal_b).sum((1, 2)) / images,
        "definite": definite,
        "held": held,
    }


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Means over the first and over the other half of the views, centred, ``(R, N, n)`` each: independent given the image."""
    first, second = (part.mean(2) for part in x.chunk(2, 2))
    return first - first.mean(1, keepdim=True), second - second.mean(1, keepdim=True)


def _hidden(state: State, weights: siamese.Parameters, views: Tensor) -> tuple[Tensor, Tensor]:
    """The projector's hidden units and its outputs, ``(R, N, VIEWS, n)`` in float64, all views normalised together."""
    like = weights["conv0"]
    seen = siamese.encode(weights, views.to(like)[:, None].expand(-1, state.seeds, -1, -1, -1), views=1)
    z = siamese.normalize(siamese.linear(weights, "projector0", seen), state.kind.projector, views=1).relu()
    h = siamese.linear(weights, "projector1", z)
    split = [x.double().unflatten(1, (-1, VIEWS)) for x in (z, h)]
    return split[0], split[1]


def _definite(covariance: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    sizes, axes = torch.linalg.eigh((covariance + covariance.mT) / 2)
    kept = axes[..., -DIRECTIONS:]
    small = kept.mT @ covariance @ kept
    whole = torch.stack([torch.kron(a, b.mT.contiguous()) for a, b in zip(small, top, strict=True)])
    values = torch.linalg.eigvalsh((whole + whole.mT) / 2)
    held = sizes[:, -DIRECTIONS:].abs().sum(1) / sizes.abs().sum(1)
    return values.clamp(min=0).sum(1) / values.abs().sum(1).clamp(min=1e-300), held
