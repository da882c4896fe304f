"""`this_run`: the line below a text that says where this run's numbers are others than the book's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sslbook.book import claims, live, this_run
from sslbook.book.claims import begin, claim, measure
from sslbook.book.live import line
from sslbook.stats.intervals import Interval


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(claims, "_session", claims._Session())
    monkeypatch.setattr(claims, "_shell", lambda: None)
    monkeypatch.delenv("SSLBOOK_THREADS", raising=False)
    threads = torch.get_num_threads()
    begin("covariance", seed=7, device="cpu")
    yield
    torch.set_num_threads(threads)


TEXT = ("share:.1%=0.25", "gap:.1e=1e-15", "count:s=432")


def test_it_is_empty_until_the_run_has_a_number() -> None:
    assert line(TEXT) == ""


def test_it_says_so_if_all_is_as_printed() -> None:
    measure("share", 0.25000001, rtol=1e-6)
    measure("count", 432, atol=0)
    assert line(TEXT) == "✓ *This run (quick, seed 7, cpu): the same.*"


def test_a_measured_number_beyond_its_tolerance_is_bold() -> None:
    measure("share", 0.31, rtol=1e-6)
    assert line(TEXT) == "↻ *This run (quick, seed 7, cpu):* **31.0%** where the book has 25.0%."


def test_with_the_book_s_seed_it_says_what_the_number_is_held_to() -> None:
    begin("covariance", seed=0, device="cpu")
    measure("share", 0.31, rtol=1e-6)
    assert line(TEXT) == (
        "↻ *This run (quick, seed 0, cpu):* **31.0%** where the book has 25.0% (it is held to ± 2.5\u00a0×\u00a010⁻⁷)."
    )


def test_a_number_within_its_tolerance_is_not() -> None:
    measure("share", 0.31, atol=0.1)
    measure("count", 432, atol=0)
    assert line(TEXT) == ("↻ *This run (quick, seed 7, cpu):* 31.0% where the book has 25.0%; the others as printed.")


def test_a_bounded_number_is_free_within_its_bound() -> None:
    """Rounding noise: the regression holds it to the bound alone, and so does this line."""
    claim("gap", 3e-14, below=1e-12, id=None)
    assert line(TEXT) == (
        "↻ *This run (quick, seed 7, cpu):* 3.0\u00a0×\u00a010⁻¹⁴ where the book has 1.0\u00a0×\u00a010⁻¹⁵."
    )


def test_an_expected_number_is_held_to_the_book_s_value() -> None:
    claim("share", 0.31, expect=0.3, atol=0.02, id=None)
    assert "**31.0%**" in line(TEXT)
    claims._session.owners.clear()
    claim("share", 0.265, expect=0.27, atol=0.02, id=None)
    assert "**" not in line(TEXT)


def test_numbers_come_in_the_order_of_the_text_and_once() -> None:
    measure("count", 12, atol=0)
    measure("share", 0.5)
    told = line((*TEXT, "share:.1%=0.25"))
    assert told.index("50.0%") < told.index("**12**")
    assert told.count("50.0%") == 1


BOUNDS = ("least share:.1f=0.25", "interval gain:+.1f=(1.2, 0.4, 2.0, 5)")


def test_bounds_and_intervals_are_compared_as_they_are_printed() -> None:
    measure("share", 0.29, atol=0.1)
    measure("gain", Interval(1.2, 0.4, 2.0, 5))
    assert line(BOUNDS) == "✓ *This run (quick, seed 7, cpu): the same.*"
    begin("covariance", seed=8, device="cpu")
    measure("share", 0.31, atol=0.1)
    assert line(BOUNDS).endswith("0.3 where the book has 0.2."), "an interval whose numbers are not there yet waits"
    measure("gain", Interval(1.2, 0.5, 2.0, 5))
    new, old = "+1.2 (+0.5 to +2.0, n = 5)", "+1.2 (+0.4 to +2.0, n = 5)"
    assert f"**{new}** where the book has {old}." in line(BOUNDS).replace("\u00a0", " ")


class Handle:
    """What IPython gives to change what is displayed."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, data: dict[str, Any], raw: bool) -> None:
        assert raw
        self.shown.append(data["text/markdown"])


def test_the_line_changes_when_a_claim_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    monkeypatch.setattr(live, "_display", lambda markdown: handle.shown.append(markdown) or handle)
    this_run(*TEXT)  # above the cell that computes them
    measure("share", 0.25)
    assert handle.shown == ["", "✓ *This run (quick, seed 7, cpu): the same.*"]
    begin("covariance", seed=8, device="cpu")
    measure("share", 0.5)
    assert handle.shown[-1].startswith("↻ *This run (quick, seed 8, cpu):* **50.0%**")
    measure("unrelated", 1.0)
    assert len(handle.shown) == 3, "what has not changed is not shown again"


def test_a_text_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="name:format=value is needed"):
        this_run("share")
