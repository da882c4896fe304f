"""Numbers as a page prints them, and which of them a chapter's prose asks for.

``3.4e-15`` is 3.4 × 10⁻¹⁵, and a minus is a minus, not a hyphen. The values themselves and every text for the terminal keep
Python's notation; only HTML is typeset.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from pathlib import Path
from typing import Any, NamedTuple

from sslbook.book.values import GLUE_PREFIX

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

    A bound keeps its side: ``{least}`` rounds down, ``{most}`` up. An interval's ends are rounded to nearest, as its mean is, but
    not to zero. Raises KeyError for a number that is not there, ValueError for a format that can't round so.
    """
    if role == "glue:text":
        return formatted(values[name], form)
    if role != "interval":
        return typeset(bound(values[name], form, role))
    mean, low, high, n = (values[part] for part in parts(role, name))
    ends = "\u00a0to\u00a0".join(_end(end, form, role) for end, role in ((low, "least"), (high, "most")))
    return typeset(f"{format(float(mean), form)} ({ends}, n\u00a0=\u00a0{n})")


def _end(value: float, form: str, role: str) -> str:
    text = format(float(value), form)
    return text if _says_something(text) else bound(value, form, role)


def _says_something(text: str) -> bool:
    """Whether a number has a digit that is not zero."""
    return any(digit in text.lower().partition("e")[0] for digit in "123456789")


def spec(role: str, name: str, form: str, values: Mapping[str, float]) -> str:
    """What `this_run` is told of a number in the text: ``gap:.1e=1e-15``, or ``interval gain:+.1f=(1.2, 0.4, 2.0, 5)``."""
    book = [values[part] for part in parts(role, name)]
    before = "" if role == ROLES[0] else f"{role} "
    return f"{before}{name}:{form}={tuple(book) if len(book) > 1 else book[0]!r}"


def bound(value: float, form: str, role: str) -> str:
    """``value`` in the format ``form``, rounded down (``least``) or up (``most``) where it has to be rounded.

    The value is its first seven digits, which single precision holds, so that 0.030000000000000027 is 0.03; the rounding of these
    is exact. Raises ValueError for a format other than d, e, f, g or %.
    """
    if _BOUND.fullmatch(form) is None:
        raise ValueError(f"format: got {form!r}; a bound needs one such as .1f, +.2f, .1e, ,.0f or .0%")
    rounding = {"least": ROUND_FLOOR, "most": ROUND_CEILING}[role]
    with localcontext(Context(prec=800, rounding=rounding)):
        exact = Decimal(repr(value) if isinstance(value, int) else f"{value:.7g}")
        text = format(exact, form[:-1] + ".0f" if form.endswith("d") else form)
    return text if _says_something(text) else text.replace("-", "", 1)


_ROLE = re.compile(rf"\{{({'|'.join(ROLES)})\}}`([^`]+)`")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n.*?^(?P=fence)`*~*[ \t]*$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"(?<!`)(`{2,})(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_CODE_DIRECTIVES = ("{code", "{literalinclude", "{sourcecode", "{raw", "{math")


def glue(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The glued values of an executed notebook by name."""
    values = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = output.get("data", {}).get(f"{GLUE_PREFIX}text/plain")
            if name is not None and text is not None:
                values[name] = ast.literal_eval("".join(text))
    return values


class Pasted(NamedTuple):
    """A number in a chapter's prose: of which chapter, which, and how the role prints it."""

    chapter: str
    name: str
    form: str
    role: str = "glue:text"


def pasted(text: str, own: str) -> Iterator[Pasted]:
    """Each role that pastes a number into the prose of the chapter ``own``, in order, but not of those in code."""
    for role, content in _ROLE.findall(prose(text)):
        page, name, form = named(content)
        yield Pasted(Path(page).stem if page else own, name, form, role)


def named(content: str) -> tuple[str, str, str]:
    """``(page, name, format)`` of what stands in a role: ``name``, ``name:.1f`` or ``page.md::name:.1f``."""
    key, colon, form = content.rpartition(":")
    if not colon or key.endswith(":"):  # no format: `name` or `page.md::name`
        key, form = content, "s"
    page, found, name = key.partition("::")
    return (page, name, form) if found else ("", key, form)


def prose(text: str) -> str:
    """MyST Markdown without its code cells, code blocks, literals and comments; the content of other directives stays."""

    def keep(match: re.Match[str]) -> str:
        info = match["info"].strip()
        inner = match[0].partition("\n")[2].rpartition("\n")[0]
        return f"\n{prose(inner)}\n" if info.startswith("{") and not info.startswith(_CODE_DIRECTIVES) else "\n"

    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    return _LITERAL.sub("", _FENCE.sub(keep, text))
