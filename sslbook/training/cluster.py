"""Many runs at once through submitit: as processes on this machine, or as jobs of a Slurm cluster.

A run goes on from its last checkpoint wherever it is begun again.  So all there is to say is which runs a job makes, and that a
job which its cluster stops is queued again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sslbook._files import write_text
from sslbook.training.papers import Run
from sslbook.training.run.checkpoints import Busy, Diverged
from sslbook.training.run.trainer import train

CLUSTERS = ("local", "slurm", "debug")
"""``debug`` runs the jobs one after the other in this process."""
JOB = "job"
"""The file in a run's folder that names the job of Slurm to which it was handed."""


@dataclass
class Work:
    """Runs that are made one after the other.  options: of ``trainer.train``.  gpu: the one that is used, if not all are."""

    runs: Sequence[Run]
    root: Path
    options: dict[str, Any]
    gpu: str | None = None

    def __call__(self) -> list[str]:
        """A sentence, also printed, for each run that diverged; one that another process is making is left to it."""
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        failed = []
        for run in self.runs:
            try:
                if not run.finished(self.root):
                    train(run.settings, run.folder(self.root), name=run.title, **self.options)
            except Busy as error:
                print(f"{run.title}: {error}, and left to it", file=sys.stderr, flush=True)
            except Diverged as error:
                failed.append(f"{run.title}: {error}")
                print(failed[-1], file=sys.stderr, flush=True)
        return failed

    def checkpoint(self) -> Any:
        """What submitit queues again when the cluster stops the job: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def submit(
    runs: Sequence[Run],
    root: Path,
    cluster: str,
    *,
    at_once: int = 1,
    hours: int | None = None,
    sbatch: Sequence[str] = (),
    **options: Any,
) -> list[Any]:
    """Hand over all runs that are not finished, and return submitit's jobs; their logs lie in ``root/jobs``.

    On "slurm" each run is a job of one array, ``at_once`` of them at a time, with eight cores, and a GPU unless ``device`` is cpu;
    runs in its queue already stay out.  Elsewhere ``at_once`` processes share the runs, and on "local" the GPUs, if there are any.
    hours: the longest that a job may take, 24 by default, and no end on this machine.  sbatch: more of its options, such as
    ``partition=gpu``, which overrule these.  options: of ``trainer.train``.

    Raises ValueError without Slurm, or if Slurm refuses the jobs.
    """
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ValueError("cluster must be local here, where Slurm's sbatch is not to be found, got 'slurm'")
    import submitit

    waiting, slurm = [run for run in runs if not run.finished(root)], cluster == "slurm"
    executor = submitit.AutoExecutor(folder=root / "jobs", cluster=cluster)
    executor.update_parameters(name="sslbook", timeout_min=60 * (hours or (24 if slurm else 24 * 365)))
    if slurm:
        queue = queued() or {}
        waiting = [run for run in waiting if job_of(run, root) not in queue]
        works = [Work([run], root, options) for run in waiting]
        given = [option.removeprefix("--").partition("=") for option in sbatch]
        more = {name.replace("-", "_"): value if equals else True for name, equals, value in given}
        executor.update_parameters(
            cpus_per_task=8,
            gpus_per_node=None if options.get("device") == "cpu" else 1,
            slurm_array_parallelism=at_once,
            slurm_additional_parameters=more,
        )
    else:
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        gpus = names.split(",") if names and cluster == "local" else [None]
        shares = [waiting[first::at_once] for first in range(min(at_once, len(waiting)))]
        works = [Work(share, root, options, gpus[number % len(gpus)]) for number, share in enumerate(shares)]
    if not works:
        return []
    try:
        with executor.batch():
            jobs = [executor.submit(work) for work in works]
    except submitit.core.utils.FailedJobError as error:
        raise ValueError(f"Slurm refused the jobs: {str(error).strip()}") from None
    for run, job in zip(waiting, jobs, strict=True) if slurm else ():
        write_text(run.folder(root) / JOB, f"{job.job_id}\n")
    return jobs


def collect(jobs: Sequence[Any]) -> list[str]:
    """Wait for the jobs; a sentence for each run that diverged, and for each job that failed."""
    from submitit.core.utils import UncompletedJobError

    failed: list[str] = []
    try:
        for job in jobs:
            try:
                failed += job.result()
            except UncompletedJobError:
                failed.append(f"job {job.job_id} failed: {job.paths.stderr} says why")
                print(failed[-1], file=sys.stderr, flush=True)
    except KeyboardInterrupt:  # else they would go on, and nobody with them
        for job in jobs:
            job.cancel()
        raise
    return failed


def queued() -> dict[str, str] | None:
    """The user's jobs that Slurm has not ended, such as ``12_0``, each with its state; None without an answer from Slurm.

    A state is ``running``, or ``pending (Priority)`` with the reason why it waits.  ``squeue`` has a minute to answer.
    """
    try:
        command = ["squeue", "--me", "--array", "--noheader", "--format=%i %T %r"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {job: state.lower() + (f" ({why[0]})" if state == "PENDING" else "") for job, state, *why in lines}


def job_of(run: Run, root: Path) -> str:
    """The job of Slurm to which a run was last handed; empty if it was to none."""
    file = run.folder(root) / JOB
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def fates(runs: Sequence[Run], root: Path) -> list[str]:
    """A sentence for each of these runs, which are not finished, that Slurm has in its queue or whose job ended.

    None is told of a run that was handed to no job, nor of any where Slurm doesn't answer.
    """
    handed = {job: run for run in runs if (job := job_of(run, root))}
    queue = queued() if handed else None
    return [
        f"{run.title}: job {job} "
        + (f"is {queue[job]}" if job in queue else f"ended without it: {root / 'jobs' / f'{job}_0_log.err'} says why")
        for job, run in handed.items()
        if queue is not None
    ]
