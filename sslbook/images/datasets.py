"""Data sets as bytes: CIFAR-10, STL-10, MNIST and handwritten digits, uint8, each file checked before it is used.

What ``sslbook.images.enumerated`` gives as numbers in [0, 1] for exact sums, this gives as the bytes on disk, for training:
four times smaller, resident on a device, augmented there.  Files lie in their official layouts below ``SSLBOOK_DATA``, else
below the user's cache folder:

    cifar10   cifar-10-batches-py or cifar-10-batches-bin   https://www.cs.toronto.edu/~kriz/cifar.html
    stl10     stl10_binary                                  https://cs.stanford.edu/~acoates/stl10/
    mnist     mnist                                         http://yann.lecun.com/exdb/mnist/
    digits    inside this package                           https://doi.org/10.24432/C50P49

The network is asked only with ``download=True``, and through pooch.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import shutil
import sys
import tarfile
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sslbook._ambient import anywhere, methods_anywhere
from sslbook._check import InputError, counted, installing, meant, require_one_of, require_whole
from sslbook._files import require_file, user_path

CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR10_BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
STL10_MD5 = {
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
}
MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
"""The md5 of each file of the official archives."""


composed = partial(unicodedata.normalize, "NFC")
"""A name in the one of Unicode's forms in which names are compared and kept."""


@dataclass(frozen=True)
class Layout:
    """One official way in which a data set lies on disk.

    splits: the files of each.  archive: the md5 of the archive at ``url``; empty if the files lie one by one below ``url``.
    """

    title: str
    folder: str
    md5: Mapping[str, str]
    splits: Mapping[str, tuple[str, ...]]
    url: str
    archive: str = ""

    def missing(self, root: Path, split: str | None = None) -> list[Path]:
        """The files of a split, or of all, that are not below ``root``."""
        names = self.md5 if split is None else self.splits[split]
        return [path for path in (root / self.folder / name for name in names) if not path.is_file()]


def _pairs(images: str, labels: str, **stems: str) -> dict[str, tuple[str, ...]]:
    return {split: (f"{stem}{images}", f"{stem}{labels}") for split, stem in stems.items()}


def _toronto(kind: str, ending: str, archive: str, md5: Mapping[str, str], checksum: str) -> Layout:
    address = f"https://www.cs.toronto.edu/~kriz/cifar-10-{archive}.tar.gz"
    splits = {"train": tuple(f"data_batch_{i}{ending}" for i in range(1, 6)), "test": (f"test_batch{ending}",)}
    return Layout("CIFAR-10", f"cifar-10-batches-{kind}", md5, splits, address, checksum)


