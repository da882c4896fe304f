"""A pipe, a folder, a dangling link or rubbish where a file should be: as if it weren't there, or a sentence that names it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import attacked
import pytest

from sslbook import cli
from sslbook.book import execute, render
from sslbook.images.datasets import load_dataset
from sslbook.images.own import read_images
from sslbook.records.store import kept
from sslbook.training.run.checkpoints import load

ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "itself": lambda path: path.symlink_to(path.name),
    "nothing": Path.touch,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "half": lambda path: path.write_text('{"numbers": ['),
    "a list of words": lambda path: path.write_text('["a", "b"]'),
}
BOOK = (
    *("_toc.yml", "_config.yml", "chapters/one.md", "chapters/references.bib", "data/claims.yml", "data/functions.yml"),
    *("data/expected/one.quick.json", "requirements.lock", "_build/executed/quick/one.ipynb", "_build/html.stamp.json"),
    "_build/.lock.told",
)
RUN = ("log.csv", "result.json", "step-000000024.pt", "diverged", "curves")
TRIED = random.Random(0).sample([(name, odd) for name in (*BOOK, *RUN) for odd in ODD], 40)
NOT_HERE = "there was no reason to stop before the work begins"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which everything has been made once, by this process."""
    root = attacked.make_checkout(tmp_path_factory.mktemp("whole") / "book")
    with contextlib.chdir(root):
        assert [cli.main(line) for line in attacked.COMMANDS.values()] == [0, 0]
    return root


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Whoever waits for a pipe is woken by an error."""

    def wake(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def replaced(path: Path, aside: Path) -> Iterator[None]:
    """Something else in a file's place, for a while."""
    there = path.is_file()
    if there:
        path.rename(aside)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if there:
            aside.rename(path)


@pytest.mark.parametrize(("name", "odd"), TRIED)
def test_an_odd_file_ends_no_command_in_a_traceback(
    name: str,
    odd: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise render.RenderError(NOT_HERE)

    monkeypatch.setattr(render, "_jupyter_book", refuse)
    monkeypatch.setattr(execute, "_run_all", lambda *_: [execute.Outcome("one", "failed", error=NOT_HERE)])
    monkeypatch.chdir(whole)
    path = whole / name if name in BOOK else next((whole / "runs").glob("digits-byol-s0-*")) / name
    lines = [attacked.COMMANDS["train"]] if name in RUN else [(*attacked.COMMANDS["build"], "--root", str(whole))]
    lines += [("inspect", str(path), "digits", "--images", "8", "--out", "report")] * name.endswith(".pt")
    with replaced(path, aside=tmp_path / "aside"):
        ODD[odd](path)
        for line in lines:
            try:
                status = cli.main(line)
            except SystemExit as stop:  # argparse's own way out
                status = int(stop.code or 0)
            said = "".join(capsys.readouterr())
            assert status in (0, 1, 2)
            assert "Traceback" not in said
            assert status != 2 or path.name in said, said


READERS: dict[str, Callable[[Path], object]] = {
    "a data set": lambda folder: load_dataset("cifar10", "train", folder=folder),
    "pictures": lambda folder: read_images(folder / "cifar-10-batches-py"),
    "a checkpoint": lambda folder: load(folder / "cifar-10-batches-py/data_batch_1"),
    "a part of a record": lambda folder: kept(folder / "cifar-10-batches-py", dict),
}


@pytest.mark.parametrize("odd", ["pipe", "folder", "dangling link", "itself"])
@pytest.mark.parametrize("reader", READERS)
def test_the_library_reads_files_alone(reader: str, odd: str, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "one.png"):
        ODD[odd](tmp_path / "cifar-10-batches-py" / name)
    with pytest.raises((ValueError, OSError), match="cifar-10-batches-py"):
        READERS[reader](tmp_path)
