"""Images of your own as a data set: an array, a folder of pictures, or any data set of PyTorch's kind."""

from __future__ import annotations

import operator
import reprlib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sslbook._ambient import anywhere
from sslbook._check import plain, require_whole
from sslbook._files import user_path
from sslbook.images.datasets import Dataset, composed

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch.utils.data import Dataset as Items

UNREAD = ("BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF")
"""Kinds that Pillow knows, and reads only with the help of other programs, if at all."""
OTHER_FILES = ".txt .md .rst .csv .tsv .json .jsonl .xml .yaml .yml .toml .html .pdf .log .ini .db .py .ipynb .pt .lock"
"""Endings of files that lie beside pictures, and which nobody takes for one."""
SYSTEM = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that systems make, and nobody's classes."""
Notes = dict[str, list[str]]
"""What a warning is to tell, by its sentence: the names that it is about."""
SHAPES = "(N, C, H, W), (N, H, W, C) or (N, H, W)"


@anywhere
def read_images(
    source: Tensor | np.ndarray | str | Path | Dataset | Sequence[Any] | Items[Any],
    labels: Tensor | np.ndarray | Sequence[int] | None = None,
    *,
    size: int | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read your own images for training, as bytes ``(N, C, H, W)`` with one or three channels, all of the same size.

    source: a tensor or NumPy array ``(N, C, H, W)``, ``(N, H, W, C)`` or ``(N, H, W)``, a folder, or a PyTorch data
    set.  A folder holds pictures of any ending that Pillow reads; its sub-folders are the classes in alphabetical order,
    unless pictures lie beside them.  Names are in Unicode's composed form (NFC).  A PyTorch data set holds images
    (tensors, arrays or Pillow images), or pairs of an image and its class.
    Pixels are bytes from 0 to 255, or floating-point numbers in [0, 1], which are rounded to bytes.  Pillow images and
    pictures in folders are turned upright, made grey or RGB, and lose any transparency.  Pixels of 16 bits (modes
    "I;16" and "I") are divided by 257 and rounded; those of mode "F" must be in [0, 1].  In a folder, names that begin
    with a dot are skipped, and links are followed once in each class.  All images are copied into memory, and in
    training also onto the GPU, with ``C H W`` bytes each.
    labels: the class of each image in an array, counted from 0, or -1 for no label; by default, all are -1.
    size: the side of the square that is cut from the middle of each picture; without it, all need the same size.
    classes: the names of the sub-folders in the order of the class numbers, such as the training set's ``class_names``
    for a test set.  Some folders may be missing; without ``classes``, an empty sub-folder is refused.
    A warning tells of files of other kinds, of pages after the first, of pictures that are enlarged, and where pictures
    beside sub-folders leave all without a class.
    Raises FileNotFoundError for a missing folder, and ValueError or TypeError if the source isn't a set of images.

    >>> read_images(np.zeros((4, 32, 32, 3), dtype=np.uint8), labels=[0, 1, 1, 0])
    Dataset(own: 4 images of 3 x 32 x 32, 2 classes)
    """
    notes = defaultdict[str, list[str]](list)
    if not isinstance(source, (str, Path)) and not (size is None and classes is None):
        name, value = ("size", size) if classes is None else ("classes", classes)
        raise ValueError(f"{name} is for a folder of pictures, got {name}={value!r} with a {type(source).__name__}")
    if isinstance(source, (str, Path)):
        data = _folder(user_path(source), size, classes, notes)
    elif isinstance(source, Dataset):
        data = source
    else:
        if isinstance(source, (Tensor, np.ndarray)):
            array = _tensor("images", source)
            if labels is None:
                _require_many(array.shape)
            pixels = _bytes("images", array, SHAPES)
        elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping):
            pixels, found = _items(source, notes)
            labels = found if labels is None else labels
        else:
            raise TypeError(
                "images must be an array, a folder or a data set with a length and items, "
                f"got {type(source).__name__}; gather what only iterates with list(...)"
            )
        data = Dataset(pixels, torch.full((len(pixels),), -1), "own", 0)
    if not data.pixels.numel():
        raise ValueError(f"images must hold one image or more, with pixels, got {tuple(data.pixels.shape)}")
    for sentence, names in notes.items():
        warnings.warn(f"{sentence} ({len(names)}, such as {names[0]})", stacklevel=2)
    return data if labels is None else _labelled(data, labels)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _tensor(name: str, values: Tensor | np.ndarray) -> Tensor:
    """A tensor; arrays that are mirrored, read-only or in another machine's byte order, which PyTorch refuses, are copied."""
    if isinstance(values, Tensor):
        return values
    if values.dtype.kind not in "biufc" or values.dtype.itemsize > 8:
        raise TypeError(f"{name} must be uint8, or floating in [0, 1], got {values.dtype}")
    return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ("C", "W")))


