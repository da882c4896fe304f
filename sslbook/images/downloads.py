"""What is fetched from the authors of a data set, through pooch, checked, and only then put in its place."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sslbook.runtime.arguments import installing

if TYPE_CHECKING:
    from sslbook.images.datasets import Layout


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


def fetch(layout: Layout, root: Path) -> None:
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
