"""What a chapter calls: `begin` opens its run, `claim` asserts a number, `measure` reports one; readers call `this_run`, `check`.

The order in a chapter::

    scale, seed, device = "quick", 0, "auto"          # the cell tagged `parameters`
    run = begin("covariance", scale=scale, seed=seed, device=device)
    trials = run.pick(quick=20, paper=200)
    claim("thm3-gap", gap, below=1e-12, rivals={"views not averaged": other_gap}, id="A-Thm3")
"""

from __future__ import annotations

import math
import os
import platform
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from IPython import get_ipython
from IPython.display import display

import sslbook
from sslbook._check import require_number, require_one_of, require_whole
from sslbook._machine import device_name
from sslchapters import plots
from sslchapters.intervals import Interval
from sslchapters.running import DEVICES, LENIENT, SCALES, device_kind
from sslchapters.values import (
    GLUE_PREFIX,
    RECORD_KEY,
    ROLES,
    Criterion,
    Number,
    Value,
    allowed,
    apart,
    badge,
    line,
    literal,
    parts,
    printed,
    short,
    typeset,
)

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
class _Session:
    """What this module must remember between calls, the one piece of state here, because cells share nothing but the kernel.

    ``watchers`` are called when a number comes: the lines of `this_run`, which show it.
    """

    run: Run | None = None
    started: float = field(default_factory=time.perf_counter)  # the cell that is running
    numbers: dict[str, Number] = field(default_factory=dict)
    watchers: dict[tuple[str, ...], Callable[[], None]] = field(default_factory=dict)


_session = _Session()


def begin(chapter: str, *, scale: str = "quick", seed: int = 0, device: str = "auto") -> Run:
    """Open a chapter's run: seed every generator, choose the device, set the threads and the figures' style.

    ``device="auto"`` takes CUDA where there is one. ``SSLBOOK_THREADS``, if set, is the number of threads that torch
    uses; one thread per kernel keeps sums in one order, and so reproducible.

    Raises ValueError for an unknown scale or device, for ``device="cuda"`` without CUDA, and for a seed outside [0,
    2^32); TypeError for a seed that is not an int; RuntimeError where Python leaves out assertions, which are the book's checks.
    """
    if not __debug__:
        raise RuntimeError(
            "this Python leaves out assertions, and so the book's checks: start it without -O, and without PYTHONOPTIMIZE"
        )
    if not re.fullmatch(r"[A-Za-z][\w-]*", chapter):
        raise ValueError(f"chapter: got {chapter!r}; allowed is the file's name without .md, such as 'covariance'")
    require_one_of("scale", scale, SCALES)
    require_whole("seed", seed, least=0, most=2**32 - 1)
    require_one_of("device", device, DEVICES)
    run = Run(chapter, scale, seed, torch.device(device_kind(device)))
    if threads := os.environ.get("SSLBOOK_THREADS"):
        if not threads.isdigit() or int(threads) < 1:
            raise ValueError(f"SSLBOOK_THREADS: got {threads!r}; a whole number of threads, at least 1, is needed")
        torch.set_num_threads(int(threads))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - chapters may use code that draws from the global stream
    torch.manual_seed(seed)
    plots.style()
    warnings.filterwarnings("ignore", "views hold one view")  # a chapter does it on purpose, and says so
    _session.run = run
    _session.numbers.clear()
    _session.started = time.perf_counter()
    if (shell := get_ipython()) is not None:
        shell.events.register("pre_run_cell", _cell_begins)  # once: IPython knows what it has
    return run


def _cell_begins(info: Any) -> None:
    """IPython says when a cell begins, so that a number knows the seconds since then."""
    _session.started = time.perf_counter()


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
    runs = {} if of is None else {run: _result(f"value[{run!r}]", each)[0] for run, each in value.items() if run != of}
    result, dtype = _result("value", value if of is None else value[of])
    given = {"expect": expect, "rtol": rtol, "atol": atol, "below": below, "above": above}
    test = Criterion(**{part: _scalar(part, v)[0] for part, v in given.items() if v is not None})
    if not test.asserts:
        raise ValueError(f"claim {name!r}: nothing to test; give expect (with rtol or atol), below or above")
    if (expect is None) != (rtol is None and atol is None):
        raise ValueError(f"claim {name!r}: expect and its tolerance (rtol, atol) belong together; one is not given")
    broken = {what: _result(f"rejects[{what!r}]", v)[0] for what, v in (rejects or {}).items()}
    wrong = {what: _result(f"rivals[{what!r}]", v)[0] for what, v in (rivals or {}).items()}
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
    result, dtype = _result("value", value)
    if not isinstance(result, Interval) and not math.isfinite(result):
        raise AssertionError(f"{name}: {result!r} is not a finite number")
    if random and not isinstance(result, Interval):
        raise ValueError(
            f"{name}: random: a mean over seeds is needed (an Interval), got {result!r}; give atol or rtol"
        )
    return _publish_all(_number(name, result, id, dtype, Criterion(None, rtol, atol), random=random))


