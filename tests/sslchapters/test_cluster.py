"""Runs handed to submitit: what Slurm is asked for, and on a real Slurm of one node, that a run ends as it would have."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import slurm_cases as slurm
import torch
from slurm_cases import until
from training_cases import SET

from sslbook.training.presets.papers import Run, run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.trainer import SAVE_SECONDS
from sslchapters.audit import cluster

pytest.importorskip("submitit")


def runs(*changes: str, **options: int) -> list[Run]:
    names = ("cifar10-byol", "cifar10-byol-reset-5", "cifar10-byol-reset-10")
    return [run_of(name, seed=1, changes=changes, **options) for name in names]


def put_program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_slurm_gets_an_array_of_the_runs_that_are_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for sbatch, and for squeue, in whose queue a job is handed over once."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="cluster must be local here, where Slurm's sbatch is not to be found"):
        cluster.submit([], tmp_path, "slurm")
    programs = tmp_path / "bin"
    put_program(programs, "sbatch", 'cp "$1" "$0.seen"\necho "Submitted batch job 12"', monkeypatch)
    put_program(programs, "srun", "", monkeypatch)
    jobs = cluster.submit(runs(), tmp_path, "slurm", at_once=2, sbatch=["partition=gpu", "--cpus-per-task=2"])
    script = (programs / "sbatch.seen").read_text()
    wanted = ("--array=0-2%2", "--gpus-per-node=1", "--partition=gpu", "--cpus-per-task=2\n", "--time=1440\n")
    assert len(jobs) == 3
    assert [part for part in wanted if part not in script] == []
    assert [cluster.job_of(run, tmp_path) for run in runs()] == ["12_0", "12_1", "12_2"]
    put_program(programs, "squeue", "echo '12_0 RUNNING None'; echo '12_1 PENDING Priority'", monkeypatch)
    said = [sentence.partition(": ")[2] for sentence in cluster.fates(runs(), tmp_path)]
    log = tmp_path / "jobs" / "12_2_0_log.err"
    assert said == [
        "job 12_0 is running",
        "job 12_1 is pending (Priority)",
        f"job 12_2 ended without it: {log} says why",
    ]
    assert len(cluster.submit(runs(), tmp_path, "slurm", device="cpu")) == 1
    assert "gpu" not in (programs / "sbatch.seen").read_text(), "none is asked for where none is used"


def test_workers_of_this_machine_share_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit import AutoExecutor

    works: list[cluster.Work] = []
    monkeypatch.setattr(AutoExecutor, "submit", lambda self, work: works.append(work))
    monkeypatch.setattr(AutoExecutor, "batch", lambda self: nullcontext())
    for count, visible, gpus in ((2, "", ["0", "1", "0"]), (2, "2,5", ["2", "5", "2"]), (0, "", [None] * 3)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        cluster.submit(runs(), tmp_path, "local", at_once=3)
        assert [work.gpu for work in works[-3:]] == gpus
    assert works[0].checkpoint().function is works[0], "what is stopped is queued again as it was"


EPOCHS = 40
SMALL = (*SET[1::2], "networks.predictor_hidden=8", "evaluate=0")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster's folder, and the cluster that all commands find; its name is short, for the sake of its sockets."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        with slurm.running(Path(name).resolve(), cpus=4) as configuration:
            monkeypatch.setenv("SLURM_CONF", str(configuration))
            monkeypatch.setenv("OMP_NUM_THREADS", "1")
            yield Path(name)
        assert slurm.processes(Path(name)) == []


def hand_over(wanted: list[Run], root: Path) -> int:
    """How many jobs Slurm was given."""
    return len(cluster.submit(wanted, root, "slurm", at_once=4, hours=1, sbatch=["cpus-per-task=1"], device="cpu"))


def workers(folder: Path) -> dict[str, int]:
    """The processes in which jobs of the cluster train, by job."""
    found = {}
    for process in slurm.processes(folder):
        with suppress(OSError):
            command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            words = Path(f"/proc/{process}/environ").read_text().split("\0")
            if "python" in command[0] and "submitit.core._submit" in command:
                names = dict(word.partition("=")[::2] for word in words)
                found[f"{names['SLURM_ARRAY_JOB_ID']}_{names['SLURM_ARRAY_TASK_ID']}"] = process
    return found


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_killed_or_out_of_time_ends_its_run_as_it_would_have(folder: Path) -> None:
    """A run this small would be over before its first checkpoint, so its process is stopped (SIGSTOP), which it doesn't notice."""
    wanted, root = runs(*SMALL, epochs=EPOCHS), folder / "runs"
    assert hand_over(wanted, root) == 3
    job = {run.name: cluster.job_of(run, root) for run in wanted}
    _, killed, late = wanted
    stopped: dict[str, int] = {}
    for run in (killed, late):
        until(lambda run=run: (run.folder(root) / "log.csv").is_file() and job[run.name] in workers(folder))
        stopped[run.name] = workers(folder)[job[run.name]]
        os.kill(stopped[run.name], signal.SIGSTOP)
    assert hand_over(wanted, root) == 0, "what is in the queue stays there once"
    time.sleep(SAVE_SECONDS + 1)
    for run in (killed, late):
        os.kill(stopped[run.name], signal.SIGCONT)
        until(lambda run=run: checkpoints.kept(run.folder(root)), every=0.005)
        os.kill(stopped[run.name], signal.SIGSTOP)
    os.kill(stopped[killed.name], signal.SIGKILL)
    call = ["scontrol", "show", "job", job[late.name]]
    ran = re.search(r"RunTime=\d+:(\d+):\d+", subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    assert ran is not None

    def let_it_run(minutes: int) -> None:
        subprocess.run(["scontrol", "update", f"jobid={job[late.name]}", f"timelimit={minutes}"], check=True)

    let_it_run(int(ran[1]) + 2)
    # by SIGUSR2, before which Slurm lets it go on, and submitit queues it again
    until(lambda: (cluster.queued() or {}).get(job[late.name], "").startswith("pending"))
    let_it_run(60)
    until(lambda: any("ended without it" in said for said in cluster.fates(wanted, root)))
    assert hand_over(wanted, root) == 1, "the killed one"
    until(lambda: all(run.finished(root) for run in wanted))
    for run in wanted:
        run.go(folder / "alone", device="cpu", quiet=True)
        one, other = (checkpoints.latest(run.folder(place), pytest.fail) for place in (root, folder / "alone"))
        assert one is not None
        assert other is not None
        assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"]), run.name
        said = (root / "jobs" / f"{cluster.job_of(run, root)}_0_log.err").read_text()
        assert ("going on after step" in said) == (run.name in stopped), said
