"""Downloads, from a server of the test's own: checked, unpacked, and told of where they fail."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dataset_cases import put, stl10

from sslbook.images import datasets
from sslbook.images.datasets import available, load_dataset

__all__ = ["stl10"]  # a fixture


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


@pytest.mark.parametrize(
    ("name", "split", "why"),
    [("stl10", "train", "it answers 404 File not found"), ("mnist", "test", "it can't be reached")],
)
def test_what_can_not_be_fetched_is_told_in_a_sentence(
    name: str, split: str, why: str, tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lacks it, and none at all."""
    address = server[0] if name == "stl10" else "http://127.0.0.1:9/"
    layout = replace(datasets.LAYOUTS[name][0], url=address + "x" * (name == "stl10"))
    monkeypatch.setitem(datasets.LAYOUTS, name, (layout,))
    with pytest.raises(ConnectionError) as refused:
        load_dataset(name, split, download=True, folder=tmp_path)
    said = str(refused.value)
    assert f"{layout.title} can't be fetched from {address}" in said
    assert f": {why}; try again later, or let SSLBOOK_DATA name the folder that holds {layout.folder}/" in said


def test_an_archive_is_read_once_and_only_for_its_contents(
    stl10: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To go back in a gzip file is to unpack it anew; and a link in it that bears a wanted name is not followed."""
    archive, rewound = serve_stl10(stl10, server, monkeypatch), []
    monkeypatch.setattr(gzip._GzipReader, "_rewind", lambda reader: rewound.append(reader))  # type: ignore[attr-defined]
    load_dataset("stl10", "train", download=True)
    assert rewound == []
    (stl10 / "test_y.bin").unlink()
    with tarfile.open(archive, "w:gz") as members:
        link = tarfile.TarInfo("stl10_binary/test_y.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "train_y.bin"
        members.addfile(link)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.LAYOUTS, "stl10", (replace(datasets.LAYOUTS["stl10"][0], archive=md5),))
    with pytest.raises(FileNotFoundError, match=r"test_y.bin can't be read"):
        load_dataset("stl10", "test", download=True)
    assert not (stl10 / "test_y.bin").is_symlink()


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
    contents = {}
    for stem in ("train", "t10k"):
        contents[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(bytes(16 + 784 * 2))
        contents[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(bytes(8) + bytes([3, 5]))
    put(served, datasets.MNIST_MD5, contents, monkeypatch)
    monkeypatch.setitem(datasets.LAYOUTS, "mnist", (replace(datasets.LAYOUTS["mnist"][0], url=address),))
    data = load_dataset("mnist", "test", folder=tmp_path / "here", download=True)
    assert data.labels.tolist() == [3, 5]
    assert available("mnist", folder=tmp_path / "here")
