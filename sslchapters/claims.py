"""What a chapter calls: `begin` opens its run, `claim` asserts a number, `measure` reports one.

The order in a chapter::

    scale, seed, device = "quick", 0, "auto"          # the cell tagged `parameters`
    run = begin("covariance", scale=scale, seed=seed, device=device)
    trials = run.pick(quick=20, paper=200)
    claim("thm3-gap", gap, below=1e-12, rivals={"views not averaged": other_gap}, id="A-Thm3")
"""

from __future__ import annotations

import math
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from IPython import get_ipython
from IPython.display import display

from sslbook._check import require_one_of, require_whole
from sslbook._machine import device_name
from sslchapters import plots
from sslchapters.intervals import Interval
from sslchapters.records import versions
from sslchapters.running import BOOK, DEVICES, LENIENT, SCALES, device_kind
from sslchapters.values import GLUE_PREFIX, RECORD_KEY, Criterion, Number, Value, badge, line

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One execution of one chapter: its name, its scale, its seed and the device that it computes on."""

    chapter: str
    scale: str
    seed: int
    device: torch.device

    def pick(self, *, quick: T, paper: T) -> T:
        """The argument that belongs to this run's scale: ``run.pick(quick=20, paper=200)``."""
        return quick if self.scale == "quick" else paper


@dataclass
class Session:
    """What must be remembered between calls, the one piece of state here, because cells share nothing but the kernel.

    ``watchers`` are called when a number comes: the lines of `this_run`, which show it.  ``exercises``: which are done, by name.
    """

    run: Run | None = None
    strict: bool = False
    exercises: dict[str, bool] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)  # the cell that is running
    numbers: dict[str, Number] = field(default_factory=dict)
    watchers: dict[tuple[str, ...], Callable[[], None]] = field(default_factory=dict)


session = Session()


def begin(chapter: str, *, scale: str = "quick", seed: int = 0, device: str = "auto") -> Run:
    """Open a chapter's run: seed every generator, choose the device, set the threads and the figures' style.

    ``device="auto"`` takes CUDA where there is one. ``SSLBOOK_THREADS``, if set, is the number of threads that torch
    uses; one thread per kernel keeps sums in one order, and so reproducible.

    Raises ValueError for an unknown scale or device, for ``device="cuda"`` without CUDA, for a seed outside [0, 2^32), and for what
    papermill was given and no notebook knows; TypeError for a seed that is not an int; RuntimeError where Python leaves out
    assertions, which are the book's checks.
    """
    if not __debug__:
        raise RuntimeError(
            "this Python leaves out assertions, and so the book's checks: start it without -O, and without PYTHONOPTIMIZE"
        )
    require_one_of("scale", scale, SCALES)
    require_whole("seed", seed, least=0, most=2**32 - 1)
    require_one_of("device", device, DEVICES)
    run = Run(chapter, scale, seed, torch.device(device_kind(device)))
    if threads := os.environ.get("SSLBOOK_THREADS"):
        torch.set_num_threads(int(threads))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - chapters may use code that draws from the global stream
    torch.manual_seed(seed)
    plots.style()
    warnings.filterwarnings("ignore", "views hold one view")  # a chapter does it on purpose, and says so
    session.run, session.strict = run, False
    session.numbers.clear()
    session.exercises.clear()
    session.started = time.perf_counter()
    if (shell := get_ipython()) is not None:
        session.strict = _strict(run, shell.user_ns)
        shell.events.register("pre_run_cell", _cell_begins)  # once: IPython knows what it has
    return run


def _strict(run: Run, names: Mapping[str, Any]) -> bool:
    """Whether a reader's notebook, with the variables ``names``, is to hold its numbers, as ``papermill -p strict true`` asks.

    Raises ValueError for another seed or scale than the book's, and for a parameter that there isn't: papermill would go on.
    """
    known: list[str] = []
    for cell in names.get("In", ()):
        set_here = re.findall(r"^(\w+) =", cell, re.MULTILINE)
        for given in set_here if cell.startswith("# Parameters\n") else ():  # as papermill begins a cell of its own
            require_one_of("parameter", given, known)
        known += set_here
    strict = str(names.get("strict", False)).lower()
    require_one_of("strict", strict, ("true", "false"))
    if strict == "true" and (run.scale, run.seed) != BOOK:
        words = (
            f"the book's numbers are those of scale {BOOK[0]!r} and seed {BOOK[1]}, got {run.scale!r} and {run.seed}"
        )
        raise ValueError(f"strict: {words}; leave strict out, and the claims alone are held")
    return strict == "true"


