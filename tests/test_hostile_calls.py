"""The exported names, called with what nobody should give them: an error of ours in a sentence, or an answer in finite numbers."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attacked import DEEP
from torch import Tensor, nn

import sslbook

PACKAGE = Path(sslbook.__file__).parent
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 2
NET = sslbook.mlp((4, 5, 3), seed=0)
WIDE = sslbook.mlp((4, 24, 3), seed=0)
VIEWS = X.reshape(4, 2, 4)
TREE = sslbook.symmetric_binary([torch.full((1, 2), 0.5)])


def operator() -> Any:
    return sslbook.covariance_operator(NET, "2", VIEWS)


TENSORS: tuple[Any, ...] = (
    *(None, "x", 1.0, [[1.0, 2.0]], X.numpy(), X.float(), X.bfloat16(), X.to(torch.complex128), X.long(), X.bool()),
    *(
        X[:0],
        X[:, :0],
        X[0],
        X[0, 0],
        X[:, :2],
        X[None, None],
        torch.full_like(X, torch.nan),
        torch.full_like(X, torch.inf),
    ),
    *(X.to("meta"), X.to_sparse(), object(), {}, nn.Linear(2, 2)),
)
NUMBERS: tuple[Any, ...] = (
    *(None, "x", "1", float("nan"), float("inf"), -float("inf"), -1, 0, 1.5, 10**30, True, [1], (), {}, 1j, object()),
    *(np.nan, np.array([1, 2]), torch.tensor([1, 2]), torch.tensor(torch.nan), b"1"),
)
WORDS: tuple[Any, ...] = (None, "", "no such", "simplee", "SIMPLE", 1, 1.5, [], {}, object(), b"simple", "\0", "../x")
SIZES: tuple[Any, ...] = (
    None,
    "x",
    (),
    (3,),
    [1, 0],
    (1.5, 2),
    (-1, 3),
    (3, "x"),
    7,
    (10**30, 2),
    object(),
    (True, 2),
    [[1], [2]],
)
OBJECTS: tuple[Any, ...] = (None, "x", 1, object(), [], {}, int, lambda: None, X)

CALLS: dict[str, tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, tuple[Any, ...]]]] = {
    "shifts": (sslbook.shifts, {"images": PIXELS, "radius": 1}, {"images": TENSORS, "radius": NUMBERS}),
    "contrastive": (
        sslbook.contrastive,
        {"z1": X, "z2": X.flip(0), "loss": "info_nce", "negatives": "both_views", "tau": 0.5},
        {"z1": TENSORS, "z2": TENSORS, "loss": WORDS, "negatives": WORDS, "tau": NUMBERS, "clean": TENSORS[1:]},
    ),
    "info_nce": (
        sslbook.info_nce,
        {"r_pos": X[:, 0], "r_neg": X, "tau": 0.5},
        {"r_pos": TENSORS, "r_neg": TENSORS, "tau": NUMBERS, "epsilon": NUMBERS},
    ),
    "soft_triplet": (
        sslbook.soft_triplet,
        {"r_pos": X[:, 0], "r_neg": X, "tau": 0.5},
        {"r_pos": TENSORS, "r_neg": TENSORS, "tau": NUMBERS, "margin": NUMBERS},
    ),
    "pair_distances": (
        sslbook.pair_distances,
        {"z1": X, "z2": X.flip(0)},
        {"z1": TENSORS, "z2": TENSORS, "negatives": WORDS},
    ),
    "partials": (
        sslbook.partials,
        {"loss_fn": lambda a, b: sslbook.info_nce(a, b, 0.5), "r_pos": X[:, 0], "r_neg": X},
        {"loss_fn": (None, "x", 1, lambda: 0, lambda a, b: None, lambda a, b: "x"), "r_pos": TENSORS, "r_neg": TENSORS},
    ),
    "mlp": (
        sslbook.mlp,
        {"widths": (4, 5, 3)},
        {"widths": SIZES, "act": WORDS, "seed": NUMBERS, "slope": NUMBERS, "power": NUMBERS},
    ),
    "BatchNorm": (
        sslbook.BatchNorm,
        {"features": 4},
        {"features": NUMBERS, "mean": WORDS, "std": WORDS, "eps": NUMBERS, "momentum": NUMBERS},
    ),
    "covariance_operator": (
        lambda **given: sslbook.covariance_operator(**given).trace(),
        {"net": NET, "layer": "2", "views": VIEWS},
        {
            "net": OBJECTS,
            "layer": (*WORDS, "9", "1", nn.Linear(3, 3)),
            "views": tuple(
                v.reshape(4, 2, 4) if isinstance(v, Tensor) and v.shape == X.shape and not v.is_sparse else v
                for v in TENSORS
            ),
            "loss": WORDS[1:],
            "tau": NUMBERS[1:],
            "beta": NUMBERS,
            "chunk": NUMBERS[1:],
            "clean": TENSORS[1:],
        },
    ),
    "covariance_operator, pairs": (
        lambda **given: sslbook.covariance_operator(**given).trace(),
        {"net": NET, "layer": "2", "views": VIEWS, "loss": "info_nce", "tau": 0.5, "clean": X[:4]},
        {
            "clean": (
                *(c[:4] if isinstance(c, Tensor) and c.shape == X.shape and not c.is_sparse else c for c in TENSORS),
                *(X[0, 0], X[:5], X[:4, None]),
            ),
            "tau": NUMBERS,
            "margin": NUMBERS[1:],
            "beta": NUMBERS[1:],
            "normalize": (True,),
        },
    ),
    "intra_operator": (
        lambda **given: sslbook.intra_operator(**given).trace(),
        {"net": NET, "layer": "2", "views": VIEWS},
        {"net": OBJECTS, "layer": WORDS, "views": TENSORS, "chunk": NUMBERS[1:]},
    ),
    "apply": (lambda **given: operator().apply(**given), {"direction": NET[2].weight.detach()}, {"direction": TENSORS}),
    "matvec": (
        lambda **given: operator().matvec(**given),
        {"vector": torch.ones(15, dtype=torch.float64)},
        {"vector": TENSORS},
    ),
    "matmat": (
        lambda **given: operator().matmat(**given),
        {"matrix": torch.ones(15, 2, dtype=torch.float64)},
        {"matrix": TENSORS},
    ),
    "euler_gap": (lambda **given: operator().euler_gap(**given), {"degree": 1.0}, {"degree": NUMBERS}),
    "top_eigenpairs": (
        lambda **given: operator().top_eigenpairs(**given).values,
        {"k": 2},
        {"k": NUMBERS, "tol": NUMBERS, "seed": NUMBERS},
    ),
    "top_eigenpairs, by products": (
        lambda **given: sslbook.covariance_operator(WIDE, "0", VIEWS).top_eigenpairs(**given).values,
        {"k": 2},
        {"k": NUMBERS, "tol": NUMBERS, "seed": NUMBERS},
    ),
    "effective_rank": (sslbook.effective_rank, {"features": X}, {"features": TENSORS}),
    "knn": (
        sslbook.knn,
        {"train": X, "labels": LABELS, "test": X, "truth": LABELS, "k": 3},
        {"train": TENSORS, "labels": TENSORS, "test": TENSORS, "truth": TENSORS, "k": NUMBERS, "tau": NUMBERS},
    ),
    "linear_probe": (
        sslbook.linear_probe,
        {"train": X, "labels": LABELS, "test": X, "truth": LABELS, "epochs": 1},
        {
            "train": TENSORS,
            "labels": TENSORS,
            "epochs": NUMBERS[:9],
            "batch": NUMBERS,
            "rate": NUMBERS,
            "decay": NUMBERS,
            "seed": NUMBERS,
        },
    ),
    "ResNet18": (sslbook.ResNet18, {"width": 2}, {"stem": WORDS, "width": NUMBERS, "channels": NUMBERS}),
    "Networks": (
        sslbook.Networks,
        {},
        dict.fromkeys(
            ("width", "projector_hidden", "projector_out", "predictor", "predictor_hidden", "channels"), NUMBERS
        )
        | {
            "stem": WORDS,
            "target": WORDS[1:],
            "target_init": WORDS,
            "projector_norm": WORDS[1:],
            "unbiased": NUMBERS[:3],
        },
    ),
    "Pipeline": (
        sslbook.Pipeline,
        {"size": 8},
        dict.fromkeys(("size", "flip", "grey", "blur", "blur_kernel", "jitter_probability"), NUMBERS)
        | dict.fromkeys(("scale", "ratio", "jitter", "blur_sigma", "mean", "std"), SIZES),
    ),
    "random_view": (
        sslbook.random_view,
        {"pixels": PIXELS, "pipeline": sslbook.Pipeline(8)},
        {"pixels": TENSORS, "pipeline": OBJECTS, "seed": NUMBERS, "step": NUMBERS, "view": NUMBERS},
    ),
    "Settings": (
        sslbook.Settings,
        {},
        dict.fromkeys(
            ("rate", "momentum", "decay", "warmup", "batch", "epochs", "seed", "ema", "reset", "noise"), NUMBERS
        )
        | dict.fromkeys(
            ("dataset", "split", "pipeline", "objective", "optimizer", "schedule", "precision", "capture"), WORDS
        )
        | {"networks": OBJECTS, "betas": SIZES, "probes": SIZES[3:], "shuffle": NUMBERS[:3]},
    ),
    "recorded": (sslbook.recorded, {"name": "training-cifar10"}, {"name": WORDS}),
    "load_dataset": (sslbook.load_dataset, {"name": "digits", "split": "train"}, {"name": WORDS, "split": WORDS}),
    "read_images": (
        sslbook.read_images,
        {"source": PIXELS},
        {"source": (*TENSORS, "no such folder"), "labels": TENSORS[1:], "size": NUMBERS[1:]},
    ),
    "symmetric_binary": (
        sslbook.symmetric_binary,
        {"polarities": [torch.full((1, 2), 0.5)]},
        {
            "polarities": (*SIZES, [X], [None], [torch.full((1, 2), 2.0)], [torch.full((1, 2), torch.nan)]),
            "root_polarity": NUMBERS,
        },
    ),
    "random_categorical": (
        sslbook.random_categorical,
        {"seeds": (0, 1), "values": (2, 2), "branching": (2,)},
        {"seeds": SIZES, "values": SIZES, "branching": SIZES},
    ),
    "initial_network": (
        sslbook.initial_network,
        {"seeds": (0,), "branching": (2,), "width": 3},
        {"seeds": SIZES, "branching": SIZES, "width": NUMBERS},
    ),
    "latent_correlations": (
        sslbook.latent_correlations,
        {"tree": TREE, "net": sslbook.initial_network((0,), (2,), 3, dtype=torch.float64)},
        {"tree": OBJECTS, "net": OBJECTS},
    ),
    "embed": (
        sslbook.embed,
        {"features": lambda x: x.flatten(1), "dataset": sslbook.read_images(PIXELS), "pipeline": sslbook.Pipeline(8)},
        {"features": (None, "x", 1), "dataset": OBJECTS, "pipeline": OBJECTS, "batch": NUMBERS},
    ),
}


HONEST = ("contrastive", "info_nce", "soft_triplet", "pair_distances", "partials")
"""A loss of NaN is NaN: to look would make a GPU wait in every step, and a run stops where its loss is none."""


def hostile(name: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The calls of one name: the argument, the place of its bad value, and all that is given."""
    _, valid, bad = CALLS[name]
    for argument, values in bad.items():
        for place, value in enumerate(values):
            yield argument, place, {**valid, argument: value}


