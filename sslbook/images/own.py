"""Images of the caller's own as a data set: an array, a folder of pictures, or any data set of PyTorch's kind."""

from __future__ import annotations

import operator
import reprlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sslbook._ambient import anywhere
from sslbook._check import plain, require_whole
from sslbook._files import require_file, user_path
from sslbook.images.datasets import Dataset, composed

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch.utils.data import Dataset as Items

UNREAD = ("BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF")
"""Kinds that Pillow knows, and reads only with the help of other programs, if at all."""
BESIDE = ".txt .md .rst .csv .tsv .json .jsonl .xml .yaml .yml .toml .html .pdf .log .ini .db .py .ipynb .pt .lock"
"""What files end in that lie beside pictures, and which nobody takes for one."""
SYSTEM = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that systems make, and nobody's classes."""
Odd = dict[str, list[str]]
"""Names of what is to be told, by what is told of them."""
WANTED = ".png, .jpg and what else Pillow reads"
CHANNELS = (1, 3)
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
    """
    found, odd = None, defaultdict[str, list[str]](list)
    if isinstance(source, (str, Path)):
        data = _folder(user_path(source), size, classes, odd)
    elif size is not None or classes is not None:
        name, value = ("size", size) if classes is None else ("classes", classes)
        raise ValueError(f"{name} is for a folder of pictures, got {name}={value!r} with a {type(source).__name__}")
    elif isinstance(source, Dataset):
        data = source
    elif isinstance(source, (Tensor, np.ndarray)):
        array = _tensor("images", source)
        if labels is None:
            _require_many(array.shape)
        data = _unlabelled(_bytes("images", array, SHAPES))
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping):
        images, found = _items(source, odd)
        data = _unlabelled(images)
    else:
        raise TypeError(
            "images must be an array, a folder or a data set with a length and items, "
            f"got {type(source).__name__}; gather what only iterates with list(...)"
        )
    if not len(data):
        raise ValueError("images must hold one image or more, got none")
    if not data.pixels.numel():
        raise ValueError(f"images must have pixels, got {tuple(data.pixels.shape)}")
    for sentence, names in odd.items():
        warnings.warn(f"{sentence} ({len(names)}, such as {names[0]})", stacklevel=2)
    labels = found if labels is None else labels
    return data if labels is None else _labelled(data, labels)


def _require_many(shape: torch.Size) -> None:
    """Refuse what is nearly always one picture, and would be read as many grey ones: (32, 32, 3), or (3, 32, 32)."""
    if len(shape) == 3 and ((shape[0] == 3 and min(shape[1:]) >= 8) or (shape[2] in (1, 3, 4) and min(shape[:2]) >= 8)):
        raise ValueError(
            f"images must be {SHAPES}, and {tuple(shape)} may be one picture: add an axis, images[None] if it is one, "
            "images[:, None] if they are many grey ones"
        )


def _unlabelled(pixels: Tensor) -> Dataset:
    return Dataset(pixels, torch.full((len(pixels),), -1), "own", 0)


def _labelled(data: Dataset, labels: Tensor | np.ndarray | Sequence[int]) -> Dataset:
    wanted = f"labels must be one whole number for each of the {len(data)} images"
    try:
        classes = torch.as_tensor(_native(labels) if isinstance(labels, np.ndarray) else labels).clone()
    except (TypeError, ValueError, RuntimeError):  # words, lists of unlike lengths, whole numbers beyond 64 bits
        raise ValueError(f"{wanted}, got {reprlib.repr(labels)}") from None
    if classes.is_floating_point() or classes.is_complex() or classes.shape != data.labels.shape:
        raise ValueError(f"{wanted}, got {classes.dtype} {tuple(classes.shape)}")
    unsigned, classes = classes.dtype == torch.uint64, classes.long()
    if (least := int(classes.min())) < (0 if unsigned else -1):  # unsigned ones beyond 63 bits are below 0 now
        raise ValueError(f"{wanted}, from 0 on or -1 for none, got {'one beyond 63 bits' if unsigned else least}")
    return replace(data, labels=classes, classes=int(classes.max()) + 1, class_names=())


def _tensor(name: str, values: Tensor | np.ndarray) -> Tensor:
    """A tensor, or an array as one."""
    if isinstance(values, Tensor):
        return values
    if values.dtype.kind not in "biufc" or values.dtype.itemsize > 8:
        raise TypeError(f"{name} must be uint8, or floating in [0, 1], got {values.dtype}")
    return torch.from_numpy(_native(values))


def _native(values: np.ndarray) -> np.ndarray:
    """Arrays that are mirrored, read-only or in another machine's byte order, which PyTorch refuses, are copied."""
    return np.require(values, values.dtype.newbyteorder("="), ("C", "W"))


