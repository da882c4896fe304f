"""Training with images and a network of the caller's own, by the loop that makes the papers' runs."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sslbook._ambient import anywhere, copied, in_float32, put_back, seeded, unwrapped_name, warn
from sslbook._check import unknown
from sslbook.images.datasets import Dataset
from sslbook.images.own import read_images
from sslbook.networks.batchnorm import BatchNorm
from sslbook.networks.siamese import Networks, Siamese, build
from sslbook.training.augment import PIPELINES, Pipeline, plain
from sslbook.training.objectives import ARGUMENTS, OBJECTIVES, sees
from sslbook.training.run import checkpoints
from sslbook.training.run.checkpoints import Row
from sslbook.training.run.settings import Settings, stored_settings, with_values
from sslbook.training.run.step import Views
from sslbook.training.run.trainer import History, train

METHODS: dict[str, tuple[str, Networks]] = {
    "simclr": (Settings().objective, Networks()),
    "byol": ("byol", Networks(predictor=2, target="ema")),
    "simsiam": ("byol", Networks(predictor=2)),
}
"""Each method's objective, and the predictor and target that it has; another name is that of an objective."""


@dataclass(frozen=True)
class Pretrained(History):
    """The functions :func:`sslbook.training.pretrain.pretrain` and ``load_run`` return this result.

    backbone: the trained network, in evaluation mode.  projector: what training has put behind it; the loss sees
    ``projector(backbone(views))``.  pipeline: the augmentation, which ``embed`` needs.
    rows: the ``epoch``, ``loss``, ``lr`` and ``images_per_second`` of each epoch, ``least``, which the loss can't fall
    below, where that is known, and the columns of :func:`sslbook.training.evaluate.measure` where it was measured, with
    ``val`` also ``knn``.  The first row is epoch 0, before training, without a loss.
    collapsed: a sentence if the last measurement says that the embeddings have collapsed, and otherwise empty.
    """

    backbone: nn.Module
    pipeline: Pipeline
    rows: list[Row]
    projector: nn.Module

    def __repr__(self) -> str:
        return f"Pretrained({type(self.backbone).__name__}, {self.in_short()})"


