"""One number of the book: what it is, what it is held to, how it travels inside a notebook, and how it is printed.

A number leaves a chapter as a ``display_data`` output that Jupyter Book can paste into a sentence (``{glue:text}``)
and that carries its whole record in the output's metadata. So the sentence, the regression and the ledger read the
same number.

On a page ``3.4e-15`` is 3.4 × 10⁻¹⁵, and a minus is a minus, not a hyphen. The values themselves and every text for the terminal
keep Python's notation; only HTML is typeset.
"""

from __future__ import annotations

import ast
import html
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from pathlib import Path
from typing import Any, NamedTuple

from sslchapters.intervals import Interval

GLUE_PREFIX = "application/papermill.record/"
"""Prefix of the MIME type under which papermill and MyST-NB store a glued value."""

RECORD_KEY = "sslbook"
"""Key of the output's metadata under which the full record stands."""


Value = float | Interval
"""What a check is of: one number, or an estimate with the ends of its interval."""


@dataclass(frozen=True)
class Criterion:
    """The test that a value must pass: near an expected value, or within bounds, or both.

    ``|x - expect| <= atol + rtol |expect|`` when ``expect`` is given; ``x <= below`` and ``x >= above`` when those
    are. A number that is not finite passes no criterion; an `Interval` passes only if the whole of it does.
    """

    expect: float | None = None
    rtol: float | None = None
    atol: float | None = None
    below: float | None = None
    above: float | None = None

    @property
    def asserts(self) -> bool:
        """Whether there is anything to test: a bare tolerance (as `measure` has) asserts nothing."""
        return not (self.expect is None and self.below is None and self.above is None)

    def allowed(self) -> float:
        """The largest distance from ``expect`` that passes."""
        return (self.atol or 0.0) + (self.rtol or 0.0) * abs(self.expect or 0.0)

    def passes(self, value: Value) -> bool:
        """Whether ``value`` meets every part of the criterion."""
        if isinstance(value, Interval):
            return self.passes(value.low) and self.passes(value.high)
        if not math.isfinite(value):
            return False
        near = self.expect is None or (math.isfinite(self.expect) and abs(value - self.expect) <= self.allowed())
        return near and (self.below is None or value <= self.below) and (self.above is None or value >= self.above)

    def __str__(self) -> str:
        """The criterion in symbols, to be read after the value: ``≈ 0.5 ± 1e-09``, ``≤ 1e-12``."""
        parts = []
        if self.expect is not None:
            ends = (self.expect - self.allowed(), self.expect + self.allowed())
            parts.append(f"≈ {short(self.expect, *ends)} ± {short(self.allowed())}")
        if self.below is not None:
            parts.append(f"≤ {short(self.below)}")
        if self.above is not None:
            parts.append(f"≥ {short(self.above)}")
        return " and ".join(parts)