def _cell_begins(info: Any) -> None:
    """IPython says when a cell begins, so that a number knows the seconds since then."""
    session.started = time.perf_counter()


def claim(
    name: str,
    value: Any,
    *,
    id: str | None,
    of: str | None = None,
    what: str | None = None,
    expect: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    below: Any = None,
    above: Any = None,
    rejects: Mapping[str, Any] | None = None,
    rivals: Mapping[str, Any] | None = None,
    why: str | None = None,
) -> float:
    """Assert a number, glue it for the prose, and record it for the regression and the ledger.

    The value passes if ``|value - expect| <= atol + rtol |expect|`` (with ``expect``), ``value <= below`` and
    ``value >= above`` (with those); an `sslchapters.intervals.Interval` passes if the whole of it does, and is glued as four
    numbers: ``name`` (the mean), ``name-low``, ``name-high`` and ``name-n``.

    ``what`` says in a few words what the value is, as the page shows it: "step by listing against the operator, largest error".
    ``rivals`` maps the strongest wrong theories to the value that each of them gives; the page shows them beside the check.
    ``rejects`` maps what was deliberately broken to the value measured on the broken variant. Each of both must fail the
    same test, or the check could not fail.

    ``value`` may be a mapping, of a run's name to its value, and ``of`` the name of the run that the claim is about. Then every
    other run is a rival, and one that passes is shown as passing: what is claimed holds for it too. At least one rival or
    broken variant must fail. ``id`` is the claim's id in the ledger, None for a check that belongs to no claim
    of the papers; ``why`` is one sentence on the choice of criterion.

    ``value`` and the values of ``rivals`` and ``rejects`` may be Python, NumPy or torch scalars or intervals, ``expect`` and
    the bounds such scalars. Returns the value (of an interval the mean) as a Python number. Raises AssertionError if the value
    fails (NaN and infinities always do), or a rival or a broken variant passes: but while the book is built, the failed check
    goes onto its page, and the chapter runs on. Raises ValueError if there is no criterion, no tolerance for ``expect``, or
    neither ``rivals`` nor ``rejects`` for an ``id``.
    """
    runs = {} if of is None else {run: _scalar(f"value[{run!r}]", each)[0] for run, each in value.items() if run != of}
    result, dtype = _scalar("value", value if of is None else value[of])
    given = {"expect": expect, "rtol": rtol, "atol": atol, "below": below, "above": above}
    test = Criterion(**{part: _scalar(part, v)[0] for part, v in given.items() if v is not None})
    if not test.asserts:
        raise ValueError(f"claim {name!r}: nothing to test; give expect (with rtol or atol), below or above")
    if (expect is None) != (rtol is None and atol is None):
        raise ValueError(f"claim {name!r}: expect and its tolerance (rtol, atol) belong together; one is not given")
    broken = {what: _scalar(f"rejects[{what!r}]", v)[0] for what, v in (rejects or {}).items()}
    wrong = {what: _scalar(f"rivals[{what!r}]", v)[0] for what, v in (rivals or {}).items()}
    if (id is not None or runs) and not broken and not wrong and all(test.passes(each) for each in runs.values()):
        raise ValueError(
            f"claim {name!r}: rivals and rejects are missing; give {{wrong theory: the value that it gives}} or {{what was "
            "broken: the value measured on it}, so that the check is seen to fail"
        )
    number = _number(
        name, result, id, dtype, test, rejects=broken, rivals=wrong | runs, runs=tuple(runs), why=why, what=what
    )
    if number.failure and not os.environ.get(LENIENT):
        raise AssertionError(f"{name} ({id}): {number.failure}" if id else f"{name}: {number.failure}")
    return _publish_all(number)


