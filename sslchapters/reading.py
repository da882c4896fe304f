"""What a reader's notebook calls: `this_run` and `sum_up` compare its numbers with the book's, `check` an exercise's answer.

The numbers are those of `sslchapters.claims`, in the run that `begin` opened there.  And `ask`, which needs no kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from IPython import get_ipython
from IPython.display import display

from sslbook._check import counted
from sslchapters import claims
from sslchapters.intervals import Interval
from sslchapters.plots import display_html
from sslchapters.running import BOOK
from sslchapters.values import ROLES, Number, allowed, apart, literal, parts, printed, short, typeset


def this_run(*text: str) -> None:
    """Show, below a text, this run's values of the numbers in it, where they are printed otherwise; and keep them up to date.

    Each of ``text`` is ``name:format=value``: a number of this chapter, how the text prints it, and the book's value; before the
    name stands its role, if it is another than ``glue:text`` (`sslchapters.values.spec` writes it). The line names the run,
    puts each new value beside the printed one, in the order of the text, and in bold where a check fails or a measured number is
    off by more than it may be; with the book's own seed and scale, where it should not, it says what that is. It is empty while the
    run has none of the numbers, and says so if all are as printed. Written by the build into the notebooks.
    """
    shown = run_line(text)
    handle = _display(shown)

    def refresh() -> None:
        nonlocal shown
        now = run_line(text)
        if handle is not None and now != shown:
            shown = now
            handle.update(_mime(now), raw=True)

    claims.session.watchers[text] = refresh


def sum_up(*text: str) -> None:
    """Show at a notebook's end how many numbers of its text are others in this run, and how many exercises are done.

    ``text`` are the measured numbers that it doesn't print, as for `this_run`. With ``strict`` among the notebook's parameters,
    raises AssertionError for those, printed or not, that are beyond what the book holds them to.
    """
    told = list(beside(one for watched in claims.session.watchers for one in watched))
    wrong = [one for one in [*told, *beside(text)] if one.beyond]
    others, done = sum(one.here != one.there for one in told), claims.session.exercises
    said = f"{counted(len(told), 'number')} in the text, {others or 'none'} printed otherwise; "
    said += f"**{len(wrong) or 'none'}** beyond what is held."
    if not told:
        said = "no number of the text has been computed yet: run the cells above."
    _display(
        f"*In all ({_where()}):* {said}"
        + (f" Exercises done: {sum(done.values())} of {len(done)} whose cells ran." if done else "")
    )
    if claims.session.strict and wrong:
        lines = [f"{one.number.name}: {one}".replace("**", "") for one in wrong]
        raise AssertionError("\n  ".join(["strict: beyond what the book's numbers are held to:", *lines]))


class Beside(NamedTuple):
    """A number of a text: how this run would print it, how the book does, its record, and what it may be off."""

    here: str
    there: str
    number: Number
    may: float
    beyond: bool

    def __str__(self) -> str:
        """What is printed otherwise: ``0.53 where the book has 0.51``; bold if it is beyond what it may be."""
        run = claims.session.run
        known = self.beyond and not self.number.criterion.asserts and run is not None and (run.scale, run.seed) == BOOK
        held = f" (it is held to ± {typeset(short(self.may))})" if known else ""
        return f"{f'**{self.here}**' if self.beyond else self.here} where the book has {self.there}{held}"


def beside(text: Iterable[str]) -> Iterator[Beside]:
    """The numbers that a text asks for, as far as this run has them."""
    found = claims.session.numbers
    values = {name: number.value for name, number in found.items()}
    for told in dict.fromkeys(text):
        asked, _, stored = told.rpartition("=")
        key, _, form = asked.partition(":")
        role, name = key.split(" ") if " " in key else (ROLES[0], key)
        known = literal(stored)
        book = dict(zip(parts(role, name), known if isinstance(known, tuple) else (known,), strict=True))
        if book.keys() <= found.keys():
            number, was = found[name], Interval(*known) if isinstance(known, tuple) else known
            may = allowed(number, was, [form])
            beyond = bool(number.failure) or (not number.criterion.asserts and not apart(number, was) <= may)
            yield Beside(printed(role, name, form, values), printed(role, name, form, book), number, may, beyond)


def run_line(text: tuple[str, ...]) -> str:
    """The line of `this_run` as it is now, in Markdown."""
    told = list(beside(text))
    news = [str(one) for one in told if one.here != one.there]
    if not told:
        return ""
    if not news:
        return f"✓ *This run ({_where()}): the same.*"
    others = "; the others as printed." if len(news) < len(told) else "."
    return f"↻ *This run ({_where()}):* {'; '.join(dict.fromkeys(news))}{others}"


def _where() -> str:
    run = claims.session.run
    return f"{run.scale}, seed {run.seed}, {run.device.type}" if run else "not begun"


def _display(markdown: str) -> Any:
    """Show a line and return the handle to change it; None outside a notebook."""
    return None if get_ipython() is None else display(_mime(markdown), raw=True, display_id=True)


def _mime(markdown: str) -> dict[str, str]:
    return {"text/markdown": markdown, "text/plain": markdown.replace("*", "")}


# --- a box on the page that takes a reader's number: for warm-ups, predictions, and the step that is wrong ------------


def ask(
    answer: float, *, computed: float, wrong: Mapping[str, float], within: float = 0.005, shown: str = "{:.3g}"
) -> None:
    r"""Show a box that takes the number ``answer``, and says what went wrong with those that a reader may well give instead.

    ``answer`` is what the solution derives by hand, ``computed`` what code finds without it: they must agree to 1e-6, or, for a
    measured answer such as a prediction's, to ``within``. ``wrong`` are numbers by the mistake that leads to them, a sentence
    that the reader sees, such as ``{"Centre first, then average.": 2.0}``. A number is taken as right if it is at most
    ``within`` from the answer, as a decimal number or a fraction. Without scripts, and in Jupyter, it is a fold with the number.

    Raises AssertionError where code finds another number, and where fewer than two mistakes are told from the answer.

    >>> ask(4 / 5, computed=0.8, wrong={"Jitter adds to the spread.": 1.25, "It is squared.": 0.64})
    """
    apart = 1e-6 if within <= 0.005 else within
    assert abs(answer - computed) <= apart, f"answer: got {answer}, and code finds {computed}"
    told = sum(abs(number - answer) > 2 * within for number in wrong.values())
    assert told == max(2, len(wrong)), f"wrong: got {dict(wrong)}; two or more, each beyond {2 * within} of {answer}"
    mistakes = escape(json.dumps([[number, words] for words, number in wrong.items()]), quote=True)
    number = escape(shown.format(answer))
    box = (
        f'<div class="sslbook-ask" data-sslbook-ask data-answer="{answer!r}" data-within="{within!r}" data-wrong="{mistakes}">'
        f"<details><summary>The number</summary><p>{number}</p></details></div>"
    )
    display_html(box, "[a box for your number]")


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
    mark, words = _judged(answer, reference, cases, rtol, atol)
    print(mark, name, words)
    claims.session.exercises[name] = mark == "✓"
    return mark == "✓"


def _judged(
    answer: Callable[..., Any], reference: Callable[..., Any], cases: Iterable[Any], rtol: float, atol: float
) -> tuple[str, str]:
    """A mark, ✓ if the answer is right and … if there is none, and what `check` says of it."""
    tried = 0
    for tried, case in enumerate(cases, 1):
        arguments = case if isinstance(case, (tuple, list)) else (case,)
        try:
            given = _parts(answer(*map(_copy, arguments)))
        except NotImplementedError:
            return "…", "is not written yet"
        except Exception as error:  # whatever a reader's code raises is part of the answer
            return "✗", f"raises on case {tried}: {type(error).__name__}: {error}"
        wanted = _parts(reference(*map(_copy, arguments)))
        if len(given) > len(wanted) == 1:  # numbers, in a tuple where the library has an array
            given = [given]
        if problem := _disagreement(given, wanted, rtol, atol):
            return "✗", f"differs from the library on case {tried}: {problem}"
    if tried == 0:
        raise ValueError("cases: got none; at least one tuple of arguments is needed")
    return "✓", f"agrees with the library on {tried} case{'s' if tried > 1 else ''}"


def _disagreement(given: list[Any], wanted: list[Any], rtol: float, atol: float) -> str:
    """What is wrong with the results ``given``, or an empty string."""
    if len(given) != len(wanted):
        return f"it returns {counted(len(given), 'result')} where {len(wanted)} should be"
    for index, (mine, theirs) in enumerate(zip(given, wanted, strict=True)):
        which = f"result {index + 1}: " if len(wanted) > 1 else ""
        array, target = _array(mine), _array(theirs)
        if array is None:
            kinds = ["None (is a return missing?)" if v is None else f"a {type(v).__name__}" for v in (mine, theirs)]
            return f"{which}it returns {kinds[0]} where {kinds[1]} is wanted"
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
    known = ratios.size > 1 and np.any(ratios) and np.isfinite(ratios).all()
    if known and np.ptp(ratios.real) <= 1e-6 * abs(ratios.flat[0]):
        text += f" (every entry is {ratios.flat[0]:.4g} times what is wanted)"
    return text


def _parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _array(value: Any) -> np.ndarray | None:
    """A result as a NumPy array of numbers; None if it is not one."""
    try:
        array = value.numpy(force=True) if hasattr(value, "detach") else np.asarray(value)
    except ValueError:
        return None
    if array.dtype.kind not in "biufc":
        return None
    return array.astype(complex if array.dtype.kind == "c" else float)


def _copy(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value.copy() if isinstance(value, np.ndarray) else value
