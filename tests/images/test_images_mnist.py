"""MNIST as it is on disk, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from sslbook.images import datasets, enumerated
from sslbook.images.enumerated import readable


def write_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 5) -> None:
    """A small data set in MNIST's official layout, whose md5s count as the official ones."""
    (folder / "mnist").mkdir()
    pixels = np.arange(count * 784, dtype=np.uint32).astype(np.uint8)
    for stem in ("train", "t10k"):
        for kind, header, content in (
            ("images-idx3", 16, pixels),
            ("labels-idx1", 8, np.arange(count, dtype=np.uint8)),
        ):
            path = folder / "mnist" / f"{stem}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + content.tobytes()))
            monkeypatch.setitem(datasets.MNIST_MD5, path.name, hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setenv("SSLBOOK_DATA", str(folder))


def test_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    assert not readable("mnist")
    with pytest.raises(FileNotFoundError, match="MNIST is incomplete"):
        enumerated.read("mnist", "train")
    write_mnist(tmp_path, monkeypatch)
    assert readable("mnist")
    data = enumerated.read("mnist", "test")
    assert data.pixels.shape == (5, 1, 28, 28)
    assert data.labels.tolist() == [0, 1, 2, 3, 4]
    assert float(data.pixels[0, 0, 0, 3] * 255) == pytest.approx(3)
    assert len(enumerated.read("mnist", "train", n=2)) == 2
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="truncated or altered"):
        enumerated.read("mnist", "train")
    with pytest.raises(ValueError, match="split must be one of train, test, got 'valid'"):
        enumerated.read("mnist", "valid")
    monkeypatch.delenv("SSLBOOK_DATA")
    with pytest.raises(FileNotFoundError, match="set SSLBOOK_DATA"):
        enumerated.read("mnist", "train")
