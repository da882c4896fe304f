"""What the library and the book were attacked with, and what gave way: the table that ``make torture`` writes."""

from __future__ import annotations

import json
from typing import Any

from sslbook.arguments import InputError
from sslbook.book.layout import Book

PLACE = "<!-- the table of attacks -->"
"""Where `chapters/reproduce.md` wants the table."""
HEAD = "| Attack | Tried | Silent wrong values | Tracebacks | Survived |\n|---|--:|--:|--:|--:|"
NUMBERS = ("tried", "silent", "tracebacks", "survived")


def read(book: Book) -> dict[str, Any]:
    """What `data/torture.json` holds, empty if it was never made; raises InputError, naming it, if it can't be read."""
    file = book.root / "data" / "torture.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        table(found or {"values": None})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not what make torture writes ({error})") from None
    return dict(found)


def table(found: dict[str, Any]) -> str:
    """The sums as a Markdown table with a line on where they come from; a sentence where there are none."""
    if not found:
        return "Nothing has been counted yet."
    values, origin = found["values"], found["provenance"]
    lines = [f"| {row['attack']} | {' | '.join(f'{row[name]:,}' for name in NUMBERS)} |" for row in values["attacks"]]
    mutants, commit = values["mutants"], str(origin["commit"] or "unknown").partition("+")[0][:10]
    changed = mutants["note"] or f"Of {mutants['tried']} changes of the library, tests caught {mutants['caught']}."
    where = f"Commit `{commit}`, Python {origin['versions']['python']}, torch {origin['versions']['torch']}"
    return "\n".join([HEAD, *lines, "", f"{where}, {origin['seconds'] / 60:.0f} minutes. {changed}"])
