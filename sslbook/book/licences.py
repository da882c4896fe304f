"""The licences of what the pages carry of others': `assets/licences.yml` lists it, and `write` puts the texts beside the pages."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

ASSETS = Path(__file__).parent / "assets"
SHOWN = "_static/licences.txt"
"""Where the built book has the texts."""
_TEXT = re.compile(r"(LICEN[CS]E|COPYING)(\.\w+)?")

_MIT = """Copyright (c) {copyright}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files
(the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do
so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def read() -> dict[str, list[dict[str, Any]]]:
    """What is listed: ``vendored``, ``packages``, and what is ``inside`` those."""
    listed: dict[str, list[dict[str, Any]]] = yaml.safe_load((ASSETS / "licences.yml").read_text(encoding="utf-8"))
    return listed


def write(html: Path) -> None:
    """Write the texts into the built book in the folder ``html``; raises ValueError for a package that brings none."""
    listed = read()
    blocks = ["What these pages carry of others', with their licences. The book's own files are under the MIT licence."]
    for entry in listed["vendored"]:
        if entry["text"].startswith("sslbook/"):  # the tests' own tools are not in the pages
            text = (ASSETS / Path(entry["text"]).relative_to("sslbook/book/assets")).read_text(encoding="utf-8")
            blocks.append(_block(f"{entry['name']} {entry['version']}", entry["licence"], entry["source"], text))
    for entry in listed["packages"]:
        package = distribution(entry["name"])
        source = f"https://pypi.org/project/{entry['name']}/{package.version}/"
        blocks.append(
            _block(f"{entry['name']} {package.version}", entry["licence"], source, package_text(entry["name"]))
        )
    blocks += [
        _block(e["name"], "MIT", f"inside {e['of']}", _MIT.format(copyright=e["copyright"])) for e in listed["inside"]
    ]
    (html / SHOWN).write_text("\n".join(blocks), encoding="utf-8")


def package_text(name: str) -> str:
    """The licence that an installed package brings."""
    own = [file for file in distribution(name).files or () if ".dist-info" in str(file) and _TEXT.fullmatch(file.name)]
    if not own:
        raise ValueError(f"the package {name} brings no licence, and the pages carry some of its files")
    return "\n".join(file.read_text(encoding="utf-8") for file in own)


def _block(name: str, licence: str, source: str, text: str) -> str:
    return f"\n{'=' * 80}\n{name}: {licence}\n{source}\n{'=' * 80}\n\n{text.strip()}\n"
