"""Short runs for the page: every kind of network on scikit-learn's digits, looked at on the way; nothing is downloaded.

One step of one batch by two processes of this machine, beside the same step by one.  And views of photographs: one image after
another by Pillow, what our batches are held against, and what one view gives away of another.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.losses import pairs
from sslbook.networks.siamese import Networks, build
from sslbook.training import augment, evaluate, objectives
from sslbook.training.augment import PIPELINES, Pipeline, plain
from sslbook.training.evaluate import knn_accuracy, mean_cosine
from sslbook.training.papers import run_of
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import Batches, Step
from sslbook.training.run.trainer import train
from sslchapters.records import rounded
from sslchapters.sweep import Study

STEADY = ("schedule=constant", "evaluate=0")
BARE_TARGET = ("networks.target=none", "stop_gradient=false")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SimCLR": ("digits-simclr-nce", STEADY),
    "SimCLR, no negatives": ("digits-simclr-nce", (*STEADY, "objective=byol", "networks.predictor=0", *BARE_TARGET)),
    "BYOL": ("digits-byol", STEADY),
    "BYOL, no predictor": ("digits-byol", (*STEADY, "networks.predictor=0")),
    "BYOL, no EMA, no stop-gradient": ("digits-byol", (*STEADY, *BARE_TARGET)),
}
"""What the page trains: the preset that each begins with, and what is changed in it."""


@dataclass(frozen=True)
class Course:
    """Runs of one kind, looked at after so many ``epochs``, the first time before training.

    loss: the last epoch's mean, ``(seeds,)``.  gauges: by name, ``(looks, seeds)``: knn, accuracy in [0, 1]; likeness, the mean
    cosine of two different test images' embeddings; and the columns of `sslbook.training.evaluate.measure`.
    embeddings: ``(looks, N, D)`` of the test images, by the first seed's network.
    """

    epochs: tuple[int, ...]
    loss: np.ndarray
    gauges: Mapping[str, np.ndarray]
    embeddings: Tensor

    def left(self) -> np.ndarray:
        """The distance of two views of an image over that of two images, after over before training, ``(seeds,)``."""
        ratio = (1 - self.gauges["view_cosine"]) / (1 - self.gauges["embedding_cosine"])
        return np.asarray(ratio[-1] / ratio[0])


def settings_of(name: str, seed: int, epochs: int) -> Settings:
    """The settings of one of :data:`RUNS`."""
    preset, changes = RUNS[name]
    return run_of(preset, seed=seed, epochs=epochs, changes=changes).settings


def course(name: str, seeds: Sequence[int], epochs: int, every: int) -> Course:
    """Train one of :data:`RUNS` for each seed, stopping to look after every so many epochs, of which ``epochs`` is a multiple.

    A stop is a checkpoint, and what follows a resumed run: the weights are those of a run that was never stopped.
    """
    looks, loss, found = tuple(range(0, epochs + 1, every)), [], []
    for seed in seeds:
        # One epoch more than is made, or the linear protocol would run at the end.
        settings = settings_of(name, seed, epochs + 1)
        data = datasets.load_dataset(settings.dataset, "train"), datasets.load_dataset(settings.dataset, "test")
        step = Step(settings, data[0], torch.device("cpu"))
        steps, seen = Batches(settings, len(data[0])).per_epoch, [look(step, settings, *data)]
        with tempfile.TemporaryDirectory() as folder:
            for epoch in looks[1:]:
                stopped = train(settings, Path(folder), stop_after=epoch * steps, data=data, device="cpu", quiet=True)
                step.model = stopped.model
                seen.append(look(step, settings, *data))
        loss.append(stopped.rows[-1]["loss"])
        found.append(seen)
    rows = [[row for row, _ in seen] for seen in found]
    gauges = {key: np.array([[row[key] for row in of_seed] for of_seed in rows]).T for key in rows[0][0]}
    return Course(looks, np.array(loss), gauges, torch.stack([embeddings for _, embeddings in found[0]]))


def _recorded_values(seeds: Sequence[int]) -> dict[str, object]:
    """The record ``training-digits``: the page's runs, and BYOL, for more seeds, as ``runs[name]`` of `Course`."""
    found = {name: course(name, seeds, epochs=8, every=8) for name in RUNS}
    return {"runs": {name: rounded({"loss": one.loss, **one.gauges}, 6) for name, one in found.items()}}


@torch.no_grad()
def look(step: Step, settings: Settings, known: Dataset, asked: Dataset) -> tuple[dict[str, float], Tensor]:
    """A row of :class:`Course` and its embeddings, by the step's model as it is now; accuracy and likeness in evaluation mode."""
    pipeline, mode = PIPELINES[settings.pipeline], step.model.training
    model = step.model.eval()
    ours, theirs = (model.encoder(plain(part.pixels, pipeline)) for part in (asked, known))
    embeddings = F.normalize(model.projector(ours), dim=1)
    model.train(mode)
    found = {"knn": knn_accuracy(theirs, known.labels, ours, asked.labels), "likeness": float(mean_cosine(embeddings))}
    return found | evaluate.measure(step, settings), embeddings


