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


# fmt: off
T: tuple[Any, ...] = (
    None, "x", 1.0, [[1.0, 2.0]], X.numpy(), X.float(), X.bfloat16(), X.to(torch.complex128), X.long(), X.bool(), X[:0], X[:, :0],
    X[0], X[0, 0], X[:, :2], X[None, None], torch.full_like(X, torch.nan), torch.full_like(X, torch.inf), X.to("meta"),
    X.to_sparse(), object(), {}, nn.Linear(2, 2),
)
N: tuple[Any, ...] = (
    None, "x", "1", float("nan"), float("inf"), -float("inf"), -1, 0, 1.5, 10**30, True, [1], (), {}, 1j, object(), np.nan,
    np.array([1, 2]), torch.tensor([1, 2]), torch.tensor(torch.nan), b"1",
)
W: tuple[Any, ...] = (None, "", "no such", "simplee", "SIMPLE", 1, 1.5, [], {}, object(), b"simple", "\0", "../x")
S: tuple[Any, ...] = (
    None, "x", (), (3,), [1, 0], (1.5, 2), (-1, 3), (3, "x"), 7, (10**30, 2), object(), (True, 2), [[1], [2]],
)
OBJECTS: tuple[Any, ...] = (None, "x", 1, object(), [], {}, int, lambda: None, X)
"""Bad tensors, numbers, words, sizes and objects."""


def shaped(shape: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """The bad tensors, in the shape that is asked for where they have all of the numbers."""
    return tuple(shape(t) if isinstance(t, Tensor) and t.shape == X.shape and not t.is_sparse else t for t in T)


def of(what: Callable[..., Any], **valid: Any) -> Callable[..., tuple[Any, ...]]:
    """A call that is answered, and the bad values of each argument."""
    return lambda **bad: (what, valid, bad)


PAIR = {"z1": X, "z2": X.flip(0)}
DISTANCES = {"r_pos": X[:, 0], "r_neg": X}
SCORED = {"train_features": X, "train_labels": LABELS, "test_features": X, "test_labels": LABELS}
COUNTS = ("width", "projector_hidden", "projector_out", "predictor", "predictor_hidden", "channels")
RATES = ("lr", "momentum", "weight_decay", "warmup", "batch", "epochs", "seed", "ema", "reset", "noise")
NAMES = ("dataset", "split", "pipeline", "objective", "optimizer", "schedule", "precision", "capture")
CALLS: dict[str, tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, tuple[Any, ...]]]] = {
    "shifts": of(sslbook.shifts, images=PIXELS, radius=1)(images=T, radius=N),
    "contrastive": of(sslbook.contrastive, **PAIR, loss="info_nce", negatives="both_views", temperature=0.5)(
        z1=T, z2=T, loss=W, negatives=W, temperature=N, clean=T[1:]),
    "info_nce": of(sslbook.info_nce, **DISTANCES, temperature=0.5)(r_pos=T, r_neg=T, temperature=N, epsilon=N),
    "soft_triplet": of(sslbook.soft_triplet, **DISTANCES, temperature=0.5)(r_pos=T, r_neg=T, temperature=N, margin=N),
    "pair_distances": of(sslbook.pair_distances, **PAIR)(z1=T, z2=T, negatives=W),
    "partials": of(sslbook.partials, loss_fn=lambda a, b: sslbook.info_nce(a, b, 0.5), **DISTANCES)(
        loss_fn=(None, "x", 1, lambda: 0, lambda a, b: None, lambda a, b: "x"), r_pos=T, r_neg=T),
    "mlp": of(sslbook.mlp, widths=(4, 5, 3))(widths=S, act=W, seed=N, slope=N, power=N),
    "BatchNorm": of(sslbook.BatchNorm, features=4)(features=N, mean=W, std=W, eps=N, momentum=N),
    "covariance_operator": of(lambda **g: sslbook.covariance_operator(**g).trace(), net=NET, layer="2", views=VIEWS)(
        net=OBJECTS, layer=(*W, "9", "1", nn.Linear(3, 3)), views=shaped(lambda t: t.reshape(4, 2, 4)), loss=W[1:],
        temperature=N[1:], beta=N, chunk=N[1:], clean=T[1:]),
    "covariance_operator, pairs": of(
        lambda **g: sslbook.covariance_operator(**g).trace(), net=NET, layer="2", views=VIEWS, loss="info_nce", temperature=0.5,
        clean=X[:4])(clean=(*shaped(lambda t: t[:4]), X[0, 0], X[:5], X[:4, None]), temperature=N, margin=N[1:], beta=N[1:],
        normalize=(True,)),
    "intra_operator": of(lambda **g: sslbook.intra_operator(**g).trace(), net=NET, layer="2", views=VIEWS)(
        net=OBJECTS, layer=W, views=T, chunk=N[1:]),
    "apply": of(lambda **g: operator().apply(**g), direction=NET[2].weight.detach())(direction=T),
    "matvec": of(lambda **g: operator().matvec(**g), vector=torch.ones(15, dtype=torch.float64))(vector=T),
    "matmat": of(lambda **g: operator().matmat(**g), matrix=torch.ones(15, 2, dtype=torch.float64))(matrix=T),
    "euler_gap": of(lambda **g: operator().euler_gap(**g), degree=1.0)(degree=N),
    "top_eigenpairs": of(lambda **g: operator().top_eigenpairs(**g).values, k=2)(k=N, tol=N, seed=N),
    "top_eigenpairs, by products": of(
        lambda **g: sslbook.covariance_operator(WIDE, "0", VIEWS).top_eigenpairs(**g).values, k=2)(k=N, tol=N, seed=N),
    "effective_rank": of(sslbook.effective_rank, features=X)(features=T),
    "knn_accuracy": of(sslbook.knn_accuracy, **SCORED, k=3)(
        **dict.fromkeys(SCORED, T), k=N, temperature=N),
    "linear_probe": of(sslbook.linear_probe, **SCORED, epochs=1)(
        train_features=T, train_labels=T, epochs=N[:9], batch=N, lr=N, weight_decay=N, seed=N),
    "ResNet18": of(sslbook.ResNet18, width=2)(stem=W, width=N, channels=N),
    "Networks": of(sslbook.Networks)(**dict.fromkeys(COUNTS, N), stem=W, target=W[1:], target_init=W, projector_norm=W[1:],
        unbiased=N[:3]),
    "Pipeline": of(sslbook.Pipeline, size=8)(
        **dict.fromkeys(("size", "flip", "grey", "blur", "blur_kernel", "jitter_probability"), N),
        **dict.fromkeys(("scale", "ratio", "jitter", "blur_sigma", "mean", "std"), S)),
    "random_view": of(sslbook.random_view, pixels=PIXELS, pipeline=sslbook.Pipeline(8))(
        pixels=T, pipeline=OBJECTS, seed=N, step=N, view=N),
    "Settings": of(sslbook.Settings)(**dict.fromkeys(RATES, N), **dict.fromkeys(NAMES, W), networks=OBJECTS, betas=S,
        probes=S[3:], shuffle=N[:3]),
    "load_dataset": of(sslbook.load_dataset, name="digits", split="train")(name=W, split=W),
    "read_images": of(sslbook.read_images, source=PIXELS)(source=(*T, "no such folder"), labels=T[1:], size=N[1:]),
    "symmetric_binary": of(sslbook.symmetric_binary, polarities=[torch.full((1, 2), 0.5)])(
        polarities=(*S, [X], [None], [torch.full((1, 2), 2.0)], [torch.full((1, 2), torch.nan)]), root_polarity=N),
    "random_categorical": of(sslbook.random_categorical, seeds=(0, 1), values=(2, 2), branching=(2,))(
        seeds=S, values=S, branching=S),
    "initial_network": of(sslbook.initial_network, seeds=(0,), branching=(2,), width=3)(seeds=S, branching=S, width=N),
    "latent_correlations": of(
        sslbook.latent_correlations, tree=TREE, net=sslbook.initial_network((0,), (2,), 3, dtype=torch.float64))(
        tree=OBJECTS, net=OBJECTS),
    "embed": of(
        sslbook.embed, features=lambda x: x.flatten(1), dataset=sslbook.read_images(PIXELS), pipeline=sslbook.Pipeline(8))(
        features=(None, "x", 1), dataset=OBJECTS, pipeline=OBJECTS, batch=N),
}
# fmt: on


