"""Tables on a real Slurm, of one node on this machine: jobs that end, that are queued again, killed, and out of time.

Nothing is changed in what is tried, and a run this small would be over before its first checkpoint, 30 seconds on.  So its process
is stopped (SIGSTOP), which the run doesn't notice, until they have passed, and again until what is to befall it has.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import slurm_cases as slurm
import torch
from slurm_cases import PATIENCE, until
from training_cases import SET

from sslbook.training.presets import cluster
from sslbook.training.presets.sheets import Run, sheets
from sslbook.training.run import checkpoints
from sslbook.training.run.trainer import SAVE_SECONDS
from sslchapters.audit.full_runs import runs_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
TABLE, EPOCHS = "B-Tab5-cifar10-resnet18", 40
SMALL = [*SET, "--set", "networks.predictor_hidden=8", "--set", "evaluate=0"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster's folder, and the cluster that all commands find; its name is short, for the sake of its sockets."""
    pytest.importorskip("submitit")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as name,
        slurm.running(Path(name).resolve(), cpus=4) as configuration,
    ):
        monkeypatch.setenv("SLURM_CONF", str(configuration))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("SSLBOOK_DATA", name)  # where there are no images
        yield Path(name)
    assert slurm.processes(Path(name)) == []


def table(*arguments: str) -> str:
    """What the command prints, and says."""
    command = [sys.executable, "-m", "sslbook", "table", TABLE, "--seeds", "1", "--epochs", str(EPOCHS), *arguments]
    device = ["--device", "cpu"] if "--cluster" in arguments else []
    ran = subprocess.run([*command, *device], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def hand_over(root: Path) -> str:
    asked = ["--cluster", "slurm", "--jobs", "4", "--hours", "1", "--slurm", "cpus-per-task=1"]
    return table(*SMALL, *asked, "--folder", str(root))


def scontrol(*arguments: str) -> str:
    return subprocess.run(["scontrol", *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


def queue() -> dict[str, str]:
    there = cluster.queued()
    assert there is not None
    return there


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


def send(process: int, number: int = 0) -> bool:
    """Whether the process is there to get it."""
    try:
        os.kill(process, number)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def weights(run: Run, root: Path) -> dict[str, torch.Tensor]:
    content = checkpoints.latest(run.folder(root), pytest.fail)
    assert content is not None
    assert content["step"] == 2 * EPOCHS
    return dict(content["model"])


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.long
def test_whatever_befalls_a_job_its_run_ends_as_it_would_have(folder: Path, threads: ThreadPoolExecutor) -> None:
    runs = runs_of(sheets()[TABLE], [1], epochs=EPOCHS, changes=SMALL[1::2])
    root, alone = folder / "runs", folder / "alone"
    assert "4 jobs handed over" in hand_over(root)
    _, requeued, killed, late = runs
    job = {run.name: cluster.job_of(run, root) for run in runs}
    victims = {run.name: run for run in (requeued, killed, late)}

    stopped: dict[str, int] = {}

    def stop_those_that_train() -> bool:
        for name, run in victims.items():
            if name not in stopped and (run.folder(root) / "log.csv").is_file():
                stopped[name] = workers(folder)[job[name]]
                os.kill(stopped[name], signal.SIGSTOP)
        return len(stopped) == len(victims)

    until(stop_those_that_train)
    begun = time.monotonic()
    undisturbed = threads.submit(table, *SMALL, "--run", "--quiet", "--folder", str(alone))
    assert "0 jobs handed over" in hand_over(root), "what is in the queue stays there once"
    until(lambda: time.monotonic() - begun > SAVE_SECONDS + 1)
    for name, run in victims.items():
        os.kill(stopped[name], signal.SIGCONT)
        until(lambda run=run: checkpoints.newest_step(run.folder(root)), every=0.005)
        os.kill(stopped[name], signal.SIGSTOP)

    os.kill(stopped[killed.name], signal.SIGKILL)
    scontrol("requeue", job[requeued.name])
    until(lambda: not send(stopped[requeued.name], signal.SIGSTOP))  # Slurm makes it go on before it kills it
    ran = re.search(r"RunTime=\d+:(\d+):\d+", scontrol("show", "job", job[late.name]))
    assert ran is not None
    scontrol("update", f"jobid={job[late.name]}", f"timelimit={int(ran[1]) + 2}")
    until(lambda: not send(stopped[late.name]))  # by SIGUSR2, before which Slurm makes it go on
    until(lambda: queue()[job[late.name]].startswith("pending"))
    scontrol("update", f"jobid={job[late.name]}", "timelimit=60")

    log = until(
        lambda: re.search(
            f"job {job[killed.name]} ended without it: (.*) says why", table(*SMALL, "--folder", str(root))
        )
    )
    assert "Killed" in Path(log[1]).read_text()
    assert "1 job handed over" in hand_over(root)

    until(lambda: all(run.finished(root) for run in runs))
    undisturbed.result()
    shown, wanted = (table(*SMALL, "--folder", str(place)) for place in (root, alone))
    assert shown == wanted
    assert "no run" not in shown
    for run in runs:
        one, other = weights(run, root), weights(run, alone)
        assert all(torch.equal(one[name], other[name]) for name in one), run.name
        said = (root / "jobs" / f"{cluster.job_of(run, root)}_0_log.err").read_text()
        went_on = re.search(rf"going on after step (\d+) of {2 * EPOCHS}", said)
        assert (went_on is not None) == (run.name in victims), said
    assert cluster.job_of(killed, root) != job[killed.name]
    assert "Caught signal SIGUSR2" in (root / "jobs" / f"{job[late.name]}_0_log.err").read_text()
