"""Many runs at once through submitit: as processes on this machine, or as jobs of a Slurm cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sslbook.runtime.arguments import installing
from sslbook.runtime.atomic_io import write_text
from sslbook.training.presets.runs import Run
from sslbook.training.run.checkpoints import Busy
from sslbook.training.run.settings import Refused

CLUSTERS = ("local", "slurm", "debug")
"""``debug`` runs the jobs one after the other in this process."""
NO_END = 24 * 365
"""Hours that no job takes."""
JOB = "job"
"""The file in a run's folder that names the job of Slurm to which it was handed."""
OWN = {"time": "--hours", "array": "--jobs", "output": "--folder", "error": "--folder"}
"""Options of sbatch that are set here, and what sets them."""


class Work:
    """One job's share of the runs; a job that its cluster stops is queued again, and goes on from its checkpoints."""

    def __init__(self, runs: Sequence[Run], root: Path, options: dict[str, Any]) -> None:
        self.runs, self.root, self.options = runs, root, options

    def __call__(self) -> list[str]:
        """As :func:`work`."""
        return work(self.runs, self.root, self.options)

    def checkpoint(self) -> Any:
        """What is to be queued again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def work(runs: Sequence[Run], root: Path, options: dict[str, Any]) -> list[str]:
    """Make runs one after the other; returns, and says, a sentence for each that diverged.

    A run that another process is making is left to it.
    """
    from sslbook.training.run.state import Diverged

    failed = []
    for run in runs:
        sentence = f"{run.name} seed {run.settings.seed}: "
        try:
            run.go(root, **options)
            continue
        except Busy as error:
            sentence += f"{error}, and left to it"
        except Diverged as error:
            sentence += str(error)
            failed.append(sentence)
        print(sentence, file=sys.stderr, flush=True)
    return failed


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
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Hand over all runs that are not finished, and return the jobs.

    On ``slurm`` each run is a job of one array, ``at_once`` of them at a time, with a GPU each unless ``device`` is cpu, and runs
    that are in its queue already stay out; elsewhere ``at_once`` processes share the runs, and on ``local`` the GPUs, where there
    are any.  hours: the longest that a job may take, 24 on Slurm and no end elsewhere.  parameters: more for submitit, such as
    ``slurm_partition`` or ``visible_gpus``.  options: of ``trainer.train``.

    Raises Refused, a ValueError, without submitit, for an unknown cluster, without Slurm's programs, or if Slurm refuses the jobs.
    """
    if cluster not in CLUSTERS:
        raise Refused(f"cluster must be one of {', '.join(CLUSTERS)}, got {cluster!r}")
    if at_once < 1:
        raise Refused(f"at_once must be at least 1, got {at_once}")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise Refused("cluster must be local here, where Slurm's sbatch is not to be found, got 'slurm'")
    try:
        import submitit
    except ImportError:
        raise Refused(f"submitit is not installed: {installing('train')}") from None
    waiting = [run for run in runs if not run.finished(root)]
    slurm = cluster == "slurm"
    hours = hours or (24 if slurm else NO_END)
    if slurm:
        there = queued() or {}
        waiting = [run for run in waiting if job_of(run, root) not in there]
        asked = {"slurm_array_parallelism": at_once, **_asked_of_slurm(str(options.get("device") or ""))}
        groups = [([[run] for run in waiting], asked)] if waiting else []
    else:
        groups = [([part], _gpu_of(n) if cluster == "local" else {}) for n, part in enumerate(shares(waiting, at_once))]
    jobs = []
    for parts, more in groups:
        executor: Any  # submitit's AutoExecutor has no word for a GPU of this machine
        if cluster == "local":
            executor = submitit.LocalExecutor(folder=root / "jobs")
        else:
            executor = submitit.AutoExecutor(folder=root / "jobs", cluster=cluster)
        executor.update_parameters(**{"name": "sslbook", "timeout_min": 60 * hours, **more, **(parameters or {})})
        try:
            with executor.batch():
                jobs += [executor.submit(Work(part, root, options)) for part in parts]
        except submitit.core.utils.FailedJobError as error:
            raise Refused(f"Slurm refused the jobs: {str(error).strip()}") from None
    if slurm:
        for run, job in zip(waiting, jobs, strict=True):
            write_text(run.folder(root) / JOB, f"{job.job_id}\n")
    return jobs


def _asked_of_slurm(device: str) -> dict[str, Any]:
    """What a job asks of Slurm unless it is told otherwise: eight cores, and a GPU unless it runs on the CPU."""
    asked = {"cpus_per_task": 8}
    return asked if device == "cpu" else {"gpus_per_node": 1, **asked}


def for_sbatch(given: Sequence[str]) -> dict[str, Any]:
    """Options of sbatch, such as ``partition=gpu`` or ``exclusive``, as submitit takes them; they overrule what is asked here.

    Raises Refused for what has an option of its own.
    """
    options: dict[str, Any] = {}
    for option in given:
        name, equals, value = option.removeprefix("--").partition("=")
        if not name or name in OWN:
            instead = f", and {OWN[name]} sets that" if name else ""
            raise Refused(f"--slurm must be an option of sbatch, such as partition=gpu, got {option!r}{instead}")
        options[name.replace("-", "_")] = value if equals else True
    return {"slurm_additional_parameters": options} if options else {}


# -- what became of jobs ----------------------------------------------------------------------------------------------


def queued() -> dict[str, str] | None:
    """The user's jobs that Slurm has not ended, such as ``12_0``, each with its state and, if it waits, for what.

    None where there is no Slurm, or no answer from it.
    """
    try:
        command = ["squeue", "--me", "--array", "--noheader", "--format=%i %T %r"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {job: state.lower() + (f" ({why[0]})" if state == "PENDING" else "") for job, state, *why in lines}


def job_of(run: Run, root: Path) -> str:
    """The job of Slurm to which a run was last handed; empty if it was to none."""
    file = run.folder(root) / JOB
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def fates(runs: Sequence[Run], root: Path) -> list[str]:
    """A sentence for each of these runs, which are not finished, that Slurm has in its queue or whose job ended."""
    handed = [(run, job) for run in runs if (job := job_of(run, root))]
    there = queued() if handed else None
    if there is None:
        return []
    sentences = []
    for run, job in handed:
        log = root / "jobs" / f"{job}_0_log.err"
        now = f"is {there[job]}" if job in there else f"ended without it: {log} says why"
        sentences.append(f"{run.name} seed {run.settings.seed}: job {job} {now}")
    return sentences


# -- processes of this machine ----------------------------------------------------------------------------------------


def _gpu_of(worker: int) -> dict[str, Any]:
    """What tells submitit which GPU a process of this machine has; without it, a process has none."""
    count = torch.cuda.device_count()
    if not count:
        return {}
    number = worker % count
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(
        ","
    )  # submitit replaces it, and counts from the machine's first
    if len(seen) >= count and all(name.strip().isdigit() for name in seen):
        number = int(seen[number])
    return {"gpus_per_node": 1, "visible_gpus": (number,)}


def shares(runs: Sequence[Run], count: int) -> list[list[Run]]:
    """The runs dealt out into so many parts; fewer if there are not as many runs."""
    return [list(runs[first::count]) for first in range(min(count, len(runs)))]
