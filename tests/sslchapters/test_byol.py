"""Small BYOL in many replicas against PyTorch's own modules, and what is measured of it."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

from sslchapters.byol import runs

SMALL = runs.Recipe(shape=runs.Shape(channels=(3, 5), width=7, output=4), epochs=2, batch=16)
f64 = torch.float64


def tiny() -> runs.Split:
    """48 digits to train on."""
    return runs.digits(test=1797 - 48)


def reference(w: dict[str, Tensor], x: Tensor, norm: runs.Norm) -> tuple[Tensor, Tensor]:
    """One replica's projected and predicted outputs, as anyone would write them with PyTorch's functions."""

    def weight(name: str) -> Tensor:
        """In some ablations each output's weights without their mean, over their deviation and the root of their number."""
        held = w[name]
        if norm not in runs.STANDARDIZED or name in ("projector1.weight", "predictor1.weight"):
            return held
        axes = tuple(range(1, held.ndim))
        spread = held.var(axes, unbiased=False, keepdim=True) + 1e-5
        return (held - held.mean(axes, keepdim=True)) / (held[0].numel() * spread).sqrt()

    def middle(x: Tensor) -> Tensor:
        if norm in runs.BARE:
            return x
        if norm in runs.GROUPED:
            return F.group_norm(x, 1)
        return F.batch_norm(x, None, None, training=True) if x.ndim == 4 else (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()

    def dense(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weight(f"{name}.weight"), w[f"{name}.bias"])

    for name in ("conv0", "conv1"):
        x = middle(F.conv2d(x, weight(name), stride=2, padding=1)).relu()
    z = dense("projector1", middle(dense("projector0", x.mean((2, 3)))).relu())
    if "predictor0.weight" in w:
        return z, dense("predictor1", middle(dense("predictor0", z)).relu())
    return z, dense("predictor1", middle(z)) if "predictor1.weight" in w else z


@pytest.mark.parametrize(
    ("predictor", "ema", "norm"),
    [
        (0, 0.0, runs.Norm()),
        (1, 0.8, runs.SAMPLE),
        (2, 0.8, runs.Norm()),
        (2, 0.0, runs.PLAIN),
        (2, 0.8, runs.GROUPS),
        (1, 0.0, runs.WEIGHTS),
    ],
)
def test_three_steps_equal_a_plain_implementation(predictor: int, ema: float, norm: runs.Norm) -> None:
    """SGD of torch.optim, functions of torch.nn, one replica at a time, views as separate batches."""
    seeds, cells, shape = [3, 4], 2, SMALL.shape
    cell = runs.Ablation(predictor, ema, norm, norm)
    online = {k: w.requires_grad_() for k, w in runs.initial_weights(shape, seeds, cells, predictor, f64).items()}
    target = {k: w.detach().clone() for k, w in online.items()} if ema else None
    replicas = [{k: w[r].detach().clone().requires_grad_() for k, w in online.items()} for r in range(4)]
    teachers = copy.deepcopy(replicas)
    optimizers = [torch.optim.SGD([*net.values()], lr=0.1, momentum=0.9, weight_decay=4e-4) for net in replicas]
    velocity = [torch.zeros_like(w) for w in online.values()]
    keep = torch.full((4,), ema, dtype=f64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        views = torch.rand(12, 2, 1, 8, 8, generator=generator, dtype=f64)
        runs._step(SMALL, runs.State(cell.kind, online, target, 2), keep, velocity, views)
        for r, (net, teacher, optimizer) in enumerate(zip(replicas, teachers, optimizers, strict=True)):
            first, second = views[:6, r // cells], views[6:, r // cells]
            with torch.no_grad():
                goal = [reference(teacher if ema else net, x, norm)[0] for x in (first, second)]
            guess = [reference(net, x, norm)[1] for x in (first, second)]
            cosines = F.cosine_similarity(guess[0], goal[1]) + F.cosine_similarity(guess[1], goal[0])
            optimizer.zero_grad()
            (-2 * cosines).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for name, old in teacher.items():
                    old.mul_(ema).add_((1 - ema) * net[name])
    for r, net in enumerate(replicas):
        torch.testing.assert_close({k: w[r] for k, w in online.items()}, net, rtol=1e-9, atol=1e-11)


def test_a_replica_is_what_it_is_alone() -> None:
    cells = {
        "a": runs.Ablation(2, 0.9),
        "b": runs.Ablation(2, 0.5, span=(0.0, 0.1)),
        "c": runs.Ablation(2, 0.9, reset=1),
    }
    cells["d"] = replace(cells["c"], span=(-0.02, 0.02))
    together = runs.train_ablations(SMALL, cells, [5, 7], tiny(), at=(0, 2), dtype=f64)
    for name, cell in cells.items():
        alone = runs.train_ablations(SMALL, {name: cell}, [7], tiny(), at=(0, 2), dtype=f64)
        for m in runs.MEASURES:
            torch.testing.assert_close(together[name][m][:, 1:], alone[name][m], rtol=1e-9, atol=1e-12)


def test_the_probes_penalty_is_a_ridge() -> None:
    """With hardly more images than features, so that another penalty, of 24e-3 for 24 images, decides otherwise."""
    from sklearn.linear_model import Ridge

    generator, labels, truth = torch.Generator().manual_seed(2), torch.arange(24) % 3, torch.arange(2000) % 3
    train = torch.randn(2, 24, 20, generator=generator, dtype=f64)
    test = torch.randn(2, 2000, 20, generator=generator, dtype=f64) + 0.3 * F.one_hot(truth, 20)
    for x, y, accuracy in zip(train, test, runs.linear_probe(train, labels, test, truth), strict=True):
        scaled, asked = ((part - x.mean(0)) / x.std(0) for part in (x, y))
        theirs = Ridge(alpha=24e-3).fit(scaled.numpy(), F.one_hot(labels).double().numpy())
        right = torch.from_numpy(theirs.predict(asked.numpy())).argmax(1) == truth
        assert accuracy.item() == pytest.approx(right.double().mean().item(), abs=1e-12)


def test_views_equal_scipys_affine_transform() -> None:
    image = torch.rand(1, 1, 9, 9, dtype=f64, generator=torch.Generator().manual_seed(1))
    kind = runs.Augmentation(shift=0.2, zoom=0.3, rotation=0.5, gain=0.0)
    u = torch.rand(1, runs.NUMBERS, dtype=f64, generator=torch.Generator().manual_seed(2))
    v = (2 * u - 1)[0].numpy()
    angle, size = 0.5 * v[0], 1 + 0.3 * v[1]
    # ours by (x, y) in units of half a side; SciPy's by (row, column) in pixels, about the centre
    matrix = size * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    moved = 0.2 * 9 * np.array([v[3], v[2]])
    offset = np.array([4.0, 4.0]) + moved - matrix @ np.array([4.0, 4.0])
    padded = np.pad(image[0, 0].numpy(), 8)  # zeros outside, and interpolation towards them
    theirs = ndimage.affine_transform(padded, matrix, offset + 8 - matrix @ [8, 8], order=1)[8:-8, 8:-8]
    torch.testing.assert_close(runs.augment(image, u, kind)[0, 0], torch.from_numpy(theirs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("head", "ema"), [(runs.NONE, False), (runs.Norm(), True)])
def test_the_definite_share_is_that_of_the_jacobian(
    head: runs.Norm, ema: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K by autograd, in the projector's last layer; sigma held at its value, as Theorem 8's J has it."""
    monkeypatch.setattr(runs, "DIRECTIONS", 7)
    online, other = (runs.initial_weights(SMALL.shape, seeds, 1, 1, f64) for seeds in ((3, 4), (5, 6)))
    now = runs.State(runs.Ablation(1, 0.5 * ema, runs.NONE, head), online, other if ema else None, 2)
    g = torch.Generator().manual_seed(1)
    clean = torch.randn(12, 1, 8, 8, generator=g, dtype=f64).repeat_interleave(runs.VIEWS, 0)
    x = clean + 0.3 * torch.randn(clean.shape, generator=g, dtype=f64)
    found = runs.definite(now, x)
    jacobian = torch.func.vmap(torch.func.jacrev(torch.mv), (None, 0))  # of w x in w at each input x
    for r in range(2):
        halves = []
        for net in (now.online, now.target or now.online):
            own = {name: w[r : r + 1] for name, w in net.items()}
            z = runs.linear(own, "projector0", runs.encode(own, x[:, None], runs.NONE, views=1)).relu()[0]
            k = jacobian(own["projector1.weight"][0], z).flatten(2)
            if net is now.online and not halves:
                scale = ((z @ own["projector1.weight"][0].mT).var(0) + 1e-5).rsqrt() if head != runs.NONE else 1
                k = (own["predictor1.weight"][0] * scale) @ k
            means = [half.mean(1) for half in k.unflatten(0, (-1, runs.VIEWS)).chunk(2, 1)]
            halves.append([half - half.mean(0) for half in means])
        (a, b), (c, d) = halves
        matrix = (torch.einsum("nop,noq->pq", a, d) + torch.einsum("nop,noq->pq", b, c)) / 24
        values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
        share = values.clamp(min=0).sum() / values.abs().sum()
        assert float(found[r]) == pytest.approx(float(share), rel=1e-8)


def test_larger_initial_weights_are_three_times_those_of_he_below_relus() -> None:
    def norms(now: runs.State, data: runs.Split) -> dict[str, Tensor]:
        return {name: w.flatten(1).norm(dim=1) for name, w in now.online.items()}

    cells = {norm.std: runs.Ablation(2, 0.0, norm, norm) for norm in (runs.NONE, runs.PLAIN, runs.LARGE)}
    default, he, large = runs.train_ablations(SMALL, cells, [3], tiny(), at=(0,), measure=norms, dtype=f64).values()
    for name in default:
        below = name.startswith("conv") or name.endswith("0.weight")
        for found, times in ((he, 6**0.5), (large, 3 * 6**0.5)):
            torch.testing.assert_close(found[name], default[name] * (times if below else 1))
