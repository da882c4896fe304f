"""One step of one batch by two processes of this machine, beside the same step by one: what the page shows of several GPUs."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from sslbook.losses import pairs
from sslbook.networks.siamese import Networks, build
from sslbook.training import objectives
from sslbook.training.run import distributed

NETWORKS = Networks(width=4, projector_hidden=16, projector_out=8)
BATCH = 16
BROKEN = ("BatchNorm apart", "gather without gradient")


def gradient(seed: int, broken: str = "") -> Tensor:
    """The gradient of InfoNCE by all weights, float64 ``(P,)``, from this process's part of the batch, averaged over processes.

    broken: one of :data:`BROKEN`, the two mistakes that are easily made.
    """
    model = build(NETWORKS, seed).double()
    if broken != "BatchNorm apart":
        distributed.synchronize_batchnorm(model)
    draw = torch.Generator().manual_seed(seed)
    views = torch.randn(2, BATCH, 3, 16, 16, generator=draw, dtype=torch.float64)[:, distributed.own_rows(BATCH)]
    outputs = model(views[0], views[1])
    if broken == "gather without gradient":
        loss = _one_sided(outputs.z1, outputs.z2)
    else:
        loss = objectives.objective("info_nce")(outputs)
    loss.backward()
    distributed.average_gradients(model.learning())
    return torch.cat([weights.grad.flatten() for weights in model.learning() if weights.grad is not None])


def _one_sided(z1: Tensor, z2: Tensor) -> Tensor:
    """The mistake: the other process's rows come as constants."""
    whole = []
    for z in (z1, z2):
        everything = distributed.gather(z.detach())
        rows = distributed.own_rows(len(everything))
        whole.append(torch.cat([everything[: rows.start], z, everything[rows.stop :]]))
    return pairs.contrastive(whole[0], whole[1], "info_nce", tau=0.5)


def by_processes(seed: int) -> dict[str, Tensor]:
    """Gradients by two processes over gloo: under "", right, and under each of :data:`BROKEN`."""
    processes = 2
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        spawn(_worker, (processes, port, folder, seed), nprocs=processes)
        found: dict[str, Tensor] = torch.load(Path(folder) / "found.pt", weights_only=True)
    return found


def _worker(rank: int, world: int, port: int, folder: str, seed: int) -> None:
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    distributed.join("cpu")
    found = {broken: gradient(seed, broken) for broken in ("", *BROKEN)}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    distributed.leave()
