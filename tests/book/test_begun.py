"""A chapter that has just been begun: what lists what it owes gives a list."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_prose_evidence
import test_teaching
from conftest import HEADER

from sslbook.book.execute import execute
from sslbook.book.layout import Setting, choose, find_chapters

TEMPLATE = Path(__file__).parents[2] / "tools/chapter_template.md"

BEGUN = {
    "nothing": "",
    "a header": HEADER.partition("# ")[0],
    "a header without an end": HEADER.partition("# ")[0].rstrip("-\n"),
    "a title": HEADER.partition("```")[0],
    "a title without a line end": HEADER.partition("```")[0].rstrip(),
    "a title alone": "# Toy",
    "the first cells": HEADER,
    "an empty cell": f"{HEADER}## One\n\n```{{code-cell}} ipython3\n```\n",
    "a comment": f"{HEADER}## One\n\n```{{code-cell}} ipython3\n# later\n```\n",
    "half a cell": f"{HEADER}## One\n\n```{{code-cell}} ipython3\nfor x in\n",
    "half a claim": f'{HEADER}## One\n\n```{{code-cell}} ipython3\nclaim()\nclaim(id="B-Tab7")\nclaim("a")\n```\n',
    "an exercise": f"{HEADER}## One\n\n```{{exercise}}\n",
    "an exercise without a line end": f"{HEADER}## One\n\n```{{exercise}}",
    "a theorem": f"{HEADER}##\n\n```{{prf:theorem}}\n```\n\n```{{prf:proof}}",
    "a number": f"{HEADER}It is at least {{glue:text}}`later:.2f`, and {{least}}`none::x`.\n",
}


@pytest.mark.parametrize("text", BEGUN.values(), ids=BEGUN)
def test_what_it_owes_is_listed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owed = list(test_teaching.owed(text))
    assert {"fewer than two sliders", "no exercise of the level Warm-up"} <= set(owed)
    assert any(line.startswith("its last sections are") for line in owed)
    monkeypatch.setattr(test_prose_evidence, "source", lambda chapter: text)
    for lint in test_prose_evidence.LINTS.values():
        assert isinstance(lint("toy"), list)


def test_the_template_runs_and_lacks_only_what_its_author_adds(write_book) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    book = write_book(good="")
    (book.chapters / "template.md").write_text(text, encoding="utf-8")
    (outcome,) = execute(
        book, choose(find_chapters(book), ["template"]), Setting("quick", 0, "cpu", 60), say=lambda line: None
    )
    assert outcome.error == ""
    assert set(test_teaching.owed(text)) <= {
        "1 exercises",
        "fewer than two sliders",
        "no exercise of the level Implementation",
        "no exercise of the level Exploration",
    }
