"""What the chapter on training runs live, says of the runs that wait, and records, made small enough for a test."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import DIGITS

from sslbook.training.run.settings import Settings
from sslchapters.training import live
from sslchapters.training import records as recorded


def test_a_course_has_a_row_a_look_and_a_column_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {split: live.datasets.subset(live.datasets.load_dataset("digits", split), 256) for split in ("train", "test")}
    monkeypatch.setattr(live.datasets, "load_dataset", lambda name, split: few[split])
    found = live.course("SimCLR", (0, 1), 2, 1)
    assert found.epochs == (0, 1, 2)
    assert found.knn.shape == found.likeness.shape == (3, 2)
    assert bool(found.loss[0].isnan().all())
    assert bool(found.loss[1:].isfinite().all())
    assert found.embeddings.shape[:2] == (3, 256)
    torch.testing.assert_close(found.embeddings.norm(dim=2), torch.ones(3, 256))
    assert not torch.equal(found.embeddings[1], found.embeddings[2])
    alone = live.course("SimCLR", (1,), 2, 2)
    assert torch.equal(alone.knn[-1, 0], found.knn[-1, 1]), "a stop to look changes nothing, nor does another seed"


def test_a_number_that_views_share_agrees_and_one_that_they_do_not_does_not() -> None:
    images = live.photographs(12, 64, seed=1)
    still = replace(live.BARE, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    assert live.agreement(live.drawn(images, still, 3), live.redness) == pytest.approx(1)
    assert live.agreement(live.drawn(images, still, 3), live.edges) == pytest.approx(1)
    noise = [torch.rand(200, 3, 4, 4, generator=torch.Generator().manual_seed(view)) for view in range(3)]
    assert abs(live.agreement(noise, live.redness)) < 0.2


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
