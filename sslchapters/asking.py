"""A box on the page that takes a reader's number, without a kernel: for warm-ups, predictions, and the step that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from sslchapters.plots import display_html


def ask(
    answer: float, *, computed: float, wrong: Mapping[str, float], within: float = 0.005, shown: str = "{:.3g}"
) -> None:
    r"""Show a box that takes the number ``answer``, and says what went wrong with those that a reader may well give instead.

    ``answer`` is what the solution derives by hand, ``computed`` what code finds without it: they must agree to 1e-6, or, for a
    measured answer such as a prediction's, to ``within``. ``wrong`` are numbers by the mistake that leads to them, a sentence
    that the reader sees, such as ``{"Centre first, then average.": 2.0}``. A number is taken as right if it is at most
    ``within`` from the answer, as a decimal number or a fraction. Without scripts, and in Jupyter, it is a fold with the number.

    Raises AssertionError where code finds another number, and where fewer than two mistakes are told from the answer.

    >>> ask(4 / 5, computed=0.8, wrong={"Jitter adds to the spread.": 1.25, "It is squared.": 0.64})
    """
    apart = 1e-6 if within <= 0.005 else within
    assert abs(answer - computed) <= apart, f"answer: got {answer}, and code finds {computed}"
    told = sum(abs(number - answer) > 2 * within for number in wrong.values())
    assert told == max(2, len(wrong)), f"wrong: got {dict(wrong)}; two or more, each beyond {2 * within} of {answer}"
    mistakes = escape(json.dumps([[number, words] for words, number in wrong.items()]), quote=True)
    number = escape(shown.format(answer))
    box = (
        f'<div class="sslbook-ask" data-sslbook-ask data-answer="{answer!r}" data-within="{within!r}" data-wrong="{mistakes}">'
        f"<details><summary>The number</summary><p>{number}</p></details></div>"
    )
    display_html(box, "[a box for your number]")
