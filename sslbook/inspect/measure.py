"""A network's layers, each beside its controls."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sslbook
from sslbook.images.datasets import Dataset
from sslbook.images.own import read_images
from sslbook.inspect.report import LayerReport, Report, Share
from sslbook.inspect.spectrum import BETWEEN, KINDS, NOISE, RANDOM, UNTRAINED, WITHIN, Seen, look, pushed, sizes
from sslbook.losses.pairs import contrastive, octave
from sslbook.networks.batchnorm import BatchNorm
from sslbook.operator.frozen import OTHERS, has_half, sentences
from sslbook.operator.inner_products import one_number, own_loss
from sslbook.operator.layer import Layer, find_layer, open_layer, unvec, vec
from sslbook.runtime.arguments import require_one_of, require_whole
from sslbook.runtime.compute import device_name
from sslbook.stats.checks import relative_gap
from sslbook.training.augment import Pipeline, random_view
from sslbook.training.pretrain import simclr_views

Loss = str | Callable[[Tensor], Tensor]
"""A name of :data:`LOSSES`, or a function of the embeddings ``(N, V, n_L)`` to a number."""
PROBES, TARGETS, DRAWS, REDRAWN = 8, 8, 64, 200
"""Random signs for a trace; steps towards random targets; random directions; populations redrawn for an interval."""


def simple(z: Tensor) -> Tensor:
    r"""The papers' simple loss :math:`E r_+ - E r_-`, :math:`r = \|a - b\|^2 / 2`, over all pairs of different views."""
    count, views = z.shape[:2]
    mean = z.mean(1, keepdim=True)
    within = (z - mean).square().sum() / (count * views)
    between = (mean - mean.mean(0)).square().sum() / count
    return within / (views - 1) - count / (count - 1) * between


