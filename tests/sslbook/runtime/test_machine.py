"""Worker processes end with who started them; the allocator; the processor."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell

from sslbook import _machine


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_memory_is_kept() -> None:
    """Blocks of 40 MB, which the kernel would have to clear anew each time; an older glibc keeps smaller ones only."""
    script = """
import ctypes, resource, torch
from sslbook._machine import keep_freed_memory
assert keep_freed_memory()
for _ in range(20):  # the first ones until a free block is large enough
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, ctypes.CDLL(None).mallopt(-3, 10**9))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    faults, large = map(int, done.stdout.split())
    assert faults < 1000 or not large, "10,000 pages of 4 kB where they are given back"


POOL = """
import os, time
from sslchapters.sweep import spread
def work(_):
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    spread(work, [(1,), (2,)], 2)
"""
CHILD = """
import os, subprocess, sys, time
waits = "import sys, time; from sslbook._machine import end_with_parent; end_with_parent(int(sys.argv[1]));"
waits += "print('ready', flush=True); time.sleep(600)"
command = [sys.executable, "-c", waits, str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be noticed doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("text", [POOL, CHILD], ids=["workers", "child"])
def test_workers_and_children_end_with_who_started_them(text: str, tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(text)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "starts.py")], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert pids
    assert all(map(alive, pids))
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_processor_says_whether_it_has_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, has in (("fma avx512_bf16 amx", True), ("amx_bf16", True), ("avx512_bf16x bf16", False), ("", False)):
        (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
        monkeypatch.setattr(_machine, "CPUINFO", tmp_path / "cpuinfo")
        assert _machine.has_bfloat16() is has


def test_a_figure_is_a_picture_in_a_notebook() -> None:
    drawn = _machine.figure(figsize=(2, 1))
    drawn.subplots().plot([1, 2])
    assert InteractiveShell().display_formatter.format(drawn)[0]["image/png"].startswith(b"\x89PNG")
