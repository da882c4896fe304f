"""What only a GPU can show: its views are the processor's, a graph holds them, nothing waits; accuracies and BatchNorm agree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.networks.siamese import Networks, build
from sslbook.training import evaluate
from sslbook.training.augment import PIPELINES, apply, draws

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"
COUNT = 64


def noise(channels: int, side: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (COUNT, channels, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", PIPELINES)
def test_views_are_the_processors(name: str) -> None:
    pipeline = PIPELINES[name]
    pixels = noise(1 if name in ("digits", "mnist") else 3, pipeline.size)
    numbers = draws(COUNT, 1, 2, 0)
    found = apply(pixels.to(DEVICE), pipeline, numbers)
    assert found.device.type == DEVICE
    torch.testing.assert_close(found.cpu(), apply(pixels, pipeline, numbers), atol=1e-4, rtol=0)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert apply(pixels.to(DEVICE), pipeline, numbers).equal(found)


def test_accuracies_are_the_processors() -> None:
    """Embeddings to the digits of bfloat16; neighbours and the linear protocol of the same features but for near ties."""
    model = build(Networks(width=16, projector_hidden=16, projector_out=8, channels=1), 0).eval()
    train, test = (datasets.subset(datasets.load_dataset("digits", part), 300, 0) for part in ("train", "test"))
    pipeline = PIPELINES["digits"]
    known, asked = (evaluate.embed(model.encoder, part, pipeline, "cpu") for part in (train, test))
    model.to(DEVICE)
    embedded = evaluate.embed(model.encoder, train, pipeline, DEVICE)
    assert embedded.dtype == torch.float32
    assert F.cosine_similarity(embedded.cpu(), known).min() > 0.999
    here = (known, train.labels, asked, test.labels)
    there = tuple(part.to(DEVICE) for part in here)
    assert evaluate.knn_accuracy(*there, k=20) == pytest.approx(evaluate.knn_accuracy(*here, k=20), abs=1.5 / 300)
    wanted = evaluate.linear_probe(*here, epochs=5).curve
    assert evaluate.linear_probe(*there, epochs=5).curve == pytest.approx(wanted, abs=2.5 / 300)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert evaluate.linear_probe(*there, epochs=5).curve == pytest.approx(wanted, abs=2.5 / 300)
    found = evaluate.report(model.encoder, train, test, pipeline, DEVICE)
    assert found["rank"] == pytest.approx(evaluate.effective_rank(asked).item(), rel=0.05)
