"""tools/slurm.py: a cluster that starts and stops, and leaves no process behind, also if it doesn't start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from slurm_cases import SCRIPT, slurm, there, until

pytestmark = pytest.mark.slurm


def test_the_script_starts_and_stops_a_cluster_with_its_jobs() -> None:
    there()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        script = [sys.executable, str(SCRIPT)]
        try:
            started = subprocess.run(
                [*script, "start", name, "--gpus", "2"], capture_output=True, text=True, check=True
            )
            assert started.stdout == f"SLURM_CONF={Path(name).resolve()}/slurm.conf\n"
            environment = {**os.environ, "SLURM_CONF": f"{name}/slurm.conf"}
            stubborn = [
                "sbatch",
                "--gpus-per-node=2",
                "-o",
                f"{name}/out",
                "--wrap",
                "trap '' TERM; echo here; sleep 600",
            ]
            subprocess.run(stubborn, env=environment, check=True, capture_output=True)
            until(lambda: (Path(name) / "out").is_file() and (Path(name) / "out").read_text() == "here\n")
            twice = subprocess.run([*script, "start", name], capture_output=True, text=True)
            assert twice.returncode == 1
            assert "runs in" in twice.stderr
            assert len(slurm.processes(Path(name))) > 4
        finally:
            subprocess.run([*script, "stop", name], check=True)
        assert slurm.processes(Path(name)) == []


def test_a_cluster_that_does_not_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        monkeypatch.setattr(slurm, "CONFIGURATION", slurm.CONFIGURATION + "NoSuchOption=1\n")
        with pytest.raises(slurm.ClusterError, match=r"did not start .*\n(.*\n)*.*NoSuchOption"):
            slurm.start(Path(name))
        assert slurm.processes(Path(name)) == []
    with pytest.raises(slurm.ClusterError, match="too long a path for a socket"):
        slurm.start(tmp_path / ("x" * 100))
    monkeypatch.setattr(slurm.shutil, "which", lambda name, path: None)
    with pytest.raises(
        slurm.ClusterError, match=r"munged, slurmctld, .* not found: on Debian, apt-get install slurm-wlm munge"
    ):
        slurm.start(tmp_path)