@anywhere
def pretrain(
    images: Any,
    backbone: nn.Module | Callable[[], nn.Module],
    method: str | Callable[[Tensor], Tensor] = "simclr",
    *,
    labels: Any = None,
    val: Any = None,
    size: int | None = None,
    epochs: int = 100,
    batch: int = 256,
    lr: float = 1e-3,
    pipeline: Pipeline | None = None,
    views: Views | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    device: str | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
    on_epoch: Callable[[Row], object] | None = None,
    **settings: Any,
) -> Pretrained:
    """Train your own network on your own images by SimCLR, BYOL, SimSiam, or any other objective of the library.

    images, labels, size: arguments of :func:`~sslbook.images.own.read_images`.  Only "supervised_contrastive" uses
    labels.
    val: labelled images of the same classes.  Their accuracy is measured by nearest neighbours among ``images``, which
    then need labels.  With or without ``val``, effective ranks and mean cosines are measured, and a collapse is told.
    Both are done every ``evaluate`` epochs; by default, this takes at most 5 % of the training time.
    backbone: a module, which is trained in place, or a function that creates one.  Initial weights from such a
    function, like those of lazy layers, depend only on ``seed``.  The backbone maps float32 images ``(n, C, H, W)`` to
    float32 features ``(n, F)``, in both modes.  It is trained in training mode, except for parts that you set to
    evaluation mode.  During training it is followed by a projector.
    method: one of "simclr", "byol" and "simsiam" (BYOL without a target tower), or a name in
    :data:`sslbook.training.objectives.OBJECTIVES`, or a loss of your own, a function of the embeddings
    ``z (images, 2, D)``, such as ``functools.partial(batch.vicreg, variance=10.0)``.
    pipeline: the augmentation; by default, SimCLR's for this size.  views: a function of your own that replaces
    the pipeline: ``views(batch, generator)`` takes pixels ``(n, C, H, W)`` in [0, 1] and returns one random view of
    each image, on the same device.  It is called once for each view; the generator is on the CPU.  The pipeline's
    size, mean and deviation then are those of evaluation.  A run with such functions resumes exactly if they depend
    on their arguments alone, or draw from PyTorch's own generators; a folder knows them by their names.
    folder: the folder for checkpoints, log and result.  After an interruption, the same call resumes there and ends
    with the same weights, bit for bit on a CPU, even with dropout.  Random numbers of NumPy or Python are not restored.
    Checkpoints are written after an epoch, at most every 30 seconds, and within an epoch every 10 minutes.  If a signal
    stops the run, it writes a checkpoint and raises KeyboardInterrupt.  A folder is refused if its run had other settings
    or images, or a network whose parameters have other names or shapes; take another folder for another network.
    device: by default, ``cuda`` if there is a GPU.  tensorboard: whether to write curves for TensorBoard to the folder.
    on_epoch: a function that is called with the epoch's row; what it changes in the network is put back.
    batch: the batch size; by default 256, or all images.
    settings: arguments of the objective, such as ``temperature=0.2``, and fields of
    :class:`~sslbook.training.run.settings.Settings`, such as ``weight_decay=1e-4`` or
    ``networks=Networks(projector_out=64)``.  The default temperature is 0.5, or 0.07 for clip.  The default of
    barlow_twins is ``weight=0.005``; those of vicreg are ``variance=25``, ``invariance=25`` and ``covariance=1``.  By
    default, training uses Adam, the cosine schedule, and a new order of the images in every epoch.  If ``networks`` has
    no predictor, BYOL and SimSiam add one with two layers; if it has no target, BYOL uses "ema".

    Raises ValueError or TypeError for unusable arguments, before training, and later the same errors as ``train``.

    >>> pixels = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8)
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> run = pretrain(pixels, net, "byol", epochs=2, batch=32, device="cpu", quiet=True)
    >>> [row["epoch"] for row in run.rows]
    [0, 1, 2]
    >>> run.collapsed  # a sentence if it has
    ''
    """
    if fixed := {"objective", "dataset", "split", "subset", "own"} & settings.keys():
        raise ValueError(f"{min(fixed)} can't be set here: method names the objective, and the images are your own")
    loss = None if isinstance(method, str) or not callable(method) else method
    if loss is None and method not in METHODS and method not in OBJECTIVES:
        raise unknown("method", method, {**METHODS, **OBJECTIVES})
    if loss is not None and (taken := ARGUMENTS & settings.keys()):
        raise ValueError(f"{min(taken)} is no setting of a loss of your own: give method=functools.partial(loss, …)")
    title = str(method) if loss is None else _name(loss)

    # Images, and those whose accuracy is measured along the way.
    data, tests = read_images(images, labels, size=size), None
    pipeline = simclr_views(data) if pipeline is None else pipeline
    if val is not None:
        side = None if isinstance(val, (Dataset, Tensor, np.ndarray)) else size
        names = data.class_names or None if isinstance(val, (str, Path)) else None
        tests = read_images(val, size=side, classes=names)

    # Settings: the caller's, the method's, and this function's defaults.
    name, towers = METHODS["simclr"] if loss is not None else METHODS.get(title, (title, Networks()))
    sizes = settings.pop("networks", towers)
    sizes = replace(sizes, predictor=sizes.predictor or towers.predictor, target=sizes.target or towers.target)
    wanted = {"objective": name, "epochs": epochs, "batch": batch, "lr": lr, "seed": seed, "networks": sizes}
    run = with_values(Settings(schedule="cosine", shuffle=True), wanted | settings)
    if run.batch > len(data):
        if run.batch != 256:  # which nobody may have asked for
            warn(f"batch={run.batch} is cut to the {len(data)} images that there are")
        run = replace(run, batch=len(data))

    # The network with its first weights, and what else tells this run from another one in its folder.
    with in_float32(), seeded(run.seed):
        encoder = backbone if isinstance(backbone, nn.Module) else backbone()
        if not any(weights.requires_grad for weights in encoder.parameters()):
            raise ValueError(f"backbone must have parameters to train, and this {type(encoder).__name__} has none")
        features = _features(encoder, data, pipeline)
    parts = {"images": data.pixels} | ({"labels": data.labels} if sees(run.objective) == "labels" else {})
    own = {name: hashlib.sha256(part.contiguous().numpy().data).hexdigest() for name, part in parts.items()}
    own |= {part: _name(function) for part, function in (("views", views), ("loss", loss)) if function is not None}
    run = replace(run, own={**own, "shape": list(data.pixels.shape), "pipeline": asdict(pipeline)})
    given: dict[str, Any] = {"backbone": (encoder, features), "pipeline": pipeline, "views": views, "loss": loss}
    told: dict[str, Any] = {"on_epoch": on_epoch, "tensorboard": tensorboard, "quiet": quiet, "name": title}
    try:
        with tempfile.TemporaryDirectory() as scratch, seeded(run.seed), put_back(encoder, numbers=False):
            if not encoder.training:  # else parts of it may be in evaluation mode, as the caller wants them
                encoder.train()
            place = Path(scratch) if folder is None else Path(folder).expanduser()
            result = train(run, place, device=device, data=(data, tests), **given, **told)
    except KeyboardInterrupt:
        left = "nothing is kept without folder=" if folder is None else "the same call goes on from the last checkpoint"
        print(f"{title}: stopped; {left}", file=sys.stderr, flush=True)
        raise
    return Pretrained(encoder.eval(), pipeline, result.rows, result.model.projector.eval())


