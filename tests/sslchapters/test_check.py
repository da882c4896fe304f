"""A reader's notebook beside the book: what is told of its numbers, what is an error, and which answer of an exercise is right."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from sslchapters import ask, claims, reading
from sslchapters.claims import begin, claim, measure
from sslchapters.reading import check, run_line, sum_up, this_run


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch) -> claims.Session:
    """Each test has a run of its own."""
    monkeypatch.setattr(claims, "session", claims.Session())
    return claims.session


CASES = [(np.random.default_rng(seed).normal(size=(3, 2)),) for seed in range(4)]


def reference(x):
    return x @ x.T


def test_a_right_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(lambda x: np.einsum("ij,kj->ik", x, x), reference, CASES)
    assert capsys.readouterr().out == "✓ your answer agrees with the library on 4 cases\n"
    with pytest.raises(ValueError, match="cases: got none"):
        check(reference, reference, [])


def missing(x):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: -reference(x), "it has the opposite sign"),
        (lambda x: 2 * reference(x), "every entry is 2 times what is wanted"),
        (lambda x: x.T @ x, r"its shape is (2, 2) where (3, 3) is wanted"),
        (lambda x: reference(x) + 1e-6 * np.eye(3), "largest difference 1e-06 at ("),
        (lambda x: None, "None (is a return missing?)"),
        (lambda x: 1 / 0, "raises on case 1: ZeroDivisionError"),
        (missing, "is not written yet"),
    ],
)
def test_a_wrong_answer(answer, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(answer, reference, CASES, name="my Gram matrix") is False
    printed = capsys.readouterr().out
    assert words in printed
    assert "my Gram matrix" in printed
    assert "✓" not in printed
    assert "result 1:" not in printed, "one result needs no number"


def test_an_answer_that_changes_its_argument_leaves_the_cases() -> None:
    def answer(x):
        result = x @ x.T
        x *= 0
        return result

    cases = [(x.copy(),) for (x,) in CASES]
    assert check(answer, reference, cases)
    assert all((case[0] == kept[0]).all() for case, kept in zip(cases, CASES, strict=True))


def test_numbers_may_come_in_a_tuple_where_the_library_has_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(lambda: (1, -1), lambda: [1.0, -1.0], [()])
    assert not check(lambda: (1, 1), lambda: [1.0, -1.0], [()])
    assert not check(lambda x: 5 * x, lambda x: x, [(2.0,)])
    assert "every entry" not in capsys.readouterr().out, "of a single number nothing is every entry"


def test_a_factor_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert not check(lambda x: 2 * reference(x), reference, CASES)
    assert "every entry is 2 times" in capsys.readouterr().out


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


def notebook(monkeypatch: pytest.MonkeyPatch, **names: object) -> None:
    """As if a notebook had these variables."""
    shell = SimpleNamespace(user_ns=names, events=SimpleNamespace(register=lambda *_: None))
    monkeypatch.setattr(claims, "get_ipython", lambda: shell if names else None)


def test_a_notebook_ends_with_what_differs_and_the_exercises_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(reading, "_display", shown.append)
    begin("covariance", device="cpu")
    this_run(*TEXT)
    measure("share", 0.25)
    sum_up()
    measure("share", 0.31)
    measure("count", 432)
    check(missing, reference, CASES, name="one")
    check(lambda x: x @ x.T, reference, CASES, name="two")
    sum_up()
    begin("covariance", device="cpu")
    sum_up()
    assert [line.removeprefix("*In all (quick, seed 0, cpu):* ") for line in shown if line] == [
        "1 number in the text, none printed otherwise; **none** beyond what is held.",
        "2 numbers in the text, 1 printed otherwise; **1** beyond what is held. Exercises done: 1 of 2 whose cells ran.",
        "no number of the text has been computed yet: run the cells above.",
    ]


def test_a_strict_notebook_ends_in_an_error_where_a_number_is_beyond_what_it_is_held_to(monkeypatch) -> None:
    notebook(monkeypatch, strict="true", In=["", "strict = False", '# Parameters\nstrict = "true"\n'])
    begin("covariance", device="cpu")
    notebook(monkeypatch)
    this_run(*TEXT)
    measure("share", 0.2500001)
    measure("unsaid", 1.0)
    sum_up("unsaid:g=1.000001")
    measure("share", 0.31)
    measure("unsaid", 1.1)
    words = r"beyond .*:\n  share: 31.0% where the book has 25.0% \(it is held to .*\n  unsaid: 1.1 where .* 1 \("
    with pytest.raises(AssertionError, match=words):
        sum_up("unsaid:g=1.000001")


@pytest.mark.parametrize(
    ("names", "scale", "words"),
    [
        ({"strict": True}, "paper", "scale 'quick' and seed 0, got 'paper' and 0; leave strict out"),
        ({"strict": "yes"}, "quick", "strict must be one of true, false, got 'yes'"),
        (
            {"In": ["", "scale = 1\nown = 2", "# Parameters\nown = 3\nscal = 1\n"]},
            "quick",
            "one of scale, own, got 'scal'",
        ),
    ],
)
def test_what_a_notebook_can_t_be_given_is_refused_before_it_runs(names, scale: str, words: str, monkeypatch) -> None:
    notebook(monkeypatch, **names)
    with pytest.raises(ValueError, match=words):
        begin("covariance", scale=scale, device="cpu")


FAR = {"Twice.": 2.0, "Half.": 0.5}


@pytest.mark.parametrize(
    ("computed", "wrong", "within", "words"),
    [
        (1 + 1e-5, FAR, 0.005, "code finds"),
        (1.3, FAR, 0.2, "code finds"),
        (1.0, {"Twice.": 2.0}, 0.005, "two or more"),
        (1.0, FAR | {"Nearly.": 1.009}, 0.005, "each beyond"),
    ],
)
def test_a_box_that_would_take_a_wrong_number_or_refuse_the_right_one_is_an_error(
    computed: float, wrong: dict[str, float], within: float, words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        ask(1.0, computed=computed, wrong=wrong, within=within)
