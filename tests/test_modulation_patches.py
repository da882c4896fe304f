"""Filters of images: quarters, crops against torch's own enlargement, training, and what tells smooth from rough."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch
from held import hold
from torch.nn import functional

from sslbook.chapters.modulation import patches, recorded
from sslbook.chapters.modulation.patches import PatchProtocol
from sslbook.images import digits
from sslbook.streams import Streams


def test_quarters() -> None:
    image = torch.arange(16.0).view(4, 4)
    found = patches.four_fields(image[None, None])[0, 0]
    assert found.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    with pytest.raises(ValueError, match="pixels must have even sides, got 3 x 4"):
        patches.four_fields(torch.zeros(1, 3, 4))


def test_crops_are_torchs_enlargement_of_the_box() -> None:
    u = torch.rand(200, 10, 4, generator=torch.Generator().manual_seed(0))
    boxes = patches.crop_boxes(u, 28, 0.5)
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 28).all()
    assert (left + width <= 28).all()
    share = height * width / 784
    assert share.min() > 0.45
    assert 0.6 < share.mean() < 0.75, "large boxes fit less often"
    assert (width / height).min() < 0.7
    assert (width / height).max() > 1.3
    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(1))
    for box in boxes[:20].int().tolist():
        part = image[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        true = functional.interpolate(part[None, None], size=(28, 28), mode="bilinear", align_corners=False)[0, 0]
        rows, columns = (
            patches.resize_matrices(torch.tensor(float(box[i])), torch.tensor(float(box[i + 2])), 28) for i in (0, 1)
        )
        assert (rows @ image @ columns.T - true).abs().max() < 1e-5


def test_a_box_that_never_fits_is_the_whole_image() -> None:
    u = torch.zeros(1, 3, 4)
    u[..., 1] = 1 - 1e-6  # all of the area, in the widest shape
    assert patches.crop_boxes(u, 28, 0.5).tolist() == [[0, 0, 28, 28]]
    whole = torch.rand(2, 3, 8, 8)
    assert patches.random_crops(whole, Streams([0, 1], "crops"), 0.0).allclose(whole, atol=1e-6)


def test_training() -> None:
    data = digits(300)
    protocol = PatchProtocol(beta=1, outputs=8, steps=60, strength=0.3)
    both = patches.train_filters(data, protocol, [3, 5])
    assert both.shape == (2, 4, 10, 4, 4)
    alone = patches.train_filters(data, protocol, [5])
    assert (both[1] - alone[0]).abs().max() < 1e-3
    assert (both[0] - both[1]).abs().max() > 0.1
    plain = patches.train_filters(data, replace(protocol, strength=0.0, steps=1), [3])
    assert plain.shape == (1, 4, 10, 4, 4)


def test_recorded_filters() -> None:
    protocol = PatchProtocol(beta=2, outputs=8, steps=150)
    values = recorded.filter_values([1, 2], protocol=protocol, data=digits())
    assert torch.tensor(values["filters"]["C-Fig13"]).shape == (4, recorded.KEPT, 4, 4)
    for name in ("living", "roughness", "likeness"):
        assert {figure: len(found) for figure, found in values[name].items()} == {
            "untrained": 2,
            "C-Fig12": 2,
            "C-Fig13": 2,
        }
    assert values["data"] == "digits"
    for figure, changes in {"untrained": {"steps": 1}, "C-Fig12": {}, "C-Fig13": {"strength": 0.5}}.items():
        found = patches.train_filters(digits(), replace(protocol, **changes), [1, 2]).double()  # type: ignore[arg-type]
        alive = patches.living(found)
        wanted = {"roughness": patches.mean_of(patches.roughness(found), alive), "living": alive.double().mean((1, 2))}
        for name, each in (wanted | {"likeness": patches.likeness(found, alive)}).items():
            assert values[name][figure] == pytest.approx(each.tolist(), abs=6e-5), (figure, name)
        if figure != "untrained":
            sizes = found[0].flatten(2).norm(dim=2).sort(1, descending=True).values[:, : recorded.KEPT]
            kept = torch.tensor(values["filters"][figure]).flatten(2).norm(dim=2)
            torch.testing.assert_close(kept, sizes.float(), atol=3e-4, rtol=0)


def test_roughness_and_likeness() -> None:
    row = torch.arange(14.0)
    smooth, noise = (row + row[:, None]), torch.randn(14, 14, generator=torch.Generator().manual_seed(0))
    checks = (-1.0) ** (row + row[:, None])
    assert patches.roughness(smooth) < 0.1
    assert 3 < patches.roughness(noise) < 4.5
    assert patches.roughness(checks) > 7
    for shape in (smooth, noise, checks):
        assert float(patches.roughness(shape / 100)) == pytest.approx(float(patches.roughness(shape)), rel=1e-4)
    assert patches.roughness(torch.ones(14, 14)) == 0
    same = smooth.expand(1, 4, 3, 14, 14)
    assert patches.likeness(same).item() == pytest.approx(1)
    assert patches.likeness(torch.eye(9).view(1, 1, 9, 3, 3)).item() == pytest.approx(0)


def test_filters_that_have_faded_do_not_count() -> None:
    draw = torch.Generator().manual_seed(2)
    filters = torch.randn(2, 4, 3, 5, 5, generator=draw)
    filters[0, :2, 1:] = 1e-20
    filters[0, 3] = 0
    alive = patches.living(filters)
    assert alive.sum((1, 2)).tolist() == [5, 12]
    assert alive[0].tolist() == [[True, False, False]] * 2 + [[True] * 3, [False] * 3]
    rough = patches.roughness(filters)
    assert patches.mean_of(rough, alive)[0] == pytest.approx(float(rough[0][alive[0]].mean()))
    alone = filters[:1, 2:3]
    assert patches.likeness(filters, alive)[0] == pytest.approx(float(patches.likeness(alone)))
    assert patches.likeness(filters, alive)[1] == pytest.approx(float(patches.likeness(filters)[1]))
    nobody = torch.zeros(2, 4, 3, dtype=torch.bool)
    assert patches.likeness(filters, nobody).tolist() == [0, 0]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="strength must be at least 0 and below 1, got 1"):
        PatchProtocol(strength=1)
    with pytest.raises(ValueError, match="batch must be at least 2, got 1"):
        PatchProtocol(batch=1)


def test_images_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLBOOK_DATA", raising=False)
    assert patches.images().name == "digits"


def test_the_settings_are_those_of_appendix_e3() -> None:
    assert astuple(PatchProtocol()) == (5, 10, 50, 8, 50_000, 0.02, 0.9, 5e-3, 0.1, 0.0, "relu")


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_filters_are_trained_as_they_were(strength: float) -> None:
    protocol = PatchProtocol(beta=1, outputs=6, steps=5, strength=strength)
    (found,) = patches.train_filters(digits(24), protocol, [3])
    pattern = torch.arange(found.numel()).cos().reshape(found.shape)
    hold({"norm": float(found.norm()), "pattern": float((found * pattern).sum())}, within=1e-4)
