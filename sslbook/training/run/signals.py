"""Signals that ask a process to stop: Ctrl-C, SIGTERM, a terminal that closes, and those that clusters send before the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

STOPS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has the first two
]
BROKEN_PIPE = 13
"""SIGPIPE, by number: Windows has none, and Python ignores it."""
GOES_ON = "the same command goes on from the last checkpoint"

_ECHO_SECONDS = 1.0
"""A terminal's Ctrl-C comes to all processes, and once more from the one that began them."""
_asked: Callable[[], int] | None = None
Handler = Callable[[int, FrameType | None], None]


class Stopped(KeyboardInterrupt):
    """This process was asked to stop, by the signal of that ``number``; after: what comes next, in a sentence's second half."""

    def __init__(self, number: int, after: str = "") -> None:
        super().__init__("; ".join(filter(None, ("stopped", after))))
        self.number = number


def stop(number: int, frame: FrameType | None = None) -> None:
    """The handler that raises `Stopped`; first it ends this process's workers, for whose work it would be waited."""
    for worker in multiprocessing.active_children():
        worker.kill()
    raise Stopped(number)


def status(error: KeyboardInterrupt) -> int:
    """The exit status of a process that was stopped, as a shell has it: 128 and the signal's number."""
    return 128 + getattr(error, "number", signal.SIGINT)


def free() -> list[signal.Signals]:
    """The signals that ask to stop and that nobody ignores, as nohup does, or hears otherwise, as a cluster's job does."""
    usual = (signal.SIG_DFL, signal.default_int_handler, stop)
    return [number for number in STOPS if signal.getsignal(number) in usual]


@contextlib.contextmanager
def heard(handler: Handler = stop) -> Iterator[None]:
    """Let ``handler`` have the signals that are `free`; in the main thread alone, as the system wants it."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (free() if main else ())}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """The number of the first signal that came, or 0: it is only noted, so that no step is left half done.

    A later Ctrl-C interrupts.  Others don't: a terminal that closes sends two, and a cluster has another before the end.
    Within another one, it is that one.
    """
    global _asked
    if _asked is not None:
        yield _asked
        return
    seen: list[int] = []
    begun = time.monotonic()

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal begun
        if not seen:
            begun = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - begun > _ECHO_SECONDS:
            raise Stopped(number, GOES_ON)
        seen.append(number)

    with heard(note):
        _asked = lambda: seen[0] if seen else 0  # noqa: E731
        try:
            yield _asked
        finally:
            _asked = None
