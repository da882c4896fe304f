"""The box for a reader's number: what the page would be wrong about stops the build."""

from __future__ import annotations

import re

import pytest

from sslchapters import ask, asking

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


def test_a_predicted_number_may_be_off_by_what_the_box_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes: list[str] = []
    monkeypatch.setattr(asking, "display_html", lambda html, text: boxes.append(html))
    ask(1.0, computed=1.15, wrong=FAR, within=0.2)
    ask(1.0, computed=1.0, wrong=FAR)
    assert ["".join(re.findall(r'data-within="([^"]*)"', box)) for box in boxes] == ["0.2", "0.005"]
    assert all('data-answer="1.0"' in box for box in boxes)
