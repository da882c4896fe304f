"""Folders of pictures as people have them: hidden files, links, empty classes, odd names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sslbook.images.datasets import subset
from sslbook.images.own import read_images
from sslbook.networks.siamese import Networks
from sslbook.training.run.settings import Refused, Settings
from sslbook.training.run.trainer import train as run

LISTED = {
    "hidden": (
        "cats/0.png",
        "dogs/0.png",
        ".ipynb_checkpoints/0.png",
        "cats/.thumbnails/x/0.png",
        "dogs/._0.png: no picture",
    ),
    "of the system": (
        "cats/0.png",
        "dogs/0.png",
        "__MACOSX/cats/0.png",
        "cats/@eaDir/0.png",
        "cats/Thumbs.db: no picture",
    ),
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
        (("cats/0.png", "cats/1.png -> 1.png"), None, r"cats/1\.png is a link to 1\.png, which can't be read"),
        (
            ("cats/0.png", "dogs/0.heic: no picture"),
            None,
            r"pictures/dogs must hold pictures \(.*remove it, or give classes=",
        ),
        (("cats/0.png", "fish/0.png"), ("cats", "dogs"), "pictures/fish is in none of the classes cats, dogs"),
        (("cats/0.png", "0.png"), ("cats", "dogs"), r"pictures/0\.png is in none of the classes cats, dogs"),
        (("cats/0.png",), "cats", "classes must be names of sub-folders, each once, got 'cats'"),
        (("cats/0.png",), ("cats", "cats"), r"each once, got \('cats', 'cats'\)"),
        (("cats/0.png",), 2, "each once, got 2"),
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
