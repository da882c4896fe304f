"""A Slurm cluster of one node on this machine, for tests of what is handed to a cluster.

It takes the programs of Debian's ``slurm-wlm`` and ``munge`` and none of the system's files: keys, sockets, state and logs lie in
its folder, the ports are free ones, and nothing runs but what was started here.  ``SLURM_CONF`` names it for sbatch and squeue.
Whoever starts it is the only one whose jobs it runs; it needn't be root.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed_cases import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "sinfo")
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
PATIENCE = 300.0
"""Seconds that a busy machine may take over anything."""

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
JobRequeue=1
ReturnToService=2
# Soon, but for answers, which a busy machine may give late.
KillWait=2
SchedulerParameters=sched_interval=2,bf_interval=2
MessageTimeout=60
SlurmdTimeout=600
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def running(folder: Path, *, cpus: int) -> Iterator[Path]:
    """A cluster whose node says that it has so many cores, as long as the block lasts; its slurm.conf.

    Skips the test where Slurm is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    if missing := [name for name, place in found.items() if place is None]:
        pytest.skip(f"{', '.join(missing)} not found: on Debian, apt-get install slurm-wlm munge")
    _configure(folder, cpus)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    places = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
    places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    # Forced, since munged would have every folder above its socket open to all, which pytest's are not.
    munged = ["munged", "--force", *(f"--{name}={folder / file}" for name, file in places.items())]
    try:
        for name, *options in (munged, ["slurmctld", "-i"], ["slurmd", "-N", "localhost"]):
            with (folder / "start.log").open("ab") as log:  # each leaves for the background
                subprocess.run(
                    [str(found[name]), *options],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    check=True,
                )
        asked = [str(found["sinfo"]), "--noheader", "--format=%T"]
        until(lambda: subprocess.run(asked, env=environment, capture_output=True).stdout.strip() == b"idle", every=0.1)
        yield folder / "slurm.conf"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes(folder):  # a stopped process hears of nothing but SIGKILL until it goes on
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
                    os.kill(process, signal.SIGCONT)
            end = time.monotonic() + 5
            while processes(folder) and time.monotonic() < end:
                time.sleep(0.1)


def processes(folder: Path) -> list[int]:
    """The daemons of the cluster in ``folder``, and its jobs' processes, as far as this user may know of them.

    Its name in the environment is not enough: a shell in which it was exported has that too.
    """
    ours, found = str(folder.resolve() / "slurm.conf"), []
    for process in psutil.process_iter(["environ", "exe"]):  # nothing of another user's
        variables = process.info["environ"] or {}
        daemon = Path(process.info["exe"] or "").name.startswith(DAEMONS)  # Debian's slurmd is a slurmd-wlm
        if variables.get("SLURM_CONF") == ours and (daemon or "SLURM_JOB_ID" in variables):
            found.append(process.pid)
    return found


def _configure(folder: Path, cpus: int) -> None:
    for part in ("state", "spool"):
        (folder / part).mkdir()
    names = {"user": pwd.getpwuid(os.geteuid()).pw_name, "host": socket.gethostname().partition(".")[0]}
    ports = {"controller": free_port(), "node": free_port()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**names, **ports, folder=folder, cpus=cpus))
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def until(condition: Callable[[], Any], every: float = 0.02) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s"
        time.sleep(every)
    return value
