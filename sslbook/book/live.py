"""A reader's notebook beside a run of it: `this_run` says where the text's numbers, which are the book's, are others here."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from sslbook.book import claims
from sslbook.book.typeset import ROLES, parts, printed, typeset
from sslbook.book.values import Criterion, Number, short


def this_run(*text: str) -> None:
    """Show, below a text, this run's values of the numbers in it, where they are printed otherwise; and keep them up to date.

    Each of ``text`` is ``name:format=value``: a number of this chapter, how the text prints it, and the book's value; before the
    name stands its role, if it is another than ``glue:text`` (`sslbook.book.typeset.spec` writes it). The line names the run,
    puts each new value beside the printed one, in the order of the text, and in bold where the two differ by more than the
    number's tolerance; with the book's own seed and scale, where they should not, it says what that is. It is empty while the
    run has none of the numbers, and says so if all are as printed. Written by the build into the notebooks; raises ValueError
    for a text that it didn't write.
    """
    for told in text:
        if "=" not in told or ":" not in told.partition("=")[0]:
            raise ValueError(f"text: got {told!r}; name:format=value is needed")
    shown = line(text)
    handle = _display(shown)

    def refresh() -> None:
        nonlocal shown
        now = line(text)
        if handle is not None and now != shown:
            shown = now
            handle.update({"text/markdown": now, "text/plain": _plain(now)}, raw=True)

    claims._session.watchers[text] = refresh


def line(text: tuple[str, ...]) -> str:
    """The line of `this_run` as it is now, in Markdown."""
    run = claims._session.run
    found = claims._session.numbers
    values = {name: number.value for name, number in found.items()}
    news, same = [], 0
    for told in dict.fromkeys(text):
        asked, _, stored = told.rpartition("=")
        key, _, form = asked.partition(":")
        role, name = key.split(" ") if " " in key else (ROLES[0], key)
        known = ast.literal_eval(stored)
        book = dict(zip(parts(role, name), known if isinstance(known, tuple) else (known,), strict=True))
        if not book.keys() <= found.keys():
            continue
        here, there = printed(role, name, form, values), printed(role, name, form, book)
        same += here == there
        if here != there:
            news.append(_news(here, there, [(found[part], value) for part, value in book.items()]))
    if run is None or not (news or same):
        return ""
    where = f"{run.scale}, seed {run.seed}, {run.device.type}"
    if not news:
        return f"✓ *This run ({where}): the same.*"
    return (
        f"↻ *This run ({where}):* "
        + "; ".join(dict.fromkeys(news))
        + ("." if same == 0 else "; the others as printed.")
    )


def _news(here: str, there: str, numbers: Sequence[tuple[Number, float]]) -> str:
    """What is printed otherwise: ``0.53 where the book has 0.51``, and whether that is more than one of its numbers may."""
    beyond = [(number, book) for number, book in numbers if not within(number, book)]
    if not beyond:
        return f"{here} where the book has {there}"
    number, book = beyond[0]
    if (number.seed, number.scale) != (0, "quick"):
        return f"**{here}** where the book has {there}"
    tolerance = Criterion(book, number.rtol, number.atol).allowed()
    return f"**{here}** where the book has {there} (it is held to ± {typeset(short(tolerance))})"


def within(number: Number, book: float) -> bool:
    """Whether ``number`` agrees with the book's value as the regression has it: within its tolerance, or within its bounds."""
    test = number.criterion
    return (Criterion(book, number.rtol, number.atol) if test.holds_value else test).passes(number.value)


def _plain(markdown: str) -> str:
    return markdown.replace("*", "")


def _display(markdown: str) -> Any:
    """Show Markdown and return the handle to change it; None outside a notebook."""
    if claims._shell() is None:
        return None
    from IPython.display import display

    data = {"text/markdown": markdown, "text/plain": _plain(markdown)}
    return display(data, raw=True, display_id=True)
