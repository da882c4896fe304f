"""Data sets as bytes: CIFAR-10, STL-10, MNIST and handwritten digits, uint8, each file checked before it is used; and shifts.

Files lie as their authors' archives unpack, below ``SSLBOOK_DATA`` or else below ``sslbook`` in the user's cache folder:

    cifar10   cifar-10-batches-py, the version for Python   https://www.cs.toronto.edu/~kriz/cifar.html
    stl10     stl10_binary                                  https://cs.stanford.edu/~acoates/stl10/
    mnist     mnist                                         http://yann.lecun.com/exdb/mnist/
    digits    inside this package                           https://doi.org/10.24432/C50P49

Nothing uses the network but ``download=True``, through pooch.  As bytes they take a quarter of what floats take, lie on a device,
and are augmented there.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import pickle
import tempfile
import unicodedata
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere, methods_anywhere
from sslbook._check import counted, require_one_of, require_whole

TITLES = {"cifar10": "CIFAR-10", "stl10": "STL-10", "mnist": "MNIST"}
FOLDERS = {"cifar10": "cifar-10-batches-py", "stl10": "stl10_binary", "mnist": "mnist"}
_SUMS = [line.split() for line in Path(__file__).with_name("files.md5").read_text(encoding="utf-8").splitlines()]
MD5 = {name: {file: md5 for md5, file in _SUMS if Path(file).parent.name == place} for name, place in FOLDERS.items()}
"""The md5 of each file of the official archives, from ``files.md5``, which ``md5sum --check`` reads in the folder of data sets."""
ARCHIVES = {
    "cifar10": ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "stl10": ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb"),
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", ""),
}
"""The address and the md5 of each archive; MNIST's files lie there one by one."""
SPLITS: dict[str, dict[str, tuple[str, ...]]] = {  # by what the names of their files begin with
    "cifar10": {"train": ("data",), "test": ("test",)},
    "stl10": {"train": ("train",), "test": ("test",), "unlabeled": ("unl",), "train+unlabeled": ("train", "unl")},
    "mnist": {"train": ("train",), "test": ("t10k",)},
}
NAMES = ("digits", "mnist", "cifar10", "stl10")
composed = partial(unicodedata.normalize, "NFC")
"""A name in the one of Unicode's forms in which names are compared and kept."""