def numbers_in(found: Any) -> Iterator[Tensor]:
    """The floating tensors of an answer."""
    if isinstance(found, Tensor):
        yield from [found] if found.is_floating_point() or found.is_complex() else []
    elif isinstance(found, float):
        yield torch.tensor(found, dtype=torch.float64)
    elif isinstance(found, nn.Module):
        yield from (p.detach() for p in found.parameters())
    elif is_dataclass(found) and not isinstance(found, type):
        yield from (t for part in fields(found) for t in numbers_in(getattr(found, part.name)))
    elif isinstance(found, (tuple, list)):
        yield from (t for part in found for t in numbers_in(part))


def whose(error: BaseException) -> str:
    """The file that raised it, if that isn't ours."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "" if Path(last.filename).is_relative_to(PACKAGE) else f"{last.filename}:{last.lineno}"


def doubly_hostile(name: str, count: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Calls with two bad values, drawn at random."""
    _, valid, bad = CALLS[name]
    draw = random.Random(name)
    for number in range(count if len(bad) > 1 else 0):
        one, other = draw.sample(sorted(bad), 2)
        yield f"{one}, {other}", number, {**valid, one: draw.choice(bad[one]), other: draw.choice(bad[other])}


def answered(name: str, given: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with the answer of a call, ``silent`` or ``tracebacks``, and a word on it; nothing if it is one of ours."""
    try:
        found = CALLS[name][0](**given)
    except (ValueError, TypeError, FileNotFoundError) as error:
        elsewhere = whose(error)
        return ("tracebacks", f"{type(error).__name__} of {elsewhere}: {str(error)[:100]}") if elsewhere else ("", "")
    except BaseException as error:
        return "tracebacks", f"{type(error).__name__}: {str(error)[:100]}"
    honest = name in HONEST and not all(t.isfinite().all() for t in given.values() if isinstance(t, Tensor))
    if not honest and not all(part.isfinite().all() for part in numbers_in(found)):
        return "silent", "an answer that isn't finite"
    return "", ""


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_answered_by_us(name: str, record_property: Callable[[str, object], None]) -> None:
    function, valid, _ = CALLS[name]
    function(**valid)
    calls = [*hostile(name), *doubly_hostile(name, 200 if DEEP else 5)]
    wrong = []
    for arguments, place, given in calls:
        kind, what = answered(name, given)
        if kind:
            told = ", ".join(f"{argument} = {str(given[argument])[:60]!r}" for argument in arguments.split(", "))
            wrong.append((kind, f"{told} ({place}): {what}"))
    record_property("tried", len(calls))
    for counted in ("silent", "tracebacks"):
        record_property(counted, sum(kind == counted for kind, _ in wrong))
    assert "\n".join(line for _, line in wrong) == ""


def test_there_are_enough_of_them() -> None:
    assert sum(len(list(hostile(name))) for name in CALLS) >= 600
    assert set(sslbook.__all__ if hasattr(sslbook, "__all__") else CALLS) - set(CALLS) <= {
        *("train", "pretrain", "inspect_network", "Dataset", "LatentTree", "CovarianceOperator"),
    }
