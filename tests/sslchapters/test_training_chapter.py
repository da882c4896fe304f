"""What the chapter on training records, made small enough for a test."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from training_cases import DIGITS

from sslbook.training.run.settings import Settings
from sslchapters.training import records as recorded

SHORT = (*DIGITS, "networks.predictor_hidden=8", "epochs=2", "evaluate=1", "probes=2")


def test_a_stopped_recording_goes_on_with_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that changes its loss begins with the other's last weights, and nothing is trained twice."""
    trained: list[str] = []
    go = recorded.train

    def counted(settings: Settings, folder: Path, **options: Any) -> Any:
        if not (folder / "result.json").is_file():
            trained.append(settings.objective)
        return go(settings, folder, **options)

    monkeypatch.setattr(recorded, "train", counted)
    make = partial(recorded.run_values, [3], changes=SHORT, processes=1, device="cpu", root=tmp_path)
    both = make(names=("info_nce", "simple after info_nce"))
    assert trained == ["info_nce", "simple"]
    again = make(names=("simple after info_nce", "simple"))
    assert trained == ["info_nce", "simple", "simple"]
    assert again["runs"]["simple after info_nce"] == both["runs"]["simple after info_nce"]
    first = {name: values["knn"][0] for name, values in (both["runs"] | again["runs"]).items()}
    assert first["simple after info_nce"] == both["runs"]["info_nce"]["knn"][-1]
    assert first["simple"] == first["info_nce"] != first["simple after info_nce"]
