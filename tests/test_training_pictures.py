"""Images of the caller's own: what is read, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbook.training.pictures import read_images

BYTES = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 3, 5, 4)


class Pairs(torch.utils.data.Dataset):
    """As torchvision has them: an image and its class."""

    def __init__(self, images: list[object]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self.images[index], index % 2


@pytest.mark.parametrize(
    "source",
    [
        BYTES,
        BYTES.numpy(),
        BYTES.permute(0, 2, 3, 1).numpy(),
        BYTES.float() / 255,
        (BYTES / 255).double().numpy(),
        Pairs(list(BYTES)),
        Pairs([image / 255 for image in BYTES]),
        Pairs([Image.fromarray(image.permute(1, 2, 0).numpy()) for image in BYTES]),
        Pairs([image.permute(1, 2, 0).numpy() for image in BYTES]),
        list(BYTES),
    ],
    ids=["tensor", "array", "last", "shares", "doubles", "tensors", "floats", "pillow", "arrays", "list"],
)
def test_all_ways_give_the_same_bytes(source: object) -> None:
    data = read_images(source)
    assert torch.equal(data.pixels, BYTES)
    assert data.labels.tolist() == ([0, 1] if isinstance(source, Pairs) else [-1, -1])


def test_grey_images_and_labels() -> None:
    data = read_images(np.zeros((3, 8, 8), dtype=np.uint8), [4, 0, 1])
    assert data.pixels.shape == (3, 1, 8, 8)
    assert (data.labels.tolist(), data.classes) == ([4, 0, 1], 5)
    assert torch.equal(read_images(data).labels, data.labels)


def save(path: Path, width: int = 6, height: int = 6, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (width, height), 100 if mode == "L" else (10, 20, 30)).save(path)


def test_a_folder_and_its_classes(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "b.jpg")
    save(tmp_path / "cat" / "deep" / "a.PNG", mode="L")
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    data = read_images(str(tmp_path))
    assert data.pixels.shape == (2, 3, 6, 6)
    assert data.labels.tolist() == [0, 1]
    assert data.pixels[0].unique().tolist() == [100]  # the grey one, three times
    save(tmp_path / "alone.png")
    assert read_images(tmp_path).labels.tolist() == [-1, -1, -1]  # one lies in no class


def test_pictures_are_cut_to_a_size(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 6, 9)
    save(tmp_path / "b.png", 12, 6)
    assert read_images(tmp_path, size=4).pixels.shape == (2, 3, 4, 4)
    with pytest.raises(ValueError, match=r"one size: .*a\.png is 9 by 6, and .*b\.png is 6 by 12; size=32 cuts"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("source", "labels", "error", "sentence"),
    [
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), None, ValueError, "images must hold one image or more, got none"),
        ([], None, ValueError, "got none"),
        (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), None, ValueError, r"of 1 or 3 channels, got \(2, 5, 8, 8\)"),
        (torch.zeros(8, 8, dtype=torch.uint8), None, ValueError, r"must be \(N, C, H, W\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), None, TypeError, "must be uint8, or floating in .*int64"),
        (torch.full((2, 1, 8, 8), 255.0), None, ValueError, "floating from 255 to 255"),
        (torch.full((2, 1, 8, 8), float("nan")), None, ValueError, "floating from nan"),
        (iter(BYTES), None, TypeError, "gather what only iterates with list"),
        ("/no/such/folder", None, FileNotFoundError, "there is no folder /no/such/folder"),
        (BYTES, [0], ValueError, "one whole number for each of the 2 images"),
        (BYTES, [0.5, 1.0], ValueError, "one whole number for each"),
        (Pairs([BYTES[0], BYTES[1, :, :3]]), None, ValueError, "item 0 is 5 by 4, and item 1 is 3 by 4"),
        (["a word"], None, TypeError, "an item must be an image"),
    ],
)
def test_what_is_no_set_of_images_is_refused(source: object, labels: object, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        read_images(source, labels)


def test_folders_that_hold_no_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold pictures \(\.png"):
        read_images(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no more")
    with pytest.raises(ValueError, match=r"broken\.png is no picture that Pillow can read"):
        read_images(tmp_path)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        read_images(tmp_path, size=0)
    with pytest.raises(ValueError, match="size is for a folder"):
        read_images(BYTES, size=3)
