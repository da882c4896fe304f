"""The house rules that a machine can hold: which way imports point, how long a file may grow, what is packaged and pinned."""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import sslbook
import sslchapters
from sslbook.exports import homes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sslbook"
LONGEST = 700
"""Lines in a Python file."""

BUDGETS = {
    "sslbook": (390, 4),
    "benchmarks": (1_020, 5),
    "bookbuild": (5_577, 14),
    "sslchapters": (14_546, 51),
    "sslbook/images": (887, 4),
    "sslbook/inspect": (1_052, 4),
    "sslbook/losses": (721, 3),
    "sslbook/networks": (808, 4),
    "sslbook/operator": (1_636, 5),
    "sslbook/records": (842, 4),
    "sslbook/runtime": (908, 5),
    "sslbook/stats": (419, 4),
    "sslbook/training": (4_461, 17),
    "sslbook/trees": (555, 3),
    "tests": (20_559, 104),
    "tools": (541, 5),
}
"""Lines and files of Python, which may only fall."""

FLOORS = (
    {"runtime", "exports"},
    {"losses"},
    {"images", "networks", "records", "stats"},
    {"operator", "trees"},
    {"training"},
    {"inspect"},
    {"experiments", "book"},
    {"bench"},
    {"cli", "__main__"},
)
"""From the ground up; a room knows those below it, and none beside it."""

Graph = dict[str, set[str]]


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Absolute names of what a module imports, wherever the statement stands; also under TYPE_CHECKING, for a reader needs both."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        yield from imports_of(node, module, is_package=is_package)


def import_graph(package: Path = PACKAGE) -> Graph:
    """Module -> the package's own modules that it imports. An attribute's name is cut back to the module it lives in."""
    files = {module_name(path, package): path for path in package.rglob("*.py")}
    graph: Graph = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        graph[module] = set()
        for name in imports_of(tree, module, is_package=path.name == "__init__.py"):
            while name and name not in files:
                name = name.rpartition(".")[0]
            if name and name != module:
                graph[module].add(name)
    return graph


def room(module: str) -> str:
    """The room of a module: sslchapters.claims -> book; each chapter is one of its own; the package itself -> ''."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["experiments"] else parts[:1])


def floor(room_name: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room_name.partition(".")[0] in rooms)


def wrong_arrows(graph: Graph) -> list[str]:
    """Imports that point up, or sideways into another room; the command line's modules are one room."""
    wrong = []
    for module, targets in graph.items():
        for target in sorted(targets):
            here, there = room(module), room(target)
            if here == there or there in ("", "experiments"):  # the package, and the folder of experiments, know nobody
                continue
            if not here and there == "exports":  # but for what finds the names that the package offers
                continue
            beside = bool(here) and floor(there) == floor(here) == len(FLOORS) - 1
            if not here or not (floor(there) < floor(here) or beside):
                wrong.append(f"{module} imports {target}")
    return wrong


def test_imports_run_one_way() -> None:
    graph = import_graph()
    assert {f"sslbook.{name}" for name in ("losses", "networks", "experiments.covariance.runs", "cli")} <= set(graph)
    assert wrong_arrows(graph) == []


def test_there_are_no_import_cycles() -> None:
    list(graphlib.TopologicalSorter(import_graph()).static_order())


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


def test_an_offered_name_is_no_module() -> None:
    """`import sslbook.x` would put the module in its place."""
    assert {path.stem for path in PACKAGE.glob("*")} & set(OFFERED) == set()


def test_what_is_not_offered_is_refused() -> None:
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


@pytest.mark.parametrize("folder", ["sslbook", "tests", "tools"])
def test_no_file_is_too_long(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def sizes() -> dict[str, tuple[int, int]]:
    """Lines and files of Python in each folder of the library ("sslbook": its own modules), in tests and in tools."""
    found: dict[str, list[int]] = {}
    for top in ("sslbook", "tests", "tools"):
        for path in (ROOT / top).rglob("*.py"):
            inside = path.relative_to(ROOT).parts
            name = f"sslbook/{inside[1]}" if top == "sslbook" and len(inside) > 2 else top
            found.setdefault(name, []).append(len(path.read_text(encoding="utf-8").splitlines()))
    return {name: (sum(lines), len(lines)) for name, lines in sorted(found.items())}


def test_the_house_only_shrinks() -> None:
    """Who needs more lines finds them elsewhere; who has taken out a hundred lowers the budget."""
    now = sizes()
    assert set(now) == set(BUDGETS)
    assert {name: size for name, size in now.items() if size[0] > BUDGETS[name][0] or size[1] > BUDGETS[name][1]} == {}
    assert {name: size for name, size in now.items() if size[0] < BUDGETS[name][0] - 100} == {}


def rooms(folder: Path = PACKAGE) -> set[str]:
    """What stands at a folder's first level: modules, and folders of modules."""
    inside = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}
    return inside - {"__init__", "__main__"}


def test_every_room_has_its_floor_and_its_tests() -> None:
    assert rooms() == set().union(*FLOORS) - {"__main__"}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert rooms() - {"cli", "exports"} - folders == set()


def test_every_chapter_has_its_rooms() -> None:
    """One name for a subject: chapters/x.md, sslchapters/x, tests/experiments/test_x.py."""
    names = rooms(PACKAGE / "experiments") - {"catalogue"}
    assert names - {path.stem for path in (ROOT / "chapters").glob("*.md")} == set()
    tests = [path.stem.removeprefix("test_") for path in (ROOT / "tests/experiments").glob("test_*.py")]
    assert [name for name in names if not any(test.startswith(name) for test in tests)] == []


