"""Data sets as bytes: the official layouts, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_cases import pixels_of, put, stl10
from sklearn.datasets import load_digits

from sslbook.images import datasets, enumerated
from sslbook.images.datasets import Dataset, available, choose, data_folder, load_dataset, subset

__all__ = ["stl10"]  # a fixture


@pytest.fixture
def cifar10_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    rows[:, :, 0] = [[i, 9] for i in range(6)]
    contents = dict(zip(datasets.CIFAR10_BINARY_MD5, map(bytes, rows.reshape(6, -1)), strict=True))
    put(tmp_path / "cifar-10-batches-bin", datasets.CIFAR10_BINARY_MD5, contents, monkeypatch)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    return tmp_path


# -- layouts ------------------------------------------------------------------------------------------------------------


def test_stl10_is_stored_column_by_column(stl10: Path) -> None:
    train, test, bare = (
        load_dataset("stl10", "train"),
        load_dataset("stl10", "test"),
        load_dataset("stl10", "unlabeled"),
    )
    np.testing.assert_array_equal(train.pixels.numpy(), pixels_of("train_X.bin", 3))
    np.testing.assert_array_equal(test.pixels.numpy(), pixels_of("test_X.bin", 2))
    np.testing.assert_array_equal(bare.pixels.numpy(), pixels_of("unlabeled_X.bin", 4))
    assert (train.labels.tolist(), test.labels.tolist(), bare.labels.tolist()) == ([0, 9, 3], [1, 2], [-1] * 4)
    assert (train.name, train.classes, len(bare)) == ("stl10-train", 10, 4)


def test_stl10_with_its_unlabelled_part_has_the_labelled_first(stl10: Path) -> None:
    both = load_dataset("stl10", "train+unlabeled")
    assert both.labels.tolist() == [0, 9, 3, -1, -1, -1, -1]
    assert torch.equal(both.pixels[:3], load_dataset("stl10", "train").pixels)
    assert torch.equal(both.pixels[3:], load_dataset("stl10", "unlabeled").pixels)


def test_the_unlabelled_part_is_a_map_that_can_not_change_the_file(stl10: Path) -> None:
    before = (stl10 / "unlabeled_X.bin").read_bytes()
    bare = load_dataset("stl10", "unlabeled")
    assert bare.pixels.stride()[2:] == (1, 96)  # a view: rows and columns changed places without a copy
    bare.pixels.zero_()
    assert (stl10 / "unlabeled_X.bin").read_bytes() == before


def test_cifar10_in_its_binary_layout(cifar10_binary: Path) -> None:
    assert available("cifar10")
    train, test = load_dataset("cifar10", "train"), load_dataset("cifar10", "test")
    rows = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    np.testing.assert_array_equal(test.pixels.numpy(), rows[5, :, 1:].reshape(2, 3, 32, 32))
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert torch.equal(enumerated.read("cifar10", "test").pixels * 255, test.pixels.float())


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    assert (len(train), len(test)) == (1397, 400)
    together = torch.cat([train.pixels, test.pixels])
    raw = torch.from_numpy(load_digits().images)[:, None]
    order = enumerated.digits(1797)
    assert torch.equal((together.double() / 255 * 16).round(), order.pixels.double() * 16)
    assert torch.equal(torch.cat([train.labels, test.labels]), order.labels)
    assert together.unique().tolist() == [int(np.rint(k * 255 / 16)) for k in range(17)]
    assert together.sum() == (raw * (255 / 16)).round().sum()


@pytest.mark.skipif(not available("cifar10"), reason="set SSLBOOK_DATA to a folder that holds CIFAR-10")
def test_the_real_cifar10() -> None:
    data = load_dataset("cifar10", "test")
    assert data.pixels.shape == (10_000, 3, 32, 32)
    assert data.labels.bincount().tolist() == [1000] * 10
    assert torch.equal(enumerated.read("cifar10", "test", 5, 1).pixels, subset(data, 5, 1).pixels / 255)


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda content: content[:-5], lambda content: content[:-1] + b"?", lambda _: b""])
@pytest.mark.parametrize("name", ["train_X.bin", "train_y.bin", "unlabeled_X.bin"])
def test_a_damaged_file_is_refused_by_name(stl10: Path, name: str, damage) -> None:
    path = stl10 / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{name} is truncated or altered: its md5 is .* nothing was loaded"):
        load_dataset("stl10", "train+unlabeled")
    assert len(load_dataset("stl10", "test")) == 2  # the other split is whole


def test_a_missing_file_is_named_and_the_network_not_asked(stl10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    (stl10 / "unlabeled_X.bin").unlink()
    assert available("stl10", "train")
    assert not available("stl10", "unlabeled")
    assert not available("stl10")
    with pytest.raises(
        FileNotFoundError,
        match=r"STL-10 is incomplete: .*unlabeled_X.bin can't be read .*SSLBOOK_DATA must name the folder that holds "
        r"stl10_binary/, or let it be fetched: download=True, or --download of sslbook train and sslbook table$",
    ):
        load_dataset("stl10", "unlabeled")
    with pytest.raises(ModuleNotFoundError, match=r"needs pooch: pip install '\.\[train\]' in a checkout"):
        load_dataset("stl10", "unlabeled", download=True)
    assert len(load_dataset("stl10", "train", download=True)) == 3  # nothing to fetch


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_dataset("cifar", "train"), "name must be one of .*, got 'cifar'; did you mean 'cifar10'"),
        (lambda: available("cifar10", "unlabeled"), "split must be one of train, test, got 'unlabeled'"),
        (
            lambda: load_dataset("stl10", "all"),
            r"split must be one of train, test, unlabeled, train\+unlabeled, got 'all'",
        ),
        (lambda: subset(load_dataset("digits", "test"), 401), "n must be between 1 and 400, got 401"),
        (lambda: Dataset(torch.zeros(2, 1, 2, 2), torch.zeros(2).long(), "x", 2), "pixels must be uint8"),
        (lambda: Dataset(torch.zeros(2, 1, 2, 2).byte(), torch.zeros(3).long(), "x", 2), "each of the 2 images"),
    ],
)
def test_bad_input_gets_a_sentence(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_subsets_are_nested_and_without_repeats() -> None:
    data = load_dataset("digits", "train")
    small, large = subset(data, 10, 3), subset(data, 20, 3)
    assert torch.equal(small.pixels, large.pixels[:10])
    assert torch.equal(small.labels, large.labels[:10])
    assert len(choose(1397, 1397, 3).unique()) == 1397
    assert subset(data, None) is data


def test_where_the_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("SSLBOOK_DATA")
    for platform, variable in (("linux", "XDG_CACHE_HOME"), ("win32", "LOCALAPPDATA")):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(variable, str(tmp_path))
        assert data_folder() == tmp_path / "sslbook"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder() == Path("~/Library/Caches/sslbook").expanduser()


def test_the_layout_that_is_whole_else_begun_else_the_first(cifar10_binary: Path, tmp_path: Path) -> None:
    py, binary = datasets.LAYOUTS["cifar10"]
    (cifar10_binary / py.folder).mkdir()
    assert datasets._layout("cifar10", cifar10_binary, "test") is binary
    (tmp_path / "b" / binary.folder).mkdir(parents=True)
    assert datasets._layout("cifar10", tmp_path / "b", "test") is binary
    assert datasets._layout("cifar10", tmp_path / "none", "test") is py
