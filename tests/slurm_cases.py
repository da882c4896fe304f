"""A Slurm cluster of one node on this machine, for tests of what is handed to a cluster.

It takes the programs of Debian's ``slurm-wlm`` and ``munge`` and none of the system's files: keys, sockets, state and logs lie in
its folder, the ports are free ones, and nothing runs but what was started here.  ``SLURM_CONF`` names it for sbatch and squeue.
Whoever starts it is the only one whose jobs it runs; it needn't be root.  It only knows Linux, where /proc says which processes
are its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "sinfo")
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
START_SECONDS, STOP_SECONDS = 120.0, 60.0
PATIENCE = 300.0
"""Seconds that a busy machine may take over anything."""
LONGEST_SOCKET = 100
"""Characters of a socket's path; the system allows 107."""

CONFIGURATION = """\
ClusterName=sslbook
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A job that is queued again waits for as long as a credential lives.
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
# Without cgroups, accounting or MPI, which a container lacks.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobRequeue=1
ReturnToService=2
# Soon, but for answers, which a busy machine may give late.
KillWait=2
SchedulerParameters=sched_interval=2,bf_interval=2
MessageTimeout=60
SlurmdTimeout=600
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


class ClusterError(RuntimeError):
    """The cluster can't be started here; the sentence says why."""


def programs() -> dict[str, str]:
    """Where Slurm's and munge's programs are; raises ClusterError with the names of those that are missing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise ClusterError(f"{', '.join(missing)} not found: on Debian, apt-get install slurm-wlm munge")
    return {name: place for name, place in found.items() if place is not None}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start(folder: Path, *, cpus: int = 0, gpus: int = 0) -> Path:
    """Start a cluster in ``folder``, made if need be, and return its slurm.conf once jobs can be submitted.

    cpus: how many the node says that it has, as many as there are by default; more may be said.  gpus: likewise; none is there.
    Raises ClusterError if it can't be, and leaves no process then.
    """
    if not sys.platform.startswith("linux"):
        raise ClusterError(f"a cluster needs Linux, and this is {sys.platform}")
    folder = folder.resolve()
    configuration = folder / "slurm.conf"
    if len(str(folder / "munge.socket")) > LONGEST_SOCKET:
        raise ClusterError(
            f"{folder} is too long a path for a socket: choose one of at most {LONGEST_SOCKET - 13} characters"
        )
    found = programs()
    if processes(folder):
        raise ClusterError(f"a cluster runs in {folder} already: stop it first")
    try:
        _configure(folder, cpus or os.cpu_count() or 1, gpus)
        _launch(found, folder)
        _wait(lambda: _idle(found["sinfo"], configuration), START_SECONDS)
    except (OSError, subprocess.SubprocessError, TimeoutError) as error:
        stop(folder)
        raise ClusterError(f"the cluster in {folder} did not start ({error})\n{_complaints(folder)}".rstrip()) from None
    except BaseException:
        stop(folder)
        raise
    return configuration


def stop(folder: Path) -> None:
    """End the cluster's jobs and daemons; raises TimeoutError if a process is left that can't be killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # A stopped process hears of nothing but SIGKILL until it goes on.
        for process in processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
                os.kill(process, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            _wait(lambda: not processes(folder), 5.0)
    _wait(lambda: _killed(folder), STOP_SECONDS)


@contextlib.contextmanager
def running(folder: Path, *, cpus: int = 0, gpus: int = 0) -> Iterator[Path]:
    """A cluster for as long as the block lasts; its slurm.conf.  Errors as in :func:`start`."""
    try:
        yield start(folder, cpus=cpus, gpus=gpus)
    finally:
        stop(folder)


def processes(folder: Path) -> list[int]:
    """The daemons of the cluster in ``folder``, and its jobs' processes, as far as this user may know of them.

    Its name in the environment is not enough: a shell in which it was exported has that too.
    """
    ours, found = f"SLURM_CONF={folder.resolve()}/slurm.conf".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            daemon = (entry / "exe").readlink().name.startswith(DAEMONS)  # Debian's slurmd is a slurmd-wlm
        except OSError:  # gone, or another user's
            continue
        if ours in variables and (daemon or any(name.startswith(b"SLURM_JOB_ID=") for name in variables)):
            found.append(int(entry.name))
    return found


def _killed(folder: Path) -> bool:
    """Kill what is left, children of the killed too; whether there was nothing."""
    left = processes(folder)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return not left


def _configure(folder: Path, cpus: int, gpus: int) -> None:
    """Write the configuration and the key."""
    for part in (folder / "state", folder / "spool"):  # another cluster's jobs are none of this one's
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    controller, node = free_ports(2)
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(
        controller=controller, node=node, user=user, folder=folder, host=host, cpus=cpus, gpus=gpus
    )
    if not gpus:
        text = text.replace(" Gres=gpu:0", "")
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    devices = [folder / f"gpu{number}" for number in range(gpus)]
    for device in devices:  # no devices, but files, which is all that Slurm looks for
        device.touch()
    lines = [f"NodeName=localhost Name=gpu File={device}\n" for device in devices]
    (folder / "gres.conf").write_text("".join(lines), encoding="utf-8")
    key = folder / "munge.key"
    key.unlink(missing_ok=True)
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _launch(found: dict[str, str], folder: Path) -> None:
    """Start the daemons, each of which leaves for the background once it has read its configuration."""
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    places = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
    places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    # Forced, since munged would have every folder above its socket open to all, which pytest's are not.
    munged = [found["munged"], "--force", *(f"--{name}={folder / file}" for name, file in places.items())]
    for command in (munged, [found["slurmctld"], "-i"], [found["slurmd"], "-N", "localhost"]):
        with (folder / "start.log").open("ab") as log:
            subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=60
            )


def _idle(sinfo: str, configuration: Path) -> bool:
    """Whether the node waits for jobs."""
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    done = subprocess.run(
        [sinfo, "--noheader", "--format=%T"], env=environment, capture_output=True, text=True, timeout=90
    )
    return done.stdout.strip() == "idle"


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Until the condition holds; raises TimeoutError if it takes longer."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited for {seconds:.0f} s")
        time.sleep(0.1)


def _complaints(folder: Path) -> str:
    """The ends of the daemons' logs."""
    lines = []
    for log in sorted(folder.glob("*.log")):
        lines += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-5:]]
    return "\n".join(lines)


def there() -> None:
    """Skip the test where Slurm is not installed, with a sentence."""
    try:
        programs()
    except ClusterError as error:
        pytest.skip(str(error))


def until(condition: Callable[[], Any], every: float = 0.02) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s"
        time.sleep(every)
    return value