def _scalar(argument: str, value: Any) -> tuple[float, str]:
    """A Python, NumPy or torch scalar as ``(Python number, dtype)``; an int stays an int, so that counts print as counts."""
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if getattr(value, "shape", ()) != ():
        raise TypeError(f"{argument}: got an array of shape {tuple(value.shape)}; one number is needed")
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise TypeError(f"{argument}: got {plain!r} ({type(plain).__name__}); a real number is needed")
    return plain, dtype


def _result(argument: str, value: Any) -> tuple[Value, str]:
    """As `_scalar`, or an interval as it is."""
    return (value, "float") if isinstance(value, Interval) else _scalar(argument, value)


def _number(name: str, result: Value, id: str | None, dtype: str, test: Criterion, **rest: Any) -> Number:
    """The full record of a number of the run in progress. That its name is unique is seen by whoever reads the notebook."""
    run = _session.run
    if run is None:
        raise RuntimeError(f"{name}: no run is open; call begin(...) first")
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):  # ':' would be read as a format by {glue:text}
        raise ValueError(f"name: got {name!r}; allowed are letters, digits, '-', '_' and '.', beginning with a letter")
    for part in ("rtol", "atol", "below", "above"):
        if (given := getattr(test, part)) is not None:
            require_number(f"{name}: {part}", given, **({"least": 0} if part in ("rtol", "atol") else {}))
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
        seconds=round(time.perf_counter() - _session.started, 3),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "sslbook": sslbook.__version__,
        },
        **asdict(test),
        **rest,
    )


def _publish_all(number: Number) -> float:
    """Publish a number; of an interval its ends too, each held as the mean is, and how many values it is from, exactly."""
    _publish(number)
    if isinstance(number.result, Interval):
        none: dict[str, Any] = {
            "low": None,
            "high": None,
            "n": None,
            "rivals": {},
            "rejects": {},
            "runs": (),
            "why": None,
        }
        part = replace(number, part_of=number.name, **none)
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
    _session.numbers[number.name] = number
    for refresh in list(_session.watchers.values()):
        refresh()


# --- a reader's notebook beside a run of it ---------------------------------------------------------------------------


def this_run(*text: str) -> None:
    """Show, below a text, this run's values of the numbers in it, where they are printed otherwise; and keep them up to date.

    Each of ``text`` is ``name:format=value``: a number of this chapter, how the text prints it, and the book's value; before the
    name stands its role, if it is another than ``glue:text`` (`sslchapters.values.spec` writes it). The line names the run,
    puts each new value beside the printed one, in the order of the text, and in bold where a check fails or a measured number is
    off by more than it may be; with the book's own seed and scale, where it should not, it says what that is. It is empty while the
    run has none of the numbers, and says so if all are as printed. Written by the build into the notebooks; raises ValueError
    for a text that it didn't write.
    """
    for told in text:
        if "=" not in told or ":" not in told.partition("=")[0]:
            raise ValueError(f"text: got {told!r}; name:format=value is needed")
    shown = run_line(text)
    handle = _display(_mime(shown))

    def refresh() -> None:
        nonlocal shown
        now = run_line(text)
        if handle is not None and now != shown:
            shown = now
            handle.update(_mime(now), raw=True)

    _session.watchers[text] = refresh


def run_line(text: tuple[str, ...]) -> str:
    """The line of `this_run` as it is now, in Markdown."""
    run = _session.run
    found = _session.numbers
    values = {name: number.value for name, number in found.items()}
    news, same = [], 0
    for told in dict.fromkeys(text):
        asked, _, stored = told.rpartition("=")
        key, _, form = asked.partition(":")
        role, name = key.split(" ") if " " in key else (ROLES[0], key)
        known = literal(stored)
        book = dict(zip(parts(role, name), known if isinstance(known, tuple) else (known,), strict=True))
        if not book.keys() <= found.keys():
            continue
        here, there = printed(role, name, form, values), printed(role, name, form, book)
        same += here == there
        if here != there:
            was = Interval(*known) if isinstance(known, tuple) else known
            news.append(_news(here, there, found[name], was, form))
    if run is None or not (news or same):
        return ""
    where = f"{run.scale}, seed {run.seed}, {run.device.type}"
    if not news:
        return f"✓ *This run ({where}): the same.*"
    others = "; the others as printed." if same else "."
    return f"↻ *This run ({where}):* {'; '.join(dict.fromkeys(news))}{others}"


