"""Images of the caller's own: what is read, and what is refused in a sentence."""

from __future__ import annotations

import os
import random
import struct
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from torch.utils.data import TensorDataset

from sslbook.images.datasets import subset
from sslbook.images.own import read_images
from sslbook.networks.siamese import Networks
from sslbook.training.run.settings import Refused, Settings
from sslbook.training.run.trainer import train as run

BYTES = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 3, 5, 4)


class Pairs(torch.utils.data.Dataset):
    """As torchvision has them: an image and its class."""

    def __init__(self, images: list[object]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self.images[index], index % 2


class Named(list):
    """Of other keys than numbers, as a table has."""

    def __getitem__(self, index: object) -> object:
        raise KeyError(index)


@pytest.mark.parametrize(
    "source",
    [
        BYTES,
        BYTES.numpy(),
        BYTES.permute(0, 2, 3, 1).numpy(),
        BYTES.float() / 255,
        (BYTES / 255).double().numpy(),
        (BYTES / 255).numpy().astype(">f4"),
        BYTES.flip(1).numpy()[:, ::-1],
        TensorDataset(BYTES, torch.arange(2)),
        Pairs(list(BYTES)),
        Pairs([image / 255 for image in BYTES]),
        Pairs([Image.fromarray(image.permute(1, 2, 0).numpy()) for image in BYTES]),
        Pairs([image.permute(1, 2, 0).numpy() for image in BYTES]),
        list(BYTES),
    ],
)
def test_all_ways_give_the_same_bytes(source: object) -> None:
    data = read_images(source)
    assert torch.equal(data.pixels, BYTES)
    assert data.labels.tolist() == ([0, 1] if isinstance(source, torch.utils.data.Dataset) else [-1, -1])


def test_grey_images_and_labels() -> None:
    data = read_images(np.zeros((3, 8, 8), dtype=np.uint8), [4, 0, 1])
    assert data.pixels.shape == (3, 1, 8, 8)
    assert (data.labels.tolist(), data.classes) == ([4, 0, 1], 5)
    assert torch.equal(read_images(data).labels, data.labels)
    assert read_images(data.pixels, np.arange(3, dtype=">i4")[::-1]).labels.tolist() == [2, 1, 0]


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
    save(tmp_path / "odd.png" / "c.png")
    assert read_images(tmp_path).labels.tolist() == [0, 1, 2]  # a folder is no picture, whatever its name
    save(tmp_path / "alone.png")
    with pytest.warns(UserWarning, match=r"so that none has a class \(1, such as .*alone\.png\)"):
        assert read_images(tmp_path).labels.tolist() == [-1] * 4  # one lies in no class


def exif(*entries: tuple[int, int, int, int]) -> bytes:
    """An EXIF block of (tag, type, count, value) with the orientation "on its side" before them."""
    fields = sorted([(0x0112, 3, 1, 6), *entries])
    table = b"".join(
        struct.pack("<HHIHH" if kind == 3 else "<HHIi", tag, kind, n, v, *[0] * (kind == 3))
        for tag, kind, n, v in fields
    )
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(fields)) + table + bytes(4) + struct.pack("<ii", -1, 0)