HONEST = ("contrastive", "info_nce", "soft_triplet", "pair_distances", "partials")
"""A loss of NaN is NaN: to look would make a GPU wait in every step, and a run stops where its loss is none."""


def hostile(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of one name, each with what was bad: one argument, or two, drawn at random."""
    _, valid, bad = CALLS[name]
    for argument, values in bad.items():
        yield from ((f"{argument} = {str(value)[:60]!r}", {**valid, argument: value}) for value in values)
    draw = random.Random(name)
    for _ in range(5 if len(bad) > 1 else 0):
        two = {argument: draw.choice(bad[argument]) for argument in draw.sample(sorted(bad), 2)}
        yield str(two)[:120], {**valid, **two}


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


def wrong_with(name: str, given: dict[str, Any]) -> str:
    """What is wrong with the answer of a call; nothing if it is one of ours."""
    try:
        found = CALLS[name][0](**given)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raised = traceback.extract_tb(error.__traceback__)[-1].filename
        return "" if Path(raised).is_relative_to(PACKAGE) else f"{type(error).__name__} of {raised}: {str(error)[:100]}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    honest = name in HONEST and not all(t.isfinite().all() for t in given.values() if isinstance(t, Tensor))
    finite = honest or all(part.isfinite().all() for part in numbers_in(found))
    return "" if finite else "an answer that isn't finite"


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_answered_by_us(name: str) -> None:
    function, valid, _ = CALLS[name]
    function(**valid)
    assert [f"{told}: {what}" for told, given in hostile(name) if (what := wrong_with(name, given))] == []


def test_every_promised_name_is_called() -> None:
    others = {"train", "pretrain", "load_run", "inspect_network", "Dataset", "LatentTree"}
    assert set(sslbook.__all__) - set(CALLS) <= others | {"CovarianceOperator", "EigenPairs"}
