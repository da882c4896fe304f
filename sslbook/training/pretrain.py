"""Training with images and a network of the caller's own, by the loop that makes the papers' runs."""

from __future__ import annotations

import hashlib
import os
import re
import reprlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from sslbook._ambient import anywhere, copied, in_float32, put_back, seeded
from sslbook._check import meant, unknown, unwrapped_name
from sslbook._files import user_path
from sslbook.images.datasets import Dataset
from sslbook.images.own import read_images
from sslbook.networks.batchnorm import BatchNorm
from sslbook.networks.siamese import Networks, build
from sslbook.training.augment import PIPELINES, Pipeline, plain
from sslbook.training.objectives import OBJECTIVES, asks_labels
from sslbook.training.run import checkpoints
from sslbook.training.run.checkpoints import Row
from sslbook.training.run.parts import Own, labelled
from sslbook.training.run.settings import Settings, stored, stored_settings, with_values
from sslbook.training.run.trainer import plot_rows, told, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"objective": Settings().objective},
    "byol": {"objective": "byol", "networks": Networks(predictor=2, target="ema")},
    "simsiam": {"objective": "byol", "networks": Networks(predictor=2)},
}
"""What each method sets; another name is that of an objective, between the two views' embeddings."""


@dataclass(frozen=True)
class Pretrained:
    """The functions :func:`sslbook.training.pretrain.pretrain` and ``load_run`` return this result.

    backbone: the trained network, in evaluation mode.  pipeline: the augmentation, which ``embed`` needs.
    rows: the ``epoch``, ``loss``, ``lr`` and ``images_per_second`` of each epoch.  With ``val``, rows also have ``knn``
    where it was measured, and the first row is epoch 0, before training, without a loss.
    """

    backbone: nn.Module
    pipeline: Pipeline
    rows: list[Row]

    def __repr__(self) -> str:
        return f"Pretrained({type(self.backbone).__name__}, {told(self.rows)})"

    def plot(self) -> Figure:
        """Plot the loss of each epoch, and the accuracy of nearest neighbours where it was measured."""
        return plot_rows(self.rows)


