"""What a run needs from the machine: here, a layout in memory that every processor survives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sslbook.training.run.parts import layout_of

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
import sys, torch
from pathlib import Path
from sslbook.images.datasets import Dataset
from sslbook.training.presets.sheets import run_of
from sslbook.training.run.trainer import train

pipeline, *runs = sys.argv[2:]
size = 96 if pipeline == "stl10" else 32
pixels = torch.randint(0, 256, (16, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
images = Dataset(pixels, torch.arange(16) % 10, "random", 10)
for run in runs:
    width, precision = run.split()
    changes = [f"networks.width={width}", f"precision={precision}", f"pipeline={pipeline}"]
    changes += ["networks.channels=3", "batch=8", "evaluate=0"]
    settings = run_of("digits-simclr-nce", seed=0, epochs=3, changes=changes).settings
    print(run, train(settings, Path(sys.argv[1]) / run, data=(images, images), device="cpu", quiet=True).step)
"""


def test_narrow_networks_are_contiguous_on_a_processor() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert {layout_of(width, cpu) for width in range(1, 16)} == {torch.contiguous_format}
    assert {layout_of(width, cpu) for width in (16, 64)} == {layout_of(2, gpu)} == {torch.channels_last}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "pipeline", "runs"),
    [
        ("AVX2", "cifar10", [f"{width} float32" for width in (2, 3, 4, 5, 6, 8)]),
        ("DEFAULT", "stl10", ["3 float32", "8 float32", "12 float32", "8 bfloat16"]),
    ],
)
def test_no_width_corrupts_the_memory(isa: str, pipeline: str, runs: list[str], tmp_path: Path) -> None:
    """oneDNN can be told to do as on a lesser processor; in channels last it crashed here."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"}
    arguments = [str(tmp_path), pipeline, *runs]
    done = subprocess.run([sys.executable, "-c", STEPS, *arguments], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{run} 6" for run in runs]), done.stderr
