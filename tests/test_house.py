"""The house rules that a machine can hold: how large a folder may grow, what is offered, packaged and pinned.

Which way imports run is held by import-linter (`pyproject.toml`, `make check`).
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import sslbook
import sslchapters
from sslbook._check import homes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sslbook"
LONGEST = 630
"""Lines in a Python file."""

BUDGETS = {
    "sslbook": 8_376,
    "sslchapters": 16_497,
    "bookbuild": 3_187,
    "benchmarks": 486,
    "tests": 10_910,
    "tools": 598,
}
"""Lines of Python, which may only fall."""


OFFERED = sorted(homes(PACKAGE / "__init__.pyi"))


@pytest.mark.parametrize("package", [sslbook, sslchapters])
def test_every_name_that_is_offered_is_there(package: object) -> None:
    stub = Path(package.__file__).with_suffix(".pyi")
    assert homes(stub)
    for name, home in homes(stub).items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
        assert name in dir(package)


def test_the_docstring_names_what_is_offered_and_nothing_else() -> None:
    lines = re.findall(r"^    (\w+) +\S.*$", sslbook.__doc__, flags=re.MULTILINE)
    assert sorted(lines) == OFFERED
    assert 20 <= len(OFFERED) <= 40


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"attribute 'covariance_operater'; did you mean covariance_operator\?"):
        sslbook.covariance_operater  # noqa: B018 -- in the text itself, since Jupyter shows no hint of Python's
    with pytest.raises(AttributeError, match="module 'sslbook' has no attribute 'torch'"):
        _ = sslbook.torch
    from sslbook.operator import view_weights  # modules are imported as ever

    assert view_weights.__name__ == "sslbook.operator.view_weights"


IMPORT = """
import sys
import sslbook
heavy = {"torch", "numpy", "ast", "sslbook.operator.covariance"} & set(sys.modules)
assert not heavy, heavy
sslbook.covariance_operator
assert "sslbook.operator.covariance" in sys.modules
assert "sslbook.training" not in sys.modules, "one name must not load the others"
from sslbook import *
assert knn_accuracy.__module__ == "sslbook.training.evaluate"
"""


def test_nothing_is_loaded_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("folder", "most"), BUDGETS.items())
def test_the_house_only_shrinks(folder: str, most: int) -> None:
    """Who needs more lines finds them elsewhere; who has taken some out lowers the budget."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    now, count = sum(lengths.values()), ["git", "grep", "-c", "", "HEAD", "--", f"{folder}/*.py"]
    lines = subprocess.run(count, cwd=ROOT, capture_output=True, text=True).stdout.split()
    before = sum(int(line.rpartition(":")[2]) for line in lines)
    assert now <= most, (
        f"{folder}/ had {before:,} lines of Python and has {now:,}; its budget is {most:,}. Take {now - most} out of it: what is "
        "done twice, what nobody uses, what a library does. If a user gets something for them, raise BUDGETS by as many, and let "
        "the commit say what."
    )
    long = {path.name: lines for path, lines in lengths.items() if lines > LONGEST}
    assert long == {}, f"a file has at most {LONGEST} lines: part it by subject"


def test_what_contributing_names_is_where_it_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z_]+)` (?:of|in) `([\w/]+\.py)`", text)
    assert len(named) >= 3
    assert [name for name, path in named if f"\n{name}" not in (ROOT / path).read_text(encoding="utf-8")] == []


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_of_the_wheel_is_packaged() -> None:
    """A folder with modules that is not listed would be missing in the wheel, and the machinery must be."""
    folders = {path.parent for name in ("sslbook", "sslchapters") for path in (ROOT / name).rglob("*.py")}
    named = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(project()["tool"]["setuptools"]["packages"]) == named | {"sslchapters.data"}


def test_the_lock_satisfies_the_ranges() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9]", line) for line in lines), "an option, such as an extra index, is no pin"
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}\b", line) for line in lines), "a file that could be another one"
    pins = {}
    for requirement in (Requirement(line.partition(" --hash")[0]) for line in lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        assert "+" not in specifier.version, f"{requirement}: a local build that a stranger can't get"
        pins[canonicalize_name(requirement.name)] = Version(specifier.version)
    table = project()["project"]
    ranges = [*table["dependencies"], *(line for extra in table["optional-dependencies"].values() for line in extra)]
    for requirement in map(Requirement, ranges):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement} is not in requirements.lock: make lock"
        assert requirement.specifier.contains(pin), f"requirements.lock has {requirement.name} {pin}: make lock"


def test_every_extra_that_a_message_names_exists() -> None:
    """``pip install '.[…]'`` of the pages and of the code; none asks a registry for `sslbook`, which it lacks."""
    texts = [*sorted(PACKAGE.rglob("*.py")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "chapters").glob("*.md"))]
    written = {path: path.read_text(encoding="utf-8") for path in texts}
    asked = re.compile(r"""(pip|uv|conda)\s+(pip )?(install|add)( -\S+)* ["'`]*sslbook\b(?! @)""")
    assert [path for path, text in written.items() if asked.search(text) or "sslbook[" in text] == []
    extra = re.compile(r"\.\[([a-z,]+)\]'")
    named = {name for text in written.values() for found in extra.findall(text) for name in found.split(",")}
    assert "train" in named
    assert named | {"book"} <= set(project()["project"]["optional-dependencies"])


PROMISES = ("README.md", "CONTRIBUTING.md", "chapters/reproduce.md", ".ci/run")


def test_commands_that_are_promised_exist() -> None:
    """Targets named in code: `make book test PORT=1` -> book, test."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for path in [*(ROOT / name for name in PROMISES), *(ROOT / ".github/workflows").glob("*.yml")]:
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?:^|`|run: |: |&& )make ((?:[a-z]+ ?)+)", text, flags=re.MULTILINE)
        assert {word for words in named for word in words.split()} <= targets, path


@pytest.mark.parametrize("name", ["cpu", "versions"])
def test_workflows_try_every_python_that_the_package_names(name: str) -> None:
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(project()["project"]["classifiers"]), flags=re.MULTILINE)
    workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8"))
    matrices = [job["strategy"]["matrix"]["python"] for job in workflow["jobs"].values() if "strategy" in job]
    assert matrices == [named]