@anywhere
@torch.enable_grad()
def pretrain(
    images: Any,
    backbone: nn.Module | Callable[[], nn.Module],
    method: str = "simclr",
    *,
    labels: Any = None,
    val: Any = None,
    epochs: int = 100,
    batch: int = 256,
    lr: float = 1e-3,
    pipeline: Pipeline | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    device: str | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
    on_epoch: Callable[[Row], object] | None = None,
    **settings: Any,
) -> Pretrained:
    """Train your own network on your own images by SimCLR, BYOL, SimSiam, or any other objective of the library.

    images, labels: arguments of :func:`~sslbook.images.own.read_images`.  Only "supervised_contrastive" uses
    labels.
    val: labelled images of the same classes.  Every ``evaluate`` epochs, their accuracy is measured by nearest
    neighbours among ``images``, which then need labels.  By default, this takes at most 5 % of the training time.
    backbone: a module, which is trained in place, or a function that creates one.  Initial weights from such a
    function, like those of lazy layers, depend only on ``seed``.  The backbone maps float32 images ``(n, C, H, W)`` to
    float32 features ``(n, F)``, in both modes.  It is trained in training mode, except for parts that you set to
    evaluation mode.  During training it is followed by a projector.
    method: one of "simclr", "byol" and "simsiam" (BYOL without a target tower), or a name in
    :data:`sslbook.training.objectives.OBJECTIVES`.  pipeline: the augmentation; by default, SimCLR's for this size.
    folder: the folder for checkpoints, log and result.  After an interruption, the same call resumes there and ends
    with the same weights, bit for bit on a CPU, even with dropout.  Random numbers of NumPy or Python are not restored.
    Checkpoints are written after an epoch, at most every 30 seconds, and within an epoch every 10 minutes.  If a signal
    stops the run, it writes a checkpoint and raises KeyboardInterrupt.  Two calls are the same if images, settings and networks
    agree.  Networks are compared by ``repr`` without addresses, and by parameters' names, shapes, types and ``requires_grad``.
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
    """
    for name in ("objective", "loss"):
        if name in settings:
            raise ValueError(f"{name}: give its name as method, got {name}={settings[name]!r}")
    for name in ("dataset", "split", "subset", "own"):
        if name in settings:
            raise ValueError(f"{name} is of runs on data sets by name, and these images are your own: leave it out")
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise TypeError(
            f"pipeline must be a Pipeline, such as Pipeline(32), got {reprlib.repr(pipeline)}; in place of "
            "torchvision's transforms say Pipeline(32, scale=(0.5, 1), grey=0)"
        )
    method = meant(method, known := {**METHODS, **OBJECTIVES})
    if method not in known:
        raise unknown("method", method, known)
    chosen = METHODS.get(method, {"objective": method})
    kept = None if folder is None else _place(folder)
    data = read_images(images, labels)
    if len(data) < 2:
        raise ValueError("images must hold two images or more to be trained on, got 1")
    views = pipeline or simclr_views(data)
    shown = None if val is None else _shown(data, val)
    wanted = {**chosen, "schedule": "cosine", "shuffle": True, "evaluate": 0 if shown is None else None}
    wanted |= {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed, **settings}
    wanted |= _towers(chosen, settings)
    run = with_values(Settings(), wanted)
    if run.batch > len(data):
        if run.batch != 256:  # which nobody may have asked for
            warnings.warn(f"batch={run.batch} is cut to the {len(data)} images that there are", stacklevel=2)
        run = replace(run, batch=len(data))
    if shown is None and (run.evaluate or run.probes):
        warnings.warn("evaluate and probes measure nothing without val, which is labelled images", stacklevel=2)
    for given, part in ((images, data), (val, shown)):
        if kept is not None and part is not None and part.files:
            place = user_path(given if isinstance(given, (str, Path)) else os.path.commonpath(part.files)).resolve()
            if kept.resolve().is_relative_to(place):
                warnings.warn(f"folder {kept} lies among the pictures of {place}, and so will its files", stacklevel=2)
    seed = run.seed
    with in_float32(), seeded(seed):
        encoder = _made(backbone)
        features = _features(encoder, data, views)
    own = Own(encoder, features, views)
    run = with_values(run, {"own": _described(data, own, asks_labels(run.objective))})
    try:
        with tempfile.TemporaryDirectory() as scratch, seeded(seed), put_back(encoder, numbers=False):
            _training(encoder)
            result = train(
                run,
                kept or Path(scratch),
                on_epoch=on_epoch,
                data=(data, shown),
                own=own,
                device=device,
                tensorboard=tensorboard,
                quiet=quiet,
                name=method,
            )
    except KeyboardInterrupt:
        left = "nothing is kept without folder=" if kept is None else "the same call goes on from the last checkpoint"
        print(f"{method}: stopped; {left}", file=sys.stderr, flush=True)
        raise
    return Pretrained(encoder.eval(), views, result.rows)