def _bytes(name: str, images: Tensor, shapes: str, given: torch.Size | None = None) -> Tensor:
    """``(N, C, H, W)`` uint8 of any of the three shapes, and of bytes or shares of 1; the shape that was given, for errors."""
    given = images.shape if given is None else given
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in CHANNELS and images.shape[3] in CHANNELS:
        images = images.permute(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in CHANNELS:
        raise ValueError(f"{name} must be {shapes}, of 1 or 3 channels, got {tuple(given)}")
    if images.is_floating_point() and images.numel():
        low, high = images.amin().item(), images.amax().item()
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{name} must be bytes, or floating in [0, 1], got floating from {low:g} to {high:g}")
    if images.is_floating_point():
        images = (images * 255).round()
    elif images.dtype != torch.uint8:
        raise TypeError(f"{name} must be uint8, or floating in [0, 1], got {images.dtype}")
    return images.to(torch.uint8, copy=True, memory_format=torch.contiguous_format)  # never a view of the caller's


def _items(source: Any, odd: Odd) -> tuple[Tensor, list[int] | None]:
    """The images of a data set, and its classes if its items are pairs."""
    try:
        items = [source[index] for index in range(len(source))]
    except LookupError as error:
        raise ValueError(f"images must have an item for each number from 0 to {len(source) - 1}: {error!r}") from error
    classes: list[int] = []
    for index, item in enumerate(items if items and isinstance(items[0], (tuple, list)) else ()):
        if isinstance(item, list) and item and isinstance(item[-1], list):
            raise TypeError(f"item {index} must be an image, or one and its class, got rows as lists: make it an array")
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = f"{type(item).__name__} of {len(item)}" if isinstance(item, (tuple, list)) else type(item).__name__
            raise TypeError(f"item {index} must be an image and its class, as a pair, got {got}")
        try:
            classes.append(operator.index(item[1]))
        except (TypeError, ValueError):
            raise TypeError(f"the class of item {index} must be a whole number, got {reprlib.repr(item[1])}") from None
    named = ((f"item {index}", item[0] if classes else item) for index, item in enumerate(items))
    return _stacked((name, _pixels(name, image, odd)) for name, image in named), classes or None


def _pixels(name: str, image: object, odd: Odd) -> Tensor:
    """One image ``(C, H, W)`` uint8 of a tensor, an array or a Pillow image; an array has its channels last, as Pillow has."""
    from PIL import Image

    if isinstance(image, Image.Image):
        image = _converted(name, image, odd)
    try:
        array = image if isinstance(image, (Tensor, np.ndarray)) else np.array(image)
    except ValueError:  # lists of unlike lengths
        array = np.array(None)
    if not array.ndim:
        raise TypeError(f"{name} must be an image, or an image and its class, got {type(image).__name__}")
    pixels = _tensor(name, array)
    return _bytes(name, pixels[None], "(C, H, W), (H, W, C) or (H, W)", pixels.shape)[0]


def _converted(name: str, picture: Picture, odd: Odd) -> Picture:
    """Upright, in bytes, grey (mode L) or RGB."""
    from PIL import ExifTags, Image, ImageOps

    with _naming(name):
        picture.load()
        turn = picture.getexif().get(ExifTags.Base.Orientation)
        bare = picture.copy()
        bare.info.clear()  # without the rest of the EXIF block, which may be damaged, and the palette's transparent colour
        bare.getexif()[ExifTags.Base.Orientation] = turn
        upright = ImageOps.exif_transpose(bare)
        with suppress(Exception):  # what is damaged behind the first page is no matter
            if getattr(picture, "is_animated", False):
                odd["pictures of several pages or frames, of which one is taken"].append(name)
        if upright.mode not in ("F", "I") and not upright.mode.startswith("I;16"):
            return upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    levels, most = np.array(upright).astype(np.float64), 1 if upright.mode == "F" else 2**16 - 1
    if levels.size and not 0 <= levels.min() <= levels.max() <= most:  # Pillow would clip, and at 255
        seen = f"{levels.min():g} to {levels.max():g}"
        raise ValueError(f"{name} must have pixels from 0 to {most}, as pictures of mode {upright.mode}, got {seen}")
    return Image.fromarray((levels * (255 / most)).round().astype(np.uint8))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Whatever a picture makes Pillow raise, as a sentence with its name."""
    from PIL import Image

    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(
            f"{name} is too large for Pillow: {error} Make it smaller, or set PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from None
    except Exception as error:  # damaged bytes may make its readers fail in any way
        raise ValueError(f"{name} is no picture that Pillow can read: {str(error) or type(error).__name__}") from None


def _folder(folder: Path, size: int | None, classes: Sequence[str] | None, odd: Odd) -> Dataset:
    """The pictures below a folder, by name; classes are the sub-folders, if every picture lies in one."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}{': it is a file' * folder.exists()}")
    size = None if size is None else require_whole("size", size, least=1)
    above = {folder.resolve(), *folder.resolve().parents}  # where a link may lead round to
    folders, beside = _seen(folder, odd)
    kinds: dict[str, list[Path]] = {}
    for kind in folders:
        if composed(kind.name) in kinds:
            raise ValueError(f"{kind} has the name of another folder, written in another Unicode form: rename one")
        if kind.resolve() not in above:
            kinds[composed(kind.name)] = [*_below(kind, set(above), odd)]
    paths = sorted([*beside, *chain.from_iterable(kinds.values())], key=lambda path: [*map(composed, path.parts)])
    if not paths:
        raise ValueError(f"{folder} must hold pictures ({WANTED}), and none is there")
    names = _class_names(folder, kinds, beside, classes, odd)
    numbers = {path: number for number, name in enumerate(names) for path in kinds.get(name, ())}
    labels = torch.tensor([numbers.get(path, -1) for path in paths])
    pixels = _stacked((str(path), _picture(path, size, odd)) for path in paths)
    return Dataset(pixels, labels, folder.resolve().name, len(names), names, tuple(map(str, paths)))