@dataclass(frozen=True)
class Number:
    """A number that a chapter claimed (`claim`) or measured (`measure`), with everything that says where it comes from.

    ``what`` says in words what was measured. ``seconds`` is the time from the start of the cell to the number.
    ``rejects`` maps each deliberately broken variant to the value measured on it, ``rivals`` each wrong theory and each other
    run of a record; ``runs`` are these others, which may pass. ``random``: rounding alone makes it another draw. An
    estimate with an interval is four numbers: its mean, which has ``low``, ``high`` and ``n`` too, and three more that
    are each ``part_of`` it. ``anchor`` is the id of the check's line in the page, or None if the page does not show it;
    it is not stored but read from the cell's tags.
    """

    name: str
    value: float
    id: str | None
    chapter: str
    scale: str
    seed: int
    device: str
    device_name: str
    dtype: str
    seconds: float
    versions: Mapping[str, str]
    expect: float | None = None
    rtol: float | None = None
    atol: float | None = None
    below: float | None = None
    above: float | None = None
    rejects: Mapping[str, Value] = field(default_factory=dict)
    why: str | None = None
    what: str | None = None
    rivals: Mapping[str, Value] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    random: bool = False
    low: float | None = None
    high: float | None = None
    n: int | None = None
    part_of: str | None = None
    anchor: str | None = None

    @property
    def criterion(self) -> Criterion:
        """The test that the value passed when it was claimed."""
        return Criterion(self.expect, self.rtol, self.atol, self.below, self.above)

    @property
    def failure(self) -> str:
        """Why the check does not hold in this run: its value, or a wrong theory that passes too; empty if it holds."""
        test, value = self.criterion, self.result
        if not test.asserts:
            return ""
        if not test.passes(value):
            far = isinstance(value, Interval) or test.expect is None
            return f"{value} is not {test}" + ("" if far else f" (off by {abs(value - test.expect):.3g})")  # type: ignore[operator]
        wrong = {f"the broken variant {what!r}": bad for what, bad in self.rejects.items()}
        wrong |= {f"the rival {what!r}": bad for what, bad in self.rivals.items() if what not in self.runs}
        passing = next((what for what, bad in wrong.items() if test.passes(bad)), None)
        return "" if passing is None else f"this check can't fail: {passing} gives {wrong[passing]}, also {test}"

    @property
    def bars(self) -> list[float]:
        """What a value must not cross, as the criterion has it: the bounds, and the ends of what is near enough."""
        test = self.criterion
        ends = [] if test.expect is None else [test.expect - test.allowed(), test.expect + test.allowed()]
        return ends + [bound for bound in (test.below, test.above) if bound is not None]

    @property
    def result(self) -> Value:
        """What was claimed or measured: the value, or the whole interval."""
        if self.low is None or self.high is None or self.n is None:
            return self.value
        return Interval(self.value, self.low, self.high, self.n)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON can hold it: a NaN or an infinity becomes a string, an interval an object."""
        record = asdict(self)
        del record["anchor"]
        record["value"] = self.value if math.isfinite(self.value) else str(self.value)
        for part in ("rejects", "rivals"):
            kept = {what: v if isinstance(v, dict) or math.isfinite(v) else str(v) for what, v in record[part].items()}
            record[part] = kept
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], *, anchor: str | None = None) -> Number:
        """The inverse of `to_json`; keys that this version does not know are ignored."""
        known = {f.name for f in fields(cls)} - {"anchor"}
        kept = {k: v for k, v in record.items() if k in known} | {"runs": tuple(record.get("runs", ()))}
        kept |= {k: float(kept[k]) for k in ("value", "low", "high") if isinstance(kept.get(k), str)}
        for part in ("rejects", "rivals"):
            kept[part] = {
                what: Interval(**v) if isinstance(v, Mapping) else float(v)
                for what, v in (record.get(part) or {}).items()
            }
        return cls(**kept, anchor=anchor)


def short(value: Value, *bounds: float) -> str:
    """A number for a line of text: three significant digits; whole numbers below a million in full; an interval in brackets.

    More digits where three would say what is not so: that the number is whole, or on another side of one of ``bounds``.
    """
    if isinstance(value, Interval):
        low, high = short(value.low, *bounds), short(value.high, *bounds)
        return f"{short(value.mean, *bounds)} ({low} to {high}, n = {value.n})"
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    for digits in range(3, 17):
        text = f"{value:.{digits}g}"
        shown = float(text)
        whole = digits < 6 and abs(value) < 1e5 and shown.is_integer()
        if not whole and all((shown > b) == (value > b) and (shown < b) == (value < b) for b in bounds):
            return text
    return repr(value)


HIDDEN_TAGS = frozenset({"remove-cell", "remove-output", "remove_cell", "remove_output"})
"""Cell tags under which the page shows no output, and so has no line to link to."""


def numbers(notebook: Mapping[str, Any]) -> Iterator[Number]:
    """Every `Number` in an executed notebook (as parsed JSON), in the order in which the chapter produced them.

    Raises ValueError if a name occurs twice: two cells would then glue two values under one name.
    """
    seen: set[str] = set()
    for cell in notebook["cells"]:
        shown = not HIDDEN_TAGS & set(cell.get("metadata", {}).get("tags", ()))
        for output in cell.get("outputs", ()):
            record = output.get("metadata", {}).get(RECORD_KEY)
            if output.get("output_type") != "display_data" or not isinstance(record, Mapping) or "name" not in record:
                continue
            name = record["name"]
            if name in seen:
                raise ValueError(f"the number {name!r} is produced twice in one chapter; names are unique per chapter")
            seen.add(name)
            yield Number.from_json(record, anchor=f"check-{name}" if shown else None)


# --- numbers as a page prints them, and which of them a chapter's prose asks for --------------------------------------

_NUMBER = re.compile(r"(?<![\w.])(?P<sign>[-+]?)(?P<digits>\d[\d,_]*(?:\.\d+)?)(?:[eE](?P<power>[-+]?\d+))?(?![\w])")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = "\u00a0×\u00a0"  # no line ends inside a number
NOBREAK = "\u00a0"
MARK = '<span class="sslbook-check-mark" role="img" aria-label="check passed">✓</span>'
CROSS = '<span class="sslbook-check-mark sslbook-check-failed" role="img" aria-label="check failed">✗</span>'


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
    if not all(math.isfinite(values[part]) for part in parts(role, name)):
        return str(values[name])
    if role == "glue:text":  # by MyST-NB's rule
        value, last = values[name], form[-1:]
        kind = str if last == "s" else int if last in set("dxbo") else float if last in set("eEfFgGn%") else type(value)
        return typeset(format(kind(value), form))
    if role != "interval":
        return typeset(bound(values[name], form, role))
    mean, *ends, n = (values[part] for part in parts(role, name))
    low, high = (
        text if _says_something(text := format(float(end), form)) else bound(end, form, side)
        for end, side in zip(ends, ("least", "most"), strict=True)
    )
    return typeset(f"{format(float(mean), form)} ({low}\u00a0to\u00a0{high}, n\u00a0=\u00a0{n})")


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


_FORM = re.compile(r"[-+ ]?(?:0?\d+)?[,_]?(?:\.(?P<digits>\d+))?(?P<kind>[deEfFgG%s]?)")


def unit(form: str, value: float) -> float:
    """What one step of the last digit is worth that ``form`` prints of ``value``: 0.1 for ``.1f``; 0 where all are printed."""
    found = _FORM.fullmatch(form)
    if found is None or found["kind"] in ("", "s") or not math.isfinite(value):
        return 0.0
    digits = 0 if found["kind"] == "d" else 6 if found["digits"] is None else int(found["digits"])
    first = math.floor(math.log10(abs(value))) if value else 0
    power = {"%": -2, "e": first, "E": first, "g": first + 1, "G": first + 1}.get(found["kind"], 0)
    return float(10.0 ** (power - digits))


SAME, SHARE, NOTHING, ERRORS = 1e-5, 0.05, 1e-12, 4.0
"""How far a measured number may be off: relative, always; by half its last digit, but not by more than this share of it; by what
is a rounding error at any rate; and, if it is random, in standard errors of the difference."""


def mean_of(value: Value) -> float:
    """A number, or the mean of an interval."""
    return value.mean if isinstance(value, Interval) else value


def apart(number: Number, was: Value) -> float:
    """How far ``number`` is from what it was: of an interval its mean, and unless it is random its ends; infinity for another n."""
    here = number.result
    if not (isinstance(here, Interval) and isinstance(was, Interval)):
        return abs(number.value - mean_of(was))
    pairs = [(here.mean, was.mean)] + ([] if number.random else [(here.low, was.low), (here.high, was.high)])
    return max(abs(one - other) for one, other in pairs) if here.n == was.n else math.inf


def allowed(number: Number, was: Value, forms: Iterable[str] = ()) -> float:
    """How far ``number``, which was ``was``, may be off on another machine, where pages print it in ``forms``.

    A part in 10⁵, which no rounding reaches unless the run amplifies it; or half a unit of the finest digit that is printed,
    where that is more, but no more than a twentieth of the number; or what the chapter itself lets it. The mean of a *random*
    number over seeds may differ by four standard errors of the difference, by the two intervals.
    """
    ends = (was.mean, was.low, was.high) if isinstance(was, Interval) else (was,)
    if number.random and isinstance(number.result, Interval):
        both = [each if isinstance(each, Interval) else number.result for each in (was, number.result)]
        from scipy.stats import t  # half a second, and few numbers need it

        return ERRORS * math.hypot(*((each.high - each.low) / 2 for each in both)) / float(t.ppf(0.975, both[0].n - 1))
    stated = Criterion(ends[0], number.rtol, number.atol).allowed()
    if isinstance(was, int) and isinstance(number.value, int):
        return stated  # a count
    half = min((step / 2 for form in forms if (step := unit(form, ends[0])) > 0), default=0.0)
    return max(SAME * max(map(abs, ends)), min(half, SHARE * abs(ends[0])), NOTHING, stated)


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
                values[name] = literal("".join(text))
    return values


def literal(text: str) -> Any:
    """The numbers that ``repr`` writes; also nan and inf, which are no literals of Python."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return float(text)


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