@anywhere
@torch.enable_grad()
def load_run(folder: str | Path, backbone: nn.Module | Callable[[], nn.Module] | None = None) -> Pretrained:
    """Load the backbone, pipeline and rows of a run; the backbone has the weights of the newest checkpoint.

    folder: the folder of a run of ``sslbook train``, :func:`~sslbook.training.run.trainer.train` or ``pretrain``.
    backbone: for a run with your own network, a network of the same architecture, or a function that creates it.

    A finished run also leaves the file ``backbone.pt``, which
    ``net.load_state_dict(torch.load(folder / "backbone.pt"))`` loads.  Raises FileNotFoundError without a checkpoint,
    and ValueError for a network of another architecture.
    """
    place = user_path(folder)
    content = checkpoints.latest(place, lambda text: warnings.warn(text, stacklevel=4)) if place.is_dir() else None
    if content is None:
        below = min(place.glob("*/step-*.pt"), default=None)  # where `sslbook train --folder` keeps its runs
        hint = f": did you mean {below.parent}?" if below else ""
        raise FileNotFoundError(f"folder must be that of a run, with a whole checkpoint, and {place} holds none{hint}")
    settings = stored_settings(content["settings"])
    if bool(settings.own) == (backbone is None):
        needs = "give backbone, a network like it" if settings.own else "leave backbone out"
        raise ValueError(f"{place} trained {'a network of your own' if settings.own else 'a ResNet-18'}: {needs}")
    with in_float32(), seeded(settings.seed):
        encoder = _made(backbone) if settings.own else build(settings.networks, settings.seed).encoder
    prefix = "encoder."
    weights = {name.removeprefix(prefix): part for name, part in content["model"].items() if name.startswith(prefix)}
    own = (
        {unwrapped_name(name): name for name in encoder.state_dict()}
        if encoder.state_dict().keys() != weights.keys()
        else {}
    )
    try:
        encoder.load_state_dict({own.get(unwrapped_name(name), name): part for name, part in weights.items()})
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"backbone must be a network like the one that {place} trained: {why}") from None
    views = PIPELINES[settings.pipeline] if not settings.own else Pipeline(**settings.own["pipeline"])
    return Pretrained(encoder.eval(), views, stored(content["rows"]))


def simclr_views(data: Dataset) -> Pipeline:
    """SimCLR's augmentation [chen2020simclr] as for CIFAR-10; images of 64 pixels or more are blurred, every other one."""
    side = min(data.pixels.shape[2:])
    return Pipeline(side, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5 if side >= 64 else 0.0)


def _shown(data: Dataset, val: Any) -> Dataset:
    """The images whose accuracy is measured along the way; raises ValueError unless both have labels of the same classes."""
    named = data.class_names if isinstance(val, (str, Path)) and data.class_names else None
    shown = labelled(whole := read_images(val, classes=named), "val")
    if len(shown) < len(whole):
        told = f"{len(whole) - len(shown)} of the {len(whole)} images of val have no class, and are left out"
        warnings.warn(told, stacklevel=3)
    labelled(data, "images")
    if shown.class_names != data.class_names or shown.pixels.shape[1:] != data.pixels.shape[1:]:
        raise ValueError(
            f"val must have the classes and the size of images, {', '.join(data.class_names) or data.classes} and "
            f"{tuple(data.pixels.shape[1:])}, got {', '.join(shown.class_names) or shown.classes} and "
            f"{tuple(shown.pixels.shape[1:])}"
        )
    return shown


def _towers(method: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Networks]:
    """The networks of the caller's settings, with the method's predictor and target where these have none."""
    own, given = method.get("networks"), settings.get("networks")
    if not isinstance(own, Networks) or not isinstance(given, Networks):
        return {}
    return {"networks": replace(given, predictor=given.predictor or own.predictor, target=given.target or own.target)}


def _place(folder: str | Path) -> Path:
    """The run's folder, which may not be there yet."""
    place = user_path(folder)
    for above in (place, *place.parents):
        if above.exists() and not above.is_dir():
            raise ValueError(f"folder must be a folder, or the name of a new one, got {place}: {above} is a file")
    return place


def _made(backbone: object) -> nn.Module:
    """The module, or what a function makes."""
    made = backbone() if callable(backbone) and not isinstance(backbone, nn.Module) else backbone
    if not isinstance(made, nn.Module):
        raise TypeError(f"backbone must be a torch.nn.Module, or a function that makes one, got {type(made).__name__}")
    if not any(weights.requires_grad for weights in made.parameters()):
        raise ValueError(f"backbone must have parameters to train, and this {type(made).__name__} has none")
    return made


