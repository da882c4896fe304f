"""`begin`, `claim`, `measure` and `this_run`: what passes, what fails, what is refused, recorded and told, and how it looks."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sslchapters import claims
from sslchapters.claims import begin, claim, measure, run_line, this_run
from sslchapters.intervals import Interval
from sslchapters.running import LENIENT
from sslchapters.values import Criterion, Number, badge, entry_anchor, line, outcome, short

BROKEN = {"sign flipped": 2.0}


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch):
    """Each test has a run of its own, and the process keeps its number of threads."""
    monkeypatch.setattr(claims, "_session", claims._Session())
    monkeypatch.delenv("SSLBOOK_THREADS", raising=False)
    threads = torch.get_num_threads()
    yield begin("covariance", scale="quick", seed=3, device="cpu")
    torch.set_num_threads(threads)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Number]:
    """The numbers that would go into the notebook."""
    sent: list[Number] = []
    real = claims._publish
    monkeypatch.setattr(claims, "_publish", lambda number: sent.append(number) or real(number))
    return sent


def test_run_says_what_it_is(run) -> None:
    assert (run.chapter, run.scale, run.seed, run.device) == ("covariance", "quick", 3, torch.device("cpu"))
    assert run.pick(quick=20, paper=200) == 20
    assert begin("covariance", scale="paper").pick(quick=20, paper=200) == 200


def test_begin_seeds_every_generator() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    begin("a", seed=5)
    first = draw()
    begin("a", seed=5)
    assert draw() == first
    begin("a", seed=6)
    assert all(now != then for now, then in zip(draw(), first, strict=True))


def test_begin_takes_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    begin("a")
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("SSLBOOK_THREADS", "1")
    begin("a")
    assert torch.get_num_threads() == 1
    monkeypatch.setenv("SSLBOOK_THREADS", "many")
    with pytest.raises(ValueError, match="SSLBOOK_THREADS: got 'many'"):
        begin("a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "papper"}, r"scale must be one of quick, paper, got 'papper'; did you mean 'paper'"),
        ({"seed": 2**32}, r"seed must be at least 0 and at most 4294967295, got 4294967296"),
        ({"chapter": "covariance.md"}, r"chapter: got 'covariance.md'"),
    ],
)
def test_begin_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        begin(**({"chapter": "covariance"} | arguments))


@pytest.mark.parametrize(
    ("value", "criterion", "wrong"),
    [
        (1e-12, {"below": 1e-12}, ""),
        (0.9, {"above": np.float32(0.5), "below": torch.tensor(1.0)}, ""),
        (-1.001, {"expect": -1.0, "rtol": 1e-2}, ""),
        (1e-3, {"below": 1e-12}, r"x \(A-Thm1\): 0.001 is not ≤ 1e-12"),
        (0.4, {"above": 0.5}, r"0.4 is not ≥ 0.5"),
        (-1.0, {"expect": 1.0, "rtol": 1e-2}, r"-1.0 is not ≈ 1 ± 0.01 \(off by 2\)"),
        (math.nan, {"below": 1e-12}, r"nan is not"),
        (math.nan, {"expect": math.nan, "rtol": 1.0}, r"nan is not"),
        (-math.inf, {"below": 1e-12}, r"-inf is not"),
        (1.0, {"expect": math.inf, "rtol": 1.0}, r"1.0 is not"),
    ],
)
def test_a_claim_gives_its_value_or_stops(value: float, criterion: dict, wrong: str) -> None:
    if not wrong:
        assert claim("x", value, id="A-Thm1", rejects={"all of it": 1e9}, **criterion) == value
        return
    with pytest.raises(AssertionError, match=wrong):
        claim("x", value, id="A-Thm1", rejects={"all of it": math.nan}, **criterion)


@pytest.mark.parametrize(
    ("kind", "words"), [("rejects", "broken variant 'second' gives 0.5"), ("rivals", "rival 'second' gives 0.5")]
)
def test_what_is_wrong_and_passes_is_an_error(kind: str, words: str) -> None:
    with pytest.raises(AssertionError, match=f"this check can't fail: the {words}"):
        claim("x", 0.1, id="A-Thm1", below=1.0, **{"rejects": BROKEN, kind: {"first": 2.0, "second": 0.5}})


def test_every_other_run_of_a_record_is_a_rival_and_may_pass(published: list[Number]) -> None:
    runs = {"BYOL": 3.0, "SimCLR": 2.0, "collapsed": -1.0}
    assert claim("gain", runs, of="BYOL", id=None, above=0) == 3.0
    assert published[0].rivals == {"SimCLR": 2.0, "collapsed": -1.0}
    assert line(published[0]).endswith(" · nearest rivals: SimCLR (2, passes too), collapsed (-1)")
    assert badge(published[0]).count("passes too") == 1
    with pytest.raises(ValueError, match="rivals and rejects are missing"):
        claim("gain", runs, of="BYOL", id=None, above=-2)


def test_what_is_wrong_and_why_is_recorded(published: list[Number]) -> None:
    rivals, rejects = {"no augmentation": np.float32(1.5)}, {"no number": math.nan}
    claim("x", 0.1, id="A-Thm1", below=1.0, rivals=rivals, rejects=rejects, why="float64")
    found = Number.from_json(published[0].to_json())
    assert (found.rivals, found.why) == ({"no augmentation": 1.5}, "float64")
    assert math.isnan(found.rejects["no number"])


FIVE = Interval(1.2, 0.4, 2.0, 5)


def test_an_interval_is_four_numbers(published: list[Number]) -> None:
    assert claim("x", FIVE, id="A-Thm1", above=0, rivals={"untrained": Interval(0.1, -0.2, 0.4, 5)}) == 1.2
    mean, *parts = published
    assert {n.name: n.value for n in published} == {"x": 1.2, "x-low": 0.4, "x-high": 2.0, "x-n": 5}
    assert (mean.result, mean.part_of, repr(published[3].value)) == (FIVE, None, "5")
    assert all((n.part_of, n.id, n.rivals, n.rejects) == ("x", "A-Thm1", {}, {}) for n in parts)
    assert [n.criterion for n in parts] == [Criterion(above=0), Criterion(above=0), Criterion(atol=0.0)]
    assert [Number.from_json(n.to_json()) for n in published] == published
    measure("y", FIVE, rtol=1e-3)
    assert [(n.name, n.rtol, n.atol) for n in published[4:]] == [
        ("y", 1e-3, None),
        ("y-low", 1e-3, None),
        ("y-high", 1e-3, None),
        ("y-n", None, 0.0),
    ]


@pytest.mark.parametrize(
    ("criterion", "passes"),
    [
        ({"above": 0.0}, True),
        ({"above": 0.5}, False),
        ({"below": 2.5}, True),
        ({"below": 1.5}, False),
        ({"expect": 1.0, "atol": 1.0}, True),
        ({"expect": 1.0, "atol": 0.9}, False),
    ],
)
def test_an_interval_passes_as_a_whole(criterion: dict, passes: bool) -> None:
    words = "the broken variant 'b' gives" if passes else "x:"
    with pytest.raises(AssertionError, match=rf"{words} 1\.2 \(0\.4 to 2, n = 5\)"):
        claim("x", FIVE, id=None, rejects={"b": FIVE}, **criterion)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "nothing to test"),
        ({"below": 2.0, "rtol": 1e-3}, ValueError, "belong together"),
        ({"expect": 1.0, "rtol": -1e-3}, ValueError, "x: rtol must be at least 0, got -0.001"),
        ({"above": math.nan}, ValueError, "x: above must be finite, got nan"),
        ({"below": 2.0, "rejects": None}, ValueError, "rivals and rejects are missing"),
        ({"below": 2.0, "name": "a:b"}, ValueError, "name: got 'a:b'"),
        ({"below": 2.0, "value": "1"}, TypeError, "value: got '1'"),
        ({"below": 2.0, "rejects": {"a": torch.ones(2)}}, TypeError, r"rejects\['a'\]: got an array of shape \(2,\)"),
    ],
)
def test_claim_refuses(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        claim(**({"name": "x", "value": 1.0, "id": "A-Thm1", "rejects": {"huge": 1e9}} | arguments))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.25, "float"),
        (np.float32(0.25), "float32"),
        (np.array(0.25), "float64"),
        (torch.tensor(0.25, requires_grad=True), "float32"),
    ],
)
def test_scalars_of_every_kind(value: object, dtype: str, published: list[Number]) -> None:
    got = claim("x", value, id=None, expect=torch.tensor(0.25), atol=0.0)
    assert type(got) is float
    assert got == 0.25
    assert published[0].dtype == dtype


def test_measure_asserts_nothing(published: list[Number]) -> None:
    measure("a", np.int64(3))
    measure("b", 1.0, atol=0.5, id="A-Thm1")
    measure("c", FIVE, random=True)
    assert [(repr(n.value), n.rtol, n.atol, n.random, n.id, n.criterion.asserts) for n in published[:3]] == [
        ("3", None, None, False, None, False),
        ("1.0", None, 0.5, False, "A-Thm1", False),
        ("1.2", None, None, True, None, False),
    ]
    with pytest.raises(AssertionError, match="not a finite number"):
        measure("d", math.nan)
    with pytest.raises(ValueError, match=r"d: random: a mean over seeds is needed \(an Interval\), got 1.0"):
        measure("d", 1.0, random=True)


@pytest.mark.parametrize(
    ("value", "others", "cause"),
    [
        (2.0, {"rejects": {"far": 3.0}}, "2.0 is not ≤ 1"),
        (0.5, {"rivals": {"near": 0.25, "far": 3.0}}, "this check can't fail: the rival 'near' gives 0.25, also ≤ 1"),
        (math.nan, {"rejects": {"far": 3.0}}, "nan is not ≤ 1"),
    ],
)
def test_a_check_that_fails_goes_onto_the_page_while_the_book_is_built(
    value: float, others: dict, cause: str, published: list[Number], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LENIENT, "1")
    claim("gap", value, id="A-Thm1", below=1.0, **others)
    (number,) = published
    assert (number.failure, Number.from_json(number.to_json()).failure) == (cause, cause)
    assert line(number).startswith("✗ A-Thm1  gap = ")
    assert cause in line(number)
    assert 'aria-label="check failed">✗</span>' in badge(number)
    assert "check passed" not in badge(number)
    monkeypatch.delenv(LENIENT)
    with pytest.raises(AssertionError):
        claim("again", value, id="A-Thm1", below=1.0, **others)


def test_seconds_count_from_the_start_of_the_cell(monkeypatch: pytest.MonkeyPatch, published: list[Number]) -> None:
    hooks, clock = [], [100.0]
    shell = SimpleNamespace(events=SimpleNamespace(register=lambda event, hook: hooks.append((event, hook))))
    monkeypatch.setattr(claims, "get_ipython", lambda: shell)
    monkeypatch.setattr(claims, "display", lambda *args, **kwargs: None)
    monkeypatch.setattr(claims.time, "perf_counter", lambda: clock[0])
    begin("covariance")
    begin("covariance")
    ((event, hook),) = {*hooks}  # which IPython registers once
    assert event == "pre_run_cell"
    clock[0] = 200.0
    hook(None)
    clock[0] = 201.5
    measure("x", 1.0)
    assert published[0].seconds == 1.5


def test_claim_needs_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_session", claims._Session())
    with pytest.raises(RuntimeError, match="call begin"):
        measure("x", 1.0)


@given(
    expect=st.floats(-1e6, 1e6),
    atol=st.floats(0, 1e3),
    rtol=st.floats(0, 1),
    shift=st.floats(0, 0.99),
    sign=st.sampled_from([-1, 1]),
)
def test_the_tolerance_is_what_it_says(expect: float, atol: float, rtol: float, shift: float, sign: int) -> None:
    criterion = Criterion(expect=expect, atol=atol, rtol=rtol)
    allowed = atol + rtol * abs(expect)
    assert criterion.passes(expect + sign * shift * allowed) or allowed < 1e-9 * (1 + abs(expect))
    assert not criterion.passes(expect + sign * (1.01 * allowed + 1e-6 * (1 + abs(expect))))


def test_the_badge(monkeypatch: pytest.MonkeyPatch, published: list[Number]) -> None:
    monkeypatch.delenv("SSLBOOK_LEDGER", raising=False)
    claim("thm1-gap", 3.1e-16, id="A-Thm1", below=1e-12, rejects={"tower <2>'s sign": 1.4})
    assert line(published[0]) == "✓ A-Thm1  thm1-gap = 3.1e-16 ≤ 1e-12 · rejects: tower <2>'s sign (1.4)"
    html = badge(published[0])
    assert 'id="check-thm1-gap"' in html
    nobreak = '<span class="sslbook-nobreak">{}</span>'.format
    assert nobreak("=\u00a03.1\u00a0×\u00a010⁻¹⁶") + " " + nobreak("≤\u00a010⁻¹²") in html
    assert nobreak("<strong>A-Thm1</strong>") in html
    assert f"<li>tower &lt;2&gt;&#x27;s sign: {nobreak('1.4')}</li>" in html
    assert "<a " not in html
    monkeypatch.setitem(os.environ, "SSLBOOK_LEDGER", "ledger.html")
    assert '<a href="ledger.html#ledger-a-thm1">' in badge(published[0])
    assert entry_anchor("A-5.1a") == "ledger-a-5-1a"


def test_rivals_stand_in_a_table(published: list[Number]) -> None:
    wrong = {"no <augmentation>": 0.985, "another loss": Interval(0.5, 0.25, 0.75, 4)}
    claim("cosine", 0.99971, id="A-Thm3", above=0.99, rivals=wrong, rejects={"sign": -1.0})
    assert line(published[0]) == (
        "✓ A-Thm3  cosine = 0.9997 ≥ 0.99 · nearest rivals: no <augmentation> (0.985), another loss (0.5 (0.25 to 0.75, n = 4))"
        " · rejects: sign (-1)"
    )
    html = badge(published[0])
    assert 'no &lt;augmentation&gt;</th><td><span class="sslbook-nobreak">0.985</span></td></tr>' in html
    assert html.index("</table>") < html.index("<details")
    claim("rate", FIVE, id="A-Thm3", above=0, rivals={"flat": 0.0 - 1e-9})
    assert "=\u00a01.2\u00a0(0.4\u00a0to\u00a02,\u00a0n\u00a0=\u00a05)" in badge(published[1])


def test_a_value_is_printed_on_its_side_of_the_bar() -> None:
    assert short(0.0150001) == "0.015"
    assert short(0.0150001, 0.015) == "0.0150001"
    assert short(0.99971) == "0.9997", "it is not one"
    assert short(-0.4999, -0.5) == "-0.4999"
    assert short(math.nan, 1.0) == "nan"


def test_what_a_badge_says_of_a_value(published: list[Number]) -> None:
    claim("size", 10, id="A-NTK", expect=10, atol=0, rejects={"less": 9, "more": 11})
    claim("rate", -0.487, id="A-Thm3", expect=-0.5, atol=0.06, below=0.0, rejects={"flat": 0.1})
    measure("seen", 2e-9)
    size, rate, seen = map(outcome, published)
    assert size == ["=\u00a010, exactly"]
    assert rate == ["=\u00a0−0.487", "≈\u00a0−0.5\u00a0±\u00a00.06", "and\u00a0≤\u00a00"]
    assert seen == ["=\u00a02\u00a0×\u00a010⁻⁹"]


TEXT = ("share:.1%=0.25", "gap:.1e=1e-15", "count:s=432")


@pytest.mark.parametrize(
    ("told", "seed", "said"),
    [
        (lambda: None, 3, ""),
        (lambda: measure("share", 0.25000001), 3, "✓ *This run (quick, seed 3, cpu): the same.*"),
        (
            lambda: measure("share", 0.31),
            0,
            "↻ *This run (quick, seed 0, cpu):* **31.0%** where the book has 25.0% (it is held to ± 0.0005).",
        ),
        (
            lambda: measure("share", 0.31, atol=0.1) and measure("count", 432, atol=0),
            3,
            "↻ *This run (quick, seed 3, cpu):* 31.0% where the book has 25.0%; the others as printed.",
        ),
        (  # rounding noise: the regression holds it to the bound alone, and so does this line
            lambda: claim("gap", 3e-14, below=1e-12, id=None),
            3,
            "↻ *This run (quick, seed 3, cpu):* 3.0 × 10⁻¹⁴ where the book has 1.0 × 10⁻¹⁵.",
        ),
        (  # so is a claim near a value: by its own test
            lambda: claim("share", 0.31, expect=0.3, atol=0.02, id=None),
            3,
            "↻ *This run (quick, seed 3, cpu):* 31.0% where the book has 25.0%.",
        ),
    ],
)
def test_the_line_says_what_is_other_than_printed(told: Callable[[], object], seed: int, said: str) -> None:
    begin("covariance", seed=seed, device="cpu")
    told()
    assert run_line(TEXT).replace("\u00a0", " ") == said


BOUNDS = ("least share:.1f=0.25", "interval gain:+.1f=(1.2, 0.4, 2.0, 5)")


def test_bounds_and_intervals_are_compared_as_they_are_printed() -> None:
    measure("share", 0.29, atol=0.1)
    measure("gain", Interval(1.2, 0.4, 2.0, 5))
    assert run_line(BOUNDS) == "✓ *This run (quick, seed 3, cpu): the same.*"
    begin("covariance", seed=8, device="cpu")
    measure("share", 0.31, atol=0.1)
    assert run_line(BOUNDS).endswith("0.3 where the book has 0.2."), "an interval whose numbers are not there yet waits"
    measure("gain", Interval(1.2, 0.5, 2.0, 5))
    new, old = "+1.2 (+0.5 to +2.0, n = 5)", "+1.2 (+0.4 to +2.0, n = 5)"
    assert f"**{new}** where the book has {old}." in run_line(BOUNDS).replace("\u00a0", " ")


def test_the_line_changes_when_a_claim_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/markdown"]))
    monkeypatch.setattr(claims, "_display", lambda data: shown.append(data["text/markdown"]) or handle)
    this_run(*TEXT)  # above the cell that computes them
    measure("share", 0.25)
    assert shown == ["", "✓ *This run (quick, seed 3, cpu): the same.*"]
    begin("covariance", seed=8, device="cpu")
    measure("share", 0.5)
    assert shown[-1].startswith("↻ *This run (quick, seed 8, cpu):* **50.0%**")
    measure("unrelated", 1.0)
    assert len(shown) == 3, "what has not changed is not shown again"