@methods_anywhere
@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set holds uint8 ``pixels (N, C, H, W)`` and int64 ``labels (N,)``, where -1 stands for no label.

    Pixels may be memory-mapped.  class_names, files: the names of the classes, and the path of each image, if known.
    Raises ValueError for pixels or labels of another type or shape.

    >>> load_dataset("digits", "test").take(slice(3))
    Dataset(digits-test: 3 images of 1 x 8 x 8, 10 classes)
    """

    pixels: Tensor
    labels: Tensor
    name: str
    classes: int
    class_names: tuple[str, ...] = ()
    files: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        of_pixels = pixels.dtype == torch.uint8 and pixels.ndim == 4
        if not of_pixels or labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            got = f"{pixels.dtype} {tuple(pixels.shape)} and {labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"pixels must be uint8 (N, C, H, W), and labels int64 (N,), got {got}")
        object.__setattr__(self, "class_names", tuple(map(composed, self.class_names)))

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.pixels.shape[1:]))
        return f"Dataset({self.name}: {len(self):,} images of {size}, {counted(self.classes, 'class')})"

    def take(self, keep: Tensor | slice | list[int]) -> Dataset:
        """Return the images with the given indices, or those where ``keep`` is true, with their labels and files.

        keep: indices ``(n,)`` in any order, also twice, booleans ``(N,)``, or a slice.  The images of a slice share their memory
        with this data set; all others are copied.  Raises IndexError for an index that there is not.

        >>> digits = load_dataset("digits", "test")
        >>> digits.take(digits.labels == 3)
        Dataset(digits-test: 33 images of 1 x 8 x 8, 10 classes)
        """
        files = tuple(self.files[at] for at in torch.arange(len(self))[keep].tolist()) if self.files else ()
        return replace(self, pixels=self.pixels[keep], labels=self.labels[keep], files=files)


@anywhere
def load_dataset(name: str, split: str, *, download: bool = False, folder: str | Path | None = None) -> Dataset:
    """Load the data set ``name``, one of "cifar10", "stl10", "mnist" and "digits"; ``split`` is "train" or "test".

    STL-10 also has "unlabeled", which is memory-mapped, and "train+unlabeled", a copy with the labelled images first.
    folder: the folder with the files; by default, ``SSLBOOK_DATA``, or ``sslbook`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    download: whether missing files are downloaded; otherwise nothing uses the internet.

    Raises ValueError for an unknown name or split, and for a truncated or altered file, before any of it is used.
    Raises FileNotFoundError for missing files, and ModuleNotFoundError if pooch, which downloads them, isn't installed.

    >>> load_dataset("digits", "train")
    Dataset(digits-train: 1,397 images of 1 x 8 x 8, 10 classes)
    """
    require_one_of("name", name, NAMES)
    require_one_of("split", split, ("train", "test") if name == "digits" else tuple(SPLITS[name]))
    if name == "digits":  # without an official split: shuffled once and for all, the last 400 are for testing
        images, truth = handwritten()
        keep = {"train": slice(None, -400), "test": slice(-400, None)}[split]
        order = choose(len(truth), len(truth), 0)[keep]
        levels = np.rint(images * (255 / 16)).astype(np.uint8)  # 17 levels k/16, to the nearest byte
        return Dataset(torch.from_numpy(levels)[order][:, None], torch.from_numpy(truth)[order], f"digits-{split}", 10)
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(folder or os.environ.get("SSLBOOK_DATA") or f"{caches}/sslbook").expanduser()
    paths = [root / file for file in MD5[name] if Path(file).name.startswith(SPLITS[name][split])]
    if download and not all(path.is_file() for path in paths):
        _fetch(name, root)
    files = []
    for path in paths:
        if not path.is_file():
            how = f"SSLBOOK_DATA must name the folder with {path.parent.name}/, or give download=True, or --download"
            raise FileNotFoundError(f"{TITLES[name]} is incomplete: there is no file {path}; {how}")
        mapped = path.name.endswith("_X.bin") and path.stat().st_size  # images of STL-10, copied on write
        content = np.memmap(path, np.uint8, "c") if mapped else np.fromfile(path, np.uint8)
        md5 = hashlib.md5(content.data, usedforsecurity=False).hexdigest()
        official = MD5[name][f"{path.parent.name}/{path.name}"]
        if md5 != official:
            told = f"its md5 is {md5}, the official one {official}; nothing was loaded"
            raise ValueError(f"{path} is truncated or altered: {told}. Unpack the official archive again.")
        files.append(content)
    if name == "cifar10":  # pickled rows of an image's red, green and blue planes; they run no code, as their md5 shows
        batches = [pickle.loads(file.tobytes(), encoding="bytes") for file in files]
        pixels = torch.from_numpy(np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32))
        labels = torch.tensor([label for batch in batches for label in batch[b"labels"]])
    elif name == "mnist":  # bytes behind headers of 16 and of 8
        grey, truth = (np.frombuffer(gzip.decompress(file.tobytes()), np.uint8) for file in files)
        pixels = torch.from_numpy(grey[16:].reshape(-1, 1, 28, 28).copy())
        labels = torch.from_numpy(truth[8:].astype(np.int64))
    else:  # planes column by column, and labels from 1; images without a file of labels come last
        parts = [torch.from_numpy(file.reshape(-1, 3, 96, 96)).transpose(2, 3) for file in (files[0], *files[2:])]
        pixels = parts[0] if len(parts) == 1 else torch.cat(parts)
        labels = torch.full((len(pixels),), -1)
        if len(files) > 1:
            labels[: len(files[1])] = torch.from_numpy(files[1].astype(np.int64)) - 1
    return Dataset(pixels, labels, f"{name}-{split}", 10)


def subset(dataset: Dataset, n: int | None, seed: int = 0) -> Dataset:
    """``n`` images drawn without replacement by ``seed``; a smaller ``n`` gives a prefix of a larger one, None gives all.

    >>> subset(load_dataset("digits", "test"), 5, seed=1)
    Dataset(digits-test: 5 images of 1 x 8 x 8, 10 classes)
    """
    return dataset if n is None else dataset.take(choose(len(dataset), n, seed))


def choose(total: int, n: int | None, seed: int) -> Tensor:
    """Indices ``(n,)`` of ``n`` of ``total`` items: a prefix of NumPy's permutation by ``seed``; with None all, in order.

    Raises ValueError for an ``n`` outside of ``1 .. total``.

    >>> choose(10, 3, seed=0).equal(choose(10, 5, seed=0)[:3])
    True
    """
    if n is None:
        return torch.arange(total)
    n = require_whole("n", n, least=1, most=total)
    return torch.from_numpy(np.random.default_rng(seed).permutation(total)[:n])


@anywhere
def shifts(images: Tensor, radius: int = 1) -> Tensor:
    """Return all ``(2 radius + 1)^2`` translations by up to ``radius`` pixels, with zeros in the pixels left empty.

    The original image comes first.  The others follow in increasing order of (dy, dx), where dy > 0 moves the
    image down, and dx > 0 moves it right.  The shapes are ``(N, C, H, W) -> (N, V, C, H, W)``.

    >>> shifts(torch.tensor([[[[1, 2], [3, 4]]]]))[0, :3, 0].tolist()  # the image, then moved up and left, then up
    [[[1, 2], [3, 4]], [[4, 0], [0, 0]], [[3, 4], [0, 0]]]
    """
    height, width = images.shape[-2:]
    radius = require_whole("radius", radius, least=0, most=min(height, width) - 1)
    windows = F.pad(images, (radius,) * 4).unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    # Window (sy, sx) starts at padded pixel (sy, sx): it shows the image moved by radius - s.
    moved = windows.flip(1, 2).flatten(1, 2)
    middle = moved.shape[1] // 2
    return moved[:, [middle, *(i for i in range(moved.shape[1]) if i != middle)]]


# --- what is in the files --------------------------------------------------------------------------------------------


def handwritten() -> tuple[np.ndarray, np.ndarray]:
    """The digits of ``sklearn.datasets.load_digits``, in their order there, without scikit-learn.

    Grey levels from 0 to 16, ``(1797, 8, 8)`` in float64, and labels ``(1797,)`` in int64.
    """
    rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _fetch(name: str, root: Path) -> None:
    """Fetch what is missing through pooch, which checks it, and only then put it in its place, whole.

    Archives are unpacked in a folder beside that place, so that a download that is cut off leaves nothing.  Raises
    ConnectionError, which says what else can be done, where the address doesn't answer or sends something else.
    """
    import pooch

    bar = importlib.util.find_spec("tqdm") is not None  # pooch insists on tqdm only where a bar is wanted
    (url, archive), missing = ARCHIVES[name], [file for file in MD5[name] if not (root / file).is_file()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetching-") as scratch:
            if archive:
                unpack = pooch.Untar(extract_dir=".")
                pooch.retrieve(url, f"md5:{archive}", "archive", path=scratch, processor=unpack, progressbar=bar)
            for file in missing:
                if not archive:
                    address = url + Path(file).name
                    pooch.retrieve(address, f"md5:{MD5[name][file]}", file, path=scratch, progressbar=bar)
                (root / file).parent.mkdir(exist_ok=True)
                (Path(scratch) / file).replace(root / file)
    except (OSError, ValueError) as error:
        otherwise = f"try again later, or let SSLBOOK_DATA name the folder that holds {Path(missing[0]).parent}/"
        raise ConnectionError(f"{TITLES[name]} can't be fetched from {url} ({error}); {otherwise}") from error
