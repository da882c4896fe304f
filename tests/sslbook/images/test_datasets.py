"""Data sets as bytes: the official layouts, and what is refused."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sslbook.images import datasets, enumerated
from sslbook.images.datasets import Dataset, available, data_folder, load_dataset
from sslbook.images.enumerated import readable


def pixels_of(path: str, count: int) -> np.ndarray:
    """Random STL-10 images ``(count, 3, 96, 96)`` of a file of that name."""
    return np.random.default_rng(len(path)).integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)


def put(folder: Path, table: dict[str, str], contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files whose md5s count as the official ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(table, name, hashlib.md5(content).hexdigest())


@pytest.fixture
def stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three labelled images to train on, two to test on and four without labels, in the official layout."""
    contents = {}
    for stem, labels in (("train", [1, 10, 4]), ("test", [2, 3]), ("unlabeled", [0] * 4)):
        content = pixels_of(f"{stem}_X.bin", len(labels)).transpose(0, 1, 3, 2)
        contents[f"{stem}_X.bin"] = np.ascontiguousarray(content).tobytes()
        if stem != "unlabeled":
            contents[f"{stem}_y.bin"] = bytes(labels)
    put(tmp_path / "stl10_binary", datasets.STL10_MD5, contents, monkeypatch)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    return tmp_path / "stl10_binary"


@pytest.fixture
def cifar10_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    rows[:, :, 0] = [[i, 9] for i in range(6)]
    contents = dict(zip(datasets.CIFAR10_BINARY_MD5, map(bytes, rows.reshape(6, -1)), strict=True))
    put(tmp_path / "cifar-10-batches-bin", datasets.CIFAR10_BINARY_MD5, contents, monkeypatch)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    return tmp_path


def test_stl10_is_stored_column_by_column(stl10: Path) -> None:
    for split, labels in (("train", [0, 9, 3]), ("test", [1, 2]), ("unlabeled", [-1] * 4)):
        data = load_dataset("stl10", split)
        np.testing.assert_array_equal(data.pixels.numpy(), pixels_of(f"{split}_X.bin", len(labels)))
        assert (data.labels.tolist(), data.name, data.classes) == (labels, f"stl10-{split}", 10)
    both = load_dataset("stl10", "train+unlabeled")
    assert both.labels.tolist() == [0, 9, 3, -1, -1, -1, -1]
    assert torch.equal(both.pixels[3:], data.pixels)


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


@pytest.mark.parametrize("damage", [lambda content: content[:-5], lambda content: content[:-1] + b"?"])
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
    assert not available("stl10")
    with pytest.raises(FileNotFoundError, match=r"STL-10 is incomplete: .*unlabeled_X.bin .*SSLBOOK_DATA .*download"):
        load_dataset("stl10", "unlabeled")
    with pytest.raises(ModuleNotFoundError, match="needs pooch"):
        load_dataset("stl10", "unlabeled", download=True)
    assert len(load_dataset("stl10", "train", download=True)) == 3  # nothing to fetch


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


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server of files in a folder, and the folder."""
    pytest.importorskip("pooch")
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/", folder
        listening.shutdown()
        thread.join()


def serve_stl10(stl10: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move the data set into an archive on the server; returns the archive."""
    address, served = server
    archive = served / "stl10_binary.tar.gz"
    with tarfile.open(archive, "w:gz") as members:
        members.add(stl10, "stl10_binary")
    for path in stl10.iterdir():
        path.unlink()
    stl10.rmdir()
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    layout = replace(datasets.LAYOUTS["stl10"][0], url=address + archive.name, archive=md5)
    monkeypatch.setitem(datasets.LAYOUTS, "stl10", (layout,))
    return archive


def test_an_archive_is_fetched_checked_and_unpacked(
    stl10: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_stl10(stl10, server, monkeypatch)
    with pytest.raises(FileNotFoundError, match="STL-10 is incomplete"):
        load_dataset("stl10", "train")
    assert load_dataset("stl10", "train", download=True).labels.tolist() == [0, 9, 3]
    assert available("stl10")
    assert {path.name for path in stl10.parent.iterdir()} == {"served", "stl10_binary"}  # nothing is left lying about


def test_what_can_not_be_fetched_is_told_in_a_sentence(
    tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lacks it, and none at all."""
    for address, why in ((f"{server[0]}x", "it answers 404"), ("http://127.0.0.1:9/x", "it can't be reached")):
        layout = replace(datasets.LAYOUTS["stl10"][0], url=address)
        monkeypatch.setitem(datasets.LAYOUTS, "stl10", (layout,))
        with pytest.raises(ConnectionError, match=f"STL-10 can't be fetched from {address}.*: {why}.* SSLBOOK_DATA"):
            load_dataset("stl10", "train", download=True, folder=tmp_path)


def test_an_altered_archive_is_refused_and_kept_apart(
    stl10: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = serve_stl10(stl10, server, monkeypatch)
    archive.write_bytes(archive.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"stl10_binary.tar.gz: what it answers is another file"):
        load_dataset("stl10", "train", download=True)
    assert not any(path.is_file() for path in stl10.parent.rglob("*") if "served" not in path.parts)


def test_single_files_are_fetched(tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    address, served = server
    put_mnist(served, monkeypatch)
    monkeypatch.setitem(datasets.LAYOUTS, "mnist", (replace(datasets.LAYOUTS["mnist"][0], url=address),))
    data = load_dataset("mnist", "test", folder=tmp_path / "here", download=True)
    assert data.labels.tolist() == [0, 1, 2, 3, 4]
    assert available("mnist", folder=tmp_path / "here")


def put_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 5) -> None:
    """A small data set in MNIST's official layout."""
    pixels = np.arange(count * 784, dtype=np.uint32).astype(np.uint8)
    contents = {}
    for stem in ("train", "t10k"):
        contents[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(bytes(16) + pixels.tobytes())
        contents[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(bytes(8) + bytes(range(count)))
    put(folder, datasets.MNIST_MD5, contents, monkeypatch)


def test_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    assert not readable("mnist")
    with pytest.raises(FileNotFoundError, match="MNIST is incomplete"):
        enumerated.read("mnist", "train")
    put_mnist(tmp_path / "mnist", monkeypatch)
    assert readable("mnist")
    data = enumerated.read("mnist", "test")
    assert data.pixels.shape == (5, 1, 28, 28)
    assert data.labels.tolist() == [0, 1, 2, 3, 4]
    assert float(data.pixels[0, 0, 0, 3] * 255) == pytest.approx(3)
    assert len(enumerated.read("mnist", "train", n=2)) == 2
    monkeypatch.delenv("SSLBOOK_DATA")
    with pytest.raises(FileNotFoundError, match="set SSLBOOK_DATA"):
        enumerated.read("mnist", "train")


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [(torch.zeros(2, 1, 2, 2), 2, "pixels must be uint8"), (torch.zeros(2, 1, 2, 2).byte(), 3, "each of the 2 images")],
)
def test_what_is_no_data_set_is_refused(pixels: torch.Tensor, labels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(pixels, torch.zeros(labels).long(), "x", 2)
