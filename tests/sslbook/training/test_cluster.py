"""Runs handed to submitit: what Slurm is asked for, and that a run that is stopped and queued again ends as it would have."""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import torch
from training_cases import SET, until

from sslbook.training import cluster
from sslbook.training.papers import Run, run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.trainer import SAVE_SECONDS

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


SMALL = (*SET[1::2], "networks.predictor_hidden=8", "evaluate=0")


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_out_of_time_is_queued_again_and_ends_its_run_as_it_would_have(tmp_path: Path) -> None:
    """By the signal that submitit asks Slurm for.  So small a run is over before its first checkpoint: SIGSTOP gives it time."""
    (run, _, _), root = runs(*SMALL, epochs=40), tmp_path / "runs"
    (job,) = cluster.submit([run], root, "local", device="cpu")
    worker = until(lambda: (run.folder(root) / "log.csv").is_file() and psutil.Process(job._process.pid).children())[0]
    worker.suspend()
    time.sleep(SAVE_SECONDS + 1)
    worker.resume()
    until(lambda: checkpoints.latest(run.folder(root)))
    worker.send_signal(signal.SIGUSR2)
    assert cluster.collect([job]) == []
    assert "going on after step" in job.paths.stderr.read_text()
    assert cluster.Work([run], tmp_path / "alone", {"device": "cpu", "quiet": True})() == []
    one, other = (checkpoints.latest(run.folder(place)) for place in (root, tmp_path / "alone"))
    assert one is not None
    assert other is not None
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