def resumed_apart(seed: int) -> dict[str, float]:
    """Largest difference of a weight between a run and the same run stopped in the middle of an epoch and gone on with.

    "resumed": from its checkpoint.  "broken: momentum lost": from the checkpoint without what the optimiser remembers.
    """
    settings = replace(settings_of("BYOL", seed, epochs=2), drop_last=True)
    data = (datasets.subset(datasets.load_dataset("digits", "train"), 256), datasets.load_dataset("digits", "test"))
    ends = {}
    with tempfile.TemporaryDirectory() as root:
        for name in ("whole", "resumed", "broken: momentum lost"):
            folder = Path(root) / name.partition(":")[0]
            if name != "whole":
                train(settings, folder, stop_after=2, data=data, device="cpu", quiet=True)
            if name.startswith("broken"):
                content = checkpoints.latest(folder)
                assert content is not None
                content["optimizer"]["state"] = {}
                checkpoints.save(folder, content)
            ends[name] = train(settings, folder, data=data, device="cpu", quiet=True).model.state_dict()
    whole = ends.pop("whole")
    return {
        name: max(float((weights.double() - whole[key].double()).abs().max()) for key, weights in end.items())
        for name, end in ends.items()
    }


# -- two processes ----------------------------------------------------------------------------------------------------

NETWORKS = Networks(width=4, projector_hidden=16, projector_out=8)
BATCH = 16
BROKEN = ("BatchNorm apart", "gather without gradient")


def gradient(seed: int, broken: str = "") -> Tensor:
    """The gradient of InfoNCE by all weights, float64 ``(P,)``, from this process's part of the batch, averaged over processes.

    broken: one of :data:`BROKEN`, the two mistakes that are easily made.
    """
    model = build(NETWORKS, seed).double()
    if broken != "BatchNorm apart":
        distributed.share_batchnorm(model)
    draw = torch.Generator().manual_seed(seed)
    views = torch.randn(2, BATCH, 3, 16, 16, generator=draw, dtype=torch.float64)[:, distributed.own_rows(BATCH)]
    outputs = model(views[0], views[1])
    if broken == "gather without gradient":
        whole = []
        for z in (outputs.z1, outputs.z2):  # the other process's rows come as constants
            everything = distributed.gather(z.detach())
            rows = distributed.own_rows(len(everything))
            whole.append(torch.cat([everything[: rows.start], z, everything[rows.stop :]]))
        loss = pairs.contrastive(whole[0], whole[1], "info_nce", temperature=0.5)
    else:
        loss = objectives.objective("info_nce")(distributed.gather_outputs(outputs))
    loss.backward()
    distributed.average_gradients(model.learning())
    return torch.cat([weights.grad.flatten() for weights in model.learning() if weights.grad is not None])


