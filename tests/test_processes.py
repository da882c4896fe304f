"""Worker processes: one thread each, their own environment, and the old one back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sslbook.processes import WORKER_ENVIRONMENT, cores, processes


def test_workers_have_one_thread_and_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with processes(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        for name, value in WORKER_ENVIRONMENT.items():
            assert pool.submit(os.getenv, name).result() == value
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
    assert cores() >= 1
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"), processes(0):
        pass


def test_freed_memory_is_kept_where_the_allocator_lets_us() -> None:
    script = """
import resource, sys
from sslbook.processes import keep_freed_memory
import torch
kept = keep_freed_memory() if sys.argv[1] == "keep" else True
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(int(kept), faults())
"""
    counts = {}
    for mode in ("keep", "leave"):
        done = subprocess.run(
            [sys.executable, "-c", script, mode], capture_output=True, text=True, check=True, timeout=120
        )
        kept, counts[mode] = (int(word) for word in done.stdout.split())
        if not kept:
            pytest.skip("another allocator")
    assert counts["keep"] < 0.1 * counts["leave"]
