"""Steps that one process makes alone and several make together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbook.networks.batchnorm import BatchNorm
from sslbook.networks.siamese import Networks, build
from sslbook.training import objectives
from sslbook.training.run import distributed

SMALL: dict[str, Any] = {"width": 4, "projector_hidden": 16, "projector_out": 8, "predictor_hidden": 16}
BYOL: dict[str, Any] = {"predictor": 2, "target": "ema", "target_init": "own"}
HALVES: dict[str, Any] = {
    "projector_norm": ("detach", "normal"),
    "predictor_norm": ("backward", "detach"),
    "unbiased": True,
}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "info_nce": ("info_nce", {}, {}),
    "exact": ("exact", {}, {}),
    "exact clean": ("exact", {"weights": "clean", "over": "sum"}, {}),
    "exact further": ("exact", {"weights": "further"}, {}),
    "beta": ("beta", {"beta": -0.5}, {}),
    "soft_triplet": ("soft_triplet", {}, {"projector_norm": None}),
    "quadratic": ("quadratic", {}, {}),
    "byol": ("byol", {}, BYOL),
    "byol halves": ("byol", {}, {**BYOL, **HALVES}),
    "byol gradient": ("byol", {"stop_gradient": False}, {"predictor": 1}),
}
CASES |= {name: (name, {}, {}) for name in objectives.OBJECTIVES if name not in {case[0] for case in CASES.values()}}
BATCH = 16
LABELS = torch.arange(BATCH) % 5
"""Each class is on both processes' parts."""

Result = dict[str, Tensor]


def images() -> Tensor:
    return torch.randn(4, BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def steps(case: str) -> Result:
    """Two steps of gradient descent by this process's part of the batch: loss, gradient and statistics of each."""
    name, numbers, sizes = CASES[case]
    siamese = build(Networks(**{**SMALL, **sizes}), 0).double()
    distributed.share_batchnorm(siamese)
    loss_of, mine = objectives.objective(name, **numbers), distributed.own_rows(BATCH)
    views = images()[:, mine]
    beside = {"clean": views[2:3], "further": views[2:]}.get(objectives.sees(name, **numbers), views[:0])
    result: Result = {}
    for step in ("first", "second"):
        siamese.zero_grad(set_to_none=True)
        outputs = siamese(*views[:2], *beside)._replace(labels=LABELS[mine])
        loss = loss_of(distributed.gather_outputs(outputs))
        loss.backward()
        distributed.average_gradients(siamese.learning())
        with torch.no_grad():
            for weights in siamese.learning():
                assert weights.grad is not None
                weights -= 0.05 * weights.grad
        siamese.update_target(0.9)
        result[f"{step} loss"] = loss.detach()
        result[f"{step} gradient"] = torch.cat([w.grad.flatten() for w in siamese.learning() if w.grad is not None])
        result[f"{step} statistics"] = torch.cat([b.flatten() for b in siamese.buffers() if b.is_floating_point()])
    return result


class NormAct(nn.BatchNorm2d):
    """A BatchNorm with a forward of its own, as many networks have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


NORMS: dict[str, Callable[[], nn.Module]] = {
    "a subclass": lambda: NormAct(3),
    "without a momentum": lambda: nn.BatchNorm2d(3, momentum=None),
    "without statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "counting instances": lambda: nn.InstanceNorm2d(3, track_running_stats=True),
    "halves": lambda: BatchNorm(3, mean="detach", std="backward", affine=True),
}


def normalised() -> Result:
    """What each of :data:`NORMS` makes of this process's part, its gradients and statistics; a hook sees the part alone."""
    result: Result = {}
    views = images()[0, distributed.own_rows(BATCH)]
    for name, make in NORMS.items():
        layer = make().double()
        seen: list[int] = []
        layer.register_forward_hook(lambda layer, x, y, seen=seen: seen.append(len(y)))
        x = views.clone().requires_grad_()
        y = distributed.share_batchnorm(nn.Sequential(layer))(x)
        (y * torch.arange(3.0).view(1, 3, 1, 1) + y.square() * y).sum().backward()
        assert seen == [len(views)]
        assert x.grad is not None
        result[f"{name}: output and gradient"] = torch.cat([y.detach(), x.grad], dim=1)
        result[f"{name}: statistics"] = torch.cat([torch.zeros(1), *(b.flatten() for b in layer.buffers())])
    return result


def everything() -> dict[str, Result]:
    """All cases, and the normalised."""
    return {case: steps(case) for case in CASES} | {"normalised": normalised()}


def worker(rank: int, world: int, port: int, folder: str) -> None:
    """As torchrun would set it up."""
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    distributed.join("cpu")
    assert (distributed.rank(), distributed.world()) == (rank, world)
    torch.save(everything(), Path(folder) / f"{rank}.pt")
    distributed.leave()
    assert distributed.world() == 1


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
