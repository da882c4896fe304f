"""Small data sets in their official layouts, whose files count as the official ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from sslbook.images import datasets


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
