"""``sslbook inspect``: a checkpoint of ``sslbook train``, and images, to a report."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sslbook._check import positive, seed
from sslbook._files import user_path
from sslbook._machine import device, keep_freed_memory
from sslbook.images import datasets
from sslbook.images.own import read_images
from sslbook.inspect.measure import NAMED, inspect_network
from sslbook.networks.siamese import Siamese, build
from sslbook.training.augment import PIPELINES
from sslbook.training.run import checkpoints
from sslbook.training.run.settings import stored_settings


def main(arguments: Sequence[str]) -> int:
    """Run ``sslbook inspect`` and return its exit status: 2 for what can't be looked at, with one sentence that says why.

    The report's table goes to the standard output, the progress from layer to layer to the other one.
    """
    parser = argparse.ArgumentParser(
        prog="sslbook inspect",
        description="What the layers of a trained network hold of their covariance operators, beside controls.",
        epilog="It takes some hundred passes, forward and back, of images times views a layer, and tells the time that is left.",
    )
    add, names = parser.add_argument, ", ".join(datasets.NAMES)
    add("checkpoint", type=Path, metavar="RUN", help="a folder of sslbook train, or a checkpoint in it")
    add("images", metavar="IMAGES", help=f"a folder of pictures, or test images of {names}")
    layers = "these layers (default: all); 0. begins names in the encoder, 1. in the projector"
    add("--layers", nargs="+", metavar="NAME", help=layers)
    add("--views", type=positive, default=8, metavar="N", help="views of each image (default: 8)")
    add("--images", type=positive, default=32, metavar="N", dest="count", help="images (default: 32)")
    add("--size", type=positive, metavar="N", help="cut pictures of a folder to squares of N pixels")
    add("--modes", type=positive, default=5, metavar="N", help="leading modes (default: 5)")
    add("--loss", choices=NAMED, default="info_nce", help="whose step is looked at (default: info_nce)")
    add("--seed", type=seed, default=0, metavar="N", help="of images, views and draws (default: 0)")
    add("--out", type=Path, metavar="DIR", help="where the report goes (default: RUN, and -inspect)")
    add("--device", type=device, default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        place = user_path(options.checkpoint)
        run = open_run(place)
        if options.images in datasets.NAMES:
            images = datasets.load_dataset(options.images, "test")
        else:
            images = read_images(options.images, size=options.size)
        report = inspect_network(
            **run,
            images=datasets.subset(images, min(options.count, len(images)), options.seed),
            layers=options.layers,
            views=options.views,
            loss=options.loss,
            k=options.modes,
            seed=options.seed,
            device=options.device,
        )
        place = place.resolve()
        written = report.save(options.out or place.with_name(f"{place.name}-inspect"))
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        parser.error(f"{error}".partition("\n")[0])
    print(report.table())
    print(f"Written: {written}, and report.json beside it")
    return 0


def open_run(path: Path) -> dict[str, Any]:
    """Return what :func:`inspect_network` takes of a run: its networks now and untrained, its pipeline, and what it was.

    path: a run's folder, of which the newest whole checkpoint is read, or a checkpoint's file.  Raises FileNotFoundError where
    there is none, and ValueError for a file that is none, and for a run with a network of one's own.
    """
    content = checkpoints.latest(path)
    if content is None:
        raise FileNotFoundError(f"there is no checkpoint, and no folder of a run with one, at {path}")
    settings = stored_settings(content["settings"])
    if settings.own:
        raise ValueError(
            f"{path} is of a network of your own, which a checkpoint does not hold: call "
            "sslbook.inspect_network with that of sslbook.load_run(folder, backbone)"
        )
    model, first = (build(settings.networks, settings.seed) for _ in range(2))
    model.load_state_dict(content["model"])
    file = path if path.is_file() else path / f"step-{content['step']:09d}.pt"
    about = {
        "source": path.name if path.is_dir() else f"{path.parent.name}/{path.name}",
        "step of the run": content["step"],
        "seed of the run": settings.seed,
        "hash of its settings": content["hash"],
        "checkpoint sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    both = {"net": encoder_and_projector(model), "untrained": encoder_and_projector(first)}
    return {**both, "pipeline": PIPELINES[settings.pipeline], "about": about}


def encoder_and_projector(model: Siamese) -> nn.Sequential:
    """Return what the loss sees of a run's networks, as one network, in evaluation mode; the model's own mode changes with it."""
    return nn.Sequential(model.encoder, model.projector).eval()
