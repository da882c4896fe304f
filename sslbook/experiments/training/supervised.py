"""A run that is told the labels: the same encoder, images, views and optimiser, cross-entropy on a linear map of the features."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from sslbook.images.datasets import Dataset
from sslbook.networks.resnet import initialize
from sslbook.networks.siamese import build
from sslbook.training.evaluate import embed
from sslbook.training.run.determinism import generator
from sslbook.training.run.parts import layout_of, make_batches, make_optimizer, make_rate
from sslbook.training.run.settings import Settings
from sslbook.training.views.augment import PIPELINES, apply


def trained(settings: Settings, data: Dataset, epochs: int, device: str = "cpu") -> nn.Sequential:
    """Encoder and classifier after ``epochs`` of a run with these settings, whose objective is replaced; both views count."""
    siamese = build(settings.networks, settings.seed)
    top = nn.Linear(8 * settings.networks.width, data.classes)
    initialize(top, generator(settings.seed, "classifier", 0))
    net = nn.Sequential(siamese.encoder, top).to(device)
    net.to(memory_format=layout_of(settings.networks.width, torch.device(device)))  # type: ignore[call-overload]
    optimizer, pipeline = make_optimizer(settings, list(net.parameters())), PIPELINES[settings.pipeline]
    batches = make_batches(settings, len(data))
    rate = make_rate(settings, batches.per_epoch)
    for step in range(epochs * batches.per_epoch):
        index, *draws = batches.at(step)
        pixels, labels = data.pixels[index].to(device), data.labels[index].to(device)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        for drawn in draws:
            F.cross_entropy(net(apply(pixels, pipeline, drawn)), labels).div(len(draws)).backward()
        optimizer.step()
    return net


@torch.no_grad()
def accuracy(net: nn.Module, data: Dataset, settings: Settings) -> float:
    """The share of un-augmented images whose largest output is their class's."""
    outputs = embed(net, data, PIPELINES[settings.pipeline])
    return float((outputs.argmax(1).cpu() == data.labels).double().mean())