def _require_many(shape: torch.Size) -> None:
    """Refuse what is nearly always one picture, and would be read as many grey ones: (32, 32, 3), or (3, 32, 32)."""
    if len(shape) == 3 and ((shape[0] == 3 and min(shape[1:]) >= 8) or (shape[2] in (1, 3, 4) and min(shape[:2]) >= 8)):
        raise ValueError(
            f"images must be {SHAPES}, and {tuple(shape)} may be one picture: add an axis, images[None] if it is one, "
            "images[:, None] if they are many grey ones"
        )


def _bytes(name: str, images: Tensor, shapes: str) -> Tensor:
    """``(N, C, H, W)`` uint8 of any of the three shapes, and of bytes or shares of 1; always a copy."""
    given = tuple(images.shape) if shapes == SHAPES else tuple(images.shape[1:])
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"{name} must be {shapes}, of 1 or 3 channels, got {given}")
    if images.is_floating_point():
        low, high = (images.amin().item(), images.amax().item()) if images.numel() else (0, 1)
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{name} must be bytes, or floating in [0, 1], got floating from {low:g} to {high:g}")
        images = (images * 255).round()
    elif images.dtype != torch.uint8:
        raise TypeError(f"{name} must be uint8, or floating in [0, 1], got {images.dtype}")
    return images.to(torch.uint8, copy=True, memory_format=torch.contiguous_format)


def _labelled(data: Dataset, labels: Any) -> Dataset:
    """The data set with whole numbers, one for each image, for classes; -1 is none."""
    try:
        found = (_tensor("labels", labels) if isinstance(labels, np.ndarray) else torch.as_tensor(labels)).clone()
        right = not (found.is_floating_point() or found.is_complex()) and found.shape == data.labels.shape
        least = 0 if found.dtype == torch.uint64 else -1  # beyond 63 bits, unsigned numbers become negative
        right = right and int((found := found.long()).min()) >= least
    except (TypeError, ValueError, RuntimeError):  # words, lists of unlike lengths, whole numbers beyond 64 bits
        right = False
    if not right:
        wanted = f"labels must be one whole number for each of the {len(data)} images, from 0 on or -1 for none"
        raise ValueError(f"{wanted}, got {reprlib.repr(labels)}")
    return replace(data, labels=found, classes=int(found.max()) + 1, class_names=())


# --- pictures --------------------------------------------------------------------------------------------------------


def _items(source: Any, notes: Notes) -> tuple[Tensor, list[int] | None]:
    """The images of a PyTorch data set, which are arrays or pictures, and its classes if its items are pairs."""
    from PIL import Image

    classes: list[int] = []
    images: dict[str, Tensor] = {}
    for index in range(len(source)):
        name, image = f"item {index}", source[index]
        if classes or (index == 0 and isinstance(image, (tuple, list))):
            try:
                image, kind = image
                classes.append(operator.index(kind))
            except (TypeError, ValueError):
                got = reprlib.repr(source[index])
                raise TypeError(f"{name} must be a pair, an image and its class as a whole number, got {got}") from None
        if isinstance(image, Image.Image):
            image = np.array(_converted(name, image, notes))
        if not isinstance(image, (Tensor, np.ndarray)):
            raise TypeError(f"{name} must be an image, or an image and its class, got {type(image).__name__}")
        images[name] = _bytes(name, _tensor(name, image)[None], "(C, H, W), (H, W, C) or (H, W)")[0]
    return _stacked(images), classes or None


def _converted(name: str, picture: Picture, notes: Notes) -> Picture:
    """The first page, upright, in bytes, grey (mode L) or RGB; what Pillow can't read is a ValueError with the name."""
    from PIL import ExifTags, Image, ImageOps

    with _named(name):
        picture.load()
        if getattr(picture, "n_frames", 1) > 1:
            notes["pictures of several pages or frames, of which one is taken"].append(name)
        turn = picture.getexif().get(ExifTags.Base.Orientation)
        bare = picture.copy()
        bare.info.clear()  # of the palette's transparent colour, and the rest of the EXIF block, which may be damaged
        bare.getexif()[ExifTags.Base.Orientation] = turn
        upright = ImageOps.exif_transpose(bare)
        if upright.mode not in ("F", "I") and not upright.mode.startswith("I;16"):
            return upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    levels = torch.from_numpy(np.array(upright).astype(np.float64))  # which Pillow would clip, and at 255
    shares = levels if upright.mode == "F" else levels / (2**16 - 1)
    return Image.fromarray(_bytes(f"{name}, of mode {upright.mode},", shares[None], SHAPES)[0, 0].numpy())


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Whatever a picture makes Pillow raise, damaged ones in any way, as a sentence with its name."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name} is no picture that Pillow can read: {str(error) or type(error).__name__}") from None


