"""Numbers as a page prints them: ``3.4e-15`` is 3.4 × 10⁻¹⁵, and a minus is a minus, not a hyphen.

The values themselves and every text for the terminal keep Python's notation; only HTML is typeset.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![\w.])(?P<sign>[-+]?)(?P<digits>\d[\d,_]*(?:\.\d+)?)(?:[eE](?P<power>[-+]?\d+))?(?![\w])")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = "\u00a0×\u00a0"  # no line ends inside a number


def typeset(text: str) -> str:
    """Every number in `text` in typographic form; all else stays.

    ``-3.4e-15`` → ``−3.4 × 10⁻¹⁵``, ``1e-12`` → ``10⁻¹²``, ``2.0e+00`` → ``2.0``, ``0e+00`` and ``0.0e+00`` → ``0``.
    """
    return _NUMBER.sub(_typeset, text)


def _typeset(match: re.Match[str]) -> str:
    sign = match["sign"].replace("-", "−")
    digits, power = match["digits"], match["power"]
    if power is None:
        return sign + digits
    if not digits.strip("0.,_"):
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