def _class_names(
    folder: Path, kinds: Mapping[str, list[Path]], beside: list[Path], classes: Sequence[str] | None, odd: Odd
) -> tuple[str, ...]:
    """The classes in their order, of the sub-folders and what each holds; none where a picture lies beside them."""
    if classes is None:
        empty = [str(folder / name) for name in sorted(kinds) if not kinds[name]]
        if empty and not beside:
            raise ValueError(f"{empty[0]} must hold pictures, as a class, and has none: remove it, or give classes=")
        if beside and any(kinds.values()):
            odd["pictures beside the sub-folders, so that none has a class"] = [*map(str, beside)]
        return () if beside else tuple(sorted(kinds, key=lambda name: (name.casefold(), name)))
    given = plain(classes)
    wanted = [composed(str(name)) for name in given] if isinstance(given, list | tuple) else []
    if not wanted or len({*wanted}) < len(wanted):
        raise TypeError(f"classes must be names of sub-folders, each once, got {reprlib.repr(classes)}")
    for path in [*beside, *(folder / name for name, held in kinds.items() if held and name not in wanted)]:
        raise ValueError(f"{path} is in none of the classes {', '.join(wanted)}")
    return tuple(wanted)


def _seen(folder: Path, odd: Odd) -> tuple[list[Path], list[Path]]:
    """Sub-folders, real ones before links, and pictures of a folder, without what its owner doesn't see."""
    from PIL import Image

    known = Image.registered_extensions()  # with those of plugins
    readable = {ending for ending, kind in known.items() if kind in {*Image.OPEN, "MPO"} and kind not in UNREAD}
    seen = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in SYSTEM]
    for path in seen:
        if path.is_symlink() and not path.exists():
            raise ValueError(f"{path} is a link to {path.readlink()}, which can't be read: mend it, or remove it")
    folders = sorted((path for path in seen if path.is_dir()), key=lambda path: (path.is_symlink(), path))
    files = sorted(path for path in seen if not path.is_dir())
    if left := [str(path) for path in files if path.suffix.lower() not in {*readable, *BESIDE.split()}]:
        odd["files are left out, of whose endings Pillow reads no pictures"] += left
    return folders, [path for path in files if path.suffix.lower() in readable]


def _below(folder: Path, read: set[Path], odd: Odd) -> Iterator[Path]:
    """The pictures in a folder and below it, but for folders that have been read, since links may lead round."""
    real = folder.resolve()
    if real not in read:
        read.add(real)
        folders, pictures = _seen(folder, odd)
        yield from pictures
        for inner in folders:
            yield from _below(inner, read, odd)


def _picture(path: Path, size: int | None, odd: Odd) -> Tensor:
    from PIL import Image, ImageOps

    with _naming(str(path)):
        require_file(path)
        file = Image.open(path)
    with file:
        picture = _converted(str(path), file, odd)
    if size is not None:
        if min(picture.size) < size:
            odd[f"pictures are smaller than {size} by {size}, and enlarged"].append(str(path))
        picture = ImageOps.fit(picture, (size, size))
    return _pixels(str(path), picture, odd)


def _stacked(named: Iterable[tuple[str, Tensor]]) -> Tensor:
    """All images in one tensor, ``(N, C, H, W)``; grey ones among coloured ones get three equal channels."""
    images = dict(named)
    channels = max((image.shape[0] for image in images.values()), default=1)
    first = next(iter(images), "")
    for name, image in images.items():
        if image.shape[1:] != images[first].shape[1:]:
            sides = [" by ".join(map(str, images[at].shape[1:])) for at in (first, name)]
            raise ValueError(
                f"images must have one size: {first} is {sides[0]}, and {name} is {sides[1]}; "
                "size=32 cuts the pictures of a folder to 32 by 32, in read_images(folder, size=32)"
            )
    whole = [image.expand(channels, -1, -1) for image in images.values()]
    return torch.stack(whole) if whole else torch.empty(0, 1, 1, 1, dtype=torch.uint8)