def by_processes(seed: int) -> dict[str, Tensor]:
    """Gradients by two processes over gloo: under "", right, and under each of :data:`BROKEN`."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        spawn(_worker, (2, port, folder, seed), nprocs=2)
        return torch.load(Path(folder) / "found.pt", weights_only=True)


def _worker(rank: int, world: int, port: int, folder: str, seed: int) -> None:
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    distributed.join("cpu")
    found = {broken: gradient(seed, broken) for broken in ("", *BROKEN)}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    distributed.leave()


STUDIES = {"training-digits": Study(_recorded_values, tuple(range(8)))}


# --- Views of photographs --------------------------------------------------------------------------------------------


def photographs(count: int, side: int, seed: int = 0) -> Tensor:
    """Windows of the two photographs that scikit-learn ships, uint8 ``(count, 3, side, side)``, drawn by ``seed``."""
    from sklearn.datasets import load_sample_images

    whole = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    windows = whole.unfold(2, side, side // 2).unfold(3, side, side // 2).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    return windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))[:count]].contiguous()


def pillow_views(pixels: Tensor, pipeline: Pipeline, numbers: Tensor) -> Tensor:
    """Levels ``(B, 3, size, size)`` of what `sslbook.training.augment.apply` makes of the draws ``(B, NUMBERS)``, without a batch.

    Crop, mirror, jitter, grey, by Pillow's own operations on bytes, one image after another; hue by adding to the byte of it, as
    torchvision does; no blur, no mean and deviation.
    """
    from PIL import Image, ImageEnhance

    part = numbers[:, augment.JITTER]
    order, factors = augment.order_and_factors(part, pipeline.jitter, pipeline.jitter_probability)
    cut = numbers[:, : augment.CROP_NUMBERS]
    boxes = (
        torch.stack(augment.boxes(cut, pixels.shape[2], pixels.shape[3], pipeline.scale, pipeline.ratio), 1)
        .int()
        .tolist()
    )
    views = []
    for i, (image, (top, left, height, width)) in enumerate(zip(pixels, boxes, strict=True)):
        view = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        view = view.resize((pipeline.size, pipeline.size), Image.Resampling.BILINEAR)
        if numbers[i, augment.FLIP] < pipeline.flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        jitters = augment.ORDERS[int(order[i])] if part[i, 0] < pipeline.jitter_probability else ()
        for kind in (each for each in jitters if pipeline.jitter[each]):
            factor = float(factors[i, kind])
            if kind == augment.HUE:
                hue, saturation, value = view.convert("HSV").split()
                turned = np.asarray(hue) + np.uint8(int(factor * 255) % 256)
                view = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
            else:
                view = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[kind](view).enhance(factor)
        if numbers[i, augment.GREY] < pipeline.grey:
            view = Image.merge("RGB", [view.convert("L")] * 3)
        views.append(np.array(view))
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float()


def gaps(pipeline: Pipeline, count: int, seed: int) -> dict[str, float]:
    """How far views of so many photographs lie from Pillow's, in levels of 255, by what is compared.

    At the worst pixel, "crop": the crop alone; "grid": sampled at the box's points instead.  In the mean over the worst image,
    "view": the whole of it; "one hue": without a turn of the hue; "one order": with one order of the jitters for the batch.
    """
    pixels, numbers = photographs(count, pipeline.size), augment.draws(count, seed, 0, 0)
    crop = replace(pipeline, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.0), grey=0.0)
    steady = replace(pipeline, jitter=(*pipeline.jitter[:3], 0.0))
    one_order = numbers.clone()
    one_order[:, augment.JITTER.start + 1] = numbers[0, augment.JITTER.start + 1]
    cut, view, unturned = (pillow_views(pixels, part, numbers) for part in (crop, pipeline, steady))
    # the usual shortcut for a crop: the whole image, sampled at the box's points; at the border of the box it takes in pixels
    # from outside, and where it shrinks it leaves pixels out
    height, width = pixels.shape[2:]
    box = augment.boxes(numbers[:, : augment.CROP_NUMBERS], height, width, crop.scale, crop.ratio)
    across = torch.stack([box.width / width, 0 * box.width, (2 * box.left + box.width) / width - 1], 1)
    down = torch.stack([0 * box.height, box.height / height, (2 * box.top + box.height) / height - 1], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), [count, 3, crop.size, crop.size], align_corners=False)
    sampled = F.grid_sample(pixels.float(), grid.float(), mode="bilinear", padding_mode="border", align_corners=False)

    def apart(part: Pipeline, theirs: Tensor, draws: Tensor) -> Tensor:
        return (255 * augment.apply(pixels, part, draws) - theirs).abs()

    return {
        "crop": float(apart(crop, cut, numbers).amax()),
        "grid": float((sampled - cut).abs().amax()),
        "view": float(apart(pipeline, view, numbers).mean((1, 2, 3)).amax()),
        "one hue": float(apart(steady, unturned, numbers).mean((1, 2, 3)).amax()),
        "one order": float(apart(pipeline, view, one_order).mean((1, 2, 3)).amax()),
    }


# -- what a view gives away -------------------------------------------------------------------------------------------

BARE = replace(augment.PIPELINES["stl10"], size=48, jitter=(0.0,) * 4, jitter_probability=1.0, grey=0.0, blur=0.0)
"""Crop and mirror image alone, of the papers' views for STL-10, smaller."""
FAINT = 1e-3
"""Of a level of one, added to mean slopes, so that a flat view has a number too."""


def jittered(strength: float) -> Pipeline:
    """:data:`BARE` with so many times the papers' strengths of brightness, contrast, saturation and hue, for every image."""
    first, second, third, hue = (strength * full for full in augment.PIPELINES["stl10"].jitter)
    return replace(BARE, jitter=(first, second, third, hue))


def edges(views: Tensor) -> Tensor:
    """Logarithm of the mean slope across a grey view over that down it, ``(N, 3, H, W)`` to ``(N,)``: above 0, upright edges."""
    grey = views.mean(1)
    across, down = grey.diff(dim=2).abs().mean((1, 2)), grey.diff(dim=1).abs().mean((1, 2))
    return ((across + FAINT) / (down + FAINT)).log()


def drawn(images: Tensor, pipeline: Pipeline, views: int = 8, seed: int = 0) -> list[Tensor]:
    """So many views of each image, each ``(N, 3, S, S)``."""
    return [augment.random_view(images, pipeline, seed=seed, view=view) for view in range(views)]


def agreement(views: Sequence[Tensor], number: Callable[[Tensor], Tensor]) -> float:
    """Correlation over images of a number of one view with that of another, in the mean over pairs of views."""
    found = np.corrcoef(np.stack([number(view).double().numpy() for view in views]))
    return float((found.sum() - len(found)) / (len(found) * (len(found) - 1)))
