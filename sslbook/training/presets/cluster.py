"""Many runs at once through submitit: as processes on this machine, or as jobs of a Slurm cluster."""

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

from sslbook._check import installing
from sslbook._files import write_text
from sslbook.training.presets.sheets import Run
from sslbook.training.run.checkpoints import Busy, Diverged
from sslbook.training.run.settings import Refused

CLUSTERS = ("local", "slurm", "debug")
"""``debug`` runs the jobs one after the other in this process."""
NO_END = 24 * 365
"""Hours that no job takes."""
JOB = "job"
"""The file in a run's folder that names the job of Slurm to which it was handed."""
OWN = {"time": "--hours", "array": "--jobs", "output": "--folder", "error": "--folder"}
"""Options of sbatch that are set here, and what sets them."""


@dataclass
class Work:
    """Runs that are made one after the other; a job that its cluster stops is queued again, and goes on from its checkpoints.

    options: of ``trainer.train``.
    """

    runs: Sequence[Run]
    root: Path
    options: dict[str, Any]

    def __call__(self) -> list[str]:
        """A sentence, which is said too, for each run that diverged; one that another process is making is left to it."""
        failed = []
        for run in self.runs:
            try:
                run.go(self.root, **self.options)
                continue
            except Busy as error:
                sentence = f"{run.title}: {error}, and left to it"
            except Diverged as error:
                sentence = f"{run.title}: {error}"
                failed.append(sentence)
            print(sentence, file=sys.stderr, flush=True)
        return failed

    def checkpoint(self) -> Any:
        """What is to be queued again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


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
    """Hand over all runs that are not finished, and return the jobs.

    On ``slurm`` each run is a job of one array, ``at_once`` of them at a time, with a GPU each unless ``device`` is cpu, and runs
    that are in its queue already stay out; elsewhere ``at_once`` processes share the runs, and on ``local`` the GPUs, where there
    are any.  hours: the longest that a job may take, 24 on Slurm and no end elsewhere.  sbatch: more of its options, such as
    ``partition=gpu`` or ``exclusive``, which overrule what is asked here.  options: of ``trainer.train``.

    Raises Refused, a ValueError, without submitit or Slurm's programs, for an option that has another one here, or if Slurm
    refuses the jobs.
    """
    more = _for_sbatch(sbatch)
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise Refused("cluster must be local here, where Slurm's sbatch is not to be found, got 'slurm'")
    try:
        import submitit
    except ImportError:
        raise Refused(f"submitit is not installed: {installing('train')}") from None
    waiting = [run for run in runs if not run.finished(root)]
    if cluster == "slurm":
        there = queued() or {}
        waiting = [run for run in waiting if job_of(run, root) not in there]
        more |= {"slurm_array_parallelism": at_once, "timeout_min": 60 * (hours or 24), "cpus_per_task": 8}
        if options.get("device") != "cpu":
            more["gpus_per_node"] = 1
        groups = [([[run] for run in waiting], more)] if waiting else []
    else:
        more["timeout_min"] = 60 * (hours or NO_END)
        parts = [waiting[first::at_once] for first in range(min(at_once, len(waiting)))]
        groups = [([part], more | (_gpu_of(n) if cluster == "local" else {})) for n, part in enumerate(parts)]
    jobs = []
    for shares, asked in groups:
        executor: Any  # submitit's AutoExecutor has no word for a GPU of this machine
        if cluster == "local":
            executor = submitit.LocalExecutor(folder=root / "jobs")
        else:
            executor = submitit.AutoExecutor(folder=root / "jobs", cluster=cluster)
        executor.update_parameters(name="sslbook", **asked)
        try:
            with executor.batch():
                jobs += [executor.submit(Work(share, root, options)) for share in shares]
        except submitit.core.utils.FailedJobError as error:
            raise Refused(f"Slurm refused the jobs: {str(error).strip()}") from None
    if cluster == "slurm":
        for run, job in zip(waiting, jobs, strict=True):
            write_text(run.folder(root) / JOB, f"{job.job_id}\n")
    return jobs


def _for_sbatch(given: Sequence[str]) -> dict[str, Any]:
    """Options of sbatch as submitit takes them; raises Refused for what has an option of its own."""
    options: dict[str, Any] = {}
    for option in given:
        name, equals, value = option.removeprefix("--").partition("=")
        if not name or name in OWN:
            instead = f", and {OWN[name]} sets that" if name else ""
            raise Refused(f"--slurm must be an option of sbatch, such as partition=gpu, got {option!r}{instead}")
        options[name.replace("-", "_")] = value if equals else True
    return {"slurm_additional_parameters": options} if options else {}


def _gpu_of(worker: int) -> dict[str, Any]:
    """What tells submitit which GPU a process of this machine has; without it, a process has none."""
    count = torch.cuda.device_count()
    if not count:
        return {}
    number = worker % count
    # submitit replaces the variable, and counts from the machine's first
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(seen) >= count and all(name.strip().isdigit() for name in seen):
        number = int(seen[number])
    return {"gpus_per_node": 1, "visible_gpus": (number,)}


# --- what became of jobs ---------------------------------------------------------------------------------------------


def queued() -> dict[str, str] | None:
    """The user's jobs that Slurm has not ended, such as ``12_0``, each with its state; None without an answer from Slurm."""
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
    """A sentence for each of these runs, which are not finished, that Slurm has in its queue or whose job ended."""
    handed = {job: run for run in runs if (job := job_of(run, root))}
    there = queued() if handed else None
    if there is None:
        return []
    return [
        f"{run.title}: job {job} "
        + (f"is {there[job]}" if job in there else f"ended without it: {root / 'jobs' / f'{job}_0_log.err'} says why")
        for job, run in handed.items()
    ]