@anywhere
@torch.enable_grad()
def load_run(folder: str | Path, backbone: nn.Module | Callable[[], nn.Module] | None = None) -> Pretrained:
    """Load the backbone, projector, pipeline and rows of a run, with the weights of the newest checkpoint.

    folder: the folder of a run of ``sslbook train``, :func:`~sslbook.training.run.trainer.train` or ``pretrain``.
    backbone: for a run with your own network, a network of the same architecture, or a function that creates it.

    A finished run also leaves the file ``backbone.pt``, which
    ``net.load_state_dict(torch.load(folder / "backbone.pt"))`` loads.  Raises FileNotFoundError without a checkpoint,
    and ValueError for a network of another architecture.

    >>> make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    >>> with tempfile.TemporaryDirectory() as there:
    ...     pixels = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    ...     run = pretrain(pixels, make, epochs=1, batch=4, folder=there, device="cpu", quiet=True)
    ...     torch.equal(load_run(there, make).backbone[1].weight, run.backbone[1].weight)
    True
    """
    place = Path(folder).expanduser()
    content = checkpoints.latest(place)
    if content is None:
        below = min(place.glob("*/step-*.pt"), default=None)  # where `sslbook train --folder` keeps its runs
        hint = f": did you mean {below.parent}?" if below else ""
        raise FileNotFoundError(f"folder must be that of a run, with a whole checkpoint, and {place} holds none{hint}")
    settings = stored_settings(content["settings"])
    inputs = content["model"]["projector.linears.0.weight"].shape[1]
    with in_float32(), seeded(settings.seed):
        encoder = build(settings.networks, settings.seed).encoder if backbone is None else backbone
        encoder = encoder if isinstance(encoder, nn.Module) else encoder()
        projector = Siamese(replace(settings.networks, target=None), nn.Identity(), inputs).projector
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "projector": {}}
    for name, value in content["model"].items():
        part, _, inner = name.partition(".")
        parts.setdefault(part, {})[unwrapped_name(inner)] = value
    projector.load_state_dict(parts["projector"])
    names = {unwrapped_name(name): name for name in encoder.state_dict()}
    try:
        encoder.load_state_dict({names.get(name, name): value for name, value in parts["encoder"].items()})
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"backbone must be a network like the one that {place} trained: {why}") from None
    pipeline = Pipeline(**settings.own["pipeline"]) if settings.own else PIPELINES[settings.pipeline]
    return Pretrained(encoder.eval(), pipeline, json.loads(content["rows"]), projector.eval())


def simclr_views(data: Dataset) -> Pipeline:
    """SimCLR's augmentation [chen2020simclr] as for CIFAR-10, views as large as the images' shorter side.

    Crops of 8 to 100 % of the area, mirrored half the time; four in five have their colours changed, by 0.4, 0.4, 0.4 and 0.1 for
    brightness, contrast, saturation and hue, and one in five is grey.
    Images of 64 pixels or more are blurred, every other one, as those of STL-10 are; mean and deviation stay as they are.

    >>> simclr_views(Dataset(torch.zeros(1, 3, 80, 96, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), "black", 1)).blur
    0.5
    """
    side = min(data.pixels.shape[2:])
    return Pipeline(side, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5 if side >= 64 else 0.0)


def _name(function: Any) -> str:
    """What a folder knows a function by: its name, with what a ``functools.partial`` has bound by keyword."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__qualname__", type(inner).__name__) + str(getattr(function, "keywords", ""))


@torch.no_grad()
def _features(backbone: nn.Module, data: Dataset, pipeline: Pipeline) -> int:
    """How many features the backbone gives of an image; lazy layers get their weights.

    Several processes share each batch, so there an image's features must not depend on the others in it, but through BatchNorm:
    else each process would go by its own part.  Raises ValueError there, and for anything but float32 features ``(N, F)``.
    """
    two = plain(data.pixels[:2], pipeline).to(next(backbone.parameters()).device)
    modes = {part: part.training for part in backbone.modules()}
    try:
        found = backbone.eval()(two)
    finally:
        for part, mode in modes.items():
            part.training = mode
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(two) or found.dtype != two.dtype:
        form = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"backbone must map images {tuple(two.shape)} to float32 features ({len(two)}, F), got {form}")
    if "WORLD_SIZE" in os.environ:
        alone, rows = copied(backbone), []
        for part in alone.modules():
            part.training = not isinstance(part, _NormBase | BatchNorm)
        for others in (two, torch.stack([two[0], -two[1]])):
            torch.manual_seed(0)
            rows.append(alone(others)[0])
        if not torch.allclose(rows[0], rows[1], rtol=1e-3, atol=1e-3 * float(rows[0].abs().max())):
            raise ValueError("backbone must treat images one by one, but for BatchNorm, where processes share a batch")
    return found.shape[1]
