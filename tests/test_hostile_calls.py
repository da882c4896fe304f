"""Each promised name refuses a bad call in a sentence of ours, which names the argument."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import sslbook

PACKAGE = Path(sslbook.__file__).parent
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 2
NET, VIEWS = sslbook.mlp((4, 5, 3), seed=0), X.reshape(4, 2, 4)
TREE = sslbook.symmetric_binary([torch.full((1, 2), 0.5)])
IMAGES, PIPELINE = sslbook.read_images(PIXELS), sslbook.Pipeline(8)
BACKBONE = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
DISTANCES = {"r_pos": X[:, 0], "r_neg": X}
SCORED = {"train_features": X, "train_labels": LABELS, "test_features": X, "test_labels": LABELS}


def operator(**given: Any) -> Any:
    return sslbook.covariance_operator(**{"net": NET, "layer": "2", "views": VIEWS, **given})


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "BatchNorm": (partial(sslbook.BatchNorm, 4), {"mean": "no"}),
    "CovarianceOperator": (operator(net=sslbook.mlp((4, 5, 3), "linear"), normalize=True).top_eigenpairs, {"k": 1}),
    "Dataset": (sslbook.Dataset, {"pixels": X, "labels": LABELS, "name": "x", "classes": ()}),
    "EigenPairs": (operator().top_eigenpairs, {"k": 0}),
    "LatentTree": (sslbook.LatentTree, {"root": torch.tensor([[0.5, 0.5]]), "tables": ()}),
    "Networks": (sslbook.Networks, {"width": 0}),
    "Pipeline": (sslbook.Pipeline, {"size": 0}),
    "ResNet18": (sslbook.ResNet18, {"stem": "cifr"}),
    "Settings": (sslbook.Settings, {"lr": -1.0}),
    "compare": (partial(sslbook.compare, NET, "0", VIEWS.repeat(2, 1, 1)), {"second": VIEWS}),
    "contrastive": (partial(sslbook.contrastive, X, X.flip(0)), {"loss": "infonce"}),
    "covariance_operator": (operator, {"views": VIEWS[0]}),
    "dose": (partial(sslbook.dose, torch.nn.Flatten(), torch.rand(32, 16), lambda net, draw: None), {"strength": 0.0}),
    "effective_rank": (sslbook.effective_rank, {"features": X * torch.nan}),
    "embed": (partial(sslbook.embed, lambda x: x.flatten(1), IMAGES), {"pipeline": sslbook.Pipeline(9)}),
    "mean_cosine": (sslbook.mean_cosine, {"features": X * torch.nan}),
    "info_nce": (partial(sslbook.info_nce, **DISTANCES), {"temperature": 0.0}),
    "initial_network": (partial(sslbook.initial_network, (0,), (2,)), {"width": 0}),
    "inspect_network": (partial(sslbook.inspect_network, NET, PIXELS), {"views": 1}),
    "intra_operator": (partial(sslbook.intra_operator, NET, "2"), {"views": X.long()}),
    "knn_accuracy": (partial(sslbook.knn_accuracy, **SCORED), {"k": 0}),
    "latent_correlations": (
        partial(sslbook.latent_correlations, TREE),
        {"net": sslbook.initial_network((0,), (3,), 2)},
    ),
    "linear_probe": (sslbook.linear_probe, SCORED | {"test_labels": LABELS - 1}),
    "load_dataset": (sslbook.load_dataset, {"name": "cifar"}),
    "load_run": (partial(sslbook.load_run, backbone=BACKBONE), {"folder": "no such folder"}),
    "mlp": (sslbook.mlp, {"widths": (4,)}),
    "pair_distances": (sslbook.pair_distances, {"z1": X, "z2": X[:, :2]}),
    "partials": (partial(sslbook.partials, sslbook.info_nce, X[:, 0]), {"r_neg": X[:, 0]}),
    "pretrain": (partial(sslbook.pretrain, PIXELS, BACKBONE), {"method": "simlcr"}),
    "random_categorical": (partial(sslbook.random_categorical, (0,), (2, 2)), {"branching": (0,)}),
    "random_view": (partial(sslbook.random_view, pipeline=PIPELINE), {"pixels": X}),
    "read_images": (sslbook.read_images, {"source": iter(())}),
    "shifts": (partial(sslbook.shifts, PIXELS), {"radius": -1}),
    "soft_triplet": (partial(sslbook.soft_triplet, **DISTANCES), {"temperature": -1.0}),
    "symmetric_binary": (sslbook.symmetric_binary, {"polarities": [torch.full((1, 2), 2.0)]}),
    "train": (sslbook.train, {"settings": sslbook.Settings(batch=9), "folder": "", "data": (IMAGES, None)}),
}


@pytest.mark.parametrize("name", sslbook.__all__)
def test_a_bad_call_is_refused_in_a_sentence(name: str) -> None:
    call, bad = CALLS[name]
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as refused:
        call(**bad)
    raised = Path(traceback.extract_tb(refused.value.__traceback__)[-1].filename)
    assert raised.is_relative_to(PACKAGE), f"not ours: {refused.value!r} of {raised}"
    assert len(str(refused.value)) > 20
