"""Work through the plan with an eye on the clock: one step after the other, each in a process that can be stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sslbook.bench.gpu.desk import Desk
from sslbook.bench.gpu.machine import missing
from sslbook.bench.gpu.plan import Step
from sslbook.book.layout import PACKAGE

GRACE = 20.0
"""Seconds between asking a step to stop, which leaves a checkpoint, and stopping it."""
LEAST = 15.0
"""Seconds that must be left to begin anything."""
DONE, STOPPED, SKIPPED, FAILED = "done", "stopped", "skipped", "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of a step: ``done``, ``stopped`` by the clock, ``skipped`` or ``failed``, in ``seconds``; and why."""

    step: str
    status: str
    seconds: float = 0.0
    why: str = ""


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that the step that it began is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def work_through(
    desk: Desk,
    steps: Sequence[Step],
    ends: float,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> list[Outcome]:
    """Go on with the steps until ``ends``, by ``time.monotonic``; what is stopped goes on when this is called again.

    First each has its share of the time, less what it had in earlier calls, so that a long one starves none; then those that
    were stopped have what is left, in their order.  environment: more variables for the steps.
    """
    outcomes: dict[str, Outcome] = {}
    for last in (False, True):
        for step in steps:
            if last and outcomes[step.name].status != STOPPED:
                continue
            if why := unable(step, desk.tiny, environment):
                outcomes[step.name] = Outcome(step.name, SKIPPED, why=why)
                say(f"{step.name}: {SKIPPED}: {why}")
                continue
            left = ends - time.monotonic() - GRACE
            share = left if last else min(left, step.share(desk.tiny) - desk.spent(step.name))
            if share < LEAST:
                why = "the time is over" if left < LEAST else "it has had its share, and the others are first"
                outcomes.setdefault(step.name, Outcome(step.name, STOPPED, why=why))
                continue
            say(f"{step.name}: {step.what} ({share:.0f} s)")
            outcomes[step.name] = found = _go(desk, step, share, environment)
            desk.spend(step.name, found.seconds)
            say(f"{step.name}: {found.status} in {found.seconds:.0f} s {found.why}".rstrip())
    return list(outcomes.values())


def unable(step: Step, tiny: bool, environment: Mapping[str, str]) -> str:
    """Why a step can't be done here, in a sentence; empty if it can.  Tiny ones need no images."""
    with _on_path(environment):
        absent = missing(step.needs)
    if absent:
        return f"{', '.join(absent)} can't be imported here: sslbook gpu --bundle, elsewhere, brings it along"
    if step.images and not tiny and not _images(environment):
        return "CIFAR-10 is not here: SSLBOOK_DATA names no folder that holds it"
    return ""


@contextlib.contextmanager
def _on_path(environment: Mapping[str, str]) -> Iterator[None]:
    """What the steps will find by PYTHONPATH, found here too."""
    added = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part and part not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for part in added:
            sys.path.remove(part)


def _images(environment: Mapping[str, str]) -> bool:
    from sslbook import datasets

    given = environment.get("SSLBOOK_DATA")
    root = Path(given) if given else datasets.data_folder()
    return any(not layout.missing(root) for layout in datasets.LAYOUTS["cifar10"])


def _go(desk: Desk, step: Step, seconds: float, environment: Mapping[str, str]) -> Outcome:
    """One step for so many seconds at most; its process group is gone when this returns, also after Ctrl-C.

    A chapter's kernel has a group of its own, and ends by itself a second after the process that began it.
    """
    log = desk.folder / "logs" / f"{step.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sslbook.bench.gpu.work", step.name, str(desk.folder)]
    begun = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=PACKAGE.parent,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
    spent = time.monotonic() - begun
    if late:
        return Outcome(step.name, STOPPED, spent, "by the clock; the same command goes on")
    if process.returncode == 0:
        return Outcome(step.name, DONE, spent)
    return Outcome(step.name, FAILED, spent, f"{_last(log)} (all of it: {log})")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the step to stop, wait for its checkpoint, then stop all that it began."""
    for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None or number == signal.SIGKILL:
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"
