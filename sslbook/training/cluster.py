"""Many runs at once through submitit: as processes on this machine, or as jobs of a Slurm cluster."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslbook.training.runs import Run

CLUSTERS = ("local", "slurm", "debug")
"""``debug`` runs the jobs one after the other in this process."""


def work(runs: Sequence[Run], root: Path, options: dict[str, Any]) -> list[str]:
    """Make one job's share of the runs, one after the other; returns their names."""
    for run in runs:
        run.go(root, **options)
    return [run.name for run in runs]


def submit(
    runs: Sequence[Run],
    root: Path,
    cluster: str,
    *,
    workers: int = 1,
    hours: int = 24,
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Hand over all runs that are not finished, and return the jobs.

    On ``slurm`` each run is a job of one array, ``workers`` of them at a time, with a GPU each; elsewhere ``workers`` processes
    share the runs.  parameters: more for submitit, such as ``slurm_partition``.  options: of ``trainer.train``.

    Raises ValueError without submitit, for an unknown cluster, or without Slurm's programs.
    """
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster must be one of {', '.join(CLUSTERS)}, got {cluster!r}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ValueError("cluster must be local here, where Slurm's sbatch is not to be found, got 'slurm'")
    try:
        import submitit
    except ImportError:
        raise ValueError("submitit is not installed: pip install 'sslbook[train]'") from None
    waiting = [run for run in runs if not run.finished(root)]
    parts = [[run] for run in waiting] if cluster == "slurm" else shares(waiting, workers)
    executor = submitit.AutoExecutor(folder=root / "jobs", cluster=cluster)
    executor.update_parameters(name="sslbook", timeout_min=60 * hours, **(parameters or {}))
    if cluster == "slurm":
        executor.update_parameters(gpus_per_node=1, cpus_per_task=8, slurm_array_parallelism=workers)
    with executor.batch():
        return [executor.submit(work, part, root, {"quiet": True, **options}) for part in parts]


def shares(runs: Sequence[Run], workers: int) -> list[list[Run]]:
    """The runs dealt out to so many workers; fewer if there are not as many runs."""
    return [list(runs[first::workers]) for first in range(min(workers, len(runs)))]