_STL10_SPLITS = _pairs("_X.bin", "_y.bin", train="train", test="test") | {"unlabeled": ("unlabeled_X.bin",)}
_STL10_SPLITS |= {"train+unlabeled": (*_STL10_SPLITS["train"], "unlabeled_X.bin")}
_STL10 = ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb")
_MNIST_SPLITS = _pairs("-images-idx3-ubyte.gz", "-labels-idx1-ubyte.gz", train="train", test="t10k")
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (
        _toronto("py", "", "python", CIFAR10_MD5, "c58f30108f718f92721af3b95e74349a"),
        _toronto("bin", ".bin", "binary", CIFAR10_BINARY_MD5, "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    "stl10": (Layout("STL-10", "stl10_binary", STL10_MD5, _STL10_SPLITS, *_STL10),),
    "mnist": (Layout("MNIST", "mnist", MNIST_MD5, _MNIST_SPLITS, _MNIST),),
}
"""The layouts in which each data set is recognised; the first is the one that is downloaded."""
NAMES = ("digits", "mnist", "cifar10", "stl10")
DIGITS_TEST = 400
"""Scikit-learn's digits have no official split: shuffled once and for all, the last 400 are for testing."""


@methods_anywhere
@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set holds uint8 ``pixels (N, C, H, W)`` and int64 ``labels (N,)``, where -1 stands for no label.

    Pixels may be memory-mapped.  class_names, files: the names of the classes, and the path of each image, if known.
    """

    pixels: Tensor
    labels: Tensor
    name: str
    classes: int
    class_names: tuple[str, ...] = ()
    files: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 (N, C, H, W), got {self.pixels.dtype} {tuple(self.pixels.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape (N,), one for each of the {len(self.pixels)} images, "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        object.__setattr__(self, "class_names", tuple(map(composed, self.class_names)))
        for name, wanted in (("class_names", self.classes), ("files", len(self))):
            if len(getattr(self, name)) not in (0, wanted):
                raise ValueError(f"{name} must be {wanted} or none, got {len(getattr(self, name))}")

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.pixels.shape[1:]))
        return f"Dataset({self.name}: {len(self):,} images of {size}, {counted(self.classes, 'class')})"

    def take(self, keep: Tensor | slice | list[int]) -> Dataset:
        """Return the images with the given indices, or those where ``keep`` is true."""
        files = tuple(self.files[at] for at in torch.arange(len(self))[keep].tolist()) if self.files else ()
        return replace(self, pixels=self.pixels[keep], labels=self.labels[keep], files=files)


@anywhere
def load_dataset(name: str, split: str, *, download: bool = False, folder: str | Path | None = None) -> Dataset:
    """Load the data set ``name``, one of "cifar10", "stl10", "mnist" and "digits"; ``split`` is "train" or "test".

    STL-10 also has "unlabeled", which is memory-mapped, and "train+unlabeled", a copy with the labelled images first.
    folder: the folder with the files; by default, ``SSLBOOK_DATA`` or the user's cache folder.
    download: whether missing files are downloaded; otherwise nothing uses the internet.

    Raises ValueError for an unknown name or split, and for a truncated or altered file, before any of it is used.
    Raises FileNotFoundError for missing files, and ModuleNotFoundError if pooch, which downloads them, isn't installed.
    """
    name = meant(name, NAMES)
    require_one_of("name", name, NAMES)
    require_one_of("split", split, ("train", "test") if name == "digits" else tuple(LAYOUTS[name][0].splits))
    if name == "digits":
        return _digits(split)
    root = user_path(folder) if folder is not None else data_folder()
    layout = _layout(name, root, split)
    if download and layout.missing(root, split):
        _fetch(layout, root)
    paths = [root / layout.folder / file for file in layout.splits[split]]
    pixels, labels = {"cifar10": _cifar10, "stl10": _stl10, "mnist": _mnist}[name](layout, paths)
    return Dataset(pixels, labels, f"{name}-{split}", 10)


def subset(dataset: Dataset, n: int | None, seed: int = 0) -> Dataset:
    """``n`` images drawn without replacement by ``seed``; a smaller ``n`` gives a prefix of a larger one, None gives all."""
    return dataset if n is None else dataset.take(choose(len(dataset), n, seed))


def available(name: str, folder: str | Path | None = None) -> bool:
    """Whether the files of a data set are here; what is in them, `load_dataset` checks."""
    require_one_of("name", name, NAMES)
    if name == "digits":
        return True
    try:
        root = user_path(folder) if folder is not None else data_folder()
    except InputError:
        return False
    return any(not layout.missing(root) for layout in LAYOUTS[name])


def data_folder() -> Path:
    """``SSLBOOK_DATA``, else the folder ``sslbook`` below the place where this system keeps a user's caches.

    Raises InputError for a user without a home folder.
    """
    named = os.environ.get("SSLBOOK_DATA")
    if named:
        return user_path(named)
    if sys.platform == "win32":
        place = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        place = "~/Library/Caches"
    else:
        place = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return user_path(place) / "sslbook"
    except InputError:
        raise InputError(
            f"SSLBOOK_DATA must name the folder of the images here: this user has no home, and so no {place}"
        ) from None


def choose(total: int, n: int | None, seed: int) -> Tensor:
    """Indices of ``n`` of ``total`` items: all in order, or a prefix of the permutation by ``seed``."""
    if n is None:
        return torch.arange(total)
    n = require_whole("n", n, least=1, most=total)
    return torch.from_numpy(np.random.default_rng(seed).permutation(total)[:n])


def _layout(name: str, root: Path, split: str) -> Layout:
    """The layout whose files are there, else one of which a part is there, else the first."""
    layouts = LAYOUTS[name]
    whole = [layout for layout in layouts if not layout.missing(root, split)]
    begun = [layout for layout in layouts if (root / layout.folder).is_dir()]
    return (whole or begun or list(layouts))[0]


# -- reading ------------------------------------------------------------------------------------------------------------


def handwritten() -> tuple[np.ndarray, np.ndarray]:
    """The digits of `sklearn.datasets.load_digits`: grey levels 0 to 16, ``(1797, 8, 8)`` in float64, and labels."""
    rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _digits(split: str) -> Dataset:
    images, labels = handwritten()
    order = choose(len(labels), len(labels), 0)
    keep = order[:-DIGITS_TEST] if split == "train" else order[-DIGITS_TEST:]
    pixels = np.rint(images * (255 / 16)).astype(np.uint8)  # 17 levels k/16, to the nearest byte
    return Dataset(torch.from_numpy(pixels)[keep][:, None], torch.from_numpy(labels)[keep], f"digits-{split}", 10)


def _cifar10(layout: Layout, paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Either layout: rows of the red, green and blue planes, each in row-major order."""
    read = _cifar10_record if paths[0].suffix == ".bin" else _cifar10_batch
    batches = [read(_checked(layout, path)) for path in paths]
    raw = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(raw), torch.from_numpy(np.concatenate([labels for _, labels in batches]).astype(np.int64))


def _cifar10_record(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A byte of label and 3072 of pixels an image."""
    raw = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return raw[:, 1:], raw[:, 0]


def _cifar10_batch(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``(n, 3072)`` and labels of a pickle, unpacked without the right to run code."""
    batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    return batch[b"data"], np.array(batch[b"labels"])


class _ArrayUnpickler(pickle.Unpickler):
    """Builds NumPy arrays and plain containers; anything else that a pickle could call is refused."""

    # The official files were written by Python 2, when these lived under numpy.core.
    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise ValueError(f"the file asks for {module}.{name}; only NumPy arrays may be in it") from None


def _mnist(layout: Layout, paths: list[Path]) -> tuple[Tensor, Tensor]:
    images, labels = (
        np.frombuffer(gzip.decompress(_checked(layout, path)), np.uint8)[header:]
        for path, header in zip(paths, (16, 8))
    )
    return torch.from_numpy(images.copy()).view(-1, 1, 28, 28), torch.from_numpy(labels.astype(np.int64))


def _stl10(layout: Layout, paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Planes are stored column by column, and labels from 1; without its own file of labels, every label is -1."""
    pixels = [_stl10_pixels(layout, path) for path in paths if path.stem.endswith("_X")]
    labels = [np.frombuffer(_checked(layout, path), np.uint8) for path in paths if path.stem.endswith("_y")]
    known = torch.from_numpy(np.concatenate([*labels, np.zeros(0, np.uint8)]).astype(np.int64)) - 1
    total = sum(map(len, pixels))
    everything = torch.cat([known, torch.full((total - len(known),), -1)])
    if len(pixels) == 1:
        return pixels[0], everything
    together = torch.empty(total, 3, 96, 96, dtype=torch.uint8)  # filled in place: torch.cat would need it twice
    for part, place in zip(pixels, together.split([len(part) for part in pixels]), strict=True):
        place.copy_(part)
    return together, everything


def _stl10_pixels(layout: Layout, path: Path) -> Tensor:
    """A view of the memory-mapped file.  Copy on write, so that PyTorch may have it and the file can't change."""
    _require_file(layout, path)
    content = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    _require_official(layout, path, content.data)
    return torch.from_numpy(content.reshape(-1, 3, 96, 96)).transpose(2, 3)


# -- what may be used ---------------------------------------------------------------------------------------------------


def _checked(layout: Layout, path: Path) -> bytes:
    _require_file(layout, path)
    content = path.read_bytes()
    _require_official(layout, path, content)
    return content


def _require_file(layout: Layout, path: Path) -> None:
    try:
        require_file(path)
        path.open("rb").close()
    except OSError as error:
        raise FileNotFoundError(
            f"{layout.title} is incomplete: {path} can't be read ({error.strerror}); SSLBOOK_DATA must name the folder "
            f"that holds {layout.folder}/, or let it be fetched: download=True, or --download of sslbook train and "
            "sslbook table"
        ) from error


def _require_official(layout: Layout, path: Path, content: bytes | memoryview) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    expected = layout.md5[path.name]
    if found != expected:
        raise ValueError(
            f"{path} is truncated or altered: its md5 is {found} ({len(content):,} bytes), the official "
            f"one {expected}; nothing was loaded. Unpack the official archive again."
        )


# -- fetched from the authors, through pooch, checked, and only then put in its place -------------------------------------


@contextlib.contextmanager
def _reached(layout: Layout, address: str) -> Iterator[None]:
    """Tell in a sentence that what is at an address can't be had: the words of who asked for it are for its authors."""
    try:
        yield
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) is not None and not isinstance(
            error, (ConnectionError, TimeoutError)
        ):  # of a disk
            raise
        answer = getattr(error, "response", None)
        why = "it can't be reached" if answer is None else f"it answers {answer.status_code} {answer.reason}"
        if isinstance(error, ValueError) and "hash" in str(error):
            why = "what it answers is another file"
        kind = ValueError if isinstance(error, ValueError) else ConnectionError
        raise kind(
            f"{layout.title} can't be fetched from {address}: {why}; try again later, or let SSLBOOK_DATA name the folder that "
            f"holds {layout.folder}/"
        ) from error


def _fetch(layout: Layout, root: Path) -> None:
    """Fetch the archive or the missing files, check them, and only then put them where `load_dataset` looks."""
    try:
        import pooch
    except ModuleNotFoundError:
        told = f"downloading {layout.title} needs pooch: {installing('train')}"
        raise ModuleNotFoundError(told, name="pooch") from None
    bar = importlib.util.find_spec("tqdm") is not None  # pooch insists on tqdm only where a bar is asked for
    folder = root / layout.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not layout.archive:
        for path in layout.missing(root):
            with _reached(layout, layout.url + path.name):
                md5 = f"md5:{layout.md5[path.name]}"
                pooch.retrieve(layout.url + path.name, md5, path.name, path=folder, progressbar=bar)
        return
    with _reached(layout, layout.url):
        md5, name = f"md5:{layout.archive}", layout.url.rpartition("/")[2]
        archive = Path(pooch.retrieve(layout.url, md5, name, path=root, progressbar=bar))
    wanted = {f"{layout.folder}/{path.name}": path for path in layout.missing(root)}
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as scratch, tarfile.open(archive) as members:
        for member in members:  # in one pass; only contents are taken, so that no name or link in it can lead elsewhere
            if member.isfile() and member.name in wanted:
                whole, content = Path(scratch) / "whole", members.extractfile(member)
                assert content is not None
                with content, whole.open("wb") as file:
                    shutil.copyfileobj(content, file)
                whole.replace(wanted[member.name])  # whole, or not there
    archive.unlink(missing_ok=True)  # another process may have been here too