def _stacked(images: Mapping[str, Tensor]) -> Tensor:
    """All images, by name, in one tensor ``(N, C, H, W)``; grey ones among coloured ones get three equal channels."""
    if not images:
        return torch.empty(0, 1, 1, 1, dtype=torch.uint8)
    channels, (first, one) = max(image.shape[0] for image in images.values()), next(iter(images.items()))
    for name, image in images.items():
        if image.shape[1:] != one.shape[1:]:
            told = f"{first} is {one.shape[1]} by {one.shape[2]}, and {name} is {image.shape[1]} by {image.shape[2]}"
            raise ValueError(f"images must have one size: {told}; size=32 cuts the pictures of a folder to 32 by 32")
    return torch.stack([image.expand(channels, -1, -1) for image in images.values()])


# --- folders ---------------------------------------------------------------------------------------------------------


def _folder(folder: Path, size: int | None, classes: Sequence[str] | None, notes: Notes) -> Dataset:
    """The pictures below a folder, in the order of their names; classes are the sub-folders, if every picture lies in one."""
    from PIL import Image, ImageOps

    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}{': it is a file' * folder.exists()}")
    size = None if size is None else require_whole("size", size, least=1)
    above = {folder.resolve(), *folder.resolve().parents}  # where a link may lead round to
    folders, unsorted = _entries(folder, notes)
    found: dict[str, list[Path]] = {}
    for kind in folders:
        if composed(kind.name) in found:
            raise ValueError(f"{kind} has the name of another folder, written in another Unicode form: rename one")
        if kind.resolve() not in above:
            found[composed(kind.name)] = [*_below(kind, set(above), notes)]
    names = _class_names(folder, found, unsorted, classes, notes)
    numbers = {path: number for number, name in enumerate(names) for path in found.get(name, ())}
    paths = sorted([*unsorted, *chain.from_iterable(found.values())], key=lambda path: [*map(composed, path.parts)])
    if not paths:
        raise ValueError(f"{folder} must hold pictures (.png, .jpg and what else Pillow reads), and none is there")
    images = {}
    for name in map(str, paths):
        with _named(name):
            file = Image.open(name)
        with file:
            picture = _converted(name, file, notes)
        if size is not None:
            if min(picture.size) < size:
                notes[f"pictures are smaller than {size} by {size}, and enlarged"].append(name)
            picture = ImageOps.fit(picture, (size, size))
        images[name] = _bytes(name, torch.from_numpy(np.array(picture))[None], SHAPES)[0]
    labels = torch.tensor([numbers.get(path, -1) for path in paths])
    return Dataset(_stacked(images), labels, folder.resolve().name, len(names), names, tuple(images))


def _entries(folder: Path, notes: Notes) -> tuple[list[Path], list[Path]]:
    """Sub-folders, real ones before links, and pictures of a folder, without what is hidden or the system's."""
    from PIL import Image

    kinds = Image.registered_extensions()  # with those of plugins
    readable = {ending for ending, kind in kinds.items() if kind in {*Image.OPEN, "MPO"} and kind not in UNREAD}
    paths = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in SYSTEM]
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise ValueError(f"{path} is a link to {path.readlink()}, which can't be read: mend it, or remove it")
    folders = sorted((path for path in paths if path.is_dir()), key=lambda path: (path.is_symlink(), path))
    files = sorted(path for path in paths if path.is_file())
    if left := [str(path) for path in files if path.suffix.lower() not in {*readable, *OTHER_FILES.split()}]:
        notes["files are left out, of whose endings Pillow reads no pictures"] += left
    return folders, [path for path in files if path.suffix.lower() in readable]


def _below(folder: Path, visited: set[Path], notes: Notes) -> Iterator[Path]:
    """The pictures in a folder and below it, but for folders that have been visited, since links may lead round."""
    if (real := folder.resolve()) not in visited:
        visited.add(real)
        folders, pictures = _entries(folder, notes)
        yield from pictures
        for inner in folders:
            yield from _below(inner, visited, notes)


def _class_names(
    folder: Path, found: Mapping[str, list[Path]], unsorted: list[Path], classes: Any, notes: Notes
) -> tuple[str, ...]:
    """The classes in their order, of the pictures that each sub-folder holds; none where a picture lies beside them."""
    if classes is None:
        empty = [str(folder / name) for name in sorted(found) if not found[name]]
        if empty and not unsorted:
            raise ValueError(f"{empty[0]} must hold pictures, as a class, and has none: remove it, or give classes=")
        if unsorted and any(found.values()):
            notes["pictures beside the sub-folders, so that none has a class"] = [*map(str, unsorted)]
        return () if unsorted else tuple(sorted(found, key=lambda name: (name.casefold(), name)))
    given = plain(classes)
    wanted = [composed(str(name)) for name in given] if isinstance(given, list | tuple) else []
    if not wanted or len({*wanted}) < len(wanted):
        raise TypeError(f"classes must be names of sub-folders, each once, got {reprlib.repr(classes)}")
    for path in [*unsorted, *(folder / name for name, held in found.items() if held and name not in wanted)]:
        raise ValueError(f"{path} is in none of the classes {', '.join(wanted)}")
    return tuple(wanted)
