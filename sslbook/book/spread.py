"""How far a chapter's numbers move when nothing is wrong: on another machine, and with another seed.

``sslbook execute NAME --spread 8 --update-expected`` executes the chapter as processors with AVX2 at most and without AVX would,
with two threads, and with the seeds 100, 200, … 800, and writes beside each number how far it may be off:

- rounding leaves most numbers where they are: ten times what the machines differed by, and never less than the last digits;
- one that rounding moves by more than a millionth (a network trained for hundreds of steps) it may move as far as another seed
  does, by four standard deviations over the seeds, but no farther than the chapter lets it, or than three times what the machines
  differed by: they are draws of it, and their largest difference is no bound of a size that is known.

The runs are kept below ``_build/spread``, so that the command goes on where it was stopped. A tolerance is what was measured, and
nobody's guess.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sslbook.book import regression
from sslbook.book.chapters import Chapter
from sslbook.book.execute import Setting, execute
from sslbook.book.layout import Book
from sslbook.book.values import Criterion, Number
from sslbook.runtime.compute import environment

MACHINES: Mapping[str, Mapping[str, str]] = {
    "AVX2 at most": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
    "no AVX": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "two threads": {"SSLBOOK_THREADS": "2"},
}
"""Other machines, as far as this one can stand in for them: names and environment variables of oneDNN, PyTorch's own kernels, MKL
(PyTorch's matrices) and OpenBLAS (NumPy's and SciPy's)."""
SAFE, AGAIN, DEVIATIONS = 10.0, 3.0, 4.0
CHAOTIC = 1e-6
"""Relative change between machines from which on a number is taken to be as free as with another seed."""
APART = 100
"""From seed to seed: a chapter that trains networks with its seed and the next few shares none of them with itself."""
LAST_DIGITS, NOTHING = 1e-8, 1e-12
"""The least tolerance, relative and absolute: the rounding of a library that none of the machines has."""


@dataclass(frozen=True)
class Moved:
    """A value as it is held, on the other machines, and with other seeds; and how far off the chapter itself lets it be."""

    value: float
    machines: tuple[float, ...]
    seeds: tuple[float, ...]
    stated: float = math.inf

    @property
    def within(self) -> float:
        """How far the value may be off; rounded up to two digits."""
        drift = max((abs(there - self.value) for there in self.machines), default=0.0)
        allowed = max(SAFE * drift, LAST_DIGITS * abs(self.value), NOTHING)
        if drift > CHAOTIC * abs(self.value) and drift > NOTHING and len(self.seeds) > 1:
            allowed = max(AGAIN * drift, min(DEVIATIONS * statistics.stdev(self.seeds), self.stated))
        step = 10.0 ** (math.floor(math.log10(allowed)) - 1)
        return float(f"{math.ceil(allowed / step - 1e-6) * step:.2g}")


def measure(book: Book, chapter: Chapter, setting: Setting, seeds: int, say: Callable[[str], None]) -> list[str]:
    """Execute a chapter elsewhere and with other seeds, and write what moved by how much into its expected file.

    Returns a sentence for each run that came to no end, and for each check that another seed fails: what this chapter says is
    then true of seed 0.
    """
    here = regression.read_numbers(book, chapter.name, setting.scale)
    runs: dict[str, list[Number]] = {}
    said: list[str] = []
    for name, seed, variables in _runs(seeds):
        say(f"running  {chapter.name}: {name} …")
        there = replace(book, out=book.root / "_build/spread" / name.replace(" ", "-"))
        with environment(variables):
            run = replace(setting, seed=seed, lenient=True)
            outcome = execute(there, [chapter], run, jobs=1, say=lambda line: None)[0]
        if outcome.status == "failed":
            said.append(f"{name}: it came to no end: {outcome.error.strip().splitlines()[-1]}")
            continue
        runs[name] = regression.read_numbers(there, chapter.name, setting.scale)
        failed = [n.name for n in runs[name] if n.criterion.asserts and not n.criterion.passes(n.result)]
        said += [f"{name}: {', '.join(failed)} would fail"] if failed else []
    path = book.expected(chapter.name, setting.scale)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["numbers"] = {n.name: _with_tolerances(n, runs) for n in here}
    regression.write(path, content)
    return said


def _runs(seeds: int) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    for name, variables in MACHINES.items():
        yield name, regression.SEED, variables
    for number in range(1, seeds + 1):
        seed = regression.SEED + APART * number
        yield f"seed {seed}", seed, {}


def _with_tolerances(number: Number, runs: Mapping[str, Sequence[Number]]) -> dict[str, Any]:
    """The entry of a number with how far it, its rivals and its broken variants may be off.

    Its value is this run's: one that was held before, and has moved within its tolerance since, would pass for a machine's drift.
    """
    same = {name: next((n for n in found if n.name == number.name), None) for name, found in runs.items()}
    known = {name: n for name, n in same.items() if n is not None}

    def moved(value: float, of: Callable[[Number], float | None], stated: float = math.inf) -> Moved:
        found = {name: of(n) for name, n in known.items()}
        finite = {name: v for name, v in found.items() if v is not None and math.isfinite(v)}
        there = tuple(v for name, v in finite.items() if name in MACHINES)
        return Moved(value, there, tuple(v for name, v in finite.items() if name not in MACHINES), stated)

    entry = regression.entry(number)
    if "value" in entry:
        stated = Criterion(entry["value"], number.rtol, number.atol).allowed()
        entry["within"] = moved(entry["value"], lambda n: n.value, stated).within
    others = {
        what: [value, moved(value, lambda n, what=what: regression.others(n).get(what)).within]  # type: ignore[misc]
        for what, value in regression.others(number).items()
        if math.isfinite(value)
    }
    return entry | ({"others": others} if others else {})
