#!/usr/bin/env python3
"""Change the library at random, a little at a time, and see who notices: ``python3 tools/mutants.py FOLDER``.

FOLDER gets a clone of this checkout at its commit. Cosmic Ray finds all small changes there (a sign, an operator, a comparison, a
number, a branch), ``--count`` of them are drawn with ``--seed``, and of each one the tests that concern its module are run; where
they notice nothing and ``--chapters`` is given, the chapters that use the module are executed and their numbers compared. A table
ends it: what was caught by tests, by a chapter, and what survived, with its difference, unless ``mutants.yml`` beside this file
explains why that changes nothing. Stopped, it goes on where it was; ``--again`` asks the tests that were written since about what
survived. Exit status 1 if too many survive.

It needs ``pip install cosmic-ray`` and the environment of ``make environment``, and takes a minute or two for each change.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = Path(__file__).with_name("mutants.yml")
OUTCOMES = "outcomes.jsonl"
COUNT, SECONDS = 200, 1800
BY_ALL, BY_TESTS = 0.95, 0.90
"""Shares of the changes, but for those explained, that must be caught: by tests and chapters together, and by tests alone."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}


# --- which tests and chapters concern a module -----------------------------------------------------------------------


@functools.cache
def imports(path: Path) -> set[str]:
    """The modules that a Python file names in its imports, wherever they stand; ``from a import b`` names a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def concerned(path: Path, root: Path) -> list[Path]:
    """The test files that import a module of the library, or a helper that does; without any, those that import its users.

    The one that bears the module's name comes first.
    """
    tests = sorted((root / "tests").glob("*.py"))
    named = {file: imports(file) for file in tests}
    targets, seen = {module_name(path, root)}, set[str]()
    while targets - seen:
        helpers = {file.stem for file in tests if named[file] & targets}
        found = [f for f in tests if f.name.startswith("test_") and named[f] & (targets | (helpers - {f.stem}))]
        if found:
            stem = path.parent.name if path.stem == "__init__" else path.stem
            return sorted(found, key=lambda file: (stem not in file.stem, path.parent.name not in file.stem, file.name))
        seen |= targets
        users = (file for file in (root / "sslbook").rglob("*.py") if imports(file) & targets)
        targets = {module_name(file, root) for file in users} - seen
    return []


def chapters_of(path: Path, root: Path) -> list[str]:
    """The chapters whose code imports a module, or something that does."""
    reached, new = set[str](), {module_name(path, root)}
    named = {module_name(file, root): imports(file) for file in (root / "sslbook").rglob("*.py")}
    while new:
        reached |= new
        new = {user for user, used in named.items() if used & new} - reached
    found = []
    for page in sorted((root / "chapters").glob("*.md")):
        code = "\n".join(re.findall(r"^```\{code-cell\}.*?\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
        lines = re.findall(r"^from (\S+) import (.+)$|^import (\S+)", code, flags=re.M)
        used = {m for a, names, b in lines for m in (a, b, *(f"{a}.{n.strip()}" for n in names.split(",")))}
        if used & reached:
            found.append(page.stem)
    return found


# --- judging one change ----------------------------------------------------------------------------------------------


def judge(clone: Path, chapters: bool) -> dict[str, Any]:
    """Run what concerns the change that the clone has now: its files, its difference, who noticed it (:func:`_noticed`)."""
    diff = subprocess.run(["git", "diff"], cwd=clone, capture_output=True, text=True, check=True).stdout
    changed = re.findall(r"^\+\+\+ b/(.+)$", diff, flags=re.MULTILINE)
    by = said = ""
    for name in changed:
        if not by:
            by, said = _noticed(clone / name, clone, chapters)
    return {"files": changed, "by": by, "said": said, "diff": diff}


def judge_again(clone: Path, folder: Path, chapters: bool) -> None:
    """Take the clone to this checkout's commit, and judge what survived once more, if it can still be made there."""
    found = list(outcomes(folder))
    subprocess.run(["git", "pull", "--quiet", "--ff-only"], cwd=clone, check=True)
    for index, one in enumerate(found):
        made = ["git", "apply", "-"]
        if not one["by"] and not subprocess.run(made, cwd=clone, input=one["diff"], text=True, check=False).returncode:
            found[index] = judge(clone, chapters)
            subprocess.run(["git", "checkout", "--quiet", "."], cwd=clone, check=True)
            keep(folder, found)


