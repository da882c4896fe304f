"""The self-check of an exercise: the reader's function against the library's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


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
    for case in cases:
        tried += 1
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
