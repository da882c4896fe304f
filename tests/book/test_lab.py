"""The readers' notebooks in a real JupyterLab, in a browser: what a reader sees, and what a run changes.

Needs the system's Chromium and its driver, and the built book (`make book`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser_cases
import nbformat
import pytest
from distributed_cases import free_port
from reader_cases import kernel_of

from sslbook.book import notebooks
from sslbook.book.chapters import find_chapters
from sslbook.book.layout import find_book

BOOK = find_book(Path(__file__).resolve().parents[2])
CHAPTERS = [chapter.name for chapter in find_chapters(BOOK) if chapter.runs]
PATIENCE = 240.0
"""The longest wait for anything, in seconds, on a machine with much else to do."""

pytestmark = [
    *browser_cases.MARKS,
    pytest.mark.skipif(not list((BOOK.html / "notebooks").glob("*.ipynb")), reason="the book is not built: make book"),
    pytest.mark.xdist_group("lab"),
]

OPEN = """
const [path, done] = arguments;
const app = window.jupyterapp;
app.commands.execute('docmanager:open', {path}).then(w => Promise.all([w.context.ready, w.revealed])).then(() => done(true));
"""
CLOSE = """
const done = arguments[0], panel = window.jupyterapp.shell.currentWidget;
panel.sessionContext.shutdown().catch(() => null).then(() => { panel.context.model.dirty = false; panel.dispose(); done(true); });
"""
PANEL = "const panel = window.jupyterapp.shell.currentWidget, cells = panel.content.widgets;"
# Markdown cells that are not rendered yet, and formulas whose picture is not there yet.
WAITING = f"""{PANEL}
const there = c => c.rendered && c.node.querySelector('.jp-RenderedMarkdown')?.innerHTML.trim();
return cells.filter(c => c.model.type === 'markdown' && !there(c)).length;
"""
# Text as a reader sees it; MathJax's pictures have no text of their own, but their source for screen readers has.
TEXTS = f"""{PANEL}
return cells.filter(c => c.model.type === 'markdown').map(c => {{
  const copy = c.node.querySelector('.jp-RenderedMarkdown').cloneNode(true);
  copy.querySelectorAll('mjx-container, code, pre').forEach(e => e.remove());
  return copy.textContent;
}});
"""
FORMULAS = f"""{PANEL}
return [panel.node.querySelectorAll('.jp-RenderedMarkdown mjx-container').length,
        panel.node.querySelectorAll('mjx-merror, [data-mjx-error]').length];
"""
IMAGES = f"""{PANEL}
return [...panel.node.querySelectorAll('.jp-RenderedMarkdown img, .jp-OutputArea img')]
  .filter(i => !(i.complete && i.naturalWidth)).map(i => i.alt.slice(0, 60));
"""
OPEN_CODE = f"""{PANEL}
return cells.filter(c => c.model.type === 'code' && !c.inputHidden).map(c => c.model.sharedModel.getSource());
"""
LINES = f"""{PANEL}
return cells.filter(c => c.model.type === 'code' && c.model.sharedModel.getSource().includes('this_run('))
  .filter(c => !c.model.sharedModel.getSource().includes('%pip'))
  .map(c => c.node.querySelector('.jp-OutputArea')?.textContent.trim() || '');
"""
MYST = re.compile(r"\{[a-z:]+\}`|^:{3,}|`{3,}\{|^\([\w-]+\)=|\$|\\begin|\\label|\\math|\\frac", re.MULTILINE)


class Lab:
    """A JupyterLab in a headless Chromium."""

    def __init__(self, url: str) -> None:
        self.driver = browser_cases.headless("window-size=1400,1200")
        self.driver.set_script_timeout(PATIENCE)
        self.driver.get(f"{url}/lab?reset")
        self.wait(lambda: self.js("return Boolean(window.jupyterapp && window.jupyterapp.shell)"))
        self.js("return window.jupyterapp.restored.then(() => true)")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, seen: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        end = time.monotonic() + seconds
        while not (found := seen()):
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.2)
        return found

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[None]:
        """Open a notebook and wait until all its text and formulas are there; in the end close it, unsaved, and its kernel."""
        self.driver.execute_async_script(OPEN, f"{name}.ipynb")
        self.wait(lambda: self.js(WAITING) == 0)
        count = [-1, 0]

        def settled() -> bool:
            count[:] = [self.js(FORMULAS)[0], count[0]]
            time.sleep(1)
            return count[0] == count[1]

        self.wait(settled)
        try:
            yield
        finally:
            self.driver.execute_async_script(CLOSE)

    def do(self, command: str) -> Any:
        """Run one of JupyterLab's commands to its end, asking now and then: selenium's own patience ends after two minutes."""
        script = """window.told = '';
        const tell = word => { window.told = word; };
        window.jupyterapp.commands.execute(arguments[0]).then(() => tell('done'), error => tell(String(error)));"""
        self.js(script, command)
        return self.wait(lambda: self.js("return window.told"))

    def source(self, part: str, new: str | None = None) -> str:
        """The source of the one cell that holds ``part``; ``new`` replaces that part."""
        script = f"""{PANEL}
        const found = cells.filter(c => c.model.sharedModel.getSource().includes(arguments[0]));
        if (found.length !== 1) return null;
        const model = found[0].model.sharedModel;
        if (arguments[1] !== null) model.setSource(model.getSource().replace(arguments[0], arguments[1]));
        return model.getSource();"""
        found = self.js(script, part, new)
        assert found is not None, f"no cell, or more than one, holds {part!r}"
        return str(found)

    def run(self, part: str) -> None:
        """Select the cell that holds ``part`` and run it."""
        script = f"""{PANEL}
        panel.content.activeCellIndex = cells.findIndex(c => c.model.sharedModel.getSource().includes(arguments[0]));"""
        self.js(script, part)
        assert self.do("notebook:run-cell") == "done"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of the notebooks, as `sslbook lab` makes them."""
    root = tmp_path_factory.mktemp("lab")
    notebooks.copy_notebooks(BOOK, root / "notebooks")
    return root