def measure(
    name: str,
    value: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    random: bool = False,
    id: str | None = None,
) -> float:
    """Glue a number for the prose without asserting it here; the regression holds it to its recorded value.

    It may be off by one part in 10⁵, or by half its last printed digit (`sslchapters.values.allowed`). A long run that
    amplifies rounding needs more: ``random=True`` compares a mean over seeds by its interval, and for a single value ``rtol``
    and ``atol`` say ``|value - recorded| <= atol + rtol |recorded|``. Scalars, intervals and errors as in `claim`.
    """
    result, dtype = _scalar("value", value)
    if not isinstance(result, Interval) and not math.isfinite(result):
        raise AssertionError(f"{name}: {result!r} is not a finite number")
    if random and not isinstance(result, Interval):
        raise ValueError(
            f"{name}: random: a mean over seeds is needed (an Interval), got {result!r}; give atol or rtol"
        )
    return _publish_all(_number(name, result, id, dtype, Criterion(None, rtol, atol), random=random))


def _scalar(argument: str, value: Any) -> tuple[Any, str]:
    """A Python, NumPy or torch scalar as ``(Python number, dtype)``; an int stays an int, so that counts print as counts.

    An interval stays as it is.
    """
    if isinstance(value, Interval):
        return value, "float"
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if getattr(value, "shape", ()) != ():
        raise TypeError(f"{argument}: got an array of shape {tuple(value.shape)}; one number is needed")
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise TypeError(f"{argument}: got {plain!r} ({type(plain).__name__}); a real number is needed")
    return plain, dtype


def _number(name: str, result: Value, id: str | None, dtype: str, test: Criterion, **rest: Any) -> Number:
    """The full record of a number of the run in progress. That its name is unique is seen by whoever reads the notebook."""
    run = session.run
    if run is None:
        raise RuntimeError(f"{name}: no run is open; call begin(...) first")
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):  # ':' would be read as a format by {glue:text}
        raise ValueError(f"name: got {name!r}; allowed are letters, digits, '-', '_' and '.', beginning with a letter")
    if isinstance(result, Interval):
        rest |= {"low": result.low, "high": result.high, "n": result.n}
    return Number(
        name=name,
        value=result.mean if isinstance(result, Interval) else result,
        id=id,
        chapter=run.chapter,
        scale=run.scale,
        seed=run.seed,
        device=run.device.type,
        device_name=device_name(run.device),
        dtype=dtype.removeprefix("torch."),
        seconds=round(time.perf_counter() - session.started, 3),
        versions=versions(),
        **asdict(test),
        **rest,
    )


def _publish_all(number: Number) -> float:
    """Publish a number; of an interval its ends too, each held as the mean is, and how many values it is from, exactly."""
    _publish(number)
    if isinstance(number.result, Interval):
        gone: dict[str, Any] = {"rivals": {}, "rejects": {}, "runs": (), **dict.fromkeys(("low", "high", "n", "why"))}
        part = replace(number, part_of=number.name, **gone)
        for end in ("low", "high"):
            _publish(replace(part, name=f"{number.name}-{end}", value=getattr(number.result, end)))
        exactly = asdict(Criterion(atol=0.0))
        _publish(replace(part, name=f"{number.name}-n", value=number.result.n, dtype="int", **exactly))
    return number.value


def _publish(number: Number) -> None:
    """Send the number to the notebook, if there is one: once for the prose and the tools, once for the reader's eye."""
    if get_ipython() is not None:
        glue = {"name": number.name, "mime_prefix": GLUE_PREFIX}
        display(
            {f"{GLUE_PREFIX}text/plain": repr(number.value)},
            metadata={"scrapbook": glue, RECORD_KEY: number.to_json()},
            raw=True,
        )
        if number.criterion.asserts and number.part_of is None:
            display({"text/plain": line(number), "text/html": badge(number)}, raw=True)
    session.numbers[number.name] = number
    for refresh in list(session.watchers.values()):
        refresh()
