"""Data sets as bytes: small files in the official layouts, what is refused, and what is fetched from a server."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import os
import pickle
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sslbook.images import datasets
from sslbook.images.datasets import load_dataset, shifts
from sslchapters import enumerated


def drawn(name: str, *shape: int) -> np.ndarray:
    """Random bytes, as a function of a file's name."""
    return np.random.default_rng([*name.encode()]).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10, STL-10 and MNIST in their official layouts with a few images a file, whose md5s count as the official ones."""
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    contents = {}
    for number, name in enumerate(datasets.MD5["cifar10"]):
        contents[name] = pickle.dumps({b"data": drawn(name, 4, 3072), b"labels": [number, 1, 2, 9]})
    for name, labels in (("train", [1, 10, 4]), ("test", [2, 3]), ("unlabeled", [0] * 4)):
        images = drawn(name, len(labels), 3, 96, 96).transpose(0, 1, 3, 2)  # stored column by column
        contents[f"stl10_binary/{name}_X.bin"] = np.ascontiguousarray(images).tobytes()
        contents[f"stl10_binary/{name}_y.bin"] = bytes(labels)
    del contents["stl10_binary/unlabeled_y.bin"]
    for stem in ("train", "t10k"):
        contents[f"mnist/{stem}-images-idx3-ubyte.gz"] = gzip.compress(bytes(16) + drawn(stem, 5, 28, 28).tobytes())
        contents[f"mnist/{stem}-labels-idx1-ubyte.gz"] = gzip.compress(bytes(8) + bytes(range(5)))
    for table in datasets.MD5.values():
        for name in table:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(contents[name])
            monkeypatch.setitem(table, name, hashlib.md5(contents[name]).hexdigest())
    return tmp_path


def test_mnist_has_rows_and_cifar10_rows_of_three_planes(folder: Path) -> None:
    data = load_dataset("mnist", "test")
    np.testing.assert_array_equal(data.pixels[:, 0].numpy(), drawn("t10k", 5, 28, 28))
    assert data.labels.tolist() == [0, 1, 2, 3, 4]
    train, test = load_dataset("cifar10", "train"), load_dataset("cifar10", "test")
    assert train.labels.tolist() == [label for number in range(5) for label in (number, 1, 2, 9)]
    raw = drawn("cifar-10-batches-py/test_batch", 4, 3072)
    np.testing.assert_array_equal(test.pixels.numpy(), raw.reshape(4, 3, 32, 32))
    numbers = enumerated.read("cifar10", "train", n=7, seed=3)
    assert enumerated.readable("cifar10")
    assert torch.equal(numbers.pixels, enumerated.read("cifar10", "train", n=20, seed=3).pixels[:7])
    assert torch.equal(enumerated.read("cifar10", "test", dtype=torch.float64).pixels * 255, test.pixels.double())


def test_stl10_is_stored_column_by_column(folder: Path) -> None:
    for split, labels in (("train", [0, 9, 3]), ("test", [1, 2]), ("unlabeled", [-1] * 4)):
        data = load_dataset("stl10", split)
        np.testing.assert_array_equal(data.pixels.numpy(), drawn(split, len(labels), 3, 96, 96))
        assert (data.labels.tolist(), data.name, data.classes) == (labels, f"stl10-{split}", 10)
    both = load_dataset("stl10", "train+unlabeled")
    assert both.labels.tolist() == [0, 9, 3, -1, -1, -1, -1]
    assert torch.equal(both.pixels[3:], data.pixels)
    assert data.pixels.stride()[2:] == (1, 96), "a map of the file: rows and columns changed places without a copy"
    before = (folder / "stl10_binary/unlabeled_X.bin").read_bytes()
    data.pixels.zero_()
    assert (folder / "stl10_binary/unlabeled_X.bin").read_bytes() == before


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    assert (len(train), len(test)) == (1397, 400)
    together = torch.cat([train.pixels, test.pixels])
    order = enumerated.digits(1797)
    assert torch.equal((together.double() / 255 * 16).round(), order.pixels.double() * 16)
    assert torch.equal(torch.cat([train.labels, test.labels]), order.labels)
    assert together.sum() == (torch.from_numpy(load_digits().images) * (255 / 16)).round().sum()


@pytest.mark.skipif(not enumerated.readable("cifar10"), reason="SSLBOOK_DATA names no folder with CIFAR-10")
def test_the_real_test_images() -> None:
    data = load_dataset("cifar10", "test", folder=os.environ["SSLBOOK_DATA"])
    assert data.labels.bincount().tolist() == [1000] * 10
    assert data.labels[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane
    mean = (data.pixels / 255).mean((0, 2, 3), dtype=torch.float64)  # a wrong order of the planes would permute them
    torch.testing.assert_close(mean, torch.tensor([0.4942, 0.4851, 0.4504], dtype=torch.float64), atol=1e-4, rtol=0)


def test_what_is_missing_or_damaged_is_named_and_the_network_not_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    path = folder / "stl10_binary/unlabeled_X.bin"
    whole = path.read_bytes()
    for content in (whole[:-5], whole[:-1] + b"?", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"unlabeled_X.bin is truncated or altered: its md5 is "):
            load_dataset("stl10", "train+unlabeled")
    path.unlink()
    assert len(load_dataset("stl10", "train", download=True)) == 3, "nothing to fetch"
    with pytest.raises(ModuleNotFoundError, match="pooch"):
        load_dataset("stl10", "unlabeled", download=True)
    monkeypatch.delenv("SSLBOOK_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    with pytest.raises(
        FileNotFoundError, match=rf"incomplete: .*{folder}/sslbook/stl10_binary/.*SSLBOOK_DATA .*download"
    ):
        load_dataset("stl10", "unlabeled")


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served in the authors' place, with an archive of STL-10 and the files of MNIST."""
    pytest.importorskip("pooch")
    served = folder / "served"
    served.mkdir()
    with tarfile.open(served / "stl10.tar.gz", "w:gz") as members:
        members.add(folder / "stl10_binary", "stl10_binary")
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
    ) as listening:
        threading.Thread(target=listening.serve_forever).start()
        address, md5 = f"http://127.0.0.1:{listening.server_port}/", hashlib.md5((served / "stl10.tar.gz").read_bytes())
        monkeypatch.setitem(datasets.ARCHIVES, "stl10", (f"{address}stl10.tar.gz", md5.hexdigest()))
        monkeypatch.setitem(datasets.ARCHIVES, "mnist", (f"{address}mnist/", ""))
        (folder / "mnist").rename(served / "mnist")
        yield served
        listening.shutdown()


