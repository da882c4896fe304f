"""Whatever is set around a call, and whoever else is at work: the same numbers, and what is the caller's is as it was."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from losses_cases import bound
from test_numbers import numbers_in
from torch import Tensor, nn

import sslbook
from sslbook.losses.batch import LOSSES

NONE = {"BatchNorm", "ResNet18", "Settings", "Networks", "Pipeline", "Dataset"}
NONE |= {"CovarianceOperator", "EigenPairs", "LatentTree"}  # modules, words, and what others make, and here use


class Keeps(nn.Module):
    """Keeps outputs with their graphs, counts its calls, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.body = nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
        self.outputs, self.fails = [], False
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.outputs.append(self.body(x))
        if self.fails:
            raise OSError("told to")
        return self.outputs[-1]


class Given:
    """What is the caller's."""

    def __init__(self, fails: bool = False) -> None:
        draw, self.net = torch.manual_seed(0), Keeps()
        backbone = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
        self.backbones = [copy.deepcopy(backbone) for _ in range(4)]
        self.net(torch.rand(4, 1, 8, 8, generator=draw)).square().sum().backward(retain_graph=True)
        self.net.body[0].bias.requires_grad_(False)
        self.net.body[0].register_forward_hook(lambda module, args, out: None)
        self.views, self.z = torch.rand(6, 2, 1, 8, 8, generator=draw), torch.randn(2, 6, 5, generator=draw)
        self.array, self.labels = np.arange(384, dtype=np.uint8).reshape(6, 1, 8, 8), np.arange(6) % 2
        self.array.flags.writeable = False
        self.data, self.classes = sslbook.read_images(self.array, self.labels), torch.arange(6) % 2
        self.tree = sslbook.symmetric_binary([torch.full((1, 2), 0.5), torch.full((1, 4), 0.7)])
        self.op = sslbook.covariance_operator(self.net.eval(), "body.0", self.views)
        self.pairs, self.weight, self.net.fails = self.op.top_eigenpairs(2), self.op.opened.weight.clone(), fails
        self.net.body[2].train()

    def state(self) -> Iterator[Any]:
        """All of it, and what the process has."""
        for name, part in self.net.named_modules():
            yield name, part.training, len(part._forward_hooks), [id(held) for held in getattr(part, "outputs", ())]
        for name, held in [*self.net.named_parameters(), *self.net.named_buffers()]:
            yield name, id(held), held.tolist(), held.requires_grad, None if held.grad is None else held.grad.tolist()
        yield from (self.views.tolist(), self.z.tolist(), self.array.tolist(), self.labels.tolist())
        yield from (torch.get_rng_state().tolist(), str(np.random.get_state()), torch.get_float32_matmul_precision())  # noqa: NPY002
        yield torch.is_grad_enabled(), torch.get_default_dtype(), torch.backends.cuda.flash_sdp_enabled()


def pretrained(g: Given) -> Tensor:
    net, run = g.backbones.pop(), {"epochs": 1, "batch": 3, "quiet": True, "device": "cpu"}
    sslbook.pretrain(g.data, net, val=g.data, **run, on_epoch=lambda row: (net.eval(), net(g.views[0]), torch.rand(3)))
    assert all(part.grad is None for part in net.parameters())
    return net[2].weight.detach()


OPERATOR = (lambda op, w: op.apply(w), lambda op, w: op.to_scipy() @ np.ones(36), *(
    lambda op, w, name=name: getattr(op, name)() for name in ("exact_update", "euler_gap", "trace", "dense", "bottom_eigenpairs")),
    lambda op, w: op.top_eigenpairs(2).values)  # fmt: skip
PLANTED = torch.rand(32, 16, generator=torch.Generator().manual_seed(0))


def step_of(net: torch.nn.Module, draw: Callable[[Tensor], Tensor]) -> None:
    net[0].weight.data += 0.1 * net[0].weight.data @ draw(torch.arange(32)).mT @ draw(torch.arange(32)) / 32  # type: ignore[index, operator]