def without_missing(text: str, own: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """``text`` of the chapter ``own`` with a dash for each number that is not among the ``known`` ones of its chapter."""

    def keep(match: re.Match[str]) -> str:
        page, name, _ = named(match[2])
        there = known.get(Path(page).stem if page else own, {})
        return match[0] if all(part in there for part in parts(match[1], name)) else "—"

    return _ROLE.sub(keep, text)


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


_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Sigma Gamma Delta Theta Lambda varepsilon ell infty le ge times cdot in to approx neq pm top lVert rVert"
)
_LETTERS = dict(zip(_NAMES.split(), "αβγδεζηθκλμνξπρστφχψωΣΓΔΘΛεℓ∞≤≥×·∈→≈≠±⊤‖‖", strict=True))
_LOOKS = r"\\(?:mathbf|mathrm|mathbb|mathcal|operatorname|text|boldsymbol|left|right|!|,|;|quad)\b ?"


def readable(formula: str) -> str:
    """A formula in letters, if it is a small one: ``β`` for ``\\(\\beta\\)``; else an ellipsis."""
    inner = re.sub(r"\\[()\[\]]", "", formula)
    inner = re.sub(_LOOKS, "", inner)
    inner = re.sub(r"\\([A-Za-z]+)", lambda name: _LETTERS.get(name[1], name[0]), inner)
    inner = re.sub(r"[{}~]|\\[,;!\s]", "", inner)
    inner = re.sub(r"\^([′⊤*]|\\?prime)", r"\1", inner).replace("^2", "²")
    short = " ".join(inner.split())
    return "…" if "\\" in short or "&" in short or len(short) > 40 else short


