"""The readers' notebooks in a real JupyterLab, in a browser: what a reader sees.

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

from bookbuild import notebooks
from bookbuild.layout import find_book

BOOK = find_book(Path(__file__).resolve().parents[2])
PATIENCE = 240.0
"""The longest wait for anything, in seconds, on a machine with much else to do."""

pytestmark = [
    *browser_cases.MARKS,
    pytest.mark.built,
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
MYST = re.compile(r"\{[a-z:]+\}`|^:{3,}|`{3,}\{|^\([\w-]+\)=|\$|\\begin|\\label|\\math|\\frac", re.MULTILINE)


def wait(seen: Callable[[], Any]) -> Any:
    """What is seen at last."""
    end = time.monotonic() + PATIENCE
    while not (found := seen()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)
    return found


class Lab:
    """A JupyterLab in a headless Chromium."""

    def __init__(self, url: str) -> None:
        self.driver = browser_cases.headless("window-size=1400,1200")
        self.driver.set_script_timeout(PATIENCE)
        self.driver.get(f"{url}/lab?reset")
        self.js = self.driver.execute_script
        wait(lambda: self.js("return Boolean(window.jupyterapp && window.jupyterapp.shell)"))
        self.js("return window.jupyterapp.restored.then(() => true)")

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[None]:
        """Open a notebook and wait until all its text and formulas are there; in the end close it, unsaved, and its kernel."""
        self.driver.execute_async_script(OPEN, f"{name}.ipynb")
        wait(lambda: self.js(WAITING) == 0)
        count = [-1, 0]

        def settled() -> bool:
            count[:] = [self.js(FORMULAS)[0], count[0]]
            time.sleep(1)
            return count[0] == count[1]

        wait(settled)
        try:
            yield
        finally:
            self.driver.execute_async_script(CLOSE)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of the notebooks, as `sslbook lab` makes them."""
    root = tmp_path_factory.mktemp("lab")
    notebooks.copy_notebooks(BOOK, root / "notebooks")
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> Iterator[Lab]:
    """JupyterLab as `sslbook lab` starts it, showing all cells at once."""
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
    }
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (root / "lab.log").read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{url}/api", timeout=5))
        return False

    with (
        (root / "lab.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        wait(answers)
        page = Lab(url)
        try:
            yield page
        finally:
            page.driver.quit()
            server.terminate()


@pytest.mark.parametrize("name", ["training", "byol"])
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
        source = (BOOK.chapters / f"{name}.md").read_text(encoding="utf-8")
        solutions = re.findall(r"\{solution-start\}.*?\{solution-end\}", source, re.DOTALL)
        assert len(answers) == sum("{code-cell}" in solution for solution in solutions) > 3, "a proof has none"
        assert not set(answers) & set(page.js(OPEN_CODE))
        folded = [cell.source for cell in notebook.cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
        assert not set(folded) & set(page.js(OPEN_CODE))
