"""`begin`, `claim`, `measure` and `this_run`: what passes, what fails, what is refused, recorded and told, and how it looks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sslchapters import claims
from sslchapters.claims import begin, claim, measure
from sslchapters.intervals import Interval
from sslchapters.running import LENIENT
from sslchapters.values import Criterion, Number, badge, line


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch):
    """Each test has a run of its own, and the process keeps its number of threads."""
    monkeypatch.setattr(claims, "session", claims.Session())
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


@pytest.mark.parametrize(
    ("value", "criterion", "wrong"),
    [
        (1e-12, {"below": 1e-12}, ""),
        (-101.5, {"expect": -100.0, "rtol": 1e-2, "atol": 0.6}, ""),
        (-101.7, {"expect": -100.0, "rtol": 1e-2, "atol": 0.6}, r"-101.7 is not ≈ -100 ± 1.6"),
        (0.4, {"above": 0.5}, r"0.4 is not ≥ 0.5"),
        (-1.0, {"expect": 1.0, "rtol": 1e-2}, r"-1.0 is not ≈ 1 ± 0.01"),
        (math.nan, {"expect": math.nan, "rtol": 1.0}, r"nan is not"),
        (-math.inf, {"below": 1e-12}, r"-inf is not"),
    ],
)
def test_a_claim_gives_its_value_or_stops(value: float, criterion: dict, wrong: str) -> None:
    if not wrong:
        assert claim("x", value, id="A-Thm1", rejects={"all of it": 1e9}, **criterion) == value
        return
    with pytest.raises(AssertionError, match=wrong):
        claim("x", value, id="A-Thm1", rejects={"all of it": math.nan}, **criterion)


def test_every_other_run_of_a_record_is_a_rival_and_may_pass(published: list[Number]) -> None:
    runs = {"BYOL": 3.0, "SimCLR": 2.0, "collapsed": -1.0}
    assert claim("gain", runs, of="BYOL", id=None, above=0) == 3.0
    assert published[0].rivals == {"SimCLR": 2.0, "collapsed": -1.0}
    assert line(published[0]).endswith(" · nearest rivals: SimCLR (2, passes too), collapsed (-1)")
    assert badge(published[0]).count("passes too") == 1
    with pytest.raises(ValueError, match="rivals and rejects are missing"):
        claim("gain", runs, of="BYOL", id=None, above=-2)


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
        ({"below": 2.0, "rejects": None}, ValueError, "rivals and rejects are missing"),
        ({"below": 2.0, "rejects": {"a": torch.ones(2)}}, TypeError, r"rejects\['a'\]: got an array of shape \(2,\)"),
    ],
)
def test_claim_refuses(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        claim(**({"name": "x", "value": 1.0, "id": "A-Thm1", "rejects": {"huge": 1e9}} | arguments))


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
        (
            0.5,
            {"rejects": {"far": 3.0, "b": 0.75}},
            "this check can't fail: the broken variant 'b' gives 0.75, also ≤ 1",
        ),
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
