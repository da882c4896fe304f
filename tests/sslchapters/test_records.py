"""Recorded runs: what goes in comes out, with where it comes from."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from sslchapters.records import recorded, rounded, save_record


def test_a_record_comes_back(tmp_path: Path) -> None:
    values = {
        "accuracy": np.float32(0.5),
        "curve": torch.tensor([1.0, 2.0]),
        "rows": [{"n": np.int64(3), "who": "paper"}],
    }
    path = save_record("table-2", values, seeds=range(2), seconds=12.3456, command="sslbook …", folder=tmp_path)
    assert path == tmp_path / "table-2.json"
    record = recorded("table-2", folder=tmp_path)
    assert record.values == {"accuracy": 0.5, "curve": [1.0, 2.0], "rows": [{"n": 3, "who": "paper"}]}
    assert record["accuracy"] == 0.5
    origin = record.provenance
    assert (origin.seeds, origin.seconds, origin.command) == ((0, 1), 12.346, "sslbook …")
    assert origin.versions["torch"] == version("torch")  # as pip names it: a CUDA build calls itself +cu130 besides
    assert {"python", "numpy", "sslbook"} <= set(origin.versions)
    assert origin.hardware
    assert len(origin.date) == 10
    facts, how = str(origin).splitlines()
    assert "2 seeds, 12 s" in facts
    assert how.split("  ")[1] == "sslbook …"


def test_a_failed_save_leaves_the_old_record(tmp_path: Path) -> None:
    save_record("a", {"x": 1}, seeds=[0], seconds=1, folder=tmp_path)
    with pytest.raises(ValueError, match="Out of range float values"):
        save_record("a", {"x": [1.0, math.nan]}, seeds=[0], seconds=1, folder=tmp_path)
    assert recorded("a", folder=tmp_path)["x"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def written(values: object, **changed: object) -> str:
    origin = {"hardware": "a CPU", "versions": {}, "commit": None, "seeds": [1], "seconds": 1, "command": "…"}
    return json.dumps({"values": values, "provenance": origin | {"date": "2026-01-01"} | changed})


DAMAGED = ["{", written({"accuracy": math.nan}), written([1]), written({"accuracy": 17}, seeds=[None])]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: not a recorded run") as refused:
        recorded("a", folder=tmp_path)
    assert len(str(refused.value)) < len(str(tmp_path)) + 200, "it does not repeat a number of thousands of digits"


def test_numbers_are_rounded_wherever_they_stand() -> None:
    values = torch.tensor([[1.23456789, 1e-9], [123456789.0, 0.0]], dtype=torch.float64)
    assert rounded(values, 3) == [[1.235, 0.0], [123456789.0, 0.0]]
    assert rounded({"a": (values[0], 7)}, digits=3) == {"a": [[1.23, 1e-9], 7]}