OWN = partial(LOSSES["info_nce"], temperature=0.5)
BATCH = ("clip", "sigmoid_pairs", "barlow_twins", "vicreg", "spectral_contrastive", "info_nce")
CALLS: dict[str, Callable[[Given], Any]] = {
    "covariance_operator": lambda g: [sslbook.covariance_operator(g.net, "body.5", g.views, **asked).dense() for asked in (
        {}, {"loss": OWN}, {"loss": "info_nce", "temperature": 0.5, "clean": g.views[:, 0]})],
    "intra_operator": lambda g: sslbook.intra_operator(g.net, "body.0", g.views).trace(),
    "products": lambda g: [*(ask(g.op, g.weight) for ask in OPERATOR), g.pairs.directions(), g.pairs.share(g.weight)],
    "inspect_network": lambda g: [(*layer.values, *(share.value for share in layer.step.values()))
                                  for layer in sslbook.inspect_network(g.net, g.data, views=2, k=2).layers],
    "compare": lambda g: sslbook.compare(
        g.net, "body.0", torch.cat([g.views, g.views + 0.1]), torch.cat([g.views.flip(-1), g.views]), k=2).directions,
    "dose": lambda g: torch.from_numpy(sslbook.dose(sslbook.mlp((16, 3)), PLANTED, step_of).growth),
    "contrastive": lambda g: [bound(LOSSES[name])(g.z.movedim(0, 1)) for name in ("simple", *BATCH)],
    "pair_distances, info_nce, soft_triplet, partials": lambda g: [(r, loss(*r), sslbook.partials(loss, *r)) for loss in (
        partial(sslbook.info_nce, temperature=0.5), partial(sslbook.soft_triplet, temperature=0.5))
        for r in [sslbook.pair_distances(*g.z)]],
    "mlp, read_images": lambda g: (sslbook.mlp((5, 4, 3)), sslbook.read_images(g.array, g.labels).pixels.float()),
    "load_dataset": lambda g: sslbook.load_dataset("digits", "test").take([3, 4]).pixels.float(),
    "shifts, random_view": lambda g: [sslbook.shifts(g.views[0]), sslbook.random_view(g.views[0], sslbook.Pipeline(8, blur=1.0))],
    "pretrain, load_run, train": pretrained,
    "embed, effective_rank": lambda g: (sslbook.embed(g.net, g.data, sslbook.Pipeline(8), batch=4), sslbook.effective_rank(g.z)),
    "mean_cosine": lambda g: sslbook.mean_cosine(g.z),
    "knn_accuracy, linear_probe": lambda g: (sslbook.knn_accuracy(g.z[0], g.classes, g.z[1], g.classes, k=3),
                                             sslbook.linear_probe(g.z[0], g.classes, g.z[1], g.classes, epochs=3, lr=0.1).curve),
    "initial_network, latent_correlations": lambda g: sslbook.latent_correlations(g.tree, sslbook.initial_network((0,), (2, 2), 3)),
    "random_categorical, symmetric_binary": lambda g: (sslbook.random_categorical((0,), (2, 3), (2,)), g.tree.sample((1,), 3)),
}  # fmt: skip


@contextlib.contextmanager
def put(write: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    write(value)
    yield
    write(before)


SETTINGS: dict[str, Callable[[], Any]] = {
    **{str(dtype): partial(torch.autocast, "cpu", dtype) for dtype in (torch.bfloat16, torch.float16)},
    "no_grad": torch.no_grad, "inference": torch.inference_mode, "device": lambda: torch.device("meta"),
    "products": lambda: put(torch.set_float32_matmul_precision, "medium", "highest"),
    "dtype": lambda: put(torch.set_default_dtype, torch.float64, torch.float32),
    "anomaly": lambda: put(lambda on: torch.autograd.set_detect_anomaly(on), True, False),
    "deterministic": lambda: put(torch.use_deterministic_algorithms, True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_settings_around_a_call_change_nothing(name: str) -> None:
    assert set(sslbook.__all__) == NONE | {name for call in CALLS for name in call.split(", ")} - {"products"}
    wanted = [*numbers_in(CALLS[name](Given()))]
    assert wanted
    for setting, around in SETTINGS.items():
        given = Given()
        with around():
            found = CALLS[name](given)
        torch.testing.assert_close([*numbers_in(found)], wanted, rtol=1e-6, atol=1e-7, msg=f"under {setting}")


@pytest.mark.parametrize("name", CALLS)
def test_what_is_the_callers_is_as_it_was_and_threads_agree(name: str) -> None:
    for fails in (False, True):
        given, answers = Given(fails), []
        before = [*given.state()]
        with ThreadPoolExecutor(4) as threads:
            for call in [threads.submit(CALLS[name], given) for _ in range(4)]:
                error = call.exception()
                assert error is None or (fails and isinstance(error, ValueError | OSError))
                answers.append([] if error else [*numbers_in(call.result())])
                torch.testing.assert_close(answers[-1], answers[0])
        assert [*given.state()] == before
