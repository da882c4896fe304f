"""The command ``sslbook gpu``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from sslbook import data_files
from sslbook.arguments import InputError
from sslbook.bench.gpu import bundle, drive, machine, merge, report
from sslbook.bench.gpu.desk import Desk
from sslbook.bench.gpu.plan import Step, choose
from sslbook.book.layout import find_book

MINUTES = 25.0
OUT = Path("_build/gpu")
TINY_OUT = Path("_build/gpu-tiny")


def main(arguments: Sequence[str]) -> int:
    """Work through the plan, or prepare for it, or bring in what it gave; exit status 1 if something failed, 2 for bad input."""
    begun, options = time.monotonic(), _parser().parse_args(arguments)
    try:
        if options.bundle is not None:
            for line in bundle.write(options.bundle, python=options.python):
                print(line, flush=True)
            return 0
        if options.merge is not None:
            return _merge(options.merge, update=options.update_expected)
        return _work(options, begun + 60 * options.minutes)
    except OSError as error:
        raise InputError(str(error)) from None


def _work(options: argparse.Namespace, ends: float) -> int:
    steps = choose(options.only)
    try:
        here = machine.find(options.device)
    except InputError as error:
        if not options.plan:
            raise
        print(error, file=sys.stderr)  # the plan can be told anyway
    else:
        print(here, flush=True)
    print(_plan_as_text(steps, options.tiny, options.minutes), flush=True)
    if options.plan:
        return 0
    out = (options.out or (TINY_OUT if options.tiny else OUT)).resolve()
    desk = Desk(out, options.device, options.tiny)
    desk.begin(here)
    if data_files.commit() is None:
        print("The commit is unknown, and will be in the records: set SSLBOOK_COMMIT, or work in a clone.", flush=True)
    try:
        with FileLock(out / ".lock", blocking=False):
            return _begun(desk, steps, options.bundle_from, ends)
    except Timeout:
        raise InputError(f"--out: in {out} another sslbook gpu is at work") from None


def _begun(desk: Desk, steps: Sequence[Step], bundles: Sequence[Path], ends: float) -> int:
    environment = {"SSLBOOK_RUNS": str(desk.runs)}
    if given := os.environ.get("SSLBOOK_DATA"):
        environment["SSLBOOK_DATA"] = str(Path(given).expanduser().resolve())  # steps work in other folders
    more, said = bundle.unpack(bundles, desk.folder) if bundles else ({}, [])
    environment |= more
    print("".join(f"{line}\n" for line in said), end="")
    print(f"In {desk.folder}; the same command goes on where this one is stopped.\n", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)
        report.pack(desk)  # so that whatever comes next, what is done can be carried

    with drive.heard():
        outcomes = drive.work_through(desk, steps, ends, environment, say)
    archive = report.pack(desk)
    print(f"\n{report.table(desk, steps)}\n")
    for outcome in outcomes:
        if outcome.status != drive.DONE:
            print(f"{outcome.step}: {outcome.status}: {outcome.why}")
    wrong = report.wrong(desk)
    print("".join(f"{line}\n" for line in wrong), end="")
    print(f"To carry: {archive}. Where the book is built: sslbook gpu --merge {archive.name}")
    nothing = all(outcome.status == drive.SKIPPED for outcome in outcomes)
    return int(nothing or bool(wrong) or any(outcome.status == drive.FAILED for outcome in outcomes))


def _plan_as_text(steps: Sequence[Step], tiny: bool, minutes: float) -> str:
    """A line a step with its predicted seconds, and how far they come together."""
    lines, total = [], 0.0
    for step in steps:
        seconds = step.tiny if tiny else step.seconds
        total += seconds
        late = " (not all of it in this time)" if total > 60 * minutes else ""
        lines.append(f"  {step.name:<9} {seconds:>6.0f} s  {step.what}{late}")
    where = "two cores, tiny" if tiny else "one H100"
    return "\n".join([f"The plan, with the seconds predicted on {where}; {minutes:g} minutes:", *lines])


def _merge(place: Path, *, update: bool) -> int:
    book = find_book()
    with merge.desk_in(place) as desk:
        merged = merge.merge(desk, book, update=update)
    for path in merged.written:
        print(f"Written: {book.shown(path)}")
    for sentence in merged.differing:
        print(f"  {sentence}")
    if merged.differing and not update:
        print("The expected numbers stay as they are; --update-expected takes those of the GPU.")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslbook gpu", description="Work through all that the book wants of a GPU, in order of worth."
    )
    parser.add_argument("--minutes", type=_minutes, default=MINUTES, metavar="M", help="how long (default: 25)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where to work, and go on (default: {OUT})")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what computes (default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="the same steps in minutes on two cores, to try them out")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        dest="bundle_from",
        help="take packages and images from a bundle, or from parts of one",
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--bundle", type=Path, metavar="DIR", help="write what a machine without a network may lack")
    other.add_argument(
        "--merge", type=Path, metavar="DIR", help="bring a folder's results, or results.zip, into the book"
    )
    parser.add_argument(
        "--python", default="3.12", metavar="3.N", help="with --bundle: of that machine (default: 3.12)"
    )
    parser.add_argument("--update-expected", action="store_true", help="with --merge: take numbers that differ")
    return parser


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value
