"""One run of several processes: on two machines, which here are two torchruns of this one, and with one process that is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from distributed_cases import free_port
from training_cases import DIGITS

from sslbook.training.papers import run_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
ONE_STEP = (*DIGITS, "subset=64", "evaluate=0", "optimizer=sgd", "lr=0.001")
"""A single step by SGD, whose momentum is the gradient then: later ones multiply float32's rounding."""
CHANGES = [part for change in ONE_STEP for part in ("--set", change)]
TRAIN = ["-m", "sslbook", "train", "digits-simclr-nce", "--seed=1", "--epochs=1", "--device=cpu", *CHANGES]


def started(*arguments: str) -> subprocess.Popen[str]:
    """A process of this Python whose output is kept, with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, text=True, **pipes)


def on_nodes(*folders: Path) -> list[tuple[int, str]]:
    """A torchrun for each node, which sees its own folder; each one's status, and all that it says."""
    torchrun = ["-m", "torch.distributed.run", f"--nnodes={len(folders)}", "--nproc-per-node=1"]
    torchrun += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    nodes = []
    try:
        for number, folder in enumerate(folders):
            nodes.append(started(*torchrun, f"--node-rank={number}", *TRAIN, f"--folder={folder}"))
        said = [node.communicate(timeout=300)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    return [(node.returncode, text) for node, text in zip(nodes, said, strict=True)]


@pytest.mark.long
def test_folders_that_are_not_shared_are_noticed_when_the_run_goes_on(tmp_path: Path) -> None:
    folders = tmp_path / "0", tmp_path / "1"
    assert [status for status, _ in on_nodes(*folders)] == [0, 0]
    assert run_of("digits-simclr-nce", seed=1, epochs=1, changes=ONE_STEP).finished(folders[0])
    assert not folders[1].exists(), "the first process alone writes"
    for status, said in on_nodes(*folders):
        assert status != 0
        assert "the processes read checkpoints of steps [0, 1]: all must see the same folder" in said
    (status, first), (other, second) = on_nodes(folders[0], folders[0])
    assert (status, other) == (0, 0)
    assert "linear" in first, "what was finished is told again"
    assert "linear" not in second


ENDED = "SIGKILL has ended one of the 2 processes; the same command goes"
ENDS = [
    ("one", signal.SIGKILL, 128 + signal.SIGKILL, ENDED),
    ("who began them", signal.SIGUSR1, 128 + signal.SIGUSR1, "stopped; the same command goes on"),
    ("who began them", signal.SIGKILL, -signal.SIGKILL, ""),
]


@pytest.mark.parametrize(("whom", "number", "status", "sentence"), ENDS)
def test_a_signal_to_one_ends_all(whom: str, number: int, status: int, sentence: str, tmp_path: Path) -> None:
    two = started(*TRAIN, f"--folder={tmp_path}", "--ranks=2", "--epochs=100000")
    try:
        lines = iter(two.stdout.readline, "")
        assert any("epoch 2 " in line for line in lines)
        begun = psutil.Process(two.pid).children()
        os.kill(begun[-1].pid if whom == "one" else two.pid, number)
        rest = "".join(lines)
        assert two.wait(60) == status, rest
    finally:
        two.kill()
        two.communicate()
    assert sentence in rest
    assert "Traceback" not in rest
    assert "death signal" not in rest, "torchrun's own words"
    assert psutil.wait_procs(begun, timeout=60)[1] == []