def _noticed(path: Path, clone: Path, chapters: bool) -> tuple[str, str]:
    """Who notices: ``tests``, the name of a chapter, or nobody, an empty word; and what they say. What hangs is noticed."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(clone)}
    python = [sys.executable, "-B", "-m"]
    pytest = [*python, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slurm"]

    def ask(*command: str) -> tuple[int, str]:
        run = functools.partial(subprocess.run, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        try:
            done = run(command, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return 1, "it hangs"
        return done.returncode, done.stdout

    nearest, *others = map(str, concerned(path, clone))
    for files in ([nearest], others):  # the nearest alone, which most changes fail before the others are even read
        status, told = ask(*pytest, *files) if files else (0, "")
        if status not in (0, 5):  # 5: none that can run here
            failed = re.search(r"^(FAILED|ERROR) .*", told, flags=re.MULTILINE)
            return "tests", failed[0] if failed else told[-200:]
    for chapter in chapters_of(path, clone) if chapters else ():
        status, told = ask(*python, "sslbook", "execute", chapter, "--processes", "1")
        if status:
            return chapter, told[-200:]
    return "", ""


# --- drawing them ----------------------------------------------------------------------------------------------------


def annotated(path: Path) -> set[int]:
    """The lines on which an annotation stands: nobody computes the unions that are written there."""
    lines = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.AST):
                lines |= {n.lineno for n in ast.walk(part) if hasattr(n, "lineno")}
    return lines


def draw(session: Path, clone: Path, count: int, seed: int) -> None:
    """Leave ``count`` of a new session's changes to be tried, drawn at random, a file as likely as its share of the changes."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(session)) as db:
        places = {item.job_id: item.mutations[0] for item in db.work_items}
        typed = {path: annotated(clone / path) for path in {found.module_path for found in places.values()}}
        real = [
            job
            for job, found in places.items()
            if "BitOr" not in found.operator_name or found.start_pos[0] not in typed[found.module_path]
        ]
        real.sort(key=lambda job: (str(places[job].module_path), places[job].start_pos, places[job].operator_name))
        chosen = set(random.Random(seed).sample(real, min(count, len(real))))
        db.set_multiple_results([job for job in places if job not in chosen], WorkResult(WorkerOutcome.SKIPPED))


def prepare(folder: Path, count: int, seed: int, chapters: bool) -> Path:
    """The clone and the session in ``folder``, made if they aren't there; returns the configuration."""
    clone, session, config = folder / "clone", folder / "session.sqlite", folder / "mutants.toml"
    if session.exists():
        return config
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    told = " ".join(
        [sys.executable, str(Path(__file__).resolve()), str(folder), "--judge", *(["--chapters"] * chapters)]
    )
    config.write_text(
        "[cosmic-ray]\n"
        'module-path = ["sslbook"]\nexcluded-modules = ["sslbook/bench/**", "sslbook/**/bench.py"]\n'
        f'timeout = {24 * 3600}\ntest-command = "{told}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    cosmic(clone, "init", str(config), str(session))
    draw(session, clone, count, seed)
    return config


def cosmic(clone: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", *arguments], cwd=clone, check=True)


# --- what came of it -------------------------------------------------------------------------------------------------


def outcomes(folder: Path) -> Iterator[dict[str, Any]]:
    file = folder / OUTCOMES
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        yield json.loads(line)


def keep(folder: Path, found: Sequence[Mapping[str, Any]], mode: str = "w") -> None:
    with (folder / OUTCOMES).open(mode, encoding="utf-8") as file:
        file.write("".join(json.dumps(one) + "\n" for one in found))


def essence(diff: str) -> str:
    """What a change does, whatever the line: the lines that it takes away and puts there."""
    return "\n".join(line.rstrip() for line in diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line))


def report(found: Sequence[Mapping[str, Any]], explained: dict[str, str]) -> tuple[str, bool]:
    """The table, and whether enough was caught."""
    alive = [outcome for outcome in found if not outcome["by"]]
    answered = [outcome for outcome in alive if essence(outcome["diff"]) in explained]
    count = len(found) - len(answered)
    tests = Counter(bool(outcome["by"] == "tests") for outcome in found)[True]
    caught = sum(bool(outcome["by"]) for outcome in found)
    lines = [
        f"{len(found)} changes, {len(answered)} of which change nothing ({EXPLAINED.name})",
        f"caught by tests     {tests:4d} of {count}  {tests / max(count, 1):.1%}",
        f"and by a chapter    {caught - tests:4d} of {count}  together {caught / max(count, 1):.1%}",
    ]
    lines += [f"\nsurvived: {' '.join(o['files'])}\n{essence(o['diff'])}" for o in alive if o not in answered]
    return "\n".join(lines), count > 0 and caught >= BY_ALL * count and tests >= BY_TESTS * count


def explanations() -> dict[str, str]:
    """Changes that change nothing, with the reason of each: a list of ``{change: ..., why: ...}``."""
    import yaml

    entries = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8")) if EXPLAINED.exists() else None
    return {entry["change"].rstrip("\n"): entry["why"] for entry in entries or ()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many changes are tried (default: {COUNT})")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--chapters", action="store_true", help="execute chapters where tests notice nothing")
    parser.add_argument("--again", action="store_true", help="judge what survived once more, at the checkout's commit")
    parser.add_argument("--report", action="store_true", help="only tell what has come of it so far")
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.judge:
        one = judge(folder / "clone", options.chapters)
        keep(folder, [one], "a")
        return 1 if one["by"] else 0
    if options.again:
        judge_again(folder / "clone", folder, options.chapters)
    elif not options.report:
        config = prepare(folder, options.count, options.seed, options.chapters)
        cosmic(folder / "clone", "exec", str(config), str(folder / "session.sqlite"))
    table, good = report(list(outcomes(folder)), explanations())
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