# --- a check: one compact line, as text and as HTML, and the anchors that tie page and ledger together ----------------


def line(number: Number) -> str:
    """A claim as one line of text: ``✓ A-Thm1  thm1-gap = 3.1e-16 ≤ 1e-12 · rejects: sign flipped (1.4)``; ✗ where it fails."""
    identity = f"{number.id}  " if number.id else ""
    words = f"{number.what}: " if number.what else ""
    value = f"{identity}{number.name} = {short(number.result, *number.bars)} {number.criterion}"
    said = f"✗ {words}{value}: {number.failure}" if number.failure else f"✓ {words}{value}"
    for kind, others in (("nearest rivals", number.rivals), ("rejects", number.rejects)):
        if others:
            told = (f"{what} ({short(bad, *number.bars)}{_too(bad, number)})" for what, bad in others.items())
            said += f" · {kind}: " + ", ".join(told)
    return said


def badge(number: Number) -> str:
    """The same as HTML: a line that carries the anchor to which the ledger links, its rivals open, folded what it rejects, and why.

    It has no style but its classes, and reads without them. Nothing that belongs together (an id, a name, a number with its
    relation) is broken between two lines. While the book is built, ``SSLBOOK_LEDGER`` holds the address of the ledger's page
    and the id links to its entry there.
    """
    identity = ""
    if number.id:
        identity = f"<strong>{html.escape(number.id)}</strong>"
        if ledger := os.environ.get("SSLBOOK_LEDGER"):
            identity = f'<a href="{html.escape(ledger)}#{entry_anchor(number.id)}">{identity}</a>'
    names = _whole(filter(None, (identity, f"<code>{html.escape(number.name)}</code>")))
    shown = _whole(map(html.escape, outcome(number)))
    what = f'<span class="sslbook-check-what">{html.escape(number.what or "")}</span>'
    said = [what, *shown, *names] if number.what else [*names, *shown]  # the names that the book has for it come last
    if number.failure:
        said.append(
            f'<span class="sslbook-check-failed">does not hold in this run: {html.escape(typeset(number.failure))}</span>'
        )
    line = " ".join([*_whole([CROSS if number.failure else MARK]), *said])
    also = ""
    if number.rivals:
        rows = "".join(
            f'<tr><th scope="row">{what}</th><td>{bad}</td></tr>' for what, bad in _others(number, number.rivals)
        )
        caption = "nearest rival" if len(number.rivals) == 1 else "nearest rivals"
        also += f'<table class="sslbook-check-rivals"><caption>{caption}</caption><tbody>{rows}</tbody></table>'
    if number.rejects:
        items = "".join(f"<li>{what}: {bad}</li>" for what, bad in _others(number, number.rejects))
        count = "one broken variant" if len(number.rejects) == 1 else f"{len(number.rejects)} broken variants"
        also += f'<details class="sslbook-check-rejects"><summary>rejects {count}</summary><ul>{items}</ul></details>'
    if number.why:
        also += f'<div class="sslbook-check-why">{html.escape(number.why)}</div>'
    return (
        f'<div class="sslbook-check" id="check-{html.escape(number.name)}">'
        f'<div class="sslbook-check-line">{line}</div>{also}</div>'
    )


