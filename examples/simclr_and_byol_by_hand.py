"""SimCLR and BYOL as loops of your own, with the library's views, networks and losses, and nothing of its trainer.

python examples/simclr_and_byol_by_hand.py --method byol --epochs 10
"""

import argparse
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslbook

VIEWS = sslbook.Pipeline(8, scale=(0.5, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0)


def head(inputs: int, outputs: int) -> nn.Module:
    """A projector or a predictor: two layers, BatchNorm between them."""
    return nn.Sequential(nn.Linear(inputs, 128), sslbook.BatchNorm(128), nn.ReLU(), nn.Linear(128, outputs))


def batches(pixels: Tensor, size: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Two views of each image of a batch, in a new order every epoch."""
    for epoch in range(epochs):
        for number, chosen in enumerate(torch.randperm(len(pixels)).split(size)[:-1]):  # the last batch is smaller
            step = epoch * len(pixels) + number
            first, second = (sslbook.random_view(pixels[chosen], VIEWS, step=step, view=view) for view in (0, 1))
            yield first, second


def simclr(
    encoder: nn.Module, features: int, data: Iterator[tuple[Tensor, Tensor]], lr: float, temperature: float
) -> None:
    """Embeddings of two views attract each other, and repel those of all other images."""
    projected = nn.Sequential(encoder, head(features, 64))
    optimizer = torch.optim.Adam(projected.parameters(), lr)
    for first, second in data:
        loss = sslbook.contrastive(projected(first), projected(second), temperature=temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def byol(encoder: nn.Module, features: int, data: Iterator[tuple[Tensor, Tensor]], lr: float, keep: float) -> None:
    """A predictor on one view's side foretells what a slowly moving copy says of the other view; nothing is repelled."""
    online, predictor = nn.Sequential(encoder, head(features, 64)), head(64, 64)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr)
    for first, second in data:
        said = [F.cosine_similarity(predictor(online(x)), target(y)) for x, y in ((first, second), (second, first))]
        loss = -torch.stack(said).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for theirs, ours in zip(target.parameters(), online.parameters(), strict=True):
            theirs.lerp_(ours.detach(), 1 - keep)


def main(method: str = "simclr", epochs: int = 10, batch: int = 128, width: int = 8) -> float:
    torch.manual_seed(0)
    train, test = sslbook.load_dataset("digits", "train"), sslbook.load_dataset("digits", "test")
    encoder, data = sslbook.ResNet18(width=width, channels=1), batches(train.pixels, batch, epochs)
    if method == "simclr":
        simclr(encoder, encoder.features, data, lr=3e-3, temperature=0.5)
    else:
        byol(encoder, encoder.features, data, lr=3e-3, keep=0.99)
    known, asked = (sslbook.embed(encoder.eval(), part, VIEWS) for part in (train, test))
    accuracy = sslbook.knn_accuracy(known, train.labels, asked, test.labels, k=20)
    print(f"{method}: nearest neighbours are right about {accuracy:.1%} of the test digits")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("simclr", "byol"), default="simclr")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=8, help="channels of the ResNet's first stage")
    main(**vars(parser.parse_args()))