def test_an_archive_or_files_are_fetched_checked_and_put_in_their_place(server: Path, tmp_path: Path) -> None:
    here, archive = tmp_path / "here", server / "stl10.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-10])
    for why in ("hash", "404"):
        with pytest.raises(ConnectionError, match=f"STL-10 can't be fetched from .*{why}.* SSLBOOK_DATA"):
            load_dataset("stl10", "train", download=True, folder=here)
        assert not [path for path in here.rglob("*") if path.is_file()]
        archive.unlink(missing_ok=True)
    archive.write_bytes(whole)
    assert load_dataset("stl10", "train", download=True, folder=here).labels.tolist() == [0, 9, 3]
    assert load_dataset("mnist", "test", download=True, folder=here).labels.tolist() == [0, 1, 2, 3, 4]
    assert {path.name for path in here.iterdir()} == {"stl10_binary", "mnist"}, "nothing is left lying about"
    assert {path.name for path in (here / "stl10_binary").iterdir()} == {Path(n).name for n in datasets.MD5["stl10"]}


def test_an_image_is_shifted_by_less_than_its_side() -> None:
    moved = shifts(torch.arange(6.0).view(1, 1, 2, 3), 1)
    assert moved.shape == (1, 9, 1, 2, 3)
    assert moved[0, :3, 0].tolist() == [[[0, 1, 2], [3, 4, 5]], [[4, 5, 0], [0, 0, 0]], [[3, 4, 5], [0, 0, 0]]]