CALLED_BY_NAME = {"main", "setup"}
"""Functions that no import names: ``sslbook`` finds a module's ``main``, and Sphinx its ``setup``."""


def words(path: Path) -> set[str]:
    return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))


def functions_without_users(package: Path, places: Iterable[Path]) -> list[str]:
    """Public functions whose name no other file says that says their module's name too."""
    said = {path: words(path) for path in places}
    alone = []
    for path in sorted(package.rglob("*.py")):
        module = path.parent.name if path.stem == "__init__" else path.stem
        others = [found for other, found in said.items() if other != path and module in found]
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            if public and node.name not in CALLED_BY_NAME and not any(node.name in found for found in others):
                alone.append(f"{module_name(path, package)}.{node.name}")
    return alone


def test_what_only_its_own_module_uses_has_an_underscore() -> None:
    folders = ("sslbook", "tests", "tools", "examples", "chapters")
    places = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in {".py", ".pyi", ".md"}]
    assert functions_without_users(PACKAGE, places) == [], (
        "rename each to begin with an underscore, or use it elsewhere"
    )


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_subpackage_is_packaged() -> None:
    folders = {module_name(path.parent / "__init__.py") for path in PACKAGE.rglob("__init__.py")}
    assert set(project()["tool"]["setuptools"]["packages"]) == folders | {"sslbook.data"}
    strays = {path.parent for path in PACKAGE.rglob("*.py")} - {path.parent for path in PACKAGE.rglob("__init__.py")}
    assert strays == set(), "a folder with modules but without __init__.py would not be packaged"


def lock_pins() -> dict[str, Version]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9]", line) for line in lines), "an option, such as an extra index, is no pin"
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}\b", line) for line in lines), "a file that could be another one"
    pins = {}
    for requirement in (Requirement(line.partition(" --hash")[0]) for line in lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        assert "+" not in specifier.version, f"{requirement}: a local build that a stranger can't get"
        pins[canonical(requirement.name)] = Version(specifier.version)
    return pins


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_satisfies_the_ranges() -> None:
    pins, table = lock_pins(), project()["project"]
    ranges = [*table["dependencies"], *(line for extra in table["optional-dependencies"].values() for line in extra)]
    for requirement in map(Requirement, ranges):
        pin = pins.get(canonical(requirement.name))
        assert pin is not None, f"{requirement} is not in requirements.lock: make lock"
        assert requirement.specifier.contains(pin), f"requirements.lock has {requirement.name} {pin}: make lock"


OUTSIDE = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"  # of no machine: RFC 5737


def test_a_program_that_a_test_starts_does_not_leave_this_machine() -> None:
    log = Path(os.environ["SSLBOOK_TESTS_OUTSIDE"])  # taken back below, lest this test fail for it
    before = log.read_bytes()
    done = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True)
    told = log.read_bytes()[len(before) :].decode()
    log.write_bytes(before)
    assert "asks for '192.0.2.1', which is not on this machine" in done.stderr
    assert "192.0.2.1" in told, "and it is found out if it goes on"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_every_extra_that_a_message_names_exists() -> None:
    """``pip install '.[…]'`` of the pages, and `installing` of the code; none asks a registry for `sslbook`, which it lacks."""
    texts = [*sorted(PACKAGE.rglob("*.py")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "chapters").glob("*.md"))]
    written = {path: path.read_text(encoding="utf-8") for path in texts}
    asked = re.compile(r"""(pip|uv|conda)\s+(pip )?(install|add)( -\S+)* ["'`]*sslbook\b(?! @)""")
    assert [path for path, text in written.items() if asked.search(text) or "sslbook[" in text] == []
    extra = re.compile(r"""\.\[([a-z,]+)\]'|installing\(['"](\w+)""")
    named = {
        name
        for text in written.values()
        for found in extra.finditer(text)
        for name in (found[1] or found[2]).split(",")
    }
    assert "train" in named
    assert named | {"book"} <= set(project()["project"]["optional-dependencies"])


def promised_targets(text: str) -> set[str]:
    """Targets named in code: `make book test PORT=1` -> book, test."""
    named: set[str] = set()
    for words in re.findall(r"(?:^|`|run: |: |&& )make ((?:[a-z]+ ?)+)", text, flags=re.MULTILINE):
        named |= set(words.split())
    return named


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "CONTRIBUTING.md",
        "chapters/reproduce.md",
        ".ci/run",
        *(f".github/workflows/{n}.yml" for n in ("cpu", "gpu", "pages", "versions")),
    ],
)
def test_commands_that_are_promised_exist(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert promised_targets(text) - make_targets() == set()


def test_ci_runs_the_commands_of_the_readme() -> None:
    readme = promised_targets((ROOT / "README.md").read_text(encoding="utf-8"))
    ci = promised_targets((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert {"book", "test"} <= readme & ci


@pytest.mark.parametrize("name", ["cpu", "versions"])
def test_workflows_try_every_python_that_the_package_names(name: str) -> None:
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(project()["project"]["classifiers"]), flags=re.MULTILINE)
    workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8"))
    matrices = [job["strategy"]["matrix"]["python"] for job in workflow["jobs"].values() if "strategy" in job]
    assert matrices == [named]


def test_workflows_pass_actionlint() -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("no actionlint here; get it: https://github.com/rhysd/actionlint/blob/main/docs/install.md")
    done = subprocess.run([program, "-no-color"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
