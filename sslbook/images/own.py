"""Images of your own as a data set: an array, a folder of pictures, or any data set of PyTorch's kind."""

from __future__ import annotations

import contextlib
import operator
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sslbook._ambient import anywhere, warn
from sslbook._check import plain
from sslbook.images.datasets import Dataset, composed

if TYPE_CHECKING:
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
    size: the side of the square that is cut from the middle of each picture, in a folder or a data set; without it, all
    need the same size.
    classes: the names of the sub-folders in the order of the class numbers, such as the training set's ``class_names``
    for a test set.  Some folders may be missing; without ``classes``, an empty sub-folder is refused.
    A warning tells of files of other kinds (but not of texts and tables, which may lie there), of links that lead
    nowhere, of pages after the first, of pictures that are enlarged, and where pictures beside sub-folders leave all
    without a class.
    Raises FileNotFoundError for a missing folder, and ValueError or TypeError if the source isn't a set of images.

    >>> read_images(np.zeros((4, 32, 32, 3), dtype=np.uint8), labels=[0, 1, 1, 0])
    Dataset(own: 4 images of 3 x 32 x 32, 2 classes)
    """
    notes = defaultdict[str, list[str]](list)
    if isinstance(source, (str, Path)):
        data = _folder(Path(source).expanduser(), size, classes, notes)
    elif classes is not None or (size is not None and isinstance(source, (Dataset, Tensor, np.ndarray))):
        raise ValueError("classes are for a folder of pictures, and size for pictures that may have several sizes")
    elif isinstance(source, Dataset):
        data = source
    elif isinstance(source, (Tensor, np.ndarray)):
        pixels, (first, *_, last) = _bytes("images", source, SHAPES), source.shape
        single = (first == 3 and min(source.shape[1:]) >= 8) or (last in (1, 3, 4) and min(source.shape[:-1]) >= 8)
        if source.ndim == 3 and single and labels is None:  # it would be read as many grey ones
            many = "add an axis, images[None] if it is one, images[:, None] if they are many grey ones"
            raise ValueError(f"images must be {SHAPES}, and {tuple(source.shape)} may be one picture: {many}")
        data = Dataset(pixels, torch.full((len(pixels),), -1), "own", 0)
    else:
        images: dict[str, Tensor] = {}
        kinds: list[int] = []
        items: Any = source
        for index in range(len(items)):
            name, item = f"item {index}", items[index]
            if kinds or (not images and isinstance(item, (tuple, list))):
                item, kind = item
                kinds.append(operator.index(kind))
            images[name] = _item(name, item, notes, size)
        pixels, labels = _stacked(images), (kinds or None) if labels is None else labels
        data = Dataset(pixels, torch.full((len(pixels),), -1), "own", 0)
    if not data.pixels.numel():
        raise ValueError(f"images must be one or more, with pixels, got {tuple(data.pixels.shape)} in all")
    for sentence, names in notes.items():
        warn(f"{sentence} ({len(names)}, such as {names[0]})")
    if labels is None:
        return data
    found = np.array(plain(labels))
    whole = found.shape == (len(data),) and found.dtype.kind in "iu"
    if not whole or int(found.min()) < -1 or int(found.max()) >= 2**63:  # those beyond would become negative
        wanted = f"labels must be one whole number for each of the {len(data)} images, from 0 on or -1 for none"
        raise ValueError(f"{wanted}, got {reprlib.repr(labels)}")
    truth = torch.from_numpy(found.astype(np.int64))
    return replace(data, labels=truth, classes=int(truth.max()) + 1, class_names=())


# --- images ----------------------------------------------------------------------------------------------------------


def _bytes(name: str, images: Tensor | np.ndarray, shapes: str) -> Tensor:
    """``(N, C, H, W)`` uint8 of any of the three shapes, and of bytes or shares of 1; always a copy.

    So are arrays that are mirrored, read-only or in another machine's byte order, which PyTorch refuses.  Raises ValueError, which
    calls the images ``name`` and lists ``shapes``, for any other shape or for other numbers.
    """
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(np.require(images, images.dtype.newbyteorder("="), ("C", "W")))
    given = tuple(images.shape) if shapes == SHAPES else tuple(images.shape[1:])
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"{name} must be {shapes}, of 1 or 3 channels, got {given}")
    if images.is_floating_point():
        low, high = (images.amin().item(), images.amax().item()) if images.numel() else (0, 1)
        images = (images * 255).round()
    if images.dtype != torch.uint8 and not (images.is_floating_point() and 0 <= low <= high <= 1):
        found = f"floating from {low:g} to {high:g}" if images.is_floating_point() else images.dtype
        raise ValueError(f"{name} must be bytes, or floating in [0, 1], got {found}")
    return images.to(torch.uint8, copy=True, memory_format=torch.contiguous_format)


def _item(name: str, image: Any, notes: Notes, size: int | None) -> Tensor:
    """``(C, H, W)`` uint8 of an array, a picture or a file; of a picture the first page, upright, grey or RGB.

    size: of the square that is cut from the picture's middle.  What Pillow can't read is a ValueError with the name.
    """
    from PIL import Image, ImageOps

    if isinstance(image, (Tensor, np.ndarray)):
        pixels = _bytes(name, image[None], "(C, H, W), (H, W, C) or (H, W)")[0]
        image = Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy())
    try:
        with Image.open(image) if isinstance(image, Path) else contextlib.nullcontext(image) as picture:
            if getattr(picture, "n_frames", 1) > 1:
                notes["pictures of several pages or frames, of which one is taken"].append(name)
            upright = ImageOps.exif_transpose(picture)
        if upright.mode in ("F", "I") or upright.mode.startswith("I;16"):  # which Pillow would clip, and at 255
            levels = np.array(upright).astype(np.float64) / (1 if upright.mode == "F" else 2**16 - 1)
            upright = Image.fromarray(_bytes(f"levels of mode {upright.mode}", levels[None], SHAPES)[0, 0].numpy())
        upright.info.clear()  # of a palette's transparent colour, which RGB has no place for
        upright = upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    except Exception as error:  # damaged ones raise anything
        raise ValueError(f"{name} is no picture that can be read: {str(error) or type(error).__name__}") from None
    if size is not None:
        if min(upright.size) < size:
            notes[f"pictures are smaller than {size} by {size}, and enlarged"].append(name)
        upright = ImageOps.fit(upright, (size, size))
    return torch.from_numpy(np.atleast_3d(np.array(upright))).permute(2, 0, 1).contiguous()


def _stacked(images: Mapping[str, Tensor]) -> Tensor:
    """All images, by name, in one tensor ``(N, C, H, W)``; grey ones among coloured ones get three equal channels.

    Raises ValueError, which names the first two that differ, where they have several sizes.
    """
    if not images:
        return torch.empty(0, 1, 1, 1).byte()
    first, *others = images
    for name in others:
        if images[name].shape[1:] != images[first].shape[1:]:
            told = ", and ".join(f"{one} is {images[one].shape[1]} by {images[one].shape[2]}" for one in (first, name))
            raise ValueError(f"images must have one size: {told}; size=32 cuts each to 32 by 32")
    channels = max(map(len, images.values()))
    return torch.stack([image.expand(channels, -1, -1) for image in images.values()])


def _folder(folder: Path, size: int | None, classes: Sequence[str] | None, notes: Notes) -> Dataset:
    """The pictures below a folder, in the order of their names; classes are the sub-folders, if every picture lies in one.

    Pictures are told by their endings, which are those of Pillow and its plugins; what is hidden, or the system's, is passed over.
    Within a class, each folder is gone through once, since links may lead round; those of one name, in whichever Unicode form, are
    one class.  An empty class, and pictures outside of the ``classes`` given, are refused.
    """
    from PIL import Image

    kinds = Image.registered_extensions()
    readable = {ending for ending, kind in kinds.items() if kind in {*Image.OPEN, "MPO"} and kind not in UNREAD}

    def shown(place: Path) -> list[Path]:
        paths = [path for path in place.iterdir() if not path.name.startswith(".") and path.name not in SYSTEM]
        return sorted(paths, key=lambda path: (path.is_symlink(), path))

    def pictures(path: Path, visited: set[Path]) -> Iterator[Path]:
        if path.is_dir():
            if (real := path.resolve()) not in visited:
                visited.add(real)
                for inner in shown(path):
                    yield from pictures(inner, visited)
        elif path.is_file() and path.suffix.lower() in readable:
            yield path
        elif path.suffix.lower() not in OTHER_FILES.split():
            notes["files are left out: they are no pictures that Pillow reads"].append(str(path))

    above = {folder.resolve(), *folder.resolve().parents}  # where a link may lead round to
    found: dict[str, list[Path]] = {}
    beside: list[Path] = []
    for path in shown(folder):
        if path.is_dir() and path.resolve() not in above:
            found.setdefault(composed(path.name), []).extend(pictures(path, {*above}))
        elif not path.is_dir():
            beside += pictures(path, set())
    names: tuple[str, ...] = ()
    if classes is not None:
        names = tuple(composed(str(name)) for name in classes)
        for path in [*beside, *(path for name, below in found.items() if name not in names for path in below)]:
            raise ValueError(f"{path} is in none of the classes {', '.join(names)}")
    elif beside and any(found.values()):
        notes["pictures beside the sub-folders, so that none has a class"] += map(str, beside)
    elif not beside:
        names = tuple(sorted(found, key=lambda name: (name.casefold(), name)))
        for name in (name for name in names if not found[name]):
            raise ValueError(f"{folder / name} must hold pictures, as a class: remove it, or give classes=")
    numbers = {path: number for number, name in enumerate(names) for path in found.get(name, ())}
    paths = sorted([*beside, *chain.from_iterable(found.values())], key=lambda path: [*map(composed, path.parts)])
    images = {str(path): _item(str(path), path, notes, size) for path in paths}
    labels = torch.tensor([numbers.get(path, -1) for path in paths], dtype=torch.int64)
    return Dataset(_stacked(images), labels, folder.resolve().name, len(names), names, tuple(images))
