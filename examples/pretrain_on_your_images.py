"""SimCLR or BYOL on your own images, with any backbone of yours.

    python examples/pretrain_on_your_images.py FOLDER --size 64     # a folder of pictures; sub-folders are classes
    python examples/pretrain_on_your_images.py                      # without one, the handwritten digits

A run that keeps its checkpoints (--keep RUN) goes on from the last: Ctrl-C leaves one, and so does an epoch, every 30 seconds.
"""

import argparse

import torch

import sslbook


def backbone(channels: int) -> torch.nn.Module:
    """Any module from images (n, channels, height, width) to features (n, F)."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 32, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
    )


def main(
    folder: str | None = None,
    size: int | None = None,
    method: str = "simclr",
    epochs: int = 20,
    keep: str | None = None,
) -> torch.Tensor:
    if folder is None:
        images, views = sslbook.load_dataset("digits", "train"), sslbook.Pipeline(8, scale=(0.5, 1.0), flip=0.0)
    else:
        images, views = sslbook.read_images(folder, size=size), None  # SimCLR's augmentation for images of this size
    channels = images.pixels.shape[1]
    run = sslbook.pretrain(images, lambda: backbone(channels), method, epochs=epochs, pipeline=views, folder=keep)
    features = sslbook.embed(run.backbone, images, run.pipeline)
    print(f"{tuple(features.shape)} features of effective rank {sslbook.effective_rank(features):.1f}")
    before, after = run.rows[0], run.rows[-1]  # measured without labels
    for name in ("embedding_cosine", "embedding_rank", "feature_cosine", "feature_rank"):
        print(f"{name}: {before[name]:.3f} before training, {after[name]:.3f} after")
    print(run.collapsed or "No sign of a collapse.")
    return features


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="pictures")
    parser.add_argument("--size", type=int, help="cut each picture to a square of so many pixels")
    parser.add_argument("--method", default="simclr", help="simclr, byol, simsiam or an objective of the library")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--keep", metavar="RUN", help="a folder for checkpoints and the log")
    main(**vars(parser.parse_args()))
