"""Kills a run again and again and lets it go on: for tests/test_training_resume.py.

``python training_killed.py FOLDER KILLS OPTIMIZER``.

PyTorch is imported once; every attempt is a process forked from this one, killed with SIGKILL by this one at a random moment:
in a step, in an evaluation, in the middle of writing a checkpoint.  The broken variant goes on without the optimiser's moments.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the first optimiser imports it, in seconds: here once, and not in every attempt
from torch import Tensor

from sslbook import datasets
from sslbook.chapters.training.runs import run_of
from sslbook.training.runs import checkpoints, trainer
from sslbook.training.runs.determinism import load_data
from sslbook.training.runs.state import State

CHANGES = (
    "networks.width=4",
    "networks.projector_hidden=16",
    "networks.projector_out=8",
    "networks.predictor_hidden=16",
    "subset=150",  # with batches of 64, the last one is not full
    "batch=64",
    "reset=3",
    "noise=0.01",
    "evaluate=4",
)
OPTIMIZERS = {"sgd": ("optimizer=sgd", "rate=0.1", "decay=0.0004"), "adam": ("rate=0.001",)}
SETTINGS = run_of("digits-byol", seed=1, epochs=24, changes=(*CHANGES, *OPTIMIZERS[sys.argv[3]])).settings


def attempt(folder: Path, data: tuple, after: int | None, random_part: random.Random) -> bool:
    """Run, and kill it some steps after it has begun (None: never); whether it came to its end."""
    read, write = os.pipe()
    made = itertools.count(1)

    def told(step: int) -> None:
        os.write(write, b".")
        if after is not None and next(made) > after:
            # The killer is late, on a busy machine: wait for it, or the run would end before its last kill.
            time.sleep(600)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            trainer.train(
                SETTINGS,
                folder,
                device="cpu",
                data=data,
                save_every=1,
                quiet=True,
                on_step=told,
            )
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    begun = time.monotonic()
    seen = 0
    while after is not None and seen < after and (chunk := os.read(read, 1)):
        seen += len(chunk)
    if after is not None:
        each = (time.monotonic() - begun) / max(1, seen)
        time.sleep(random_part.random() * min(each, 0.1))
        os.kill(child, signal.SIGKILL)
    else:
        while os.read(read, 1024):
            pass
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the attempt ended with {code}"
    return code == 0


def survive(folder: Path, data: tuple, kills: int, seed: int) -> int:
    """Kill so many times, then let it end; returns how often it was killed before its end."""
    draw = random.Random(seed)
    killed = 0
    while killed < kills and not attempt(folder, data, draw.randint(1, 3), draw):
        killed += 1
    assert attempt(folder, data, None, draw)
    return killed


def weights(folder: Path) -> dict[str, Tensor]:
    content = checkpoints.latest(folder, print)
    assert content is not None
    moments = {
        f"{number}.{name}": value
        for number, state in content["optimizer"]["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    return {**content["model"], **moments}


def apart(one: Path, other: Path) -> float:
    """The largest difference of any number; 0.0 is bit for bit, since neither has a NaN."""
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    return max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine if mine[name].numel())


def main(root: Path, kills: int) -> None:
    torch.set_num_threads(1)  # forked processes and pools of threads don't agree
    data = load_data(SETTINGS)
    assert isinstance(data[0], datasets.Dataset)
    draw = random.Random(0)
    assert attempt(root / "whole", data, None, draw)
    killed = survive(root / "killed", data, kills, seed=1)
    assert not attempt(root / "broken", data, 12, draw)
    restore = State.restore

    def forgetful(self: State, content: dict, *rest: object) -> None:
        content = {**content, "optimizer": {**content["optimizer"], "state": {}}}
        restore(self, content, *rest)  # type: ignore[arg-type]

    State.restore = forgetful  # type: ignore[method-assign]
    assert attempt(root / "broken", data, None, draw)
    steps = (checkpoints.newest_step(root / "whole"), checkpoints.newest_step(root / "killed"))
    print(
        json.dumps(
            {
                "killed": killed,
                "steps": steps,
                "apart": apart(root / "whole", root / "killed"),
                "broken": apart(root / "whole", root / "broken"),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
