"""What others wrote: every file of it is listed with its licence, is what was fetched, and ships with the text."""

from __future__ import annotations

import hashlib
import re
import tomllib
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from fontTools.ttLib import TTFont

from bookbuild.layout import find_book
from bookbuild.sphinx_ext import ASSETS

ROOT = Path(__file__).resolve().parents[2]
BOOK = find_book(ROOT)
LISTED = yaml.safe_load((ASSETS / "licences.yml").read_text(encoding="utf-8"))
VENDORED = {path: (entry, digest) for entry in LISTED["vendored"] for path, digest in entry["files"].items()}
SCRIPTS = {"book.js", "canvas.js", "formulas.js", "ledger.js", "search.js"}
OURS = {*SCRIPTS, "book.css", "logo.svg", "social.png", "licences.txt"}


def test_every_file_is_ours_or_listed() -> None:
    folders = (ASSETS / "static", ROOT / "sslchapters/assets/fonts", ROOT / "tests/vendor")
    there = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()}
    there |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "sslbook/images").glob("digits.*")}
    assert {path for path in there if Path(path).name not in OURS} == set(VENDORED)


def test_a_vendored_file_is_what_was_fetched() -> None:
    for path, (entry, digest) in VENDORED.items():
        assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == digest, path
        assert str(entry["text"]) in VENDORED, "its licence lies beside it"
        if path.endswith(".ttf"):
            assert "Source" not in TTFont(ROOT / path)["name"].getDebugName(1), "the licence reserves the name"
        elif not path.endswith((".txt", ".woff2", ".gz")):
            head = (ROOT / path).read_text(encoding="utf-8")[:300]
            assert str(entry["version"]) in head, "the file says which version it is, and so does the list"


def test_the_wheel_says_and_holds_what_it_carries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shipped = [entry for entry in LISTED["vendored"] if entry["text"].startswith(("sslbook/", "sslchapters/"))]
    assert set(project["license"].split(" AND ")) == {"MIT", *(entry["licence"] for entry in shipped)}
    held = {path.relative_to(ROOT).as_posix() for glob in project["license-files"] for path in ROOT.glob(glob)}
    assert held == {"LICENSE", *(entry["text"] for entry in shipped)}


def test_each_text_is_beside_the_pages() -> None:
    text = (ASSETS / "static/licences.txt").read_text(encoding="utf-8")
    heads = re.findall(r"^={80}\n(.*)\n.*\n={80}$", text, re.MULTILINE)
    names = [entry["name"] for kind in ("vendored", "packages", "inside") for entry in LISTED[kind]]
    assert [name for name in names if not any(head.startswith(name) for head in heads)] == ["axe-core"]
    words = text.split()
    for entry in LISTED["packages"]:
        files = distribution(entry["name"]).files or ()
        own = [
            file for file in files if ".dist-info" in str(file) and re.fullmatch(r"(LICEN[CS]E|COPYING).*", file.name)
        ]
        assert own, f"{entry['name']} brings no licence"
        assert all(" ".join(file.read_text("utf-8").split()) in " ".join(words) for file in own), entry["name"]


@pytest.mark.built
def test_every_file_of_the_pages_is_covered() -> None:
    static = BOOK.html / "_static"
    known = [glob for entry in LISTED["packages"] for glob in entry["files"]]
    files = [path.relative_to(static).as_posix() for path in static.rglob("*") if path.is_file()]
    others = [file for file in files if not file.startswith("sslbook/") and file not in ("logo.svg", "licences.txt")]
    assert [file for file in others if not any(fnmatch(file, glob) for glob in known)] == []
    assert [glob for glob in known if not any(fnmatch(file, glob) for file in others)] == [], "listed, and not there"