def _news(here: str, there: str, number: Number, was: Value, form: str) -> str:
    """What is printed otherwise: ``0.53 where the book has 0.51``; bold if a check fails, or a measured number is off too far."""
    may = allowed(number, was, [form])
    if number.failure or (not number.criterion.asserts and not apart(number, was) <= may):
        known = (number.seed, number.scale) == (0, "quick") and not number.criterion.asserts
        return f"**{here}** where the book has {there}" + (f" (it is held to ± {typeset(short(may))})" if known else "")
    return f"{here} where the book has {there}"


def _display(data: dict[str, str]) -> Any:
    """Show data and return the handle to change it; None outside a notebook."""
    return None if get_ipython() is None else display(data, raw=True, display_id=True)


def _mime(markdown: str) -> dict[str, str]:
    return {"text/markdown": markdown, "text/plain": markdown.replace("*", "")}


# --- the self-check of an exercise: the reader's function against the library's ---------------------------------------


def check(
    answer: Callable[..., Any],
    reference: Callable[..., Any],
    cases: Iterable[Sequence[Any]],
    *,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    name: str = "your answer",
) -> bool:
    """Call ``answer`` and ``reference`` on the same arguments and say whether their results agree.

    ``cases`` is an iterable of argument tuples; both functions get copies, so that one which changes its arguments in
    place is found out. Results (scalars, NumPy arrays, torch tensors, or tuples of them) agree if their shapes are
    equal and ``|answer - reference| <= atol + rtol |reference|`` everywhere. Prints one line, ``✓ …`` or ``✗ …``, and
    returns whether all cases agree. Raises ValueError if there are no cases: a check of nothing would pass.
    """
    tried = 0
    for tried, case in enumerate(cases, 1):
        arguments = case if isinstance(case, (tuple, list)) else (case,)
        try:
            given = _parts(answer(*map(_copy, arguments)))
        except NotImplementedError:
            print(f"… {name} is not written yet")
            return False
        except Exception as error:  # whatever a reader's code raises is part of the answer
            print(f"✗ {name} raises on case {tried}: {type(error).__name__}: {error}")
            return False
        wanted = _parts(reference(*map(_copy, arguments)))
        if problem := _disagreement(given, wanted, rtol, atol):
            print(f"✗ {name} differs from the library on case {tried}: {problem}")
            return False
    if tried == 0:
        raise ValueError("cases: got none; at least one tuple of arguments is needed")
    print(f"✓ {name} agrees with the library on {tried} case{'s' if tried > 1 else ''}")
    return True


def _disagreement(given: list[Any], wanted: list[Any], rtol: float, atol: float) -> str:
    """What is wrong with the results ``given``, or an empty string."""
    if len(given) != len(wanted):
        return f"it returns {len(given)} results where {len(wanted)} are wanted"
    for index, (mine, theirs) in enumerate(zip(given, wanted, strict=True)):
        which = f"result {index + 1}: " if len(wanted) > 1 else ""
        array, target = _array(mine), _array(theirs)
        if array is None:
            return f"{which}it returns {_kind(mine)} where {_kind(theirs)} is wanted"
        assert target is not None, "the reference must return numbers"
        if array.shape != target.shape:
            return f"{which}its shape is {array.shape} where {target.shape} is wanted"
        off = ~np.isclose(array, target, rtol=rtol, atol=atol, equal_nan=True)
        if off.any():
            return which + _largest(array, target, off)
    return ""


def _largest(array: np.ndarray, target: np.ndarray, off: np.ndarray) -> str:
    """The worst element in words, with the hints that most often help: a sign, a factor."""
    if np.allclose(array, -target) and np.any(target):
        return "it has the opposite sign"
    gap = np.where(off, np.abs(array - target), -1.0)
    worst = np.unravel_index(int(np.nanargmax(np.where(np.isnan(gap), np.inf, gap))), array.shape)
    text = f"largest difference {abs(array[worst] - target[worst]):.3g}"
    if worst:
        text += f" at {tuple(int(i) for i in worst)}"
    text += f": {array[worst]:.6g} where {target[worst]:.6g} is wanted"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (array / target)[target != 0]
    if ratios.size and np.isfinite(ratios).all() and np.ptp(ratios.real) <= 1e-6 * abs(ratios.flat[0]):
        text += f" (every entry is {ratios.flat[0]:.4g} times what is wanted)"
    return text


def _parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _array(value: Any) -> np.ndarray | None:
    """A result as a NumPy array of numbers; None if it is not one."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.dtype.kind not in "biufc":
        return None
    return array.astype(complex if array.dtype.kind == "c" else float)


def _kind(value: Any) -> str:
    return "None (is a return missing?)" if value is None else f"a {type(value).__name__}"


def _copy(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value.copy() if isinstance(value, np.ndarray) else value
