"""Numbers as a page prints them: ``3.4e-15`` is 3.4 × 10⁻¹⁵, and a minus is a minus, not a hyphen.

The values themselves and every text for the terminal keep Python's notation; only HTML is typeset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext

_NUMBER = re.compile(r"(?<![\w.])(?P<sign>[-+]?)(?P<digits>\d[\d,_]*(?:\.\d+)?)(?:[eE](?P<power>[-+]?\d+))?(?![\w])")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = "\u00a0×\u00a0"  # no line ends inside a number


def typeset(text: str) -> str:
    """Every number in `text` in typographic form; all else stays.

    ``-3.4e-15`` → ``−3.4 × 10⁻¹⁵``, ``1e-12`` → ``10⁻¹²``, ``2.0e+00`` → ``2.0``.
    Of a zero the minus and the power go: ``0.0e+00`` → ``0``, ``-0.00`` → ``0.00``.
    """
    return _NUMBER.sub(_typeset, text)


def _typeset(match: re.Match[str]) -> str:
    sign = match["sign"].replace("-", "−")
    digits, power = match["digits"], match["power"]
    zero = not digits.strip("0.,_")
    if power is None:
        return digits if zero and sign == "−" else sign + digits
    if zero:
        return "0"
    if int(power) == 0:
        return sign + digits
    scale = "10" + str(int(power)).translate(_RAISED)
    return sign + (scale if digits == "1" else digits + _TIMES + scale)


def formatted(value: float, form: str) -> str:
    """``value`` as ``{glue:text}`` with the format ``form`` prints it in a sentence: MyST-NB's rule, then `typeset`."""
    if form.endswith("s"):
        return typeset(format(str(value), form))
    kind = int if form.endswith(("d", "x", "b", "o")) else float if form.endswith(tuple("eEfFgGn%")) else type(value)
    return typeset(format(kind(value), form))


ROLES = ("glue:text", "interval", "least", "most")
"""What pastes a number into a sentence: as it is, with the ends of its interval, as a lower bound, as an upper bound."""

_ENDS = ("low", "high", "n")
_BOUND = re.compile(r"[-+ ]?(0?\d+)?[,_]?(\.\d+)?[deEfFgG%]")


def parts(role: str, name: str) -> list[str]:
    """The numbers that the role prints of ``name``: of an interval the mean, its ends and n."""
    return [name, *(f"{name}-{end}" for end in _ENDS)] if role == "interval" else [name]


def printed(role: str, name: str, form: str, values: Mapping[str, float]) -> str:
    """What ``{role}`name:form``` prints, of numbers by name: ``0.5``, or ``+1.2 (+0.4 to +2.0, n = 5)`` for an interval.

    A bound keeps its side: ``{least}`` rounds down, ``{most}`` up, and so do the ends of an interval, which the printed one
    holds. Raises KeyError for a number that is not there, ValueError for a format that can't round so.
    """
    if role == "glue:text":
        return formatted(values[name], form)
    if role != "interval":
        return typeset(bound(values[name], form, role))
    mean, low, high, n = (values[part] for part in parts(role, name))
    ends = f"{bound(low, form, 'least')}\u00a0to\u00a0{bound(high, form, 'most')}"
    return typeset(f"{format(float(mean), form)} ({ends}, n\u00a0=\u00a0{n})")


def spec(role: str, name: str, form: str, values: Mapping[str, float]) -> str:
    """What `this_run` is told of a number in the text: ``gap:.1e=1e-15``, or ``interval gain:+.1f=(1.2, 0.4, 2.0, 5)``."""
    book = [values[part] for part in parts(role, name)]
    before = "" if role == ROLES[0] else f"{role} "
    return f"{before}{name}:{form}={tuple(book) if len(book) > 1 else book[0]!r}"


def bound(value: float, form: str, role: str) -> str:
    """``value`` in the format ``form``, rounded down (``least``) or up (``most``) where it has to be rounded.

    The value is the decimal that Python prints of it, in full, so that 0.3 is 0.3; the rounding is exact, and the printed
    number, read again, is never on the other side of the value. Raises ValueError for a format other than d, e, f, g or %.
    """
    if _BOUND.fullmatch(form) is None:
        raise ValueError(f"format: got {form!r}; a bound needs one such as .1f, +.2f, .1e, ,.0f or .0%")
    rounding = {"least": ROUND_FLOOR, "most": ROUND_CEILING}[role]
    with localcontext(Context(prec=800, rounding=rounding)):
        exact = Decimal(repr(value))
        text = format(exact, form[:-1] + ".0f" if form.endswith("d") else form)
    return text if any(digit in text.lower().partition("e")[0] for digit in "123456789") else text.replace("-", "", 1)