def _others(number: Number, others: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """What a check's rivals or broken variants are, and the value of each, as HTML."""
    for what, value in others.items():
        shown = f'<span class="sslbook-nobreak">{html.escape(typeset(short(value, *number.bars)))}</span>'
        yield html.escape(what), shown + _too(value, number)


def _too(value: Value, number: Number) -> str:
    return ", passes too" if number.criterion.passes(value) else ""


def _whole(words: Iterable[str]) -> list[str]:
    """Words of HTML, none of which is broken between two lines."""
    return [f'<span class="sslbook-nobreak">{word}</span>' for word in words]


def outcome(number: Number) -> list[str]:
    """Value and criterion in typographic form, in parts that belong together: ``["= 3.1 × 10⁻¹⁶", "≤ 10⁻¹²"]``."""
    value = f"={NOBREAK}{typeset(short(number.result, *number.bars)).replace(' ', NOBREAK)}"
    criterion = number.criterion
    if not criterion.asserts:
        return [value]
    if number.value == number.expect and criterion.allowed() == 0:
        return [f"{value}, exactly"]
    parts = typeset(str(criterion)).replace(" ", NOBREAK).split(f"{NOBREAK}and{NOBREAK}")
    return [value, parts[0], *(f"and{NOBREAK}{part}" for part in parts[1:])]


def entry_anchor(id: str) -> str:
    """The anchor of a claim's entry in the ledger's page."""
    return "ledger-" + re.sub(r"[^a-z0-9]+", "-", id.lower())
