"""Objectives on random embeddings: against the formulas of the papers and of the released code, written out with plain sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.losses.batch import LOSSES
from sslbook.networks.siamese import Outputs
from sslbook.training.objectives import OBJECTIVES, objective

N, D = 9, 6
LABELS = torch.arange(N) % 4


def embeddings(seed: int = 0) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(8, N, D, generator=generator, dtype=torch.float64)
    drawn[1] = drawn[0] + 0.7 * drawn[1]  # two views of an image are alike
    return Outputs(*(part.requires_grad_() for part in drawn), labels=LABELS)


def cosines(out: Outputs) -> tuple[Tensor, Tensor]:
    """Of 2N embeddings: their positive partner's, and the (2N, 2N) matrix, as the released code has them."""
    z = torch.cat([out.z1, out.z2])
    matrix = F.cosine_similarity(z[:, None], z[None], dim=2)
    return torch.cat([matrix.diagonal(N), matrix.diagonal(-N)]), matrix


def others(matrix: Tensor) -> Tensor:
    """Entries of neither the diagonal nor the partners: (2N, 2N - 2)."""
    keep = ~torch.eye(N, dtype=torch.bool).repeat(2, 2)
    return matrix[keep].view(2 * N, 2 * N - 2)


def nt_xent(out: Outputs, tau: float) -> Tensor:
    positive, matrix = cosines(out)
    logits = torch.cat([positive[:, None], others(matrix)], 1) / tau
    return F.cross_entropy(logits, torch.zeros(2 * N, dtype=torch.int64))


def released_beta(out: Outputs, tau: float, beta: float) -> Tensor:
    return (nt_xent(out, tau) - beta * cosines(out)[0].mean() / tau) / (1 + beta)


def released_exact(out: Outputs, tau: float, beta: float = 0.0) -> Tensor:
    positive, matrix = cosines(out)
    r_pos, r_neg = 1 - positive, 1 - others(matrix)
    w = (-r_neg.detach() / tau).exp()
    w = w / (1 + w) / tau / (2 * N - 2)
    return (w.sum(1) * r_pos - (w * r_neg).sum(1)).mean() + beta * (w.sum(1) * r_pos).mean()


def printed_exact(out: Outputs, tau: float) -> Tensor:
    """Eq. 7, by loops over anchors and negatives; its images may be two further views."""
    z, clean = (F.normalize(torch.cat(pair), dim=1) for pair in ((out.z1, out.z2), (out.w1.detach(), out.w2.detach())))
    terms = []
    for i in range(2 * N):
        r_pos = 0.5 * (z[i] - z[(i + N) % (2 * N)]).square().sum()
        for k in range(2 * N):
            if k % N != i % N:
                r_clean = 0.5 * (clean[i] - clean[k]).square().sum()
                xi = 1 / (tau * (1 + (r_clean / tau).exp()))
                terms.append(xi * (r_pos - 0.5 * (z[i] - z[k]).square().sum()))
    return torch.stack(terms).sum() / (2 * N)


def by_hand_byol(out: Outputs) -> Tensor:
    p1, p2, t1, t2 = (F.normalize(part, dim=1) for part in (out.p1, out.p2, out.t1, out.t2))
    return (-2 * (p1 * t2).sum(1) - 2 * (p2 * t1).sum(1)).mean()


def by_hand_quadratic(out: Outputs) -> Tensor:
    z1, z2 = F.normalize(out.z1, dim=1), F.normalize(out.z2, dim=1)
    own = 0.5 * (z1[:, None] - z1[None]).square().sum(2)
    return 0.5 * (z1 - z2).square().sum(1).mean() - own.sum() / N**2


def by_hand_triplet(out: Outputs, tau: float, margin: float) -> Tensor:
    positive, matrix = cosines(out)
    gap = (others(matrix) - positive[:, None] + margin) / tau
    return (tau * gap.exp().log1p()).mean()


def of_batch(name: str, **numbers: Any) -> Any:
    """The loss of a batch, which its own tests hold to its paper's formula."""
    return lambda out: LOSSES[name](torch.stack([out.z1, out.z2], 1), **numbers)


