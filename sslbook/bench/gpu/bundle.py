"""What may be missing on a machine that reaches no network: packages as wheels, and CIFAR-10, in pieces that can be carried."""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from sslbook import datasets
from sslbook.arguments import InputError

PIECE, WHOLE = 15 * 2**20, 64 * 2**20
"""Bytes: the most that a piece may have, and all pieces but the images' together."""
ROOTS = ("papermill", "jupytext", "ipykernel", "ipython", "nbformat", "pytest", "hypothesis", "pooch")
"""What the steps use beside PyTorch and its neighbours."""
THERE = ("torch", "numpy", "scipy", "matplotlib", "scikit-learn", "setuptools", "packaging")
"""What must be there anyway."""
UNUSED = ("aiohttp", "debugpy")
"""What those ask for and what executing a chapter does without."""
TAGS = (
    "manylinux_2_28",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux2010",
    "manylinux_2_5",
    "manylinux1",
)
IMAGES = "cifar-10-batches-py.tar.gz"


def write(folder: Path, *, python: str, machine: str = "x86_64") -> Iterator[str]:
    """Fill ``folder`` for a machine with that Python, such as ``3.12``; yields a sentence for each part of it.

    Raises InputError where pip fails, or where the pieces grow too large.
    """
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise InputError(f"--python: got {python!r}; a version such as 3.12 is needed")
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("*.whl"):
        old.unlink()
    wanted = [f"{name}=={version}" for name, version in sorted(closure(python).items())]
    platforms = [part for tag in TAGS for part in ("--platform", f"{tag}_{machine}")]
    target = ["--python-version", python, "--implementation", "cp", *platforms]
    asked = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(wheels), *target, *wanted]
    if subprocess.run([sys.executable, "-m", "pip", "download", *asked]).returncode:
        raise InputError(f"pip could not fetch all of {', '.join(wanted)} for Python {python}")
    sizes = {path.name: path.stat().st_size for path in wheels.glob("*.whl")}
    large = [name for name, size in sizes.items() if size > PIECE]
    if large or sum(sizes.values()) > WHOLE:
        raise InputError(f"the wheels are too large to be carried: {', '.join(large) or sum(sizes.values())}")
    yield f"{len(sizes)} wheels for Python {python}, {sum(sizes.values()) / 2**20:.1f} MiB: {wheels}"
    yield _images(folder / "images")


def closure(python: str) -> dict[str, str]:
    """Name and version, as they are here, of :data:`ROOTS` and all that they need under that Python, but for what is there."""
    environment = {name: str(value) for name, value in default_environment().items()}
    environment |= {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    waiting, found = list(ROOTS), dict[str, str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in (*THERE, *UNUSED):
            continue
        try:
            part = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in ROOTS:
                raise InputError(
                    f"{name} is not installed here, and a bundle has the versions of this machine"
                ) from None
            continue  # wanted under the other Python alone: pip is asked for what this machine knows
        found[name] = part.version
        for line in part.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(environment):
                waiting.append(needed.name)
    return found


def _images(folder: Path) -> str:
    """The images as an archive in pieces, where they are at hand."""
    layout = datasets.LAYOUTS["cifar10"][0]
    root = datasets.data_folder()
    if layout.missing(root):
        return f"No images: {root} holds no {layout.folder} (SSLBOOK_DATA names the folder that does)"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{IMAGES}.*"):
        old.unlink()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name in layout.md5:
            archive.add(root / layout.folder / name, f"{layout.folder}/{name}")
    data = whole.getvalue()
    parts = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
    for number, part in enumerate(parts, 1):
        (folder / f"{IMAGES}.{number:02d}-of-{len(parts):02d}").write_bytes(part)
    return f"CIFAR-10 in {len(parts)} pieces, {len(data) / 2**20:.0f} MiB: {folder}"


# -- on the other machine ---------------------------------------------------------------------------------------------


def unpack(bundles: Sequence[Path], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Install what is missing here into ``folder``, unpack the images; variables for the steps, and sentences to print.

    Each of ``bundles`` may have a part of the pieces alone: what was taken from others, also in earlier calls, is in ``folder``.
    Raises InputError for a folder that has none of a bundle's parts, for another Python's, and for damaged pieces.
    """
    site = folder / "site"
    said = []
    for bundle in bundles:
        wheels, pieces = sorted((bundle / "wheels").glob("*.whl")), sorted((bundle / "images").glob(f"{IMAGES}.*"))
        if not wheels and not pieces:
            raise InputError(
                f"--from: {bundle} holds no wheels and no images; sslbook gpu --bundle writes such a folder"
            )
        absent = [wheel for wheel in wheels if not _installed(wheel)]
        for wheel in absent:
            _install(wheel, site)
        if wheels:
            said.append(f"{len(absent)} of {len(wheels)} packages taken from the bundle; the others are here")
        for piece in pieces:
            (folder / "pieces").mkdir(parents=True, exist_ok=True)
            shutil.copy(piece, folder / "pieces" / piece.name)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(site)]))
    variables = {"PYTHONPATH": path}
    told = _unpack_images(folder / "pieces", folder / "images")
    if told is None:
        variables["SSLBOOK_DATA"] = str(folder / "images")
    return variables, said + ([told] if told else [])


def _installed(wheel: Path) -> bool:
    """Whether this Python has the wheel's package, in whatever version."""
    try:
        metadata.distribution(parse_wheel_filename(wheel.name)[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def _install(wheel: Path, site: Path) -> None:
    """Unzip a wheel, which is what installing without scripts comes to; there may be no pip.  InputError for another Python's."""
    _, version, _, tags = parse_wheel_filename(wheel.name)
    if tags.isdisjoint(sys_tags()):
        raise InputError(
            f"--from: {wheel.name} is not for this Python, {platform.python_version()}: see --python of --bundle"
        )
    if not list(site.glob(f"{wheel.name.partition('-')[0]}-{version}.dist-info/RECORD")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)


def _unpack_images(pieces: Path, folder: Path) -> str | None:
    """Put the pieces together, unless that is done; a sentence if some are missing.  The files are checked when they are read."""
    layout = datasets.LAYOUTS["cifar10"][0]
    if not layout.missing(folder):
        return None
    there = sorted(pieces.glob(f"{IMAGES}.*"))
    counts = {int(path.name.rpartition("-")[2]) for path in there}
    if len(counts) > 1:
        raise InputError(f"--from: pieces of two archives are in {pieces}; remove the older ones")
    if not there or len(there) < max(counts):
        return f"No images: {len(there)} of {max(counts, default='the')} pieces of {IMAGES} are here"
    whole = b"".join(piece.read_bytes() for piece in there)
    fresh = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        # whole, so that its checksum is compared: tarfile stops at the last file, and random damage can look like one
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(whole))) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it from 3.11.4 on
            archive.extractall(fresh)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"--from: the pieces in {pieces} make no archive ({error}); remove them and bring them anew"
        ) from None
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    shutil.rmtree(pieces)
    return None
