"""Worker processes: one thread each, their own environment, and the old one back afterwards."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from sslbook import _machine as compute
from sslbook._machine import WORKER_ENVIRONMENT, cores, process_pool


def test_workers_have_one_thread_and_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with process_pool(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        for name, value in WORKER_ENVIRONMENT.items():
            assert pool.submit(os.getenv, name).result() == value
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
    assert cores() >= 1
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"), process_pool(0):
        pass


ELSEWHERE = """
import ctypes, importlib, os, pkgutil, sys

class Absent:
    names = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in Absent.names:
    sys.modules.pop(name, None)
for name in ("fork", "sched_getaffinity", "sched_setaffinity"):
    vars(os).pop(name, None)
import sslbook
for module in pkgutil.walk_packages(sslbook.__path__, "sslbook."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert not Absent.names & set(sys.modules), "the test hides nothing"
from sslbook._machine import cores, keep_freed_memory
ctypes.CDLL = lambda name: object()
print(cores(), keep_freed_memory())
"""


def test_every_module_works_where_the_system_offers_less() -> None:
    """Without what Linux alone has, or Unix: those modules, affinity masks, ``fork`` and ``mallopt``."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(os.cpu_count()), "False"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_memory_is_kept() -> None:
    """Blocks of 40 MB, which the kernel would have to clear anew each time; an older glibc keeps smaller ones only."""
    script = """
import ctypes, resource, sys
from sslbook._machine import keep_freed_memory
import torch
kept = keep_freed_memory() if sys.argv[1] == "keep" else True
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(int(kept), faults(), ctypes.CDLL(None).mallopt(-3, 10**9))
"""
    counts, large = {}, 0
    for mode in ("keep", "leave"):
        done = subprocess.run(
            [sys.executable, "-c", script, mode], capture_output=True, text=True, check=True, timeout=600
        )
        kept, counts[mode], large = (int(word) for word in done.stdout.split())
        assert kept
    assert counts["keep"] < 0.1 * counts["leave"] or not large


WORKS = """
import os, time
from sslbook._machine import process_pool
if __name__ == "__main__":
    with process_pool(2) as pool:
        print(*{call.result() for call in [pool.submit(os.getpid) for _ in range(20)]}, flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def test_workers_end_with_who_started_them(tmp_path: Path) -> None:
    script = tmp_path / "works.py"
    script.write_text(WORKS)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert workers
    assert all(map(alive, workers))
    assert_all_end_with(parent, workers)


WAITS = """
import os, sys, time
from sslbook._machine import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_whoever_was_told_of_a_parent_ends_with_it(tmp_path: Path) -> None:
    for name, text in (("waits.py", WAITS), ("starts.py", STARTS)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(tmp_path / "starts.py"), str(tmp_path / "waits.py")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    assert_all_end_with(parent, [child])


def assert_all_end_with(parent: subprocess.Popen, pids: list[int]) -> None:
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be noticed doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("flags", "has"), [("fma avx512_bf16 amx", True), ("amx_bf16", True), ("avx512_bf16x bf16", False), ("", False)]
)
def test_a_processor_says_whether_it_has_bfloat16(flags: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_cpuinfo", lambda: f"flags\t: {flags}\n")
    assert compute.has_bfloat16() is has