SHARP = {"temperature": 0.1}
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("info_nce", {}, lambda out: nt_xent(out, 0.5)),
    ("info_nce", {"temperature": 0.07}, lambda out: nt_xent(out, 0.07)),
    ("beta", {"beta": -0.5}, lambda out: released_beta(out, 0.5, -0.5)),
    ("beta", {"beta": 0.2, "temperature": 0.3}, lambda out: released_beta(out, 0.3, 0.2)),
    ("beta", {"beta": 0.2, "form": "printed"}, lambda out: nt_xent(out, 0.5) + 0.2 * (1 - cosines(out)[0]).mean()),
    ("exact", {}, lambda out: released_exact(out, 0.5)),
    ("exact", {"beta": 0.3, "temperature": 0.2}, lambda out: released_exact(out, 0.2, 0.3)),
    ("exact", {"weights": "clean", "over": "sum"}, lambda out: printed_exact(out, 0.5)),
    ("exact", {"weights": "further"}, lambda out: printed_exact(out, 0.5) / (2 * N - 2)),
    ("simple", {}, lambda out: (1 - cosines(out)[0]).mean() - (1 - others(cosines(out)[1])).mean()),
    ("simple", {"beta": 0.4}, lambda out: 1.4 * (1 - cosines(out)[0]).mean() - (1 - others(cosines(out)[1])).mean()),
    ("soft_triplet", {}, lambda out: by_hand_triplet(out, 0.5, 0.0)),
    ("soft_triplet", {"temperature": 0.1, "margin": 0.3}, lambda out: by_hand_triplet(out, 0.1, 0.3)),
    ("quadratic", {}, by_hand_quadratic),
    ("byol", {"stop_gradient": False}, by_hand_byol),
    ("byol", {}, lambda out: by_hand_byol(out._replace(t1=out.t1.detach(), t2=out.t2.detach()))),
    ("decoupled", {}, lambda out: (-cosines(out)[0] / 0.5 + (others(cosines(out)[1]) / 0.5).logsumexp(1)).mean()),
    ("supervised_contrastive", {}, of_batch("supervised_contrastive", labels=LABELS, temperature=0.5)),
    ("supervised_contrastive", SHARP, of_batch("supervised_contrastive", labels=LABELS, **SHARP)),
    ("clip", {}, of_batch("clip", temperature=0.07)),
    ("sigmoid_pairs", {}, of_batch("sigmoid_pairs", scale=10, bias=-10)),
    ("sigmoid_pairs", {"scale": 3.0, "bias": -1.0}, of_batch("sigmoid_pairs", scale=3, bias=-1)),
    (
        "spectral_contrastive",
        {"mu": 10.0},
        lambda out: (10 * others(cosines(out)[1])).square().mean() - 20 * cosines(out)[0].mean(),
    ),
    ("barlow_twins", {}, of_batch("barlow_twins", weight=5e-3)),
    ("vicreg", {}, of_batch("vicreg", variance=25, invariance=25, covariance=1)),
]


def gradients(value: Tensor, out: Outputs) -> Tensor:
    leaves = [part for part in out[:8] if part is not None]
    return torch.cat(torch.autograd.grad(value, leaves, materialize_grads=True, allow_unused=True))


def test_values_and_gradients_are_the_formulas() -> None:
    assert {name for name, *_ in CASES} == set(OBJECTIVES)
    for seed, (name, settings, formula) in enumerate(CASES):
        out = embeddings(seed)
        found, wanted = objective(name, **settings)(out), formula(out)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11, msg=name)
        torch.testing.assert_close(gradients(found, out), gradients(wanted, out), rtol=1e-10, atol=1e-11, msg=name)


def test_a_prediction_of_nothing_has_no_direction() -> None:
    """As behind a new predictor whose units are all off: torch's own cosine would have a gradient of 1e8 there."""
    out = embeddings()
    p1 = out.p1.detach().index_fill(0, torch.tensor(3), 0.0).requires_grad_()
    objective("byol")(out._replace(p1=p1)).backward()
    assert p1.grad[3].eq(0).all()
    assert p1.grad.abs().max() < 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_precision_around_an_objective_changes_nothing(name: str) -> None:
    """It is computed in float32 under autocast, and of embeddings in bfloat16 but for their own rounding."""
    ours, out = objective(name), embeddings()
    single, half = (
        Outputs(*(part.detach().to(kind) for part in out[:8]), labels=LABELS)
        for kind in (torch.float32, torch.bfloat16)
    )
    wanted = ours(out).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours(single), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(half), wanted, rtol=2e-2, atol=2e-2)


def test_settings_that_cannot_be_are_refused() -> None:
    for name, bad, sentence in (
        ("vicreg", {"nonsense": 1}, "vicreg takes variance, invariance, covariance, got 'nonsense'"),
        ("info_nce", {"temperature": 0}, "temperature must be above 0"),
        ("beta", {"beta": -1}, "beta must be above -1"),
        ("exact", {"weights": "dirty"}, "weights must be one of"),
        ("byol", {"stop_gradient": 1}, "stop_gradient must be true or false"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            objective(name, **bad)