@torch.no_grad()
def _features(backbone: nn.Module, data: Dataset, pipeline: Pipeline) -> int:
    """How many features the backbone gives of an image, by a look at two, of a copy in each mode; lazy layers get their weights."""
    two = plain(data.pixels[:2], pipeline).to(next(backbone.parameters()).device)
    if any(map(is_lazy, chain(backbone.parameters(), backbone.buffers()))):
        modes = {part: part.training for part in backbone.modules()}
        try:
            _look(backbone.eval(), two, "F", "")
        finally:
            for part, mode in modes.items():
                part.training = mode
    features = _look(copied(backbone).eval(), two, "F", "")
    for name, held in chain(backbone.named_parameters(), backbone.named_buffers()):
        if is_lazy(held) or held.is_meta:
            raise ValueError(f"backbone must have values everywhere, and {name} has none after two images")
    _look(_training(copied(backbone)), two, str(features), " in training mode")
    if "WORLD_SIZE" in os.environ:
        _require_apart(copied(backbone), two)
    return features


def _training(backbone: nn.Module) -> nn.Module:
    """In training mode, but for parts that the caller has set apart."""
    return backbone if backbone.training else backbone.train()


def _look(backbone: nn.Module, two: Tensor, features: str, mode: str) -> int:
    """The number of features of two images, which must be ``features`` if that is one; raises ValueError with a sentence."""
    shape = tuple(two.shape)
    try:
        found = backbone(two)
    except Exception as error:  # whatever a network of the caller's may raise
        kinds = sorted({str(weights.dtype) for weights in backbone.parameters()} - {str(two.dtype)})
        why = (
            f"{error}; images are {two.dtype}, and it has {', '.join(kinds)}, which .float() changes"
            if kinds
            else error
        )
        raise ValueError(f"backbone can't take images {shape}{mode}: {why}") from error
    if isinstance(found, Tensor):
        fits = found.ndim == 2 and len(found) == len(two) and features in ("F", str(found.shape[1]))
        if fits and found.dtype == two.dtype:
            return found.shape[1]
        got = f"{found.dtype} {tuple(found.shape)}{', where float32 is wanted' if fits else ''}"
    else:
        got = type(found).__name__
    raise ValueError(f"backbone must map images {shape} to features ({len(two)}, {features}){mode}, got {got}")


def _require_apart(backbone: nn.Module, two: Tensor) -> None:
    """Raise ValueError where an image's features depend on the others, but for BatchNorm, which processes share."""
    for part in backbone.modules():
        part.training = part.training and not isinstance(part, _NormBase | BatchNorm)
    found = []
    for batch in (two, torch.stack([two[0], -two[1]])):
        torch.manual_seed(0)
        found.append(backbone(batch)[0])
    if not torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-3 * float(found[0].abs().max())):
        raise ValueError(
            "backbone must treat images one by one, but for nn.BatchNorm with running statistics: several processes share "
            "a batch, and each would go by its own part"
        )


def _described(data: Dataset, own: Own, labels: bool) -> dict[str, Any]:
    """What tells this run from one on other images, with another network or augmentation; not the network's first weights.

    labels: the images' classes count too.
    """
    state = {name: part for name, part in own.encoder.state_dict().items() if isinstance(part, Tensor)}
    shapes = {name: list(part.shape) for name, part in state.items()}
    odd = [(name, str(part.dtype)) for name, part in state.items() if part.dtype not in (torch.float32, torch.int64)]
    if own.encoder.training:
        odd += [(name, "eval") for name, part in own.encoder.named_modules() if not part.training]
    odd += [(name, "frozen") for name, part in own.encoder.named_parameters() if not part.requires_grad]
    # another process has other addresses, and another order of a set
    text = re.sub("0x[0-9a-fA-F]{8,}", "", str(own.encoder))
    text = re.sub("{([^{}:]*)}", lambda found: str(sorted(found[1].split(", "))), text)
    return {
        "images": hashlib.sha256(data.pixels.contiguous().numpy().data).hexdigest(),
        "backbone": hashlib.sha256(f"{text} {shapes}{odd or ''}".encode()).hexdigest(),
        "pipeline": asdict(own.pipeline),
        **({"labels": hashlib.sha256(data.labels.contiguous().numpy().data).hexdigest()} if labels else {}),
    }