@pytest.fixture(scope="module")
def page(root: Path, reader: Path) -> Iterator[Lab]:
    """JupyterLab as `sslbook lab` starts it, showing all cells at once; its kernel has the package from the wheel."""
    settings = root / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}')
    port = free_port()
    command = [
        *notebooks.lab_command(root / "notebooks"),
        "--no-browser",
        f"--port={port}",
        "--ServerApp.port_retries=0",
    ]
    command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    environment = {
        **os.environ,
        "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_PATH": str(kernel_of(reader, root / "jupyter")),
    }
    with (
        (root / "lab.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{url}/api", timeout=5)
                break
            except OSError:
                assert server.poll() is None, (root / "lab.log").read_text()
                assert time.monotonic() < end, (root / "lab.log").read_text()
                time.sleep(0.3)
        page = Lab(url)
        try:
            yield page
        finally:
            page.driver.quit()
            server.terminate()


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_notebook_reads_as_the_page(page: Lab, root: Path, name: str) -> None:
    with page.opened(name):
        texts = page.js(TEXTS)
        assert [found for text in texts for found in MYST.findall(text)] == []
        formulas, wrong = page.js(FORMULAS)
        notebook = nbformat.read(root / f"notebooks/{name}.ipynb", as_version=4)
        markdown = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        written = re.sub(r"`[^`]*`", "", markdown)
        assert formulas == len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", written, re.DOTALL))
        assert wrong == 0
        assert page.js(IMAGES) == []
        pairs = itertools.pairwise(notebook.cells)
        answers = [b.source for a, b in pairs if "<summary>Solution</summary>" in a.source and b.cell_type == "code"]
        assert len(answers) == (BOOK.chapters / f"{name}.md").read_text(encoding="utf-8").count("{solution-start}")
        assert not set(answers) & set(page.js(OPEN_CODE))
        folded = [cell.source for cell in notebook.cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
        assert not set(folded) & set(page.js(OPEN_CODE))


ERRORS = f"""{PANEL}
return [...panel.node.querySelectorAll('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"], '
  + '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]')].map(e => e.textContent.slice(0, 200));
"""


def test_a_run_with_another_seed_changes_the_lines_below_the_text(page: Lab, root: Path) -> None:
    """The book's own seed changes nothing that is printed, apart from rounding; another one does, at once where it is run."""
    with page.opened("dual_networks"):
        assert [text for text in page.js(LINES) if text] == [], "nothing before it is run"
        assert page.do("notebook:run-all-cells") == "done"
        assert page.js(ERRORS) == []
        first = page.js(LINES)
        assert all(
            text.startswith(("✓ This run (quick, seed 0, cpu)", "↻ This run (quick, seed 0, cpu)")) for text in first
        )
        page.source("seed = 0", "seed = 3")
        for part in ("seed = 3", 'begin("dual_networks"'):
            page.run(part)
        cells = nbformat.read(root / "notebooks/dual_networks.ipynb", 4).cells
        page.run(
            next(cell.source for cell in cells if 'measure("layers-tried"' in cell.source)
        )  # which the text prints
        said = lambda lines: any("where the book has" in text for text in lines)  # noqa: E731
        now = page.wait(lambda: said(lines := page.js(LINES)) and lines)
        changed = [text for before, text in zip(first, now, strict=True) if before != text]
        assert all("(quick, seed 3, cpu)" in text for text in changed if text), (
            "and what the new run has not computed is gone"
        )


def test_links_lead_to_their_theorems(page: Lab) -> None:
    with page.opened("covariance"):
        script = f"""{PANEL}
        const links = [...panel.node.querySelectorAll('.jp-RenderedMarkdown a')];
        const link = links.find(a => a.getAttribute('href') === '#' + arguments[0]);
        link.scrollIntoView(); link.click();"""
        place = """const target = document.querySelector(`[data-jupyter-id="${arguments[0]}"]`);
        return target && target.getBoundingClientRect().top;"""
        for label in ("cor-beta", "equation-eq-apply", "thm-operator"):
            page.js(script, label)
            page.wait(lambda label=label: 0 <= page.js(place, label) < 400)  # type: ignore[misc]
