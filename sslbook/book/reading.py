"""How long a page takes: its words, as somebody reads them, and the seconds of its last run."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes

from sslbook.book.values import RECORD_KEY
from sslbook.runtime.arguments import counted

WORDS_A_MINUTE = 200
LINE = "sslbook-time"
"""The class of the line at the end of a chapter's first box."""

_NOT_PROSE = frozenset(
    {"code-cell", "code-block", "code", "math", "list-table", "table", "csv-table", "figure", "image", "bibliography"}
    | {"toctree", "book-map"}
)
"""Directives whose body is data, code or maths and not sentences."""
_FENCE = re.compile(r"^\s*(?P<fence>`{3,}|:{3,})(?:\{(?P<directive>[\w:-]+)\})?")
_THEOREM = re.compile(r"^```\{prf:theorem\}.*?^```$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines that a reader reads as sentences, numbered from 1, with code, maths, roles and link targets blanked."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|\$\$.*?\$\$", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    open_fences: list[tuple[str, bool]] = []  # the fence, and whether its body is prose
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        closes = re.fullmatch(r"\s*(`{3,}|:{3,})\s*", line)
        if closes and open_fences and closes.group(1) == open_fences[-1][0]:
            open_fences.pop()
            continue
        inside_data = any(not is_prose for _, is_prose in open_fences)
        if fence and not inside_data:
            directive = fence.group("directive")
            open_fences.append((fence.group("fence"), directive is not None and directive not in _NOT_PROSE))
            continue
        if inside_data or re.match(r"\s*(\||:[\w-]+:|%|\([\w-]+\)=)", line):  # table rows, options, comments, labels
            continue
        line = re.sub(r"(\{[\w:-]+\})?(`+).*?\2", "", line)
        line = re.sub(r"\$[^$]*\$", "x", line)
        line = re.sub(r"\]\([^)]*\)|<https?:[^>]*>|https?://\S+", "", line)
        yield number, line


def minutes(text: str) -> float:
    """Reading time of a page's source: its words, and a minute for each displayed formula of a theorem."""
    words: int = sum(len(re.findall(r"[^\W_][\w’'-]*", line)) for _, line in prose(text))
    formulas = sum(match[0].count("$$") // 2 for match in _THEOREM.finditer(text))
    return words / WORDS_A_MINUTE + formulas


@dataclass(frozen=True)
class Time:
    """Minutes to read a page; seconds that its code ran, 0 if nothing says, and on how many threads."""

    minutes: int
    seconds: float = 0.0
    threads: int = 1

    @classmethod
    def of(cls, notebook: Mapping[str, Any]) -> Time:
        """The time of an executed notebook, as parsed JSON: of its text, and of its own record."""
        words = "\n\n".join(_joined(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        record = notebook.get("metadata", {}).get(RECORD_KEY, {})
        threads = int(record.get("parts", {}).get("SSLBOOK_THREADS", 1))
        return cls(max(1, round(minutes(words))), float(record.get("seconds", 0.0)), threads)

    def __str__(self) -> str:
        """For the end of a chapter's first box: ``31 minutes to read · runs in 60 s on one core``."""
        return f"{counted(self.minutes, 'minute')} to read" + (f" · {self.run}" if self.seconds else "")

    @property
    def brief(self) -> str:
        """For the map: ``31 min · runs in 60 s``."""
        return f"{self.minutes} min" + (f" · runs in {self._length('min')}" if self.seconds else "")

    @property
    def run(self) -> str:
        """``runs in 60 s on one core``."""
        cores = "one core" if self.threads == 1 else f"{self.threads} cores"
        return f"runs in {self._length('minutes')} on {cores}"

    def _length(self, unit: str) -> str:
        """The seconds as they come out again: to five from 20 on, from two minutes on in minutes, by ``unit``."""
        if self.seconds >= 120:
            return f"{round(self.seconds / 60)} {unit}"
        step = 5 if self.seconds > 20 else 1
        return f"{max(1, step * round(self.seconds / step))} s"


@functools.lru_cache(maxsize=64)
def time_of(notebook: Path) -> Time:
    """The time of the executed notebook in a file."""
    return Time.of(json.loads(notebook.read_text(encoding="utf-8")))


def tell_time(doctree: nodes.document, time: Time) -> None:
    """Set a chapter's time below the first box of its opening, if it has one."""
    chapter = next((node for node in doctree.children if isinstance(node, nodes.section)), None)
    opening: list[nodes.Node] = []
    for node in chapter.children if chapter is not None else []:
        if isinstance(node, nodes.section):
            break
        opening.append(node)
    box = next((node for node in opening if isinstance(node, nodes.admonition)), None)
    if box is not None:
        box += nodes.paragraph("", str(time), classes=[LINE])


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