def info_nce(z: Tensor) -> Tensor:
    """SimCLR's NT-Xent at temperature 0.5, over pairs of views: the first and the second, the third and the fourth, …"""
    pairs = z[:, : len(z[0]) // 2 * 2].movedim(1, 0)
    return contrastive(pairs[::2], pairs[1::2], temperature=0.5).mean()


LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {"simple": simple, "info_nce": info_nce}


def inspect_network(
    net: nn.Module,
    images: Any,
    *,
    layers: Sequence[str] | None = None,
    pipeline: Pipeline | None = None,
    views: int = 8,
    loss: Loss = "simple",
    k: int = 5,
    seed: int = 0,
    untrained: nn.Module | None = None,
    device: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Report:
    r"""Measure the share of each layer's weights, and of a step, in the leading modes of its covariance operator.

    The operator is :math:`\mathbb V_x[\bar K_l(x)]` (Theorem 3 of [tian2020]).  It is corrected for the covariance
    within views that remains if there are few views (:mod:`sslbook.inspect.spectrum`).  Each share has up to five
    controls.  Two use the modes of another covariance: that of all views, or that within views.  Two use another
    direction: a random one, or a step towards random targets, one for each image.  The last control is the share in an
    untrained network, in its own modes.  The intervals come from resampled images or from random draws.

    net: a network that treats its samples one by one.  A copy is measured in evaluation mode, in float32 at least.
    images: any source for :func:`~sslbook.images.own.read_images`.  views: the number for each image, at least 2.
    layers: names; by default, all linear and convolutional layers.  pipeline: the augmentation; by default, SimCLR's.
    loss: the loss of the step, which is "simple", "info_nce" or a function of the embeddings ``(N, V, n_L)``.
    untrained: the network before training.  A BatchNorm without running statistics uses those of the views.
    device: by default, that of the weights.  about: further entries of the report.  k: the number of leading modes.
    progress: a function that is called with the number of finished layers, the number of all layers, and the next layer's name.

    Raises ValueError or TypeError for unusable input.  A layer that can't be measured is listed in ``refused``, with the reason.
    """
    require_whole("views", views, least=2)
    require_whole("k", k, least=1)
    require_whole("seed", seed, least=0)
    data = read_images(images)
    if len(data) < 2:
        raise ValueError("images must hold two images or more, between which there is a covariance, got 1")
    plan = pipeline or simclr_views(data)
    names = list(_named(net, layers))
    place = torch.device(device) if device else next(net.parameters()).device
    seen = [_Scene.of(part, place, data, plan, views, loss, seed) for part in (net, untrained) if part is not None]
    begun, spent = time.perf_counter(), time.process_time()
    found: list[LayerReport] = []
    refused: dict[str, str] = {}
    filters: dict[str, Any] = {}
    for number, name in enumerate(names):
        if progress is not None:
            progress(number, len(names), name)
        try:
            layer, here = _layer(name, seen, k, seed)
        except (ValueError, TypeError, RuntimeError) as error:
            refused[name] = f"{error}".partition("\n")[0]
            continue
        found.append(layer)
        if not filters and len(layer.shape) == 4 and layer.shape[1] in (1, 3):
            filters = {"layer": name, **_filters(here, len(layer.values))}
    if progress is not None:
        progress(len(names), len(names), "")
    told = {
        "network": type(net).__name__,
        "weights": _digest(net),
        "images": len(data),
        "image source": data.name,
        "image digest": hashlib.sha256(data.pixels.contiguous().numpy().data).hexdigest()[:16],
        "views": views,
        "pipeline": asdict(plan),
        "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
        "modes": k,
        "seed": seed,
        "device": device_name(place),
        "precision": str(seen[0].views.dtype).removeprefix("torch."),
        "sslbook": sslbook.__version__,
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - begun, 1),
        "processor seconds": round(time.process_time() - spent, 1),
    }
    return Report({**told, **(about or {})}, tuple(found), refused, filters)


def layers_of(net: nn.Module) -> tuple[str, ...]:
    """The names of all linear and convolutional layers."""
    return tuple(name for name, part in net.named_modules() if isinstance(part, Layer))


def _named(net: nn.Module, layers: Sequence[str] | None) -> Iterator[str]:
    if layers is None and not layers_of(net):
        raise ValueError(f"net must have linear or convolutional layers, and this {type(net).__name__} has none")
    yield from layers_of(net) if layers is None else (find_layer(net, layer)[0] for layer in layers)


def _digest(net: nn.Module) -> str:
    """Of the network's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, part in net.state_dict().items():
        digest.update(name.encode())
        if isinstance(part, Tensor):
            digest.update(part.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Scene:
    """A network with the views that it is looked at with, ``(N, V, C, S, S)``, and the loss's step for each layer's weight."""

    net: nn.Module
    views: Tensor
    steps: dict[str, Tensor]

    @classmethod
    def of(
        cls, net: nn.Module, place: torch.device, data: Dataset, plan: Pipeline, views: int, loss: Loss, seed: int
    ) -> _Scene:
        """A copy of the network in evaluation mode, in single precision at least, on ``place``."""
        own = copy.deepcopy(net).to(place).eval().requires_grad_(True)
        if has_half(own):
            own = own.float()
        pixels = data.pixels.to(place)
        parts = [random_view(pixels, plan, seed=seed, view=view) for view in range(views)]
        drawn = torch.stack(parts, dim=1).to(next(own.parameters()).dtype)
        with _as_images(drawn):
            settle(own, drawn.flatten(0, 1))
        return cls(own, drawn, _steps(own, drawn, loss))


def _as_images(views: Tensor) -> AbstractContextManager[None]:
    return sentences(f"net can't take views of images of shape {tuple(views.shape[2:])}", OTHERS)


@torch.no_grad()
def settle(net: nn.Module, views: Tensor) -> None:
    """BatchNorm that has counted no batch takes its statistics from the views; another keeps them."""
    kinds = (nn.modules.batchnorm._BatchNorm, BatchNorm)
    norms = [part for part in net.modules() if isinstance(part, kinds)]
    fresh = [part for part in norms if part.running_mean is not None and not bool(part.running_mean.any())]
    before = [part.momentum for part in fresh]
    for part in fresh:
        part.train()
        part.momentum = 1.0
    if fresh:
        net(views)
    for part, momentum in zip(fresh, before, strict=True):
        part.eval()
        part.momentum = momentum


def _steps(net: nn.Module, views: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Minus the loss's gradient in each layer's weight, by ``backward``: none of the operator's machinery."""
    if isinstance(loss, str):
        require_one_of("loss", loss, LOSSES)
    value = LOSSES[loss] if isinstance(loss, str) else own_loss(loss)
    net.zero_grad()
    with _as_images(views):
        output = net(views.flatten(0, 1))
    if not isinstance(output, Tensor):
        raise TypeError(f"net must return one tensor, got {type(output).__name__}")
    if isinstance(
        loss, str
    ):  # whose step doesn't turn with the unit of the outputs, and float32 has no squares of 1e-30
        output = output / octave(output.flatten(), 0)
    one_number(value(output.flatten(1).unflatten(0, views.shape[:2]))).backward()
    steps = {name: dict(net.named_modules())[name].weight.grad for name in layers_of(net)}
    return {name: -step.detach() for name, step in steps.items() if isinstance(step, Tensor)}


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # convolutions of three digits would be no eigenproblem
def _layer(name: str, scenes: Sequence[_Scene], k: int, seed: int) -> tuple[LayerReport, Seen]:
    """One layer of the network, and of the untrained one where there are two."""
    scene = scenes[0]
    population = (scene.views.shape[0], scene.views.shape[1])
    opened = open_layer(scene.net, name, scene.views.flatten(0, 1))
    k = min(k, opened.size)
    here = look(opened, population, k, seed=seed)
    shares = {kind: _redrawn(here, kind, k, _directions(scene, name), seed) for kind in KINDS}
    for other in scenes[1:]:
        before = open_layer(other.net, name, other.views.flatten(0, 1))
        there = look(before, population, k, (BETWEEN,), seed)
        shares[UNTRAINED] = _redrawn(there, BETWEEN, k, _directions(other, name), seed)
    draw = torch.Generator().manual_seed(seed + 1)
    random = _spread(here.share(BETWEEN, k, torch.randn(opened.size, DRAWS, generator=draw, dtype=torch.float32)))
    noise = _spread(here.share(BETWEEN, k, _towards_targets(here, draw)))
    values = here.modes(BETWEEN, k)[0]
    weights, step = ({kind: both[part] for kind, both in shares.items()} for part in (0, 1))
    layer = LayerReport(
        name,
        type(opened.module).__name__,
        tuple(opened.weight.shape),
        tuple(values.tolist()),
        float(torch.linalg.eigvalsh(here.matrices(BETWEEN))[0]),
        opened.output.shape[1] if torch.equal(opened.preactivation.flatten(1), opened.output) else 1,
        here.residual(BETWEEN, k),
        sizes(here, PROBES, seed),
        {**weights, RANDOM: random},
        {**step, NOISE: noise, RANDOM: random},
        relative_gap(opened.jvp(opened.weight), opened.output),
    )
    return layer, here


def _directions(scene: _Scene, name: str) -> Tensor:
    """The layer's weights and its step, ``(size, 2)``; raises ValueError for a step that is zero."""
    step = scene.steps.get(name)
    if step is None or not bool(step.any()):
        raise ValueError(f"the loss's step leaves layer {name!r} where it is")
    weight = dict(scene.net.named_modules())[name].weight.detach()
    return torch.stack([vec(weight), vec(step)], dim=1).cpu().double()


def _redrawn(seen: Seen, kind: str, k: int, directions: Tensor, seed: int) -> list[Share]:
    """Each direction's share in the leading modes, and where it lies when the images are drawn anew, with replacement.

    The directions stay as they are, and modes are sought among the directions that were asked about.
    """
    count = seen.population[0]
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=REDRAWN)
    value = seen.share(kind, k, directions)
    again = torch.cat([seen.share(kind, k, directions, part / count) for part in torch.from_numpy(drawn).split(50)])
    low, high = again.quantile(0.025, dim=0), again.quantile(0.975, dim=0)
    return [Share(float(v), float(a), float(b)) for v, a, b in zip(value, low, high, strict=True)]


def _spread(shares: Tensor) -> Share:
    """The mean of draws, and where 95 % of them lie."""
    return Share(float(shares.mean()), float(shares.quantile(0.025)), float(shares.quantile(0.975)))


def _towards_targets(seen: Seen, draw: torch.Generator) -> Tensor:
    """Steps towards random targets, one an image: ``(size, TARGETS)``."""
    opened, (count, views) = seen.opened, seen.population
    targets = torch.randn(TARGETS, count, 1, opened.output.shape[1], generator=draw, dtype=torch.float32).to(
        opened.output
    )
    targets -= targets.mean(1, keepdim=True)
    return torch.stack([pushed(opened, target.expand(-1, views, -1)) for target in targets], dim=1).cpu()


def _filters(seen: Seen, k: int) -> dict[str, Any]:
    """The weights, and the leading modes of two operators, as filters."""
    shape = seen.opened.weight.shape
    shown: dict[str, Any] = {"weights": seen.opened.weight[None].tolist()}
    for kind in (BETWEEN, WITHIN):
        vectors = (seen.basis @ seen.modes(kind, k)[1]).float()
        shown[kind] = [unvec(vector, shape).tolist() for vector in vectors.T]
    return shown
