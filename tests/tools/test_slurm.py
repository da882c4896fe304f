"""The tests' own cluster: it starts and stops, and leaves no process behind, also if it doesn't start."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import slurm_cases as slurm

pytestmark = pytest.mark.slurm


def test_a_cluster_starts_and_stops_with_its_jobs() -> None:
    slurm.there()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        with slurm.running(folder, gpus=2) as configuration:
            assert configuration == folder.resolve() / "slurm.conf"
            stubborn = ["sbatch", "--gpus-per-node=2", "-o", f"{name}/out", "--wrap"]
            stubborn += ["trap '' TERM; echo here; sleep 600"]
            environment = {**os.environ, "SLURM_CONF": str(configuration)}
            subprocess.run(stubborn, env=environment, check=True, capture_output=True)
            slurm.until(lambda: (folder / "out").is_file() and (folder / "out").read_text() == "here\n")
            with pytest.raises(slurm.ClusterError, match="runs in"):
                slurm.start(folder)
            assert len(slurm.processes(folder)) > 4
        assert slurm.processes(folder) == []


def test_a_cluster_that_does_not_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.there()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        monkeypatch.setattr(slurm, "CONFIGURATION", slurm.CONFIGURATION + "NoSuchOption=1\n")
        with pytest.raises(slurm.ClusterError, match=r"did not start .*\n(.*\n)*.*NoSuchOption"):
            slurm.start(Path(name))
        assert slurm.processes(Path(name)) == []
