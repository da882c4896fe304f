"""Worker processes: one thread each, their own environment, and the old one back afterwards."""

from __future__ import annotations

import os

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
