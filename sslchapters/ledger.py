"""The ledger of the claims: what the papers say, what became of it, and the checks that stand behind it; ``sslbook ledger``.

`data/claims.yml` says what is owed and what the verdict is; the executed notebooks, where there are any, say what was checked.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sslbook._check import InputError, unknown
from sslchapters import data_files
from sslchapters.data_files import read_yaml
from sslchapters.running import SCALES
from sslchapters.values import Number, numbers

KINDS = {"I": "identity", "B": "bound", "L": "limit", "D": "dynamics", "T": "table or figure"}

VERDICTS: Mapping[str, str] = {
    "holds": "the claim is right as the paper states it",
    "holds with the correction": "the claim is right once a factor, sign or hypothesis is corrected, and we compute both versions",
    "fails as stated": "a counterexample shows that the claim, or a part of it, is false",
    "trend holds, numbers differ": "our runs of a table's size show its trend, but not its numbers",
    "trend holds in miniature": "our runs show a table's trend, but they are far smaller than the table's",
    "trend holds, no numbers to compare": "our runs show the trend of a figure without numbers; the note says where they do not",
    "trend not seen in miniature": "our runs are far smaller than a table's and do not show its trend",
    "undecided in miniature": "our runs are far smaller than a table's and do not decide whether its trend holds",
    "beyond the papers": "the papers do not make this claim, and the book measured it",
    "open": "no run of the claim's size has been made, and the note says what a check would need",
}
"""What a claim can come to, and what each word means."""

PAPERS = {"A": "tian2020", "B": "tian2021iclr", "C": "tian2023"}
"""What the first letter of an id stands for: keys of the bibliography."""


@dataclass(frozen=True)
class Claim:
    """One line of `data/claims.yml`; ``errata`` is the label of its entry in the errata, if it has one."""

    id: str
    paper: str
    statement: str
    chapter: str
    kind: str
    verdict: str
    note: str = ""
    errata: str = ""

    def __post_init__(self) -> None:
        for field, allowed in {"kind": KINDS, "verdict": VERDICTS, "paper": PAPERS}.items():
            if (given := getattr(self, field)) not in allowed:
                raise unknown(f"{self.id}: {field}", given, allowed)


@dataclass(frozen=True)
class Entry:
    """A claim with the numbers that carry its id, in the order of the book: checks first, then plain measurements."""

    claim: Claim
    numbers: tuple[Number, ...] = ()

    @property
    def checks(self) -> tuple[Number, ...]:
        """The numbers that assert something."""
        return tuple(number for number in self.numbers if number.criterion.asserts)


def read_claims(path: Path) -> list[Claim]:
    """The claims in file order. Raises InputError for a missing or unknown field, kind or verdict, or an id given twice."""
    claims = []
    for row in read_yaml(path, list):
        try:
            told = {"note": ""} | row
            claims.append(Claim(**told | {"note": re.sub(r"\{held\}`[^`]*`", "", told["note"])}))  # what a test reads
        except TypeError as error:
            told = row.get("id", row) if isinstance(row, dict) else row
            raise InputError(f"{path.name}: {told}: {error}") from None
    twice = [id for id, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise InputError(f"{path.name}: given twice: {', '.join(twice)}")
    return claims


def numbers_of(notebook: Mapping[str, Any], chapter: str, scale: str) -> list[Number]:
    """The numbers of an executed notebook; raises InputError, naming the chapter, for a name given twice."""
    try:
        return list(numbers(notebook))
    except ValueError as error:
        raise InputError(f"{chapter} ({scale}): {error}") from None


def executed_numbers(executed: Path, chapters: Iterable[str]) -> list[Number]:
    """The numbers of those ``chapters`` that are executed in a folder, which is named after its scale."""
    paths = [path for name in chapters if (path := executed / f"{name}.ipynb").is_file()]
    notebooks = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return [number for name, notebook in notebooks.items() for number in numbers_of(notebook, name, executed.name)]


def join(claims: Iterable[Claim], numbers: Sequence[Number]) -> list[Entry]:
    """Each claim with its numbers."""
    checks_first = sorted(
        numbers, key=lambda number: not number.criterion.asserts
    )  # in the book's order within each kind
    own = {claim: [n for n in checks_first if n.id == claim.id and n.part_of is None] for claim in claims}
    return [Entry(claim, tuple(found)) for claim, found in own.items()]


def as_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """One object for each claim. ``value`` … ``seconds`` are its first check's (null without one); ``checks`` lists all.

    ``expected`` is the expected value, or the bound if there is one only; ``tolerance`` says what was tested, in symbols.
    """
    test = ("expect", "rtol", "atol", "below", "above", "low", "high", "n", "rivals", "rejects", "why", "dtype")
    objects = []
    for entry in entries:
        said = {part: value for part, value in asdict(entry.claim).items() if part not in ("note", "errata")}
        checks: list[dict[str, Any]] = []
        for number in entry.numbers:
            bounds = [bound for bound in (number.below, number.above) if bound is not None]
            stored = number.to_json()
            check = {part: stored[part] for part in ("name", "scale", "value")}
            check["expected"] = number.expect if number.expect is not None else bounds[0] if len(bounds) == 1 else None
            check["tolerance"] = str(number.criterion) or None
            checks.append(check | {part: stored[part] for part in ("device", "seconds", *test)})
        parts = ("scale", "value", "expected", "tolerance", "device", "seconds")
        first = {part: checks[0][part] if checks else None for part in parts}
        objects.append({**said, **first, "note": entry.claim.note or None, "checks": checks})
    return objects


def command(arguments: Sequence[str]) -> int:
    """Show every claim, its verdict and its check."""
    parser = argparse.ArgumentParser(prog="sslbook ledger", description=command.__doc__)
    parser.add_argument("--json", action="store_true", help="as a JSON list")
    parser.add_argument("--scale", choices=SCALES, default="quick", help="whose numbers to show (default: quick)")
    parser.add_argument("--root", type=data_files.book_folder, help=data_files.ROOT)
    options = parser.parse_args(arguments)
    if root := options.root or data_files.root_of():
        chapters = sorted(path.stem for path in (root / "chapters").glob("*.md"))
        claims, checked = root / "data", executed_numbers(root / "_build/executed" / options.scale, chapters)
    else:  # the library alone: it has the claims, and nothing was executed
        claims, checked = data_files.folder(), []
    entries = join(read_claims(claims / "claims.yml"), checked)
    if options.json:
        print(json.dumps(as_json(entries), indent=2, allow_nan=False))
        return 0
    width = max(len(entry.claim.id) for entry in entries)
    for entry in entries:
        first = entry.checks[0] if entry.checks else None
        number = f"  {first.value:.3g} {first.criterion}" if first else ""
        more = f" (and {len(entry.checks) - 1} more)" if len(entry.checks) > 1 else ""
        print(f"{entry.claim.id:<{width}}  {entry.claim.chapter:<13}  {entry.claim.verdict}{number}{more}")
    return 0