@pytest.mark.parametrize(
    "block",
    [
        exif(),
        exif((0x011A, 10, 1, 50)),  # a signed rational -1/0 as resolution
        exif((0x0100, 4, 1, -1), (0x8769, 4, 1, 10**6)),  # a part that lies behind the end
    ],
)
@pytest.mark.parametrize("ending", ["jpg", "jfif", "png", "webp"])
def test_a_picture_is_upright_whatever_else_its_exif_block_holds(block: bytes, ending: str, tmp_path: Path) -> None:
    Image.new("RGB", (6, 4)).save(tmp_path / f"a.{ending}", exif=block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of the damage
        assert read_images(tmp_path).pixels.shape == (1, 3, 6, 4)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm"])
def test_damaged_pictures_end_in_their_pixels_or_in_a_sentence(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    NOISE.save(path, **({"exif": exif()} if ending in ("png", "jpg", "webp") else {}))
    whole, draw = path.read_bytes(), random.Random(0)
    damaged = [b"", b"Exif", whole[: len(whole) // 2], whole[:-1], whole[:30]]
    for _ in range(60):
        at = draw.randrange(min(200, len(whole)))
        damaged.append(whole[:at] + draw.randbytes(draw.choice((1, 2, 4))) + whole[at + draw.choice((1, 2, 4)) :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for content in damaged:
            path.write_bytes(content)
            try:
                assert read_images(tmp_path, size=8).pixels.shape[2:] == (8, 8)
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("pixels", [10, 30])
def test_a_picture_too_large_for_pillow_is_named(pixels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"a\.png is too large for Pillow"):
            read_images(tmp_path, size=2)


def test_transparency_and_wrong_endings_are_no_matter_and_further_pages_are_told(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (6, 6), colour) for colour in ((254, 0, 0), (0, 0, 254)))
    red.quantize(4).save(tmp_path / "a.png", transparency=b"\0\1\2")
    red.save(tmp_path / "d.JPG", "png")
    assert len(read_images(tmp_path)) == 2
    for name in ("b.gif", "c.webp", "e.tif", "f.png"):
        red.save(tmp_path / name, save_all=True, append_images=[blue], **{"lossless": True} if "webp" in name else {})
    with pytest.warns(UserWarning, match=r"pages or frames, of which one is taken \(4, such as .*b\.gif\)"):
        data = read_images(tmp_path)
    assert data.pixels.flatten(2).mT.flatten(0, 1).unique(dim=0).tolist() == [[254, 0, 0]]
    with pytest.warns(UserWarning, match="one is taken .1, such as item 1"), Image.open(tmp_path / "e.tif") as pages:
        read_images([red, pages])
    with Image.open(tmp_path / "e.tif") as pages:
        assert read_images(ImageSequence.all_frames(pages)).pixels[:, 2, 0, 0].tolist() == [0, 254]


def test_every_ending_that_pillow_reads_is_read_and_others_are_told(tmp_path: Path) -> None:
    kinds = {
        "png": None,
        "JPE": "jpeg",
        "apng": "png",
        "tga": None,
        "pnm": "ppm",
        "jp2": None,
        "pcx": None,
        "PbM": "ppm",
    }
    for ending, kind in kinds.items():
        Image.new("RGB", (8, 8)).save(tmp_path / f"{ending}.{ending}", kind)
    (tmp_path / "notes.TXT").write_text("no picture")
    assert len(read_images(tmp_path)) == len(kinds)
    for name in ("a.heic", "b.jpg_large", "c"):
        (tmp_path / name).write_text("a picture, for another program")
    with pytest.warns(UserWarning, match=r"files are left out.* \(3, such as .*a\.heic\)"):
        assert len(read_images(tmp_path)) == len(kinds)


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
    assert train.labels.equal(test.labels)
    named = [unicodedata.normalize("NFD", name) for name in ("é", "z", "e")]
    assert read_images(tmp_path / "train", classes=named).labels.tolist() == [2, 1, 0]
    assert replace(train, class_names=tuple(named)).class_names == ("é", "z", "e")
    (tmp_path / "train" / named[0]).mkdir()
    with pytest.raises(ValueError, match="has the name of another folder, written in another Unicode form"):
        read_images(tmp_path / "train")
    lay(tmp_path / "case", ("Ape/0.png", "bee/0.png"))
    lay(tmp_path / "lower", ("ape/0.png", "Bee/0.png"))
    assert [read_images(tmp_path / name).class_names for name in ("case", "lower")] == [("Ape", "bee"), ("ape", "Bee")]


@pytest.mark.parametrize("shape", [(32, 32, 3), (3, 32, 32), (20, 30, 1), (20, 30, 4)])
@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_one_picture_is_not_taken_for_many(shape: tuple[int, ...], kind: Any) -> None:
    picture = kind(shape)
    with pytest.raises(ValueError, match=r"may be one picture: add an axis, images\[None\] if it is one"):
        read_images(picture)
    if 4 not in shape:
        assert len(read_images(picture[None])) == 1
    assert len(read_images(picture[:, None])) == len(read_images(picture, [0] * shape[0])) == shape[0]


@pytest.mark.parametrize("shape", [(5, 32, 32), (1, 28, 28), (2, 28, 3), (32, 32, 32), (2, 3, 32, 32), (3, 32, 32, 3)])
def test_many_pictures_are_many(shape: tuple[int, ...]) -> None:
    assert len(read_images(torch.zeros(shape))) == shape[0]


def test_pictures_are_cut_to_a_size(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 6, 9)
    save(tmp_path / "b.png", 12, 6)
    assert read_images(tmp_path, size=np.int64(4)).pixels.shape == (2, 3, 4, 4)
    with pytest.warns(UserWarning, match=r"smaller than 8 by 8, and enlarged \(2, such as .*a\.png\)"):
        assert read_images(tmp_path, size=8).pixels.shape == (2, 3, 8, 8)
    with pytest.raises(FileNotFoundError, match=r"no folder .*a\.png: it is a file"):
        read_images(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"one size: .*a\.png is 9 by 6, and .*b\.png is 6 by 12; size=32 cuts"):
        read_images(tmp_path)


LEVELS = np.arange(0, 2**16, 1024, dtype=np.uint16).reshape(8, 8)
EIGHT = torch.from_numpy((LEVELS / 257).round().astype(np.uint8))


@pytest.mark.parametrize(
    ("array", "mode", "ending"),
    [
        (LEVELS, "I;16", "png"),
        (LEVELS, "I;16", "tif"),
        (LEVELS.astype(np.int32), "I", "tif"),
        ((LEVELS / 65535).astype(np.float32), "F", "tif"),
    ],
)
def test_grey_levels_finer_than_bytes_are_rounded_to_them(
    array: np.ndarray, mode: str, ending: str, tmp_path: Path
) -> None:
    picture = Image.fromarray(array)
    assert picture.mode == mode
    picture.save(tmp_path / f"a.{ending}")
    for source in (tmp_path, [picture]):
        assert torch.equal(read_images(source).pixels[0, 0], EIGHT)
    assert read_images(tmp_path, size=4).pixels.shape == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.full((4, 4), 70_000, dtype=np.int32), "pixels from 0 to 65535"),
        (np.full((4, 4), np.nan, dtype=np.float32), "pixels from 0 to 1"),
    ],
)
def test_grey_levels_of_an_unknown_range_are_refused(array: np.ndarray, sentence: str, tmp_path: Path) -> None:
    Image.fromarray(array).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=rf"a\.tif must have {sentence}"):
        read_images(tmp_path)
    with pytest.raises(ValueError, match=f"item 0 must have {sentence}"):
        read_images([Image.fromarray(array)])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_a_picture_is_the_same_from_a_folder_and_from_a_list(mode: str, tmp_path: Path) -> None:
    colours = Image.fromarray(BYTES[0].permute(1, 2, 0).numpy())
    picture = colours.convert("L").convert("LA") if mode == "LA" else colours.convert(mode)
    picture.save(tmp_path / "a.tif")
    listed = read_images([picture]).pixels
    assert torch.equal(listed, read_images(tmp_path).pixels)
    wanted = picture.convert("L" if mode in ("1", "L") else "RGB")
    assert np.array_equal(listed[0].permute(1, 2, 0).numpy().squeeze(), np.array(wanted))


@pytest.mark.parametrize(
    ("source", "labels", "error", "sentence"),
    [
        (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), None, ValueError, "of 1 or 3 channels"),
        (torch.full((2, 1, 8, 8), 255.0), None, ValueError, "floating from 255 to 255"),
        (iter(BYTES), None, TypeError, "gather what only iterates with list"),
        ("/no/such/folder", None, FileNotFoundError, "there is no folder"),
        (BYTES, [0], ValueError, "one whole number for each of the 2 images"),
        (Pairs([BYTES[0], BYTES[1, :, :3]]), None, ValueError, "item 0 is 5 by 4, and item 1 is 3 by 4"),
        ([BYTES[0], None], None, TypeError, "item 1 must be an image, or an image and its class"),
        ([(BYTES[0], 1), BYTES[1]], None, TypeError, "item 1 must be an image and its class, as a pair"),
        ([(BYTES[0], 1), (BYTES[1], "cat")], None, TypeError, "class of item 1 must be a whole number"),
        (Named([0]), None, ValueError, "an item for each number"),
        (BYTES, [0, -2], ValueError, "from 0 on or -1 for none"),
        (BYTES, np.array([1, 2**64 - 1], dtype=np.uint64), ValueError, "got one beyond 63 bits"),
        ([[[1, 2], [3, 4]]], None, TypeError, "got rows as lists"),
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


LISTED = {
    "hidden": ("cats/0.png", "dogs/0.png", ".checks/0.png", "cats/.thumbs/x/0.png", "dogs/._0.png: no picture"),
    "of the system": ("cats/0.png", "dogs/0.png", "__MACOSX/cats/0.png", "cats/@eaDir/0.png", "cats/a.db: no picture"),
    "linked": ("cats/0.png", "dogs -> ../.far/dogs", "../.far/dogs/0.png"),
    "a linked file": ("cats/0.png", "dogs/0.png -> ../../.far/a.png", "../.far/a.png"),
    "round": ("cats/0.png", "dogs/0.png", "cats/a -> .", "cats/b -> ..", "dogs/c -> ../..", "here -> ."),
    "twice in a class": ("cats/z/0.png", "cats/a -> z", "dogs/0.png", "dogs/far -> ../../.far", "../.far/back -> .."),
    "odd names": (os.fsdecode(b"cats \n/\xc3\xa9 \xff.PNG"), "d.png/0.JPEG", "d.png/e.png/.hidden.png: no picture"),
}


def lay(folder: Path, things: tuple[str, ...]) -> None:
    for thing in things:
        name, _, target = thing.partition(" -> ")
        path = folder / name.partition(": ")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif ": " in name:
            path.write_bytes(b"no picture")
        else:
            Image.new("L", (6, 6)).save(path)


@pytest.mark.parametrize("kind", LISTED)
def test_a_folder_is_read_as_its_owner_sees_it(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / ".above" / "pictures"
    lay(folder, LISTED[kind])
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, tmp_path / "link"):
        data = read_images(source)
        assert (data.labels.tolist(), data.classes, len(data.class_names), data.name) == ([0, 1], 2, 2, "pictures")
        assert [Path(file).relative_to(source).parts[0] for file in data.files] == list(data.class_names)
        assert all(Path(file).is_file() for file in data.files)


@pytest.mark.parametrize(
    ("things", "classes", "sentence"),
    [
        (("cats/0.png", "dogs -> nowhere"), None, r"pictures/dogs is a link to nowhere, which can't be read"),
        (("cats/0.png", "dogs/0.heic: no picture"), None, "pictures/dogs must hold pictures"),
        (("cats/0.png", "fish/0.png"), ("cats", "dogs"), "pictures/fish is in none of the classes"),
        (("cats/0.png", "0.png"), ("cats", "dogs"), r"pictures/0\.png is in none of the classes"),
        (("cats/0.png",), ("cats", "cats"), "each once"),
    ],
)
def test_what_a_folder_would_lose_without_a_word_is_refused(
    things: tuple[str, ...], classes: Any, sentence: str, tmp_path: Path
) -> None:
    lay(tmp_path / "pictures", things)
    with pytest.raises((ValueError, TypeError), match=sentence):
        read_images(tmp_path / "pictures", classes=classes)


def test_two_folders_of_one_data_set_have_the_same_numbers(tmp_path: Path) -> None:
    lay(tmp_path / "train", ("ant/0.png", "bee/0.png", "cat/0.png"))
    lay(tmp_path / "test", ("bee/0.png", "cat/1.png", "cat/0.png", "ant/notes.txt: no picture"))
    train = read_images(tmp_path / "train")
    test = read_images(tmp_path / "test", classes=train.class_names)
    assert (test.labels.tolist(), test.classes, test.class_names) == ([1, 2, 2], 3, ("ant", "bee", "cat"))
    part = subset(test, 2, seed=1)
    assert [Path(file).parent.name for file in part.files] == [part.class_names[label] for label in part.labels]
    assert read_images(test, [5, 0, 1]).class_names == ()
    assert (read_images(part).name, read_images(part).files) == ("test", part.files)
    other = read_images(tmp_path / "train", classes=("cat", "bee", "ant"))
    settings = Settings(networks=Networks(width=1), subset=None)
    with pytest.raises(
        Refused, match="train must have the classes of test, ant, bee, cat, got cat, bee, ant: read it with"
    ):
        run(settings, tmp_path / "run", data=(test, other), device="cpu")
