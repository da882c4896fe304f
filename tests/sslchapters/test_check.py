"""The exercise checker must accept a right answer and reject every wrong one, with words that help."""

from __future__ import annotations

import numpy as np
import pytest

from sslchapters.claims import check

CASES = [(np.random.default_rng(seed).normal(size=(3, 2)),) for seed in range(4)]


def reference(x):
    return x @ x.T


def test_a_right_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(lambda x: np.einsum("ij,kj->ik", x, x), reference, CASES)
    assert capsys.readouterr().out == "✓ your answer agrees with the library on 4 cases\n"


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
        result = reference(x)
        x *= 0
        return result

    cases = [(x.copy(),) for (x,) in CASES]
    assert check(answer, reference, cases)
    assert all((case[0] == kept[0]).all() for case, kept in zip(cases, CASES, strict=True))


def test_no_cases_is_an_error() -> None:
    with pytest.raises(ValueError, match="cases: got none"):
        check(reference, reference, [])
