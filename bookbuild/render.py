"""From executed notebooks to the HTML book.

The notebooks are rendered as they are, with execution off: what the page shows is what the regression has read. They are staged in
a folder of their own, together with the pages that hold no code and those that are generated; Jupyter Book runs there with every
warning an error, so that no reference leads nowhere; and the finished pages take the old ones' place in one step, so that a failed
build leaves the last good book. Tests of the built book see to links in HTML of ours and in readers' notebooks, of which Sphinx
knows nothing.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from sphinx_external_toc.parsing import parse_toc_data

from bookbuild.kernel import ANSI, variables
from bookbuild.layout import read_chapter
from bookbuild.markdown import LINES
from bookbuild.search import write_index
from sslbook._files import write_text
from sslchapters.data_files import read_text, read_yaml
from sslchapters.values import glue, without_missing

# Jupyter Book has jsonschema compile a grammar of addresses for two seconds, which no file of ours is held to.
# And it would go on writing if we were killed.
_COMMAND = """
import sys
from sslbook._machine import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
sys.modules['rfc3987_syntax'] = None
from jupyter_book.cli.main import main
main()
"""
_PROBLEM = re.compile(r"(WARNING|ERROR|CRITICAL)\b|[Ee]rror:|Exception occurred")
_PLACE = re.compile(r"^(?P<page>\S+?)\.ipynb(?::(?P<line>\d+))?")


class RenderError(RuntimeError):
    """The book could not be rendered; the message quotes Sphinx's warnings with their place."""


def build(
    executed: Path,
    out: Path,
    *,
    root: Path,
    generated: Mapping[str, str],
    failed: Mapping[str, Sequence[str]],
) -> Path:
    """Render the book below `root` into the folder `out` and return its first page, `out/index.html`.

    `executed` holds one `<page>.ipynb` for each chapter with code (the file's name without `.md`); `root` holds `_config.yml`,
    `_toc.yml` and the sources; `generated` maps pages of the table of contents (`chapters/ledger`) to their Markdown.
    `failed` says what failed in a chapter, which its page lists below its title.
    Stages into `out/../stage`, and writes Sphinx's whole output to `out/../render.log`.

    Raises OSError if a page is missing or not executed, RenderError if nothing failed and Sphinx warns; `out` is then untouched.
    """
    work, names = out.parent, pages(root)
    strict = not any(failed.values())  # a cell that failed leaves numbers out, which Sphinx warns of
    staged = stage(executed, work / "stage", root=root, generated=generated, strict=strict)
    fresh = _jupyter_book(staged, work, strict=strict)
    shutil.rmtree(fresh / "_static/vendor/fontawesome", ignore_errors=True)  # no page loads it: see sphinx_ext
    write_index(fresh, names)
    (fresh / "searchindex.js").unlink(missing_ok=True)  # Sphinx's index of pages, which nothing loads
    shutil.rmtree(fresh / "_sources", ignore_errors=True)
    for name in names:
        source = generated.get(name) or read_text(root / f"{name}.md")
        write_text(fresh / f"_sources/{name}.md", source)  # what the download buttons offer
        if lines := failed.get(Path(name).name):
            listed = "".join(f"<li>{html.escape(line.splitlines()[0])}</li>" for line in lines)
            box = f'<div class="admonition warning"><p class="admonition-title">Failed in this run</p><ul>{listed}</ul></div>'
            text = (fresh / f"{name}.html").read_text(encoding="utf-8")
            write_text(fresh / f"{name}.html", text.replace("#</a></h1>", f"#</a></h1>{box}", 1))
    old = out.with_name(out.name + ".old")  # the new pages take the old ones' place by renaming
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    return out / "index.html"


def pages(root: Path) -> list[str]:
    """The pages of the table of contents in reading order, without suffix: `chapters/intro`, …"""
    return list(parse_toc_data({"format": "jb-book", **read_yaml(root / "_toc.yml", dict)}))


def stage(executed: Path, folder: Path, *, root: Path, generated: Mapping[str, str], strict: bool = True) -> Path:
    """Gather in `folder`, made anew, what Sphinx is to read; returns `folder`. Arguments and errors as for `build`.

    Unless `strict`, a number that no chapter has produced is a dash.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("_config.yml", "_toc.yml"):
        write_text(folder / name, read_text(root / name))
    known = {path.stem: glue(json.loads(read_text(path))) for path in executed.glob("*.ipynb") if not strict}
    for page in pages(root):
        name, target = Path(page).name, folder / f"{page}.md"
        if page in generated:
            text = generated[page]
        elif not (chapter := read_chapter(root / f"{page}.md")).runs:
            text = chapter.text
        else:
            text, target = read_text(executed / f"{name}.ipynb"), target.with_suffix(".ipynb")
        write_text(target, text if strict else without_missing(text, name, known))
    for source in {(root / page).parent for page in pages(root)}:  # with what their pages refer to
        others = shutil.ignore_patterns("*.md", "*.ipynb", ".*", "_*")
        shutil.copytree(source, folder / source.relative_to(root), ignore=others, dirs_exist_ok=True)
        for path in source.glob("*.bib"):
            write_text(folder / path.relative_to(root), read_text(path))
    return folder


def _jupyter_book(staged: Path, work: Path, *, strict: bool) -> Path:
    """Run Jupyter Book on the staged sources; returns the folder of its HTML. strict: every warning is an error."""
    command = [sys.executable, "-c", _COMMAND, str(os.getpid())]
    command += ["build", str(staged), "--path-output", str(work / "render")]
    command += ["--all", "-n", *(["-W", "--keep-going"] if strict else [])]
    environment = {**variables(), "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    shutil.rmtree(work / "render", ignore_errors=True)
    run = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    log, built = work / "render.log", work / "render/_build/html"
    log.write_text(run.stdout + run.stderr, encoding="utf-8")
    if run.returncode != 0 or not built.is_dir():
        found = explain(run.stdout + run.stderr, staged)
        raise RenderError(f"Jupyter Book found problems (its whole output is in {log}):\n{found}")
    return built


def explain(log: str, staged: Path) -> str:
    """The problems in Sphinx's output, each with its place in the sources: page, cell and the line itself.

    In a notebook Sphinx counts lines as ``cell * LINES + line``.
    """
    problems: dict[str, None] = {}
    for line in ANSI.sub("", log).splitlines():
        line = line.replace(f"{staged}{os.sep}", "").replace(f"{staged.resolve()}{os.sep}", "")
        if not _PROBLEM.search(line) or line.startswith("WARNING: keep_going"):
            continue
        place = _PLACE.match(line)
        if place and (notebook := staged / f"{place['page']}.ipynb").exists():
            where, (number, row) = f"{place['page']}.md", divmod(int(place["line"] or 0), LINES)
            cells = nbformat.read(notebook, as_version=4).cells
            if 0 < number <= len(cells):
                rows = cells[number - 1].source.splitlines() or [""]
                where += f", cell {number}, near “{rows[min(max(row, 1), len(rows)) - 1].strip()[:90]}”"
            line = where + line[place.end() :]
        problems[f"  {line}"] = None
    return "\n".join(problems) or "\n".join(log.splitlines()[-15:])
