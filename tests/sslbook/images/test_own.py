"""Images of your own: what is read, the same from every kind of source, and what is refused in a sentence."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torch.utils.data import TensorDataset

from sslbook.images.datasets import subset
from sslbook.images.own import read_images

BYTES = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 3, 5, 4)
PICTURES = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in BYTES]
ARRAYS = {
    "bytes": BYTES,
    "channels last": BYTES.permute(0, 2, 3, 1).numpy(),
    "shares of 1": BYTES.float() / 255,
    "big-endian": (BYTES / 255).numpy().astype(">f4"),
    "mirrored": BYTES.flip(1).numpy()[:, ::-1],
    "a list": list(BYTES),
    "pictures": PICTURES,
}


def test_all_ways_give_the_same_bytes() -> None:
    for source in ARRAYS.values():
        data = read_images(source)
        assert torch.equal(data.pixels, BYTES)
        assert data.labels.tolist() == [-1, -1]
    for source in (TensorDataset(BYTES, torch.arange(2)), list(zip(PICTURES, (0, 1), strict=True))):
        data = read_images(source)
        assert torch.equal(data.pixels, BYTES)
        assert (data.labels.tolist(), data.classes) == ([0, 1], 2)
    data = read_images(np.zeros((3, 8, 8), dtype=np.uint8), [4, 0, 1])
    assert (data.pixels.shape, data.classes) == ((3, 1, 8, 8), 5)
    assert read_images(data.pixels, np.arange(3, dtype=">i4")[::-1]).labels.tolist() == [2, 1, 0]
    assert torch.equal(read_images(data).labels, data.labels)


def lay(folder: Path, *things: str) -> Path:
    """Files of a tree: pictures, ``name -> target`` for a link, ``name: `` for what is none; returns the tree."""
    for thing in things:
        name, _, target = thing.partition(" -> ")
        path = folder / name.partition(": ")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif ": " in name:
            path.write_bytes(b"no picture")
        else:
            Image.new("L", (6, 6), 100).save(path)
    return folder


def test_a_folder_and_its_classes(tmp_path: Path) -> None:
    lay(tmp_path, "dog/b.jpg", "cat/deep/a.PNG", "cat/notes.txt: ", "odd.png/c.png")
    Image.new("RGB", (6, 6), (10, 20, 30)).save(tmp_path / "dog" / "b.jpg")
    data = read_images(str(tmp_path))
    assert data.pixels.shape == (3, 3, 6, 6)
    assert (data.labels.tolist(), data.class_names) == ([0, 1, 2], ("cat", "dog", "odd.png"))
    assert data.pixels[0].unique().tolist() == [100], "the grey one, three times"
    lay(tmp_path, "alone.png")
    with pytest.warns(UserWarning, match=r"so that none has a class \(1, such as .*alone\.png\)"):
        assert read_images(tmp_path).labels.tolist() == [-1] * 4


TREES = {
    "hidden": ("cats/0.png", "dogs/0.png", ".checks/0.png", "cats/.thumbs/x/0.png", "dogs/._0.png: "),
    "of the system": ("cats/0.png", "dogs/0.png", "__MACOSX/cats/0.png", "cats/@eaDir/0.png", "cats/a.db: "),
    "linked": ("cats/0.png", "dogs -> ../.far/dogs", "../.far/dogs/0.png"),
    "round": ("cats/0.png", "dogs/0.png", "cats/a -> .", "cats/b -> ..", "dogs/c -> ../..", "here -> ."),
    "twice in a class": ("cats/z/0.png", "cats/a -> z", "dogs/0.png", "dogs/far -> ../../.far", "../.far/back -> .."),
    "odd names": (os.fsdecode(b"cats \n/\xc3\xa9 \xff.PNG"), "d.png/0.JPEG", "d.png/e.png/.hidden.png: "),
}


@pytest.mark.parametrize("kind", TREES)
def test_a_folder_is_read_as_its_owner_sees_it(kind: str, tmp_path: Path) -> None:
    folder = lay(tmp_path / ".above" / "pictures", *TREES[kind])
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, tmp_path / "link"):
        data = read_images(source)
        assert (data.labels.tolist(), data.classes, len(data.class_names), data.name) == ([0, 1], 2, 2, "pictures")
        assert [Path(file).relative_to(source).parts[0] for file in data.files] == list(data.class_names)


@pytest.mark.parametrize(
    ("things", "classes", "sentence"),
    [
        ((), None, "images must be one or more"),
        (("cats/0.png", "dogs/notes.txt: "), None, "dogs must hold pictures"),
        (("cats/0.png", "fish/0.png"), ("cats", "dogs"), "fish/0.png is in none of the classes"),
        (("broken.png: ",), None, r"broken\.png is no picture that can be read"),
    ],
)
def test_what_a_folder_would_lose_without_a_word_is_refused(
    things: tuple, classes: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_images(lay(tmp_path, *things), classes=classes)


def test_a_test_set_has_the_numbers_of_the_training_set(tmp_path: Path) -> None:
    lay(tmp_path, "bee/0.png", "cat/1.png", "cat/0.png", "ant/notes.txt: ")
    test = read_images(tmp_path, classes=("ant", "bee", "cat"))
    assert (test.labels.tolist(), test.classes, test.class_names) == ([1, 2, 2], 3, ("ant", "bee", "cat"))
    part = subset(test, 2, seed=1)
    assert [Path(file).parent.name for file in part.files] == [part.class_names[label] for label in part.labels]


def test_a_name_is_one_in_all_unicode_forms(tmp_path: Path) -> None:
    level = {"e": 10, "é": 100, "z": 200}
    for part, form in (("train", "NFC"), ("test", "NFD")):
        for kind, grey in level.items():
            path = tmp_path / part / unicodedata.normalize(form, kind) / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("L", (6, 6), grey).save(path)
    train, test = (read_images(tmp_path / part) for part in ("train", "test"))
    assert train.class_names == test.class_names == ("e", "z", "é")
    assert train.pixels.equal(test.pixels)
    named = [unicodedata.normalize("NFD", name) for name in ("é", "z", "e")]
    assert read_images(tmp_path / "train", classes=named).labels.tolist() == [2, 1, 0]
    assert replace(train, class_names=tuple(named)).class_names == ("é", "z", "e")
    assert read_images(lay(tmp_path / "case", "ape/0.png", "Bee/0.png")).class_names == ("ape", "Bee")


def test_a_picture_is_upright(tmp_path: Path) -> None:
    side = Image.Exif()
    side[ExifTags.Base.Orientation] = 6
    for ending in ("jpg", "png", "webp"):
        Image.new("RGB", (6, 4)).save(tmp_path / f"a.{ending}", exif=side)
    assert read_images(tmp_path).pixels.shape == (3, 3, 6, 4)


def test_transparency_and_wrong_endings_are_no_matter_and_further_pages_are_told(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (6, 6), colour) for colour in ((254, 0, 0), (0, 0, 254)))
    Image.effect_noise((6, 6), 60).convert("RGB").quantize(4).save(tmp_path / "a.png", transparency=b"\0\1\2")
    red.save(tmp_path / "d.JPG", "png")
    assert len(read_images(tmp_path)) == 2
    red.save(tmp_path / "a.png")
    for name in ("b.gif", "c.webp", "e.tif", "f.png"):
        red.save(tmp_path / name, save_all=True, append_images=[blue], **{"lossless": True} if "webp" in name else {})
    with pytest.warns(UserWarning, match=r"pages or frames, of which one is taken \(4, such as .*b\.gif\)"):
        assert read_images(tmp_path).pixels.flatten(2).mT.flatten(0, 1).unique(dim=0).tolist() == [[254, 0, 0]]


def test_every_ending_that_pillow_reads_is_read_and_others_are_told(tmp_path: Path) -> None:
    kinds = {"png": None, "JPE": "jpeg", "apng": "png", "tga": None, "pnm": "ppm", "jp2": None, "PbM": "ppm"}
    for ending, kind in kinds.items():
        Image.new("RGB", (8, 8)).save(tmp_path / f"{ending}.{ending}", kind)
    lay(tmp_path, "notes.TXT: ")
    assert len(read_images(tmp_path)) == len(kinds)
    lay(tmp_path, "a.heic: ", "b.jpg_large: ", "c: ", "gone.png -> nowhere")
    with pytest.warns(UserWarning, match=r"files are left out.* \(4, such as .*a\.heic\)"):
        assert len(read_images(tmp_path)) == len(kinds)


def test_grey_levels_finer_than_bytes_are_rounded_to_them(tmp_path: Path) -> None:
    levels = np.linspace(0, 2**16 - 1, 4096).astype(np.uint16).reshape(64, 64)
    expected = torch.from_numpy((levels / 257).round().astype(np.uint8))
    for array in (levels, levels.astype(np.int32), (levels / 65535).astype(np.float32)):
        Image.fromarray(array).save(tmp_path / "a.tif")
        assert torch.equal(read_images(tmp_path).pixels[0, 0], expected)
    for wrong in (np.full((4, 4), 70_000, dtype=np.int32), np.full((4, 4), np.nan, dtype=np.float32)):
        Image.fromarray(wrong).save(tmp_path / "a.tif")
        with pytest.raises(ValueError, match=r"a\.tif is no .*: levels of mode [IF] must be bytes, or floating in"):
            read_images(tmp_path)


@pytest.mark.parametrize("height", [3, 5])  # as many rows as channels, too
def test_a_picture_is_the_same_from_a_folder_and_from_a_list(height: int, tmp_path: Path) -> None:
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK"):
        picture = PICTURES[0].crop((0, 0, 4, height)).convert("L" if mode == "LA" else "RGB").convert(mode)
        picture.save(tmp_path / "a.tif")
        listed = read_images([picture]).pixels
        assert torch.equal(listed, read_images(tmp_path).pixels)
        wanted = picture.convert("L" if mode in ("1", "L") else "RGB")
        assert np.array_equal(listed[0].permute(1, 2, 0).numpy().squeeze(), np.array(wanted))


def test_one_picture_is_not_taken_for_many() -> None:
    for shape in ((32, 32, 3), (3, 32, 32), (20, 30, 4)):
        with pytest.raises(ValueError, match=r"may be one picture: add an axis, images\[None\] if it is one"):
            read_images(np.zeros(shape))
        assert len(read_images(torch.zeros(shape)[:, None])) == shape[0]
        assert len(read_images(np.zeros(shape), [0] * shape[0])) == shape[0]
    for shape in ((5, 32, 32), (1, 28, 28), (2, 28, 3), (32, 32, 32), (2, 3, 32, 32), (3, 32, 32, 3)):
        assert len(read_images(torch.zeros(shape))) == shape[0]


def test_pictures_are_cut_to_a_size(tmp_path: Path) -> None:
    for name, size in (("a.png", (6, 9)), ("b.png", (12, 6))):
        Image.new("RGB", size).save(tmp_path / name)
    assert read_images(tmp_path, size=4).pixels.shape == (2, 3, 4, 4)
    with pytest.warns(UserWarning, match=r"smaller than 8 by 8, and enlarged \(2, such as .*a\.png\)"):
        assert read_images(tmp_path, size=8).pixels.shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("source", "labels", "error", "sentence"),
    [
        ("/no/such/folder", None, FileNotFoundError, "no/such/folder"),
        (BYTES, [0], ValueError, "one whole number for each of the 2 images"),
        (BYTES, np.array([2**63, 2**64 - 1], dtype=np.uint64), ValueError, "from 0 on or -1 for none"),
        (BYTES, [0, -2], ValueError, "from 0 on or -1 for none"),
        ([BYTES[0], BYTES[1, :, :3]], None, ValueError, "item 0 is 5 by 4, and item 1 is 3 by 4"),
    ],
)
def test_what_is_no_set_of_images_is_refused(source: Any, labels: Any, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        read_images(source, labels)
