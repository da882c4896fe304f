"""The readers' notebooks in a real JupyterLab, in a browser: what a reader sees.

Needs the system's Chromium and its driver, and the built book (`make book`).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_cases
import nbformat
import pytest
from distributed_cases import free_port
from training_cases import until

from bookbuild import notebooks
from bookbuild.layout import find_book

BOOK = find_book(Path(__file__).resolve().parents[2])
PATIENCE = 240.0
"""The longest wait for anything, in seconds, on a machine with much else to do."""

pytestmark = [*browser_cases.MARKS, pytest.mark.built, pytest.mark.xdist_group("lab")]

OPEN = """
const [path, done] = arguments, app = window.jupyterapp;
app.commands.execute('docmanager:open', {path}).then(w => Promise.all([w.context.ready, w.revealed])).then(() => done(true));
"""
READ = """
const panel = window.jupyterapp.shell.currentWidget, all = what => [...panel.node.querySelectorAll(what)];
const shown = cell => cell.rendered && cell.node.querySelector('.jp-RenderedMarkdown');
return {
  waiting: panel.content.widgets.filter(cell => cell.model.type === 'markdown' && !shown(cell)?.innerHTML.trim()).length,
  formulas: all('.jp-RenderedMarkdown mjx-container').length,
  wrong: all('mjx-merror, [data-mjx-error]').length,
  lost: all('.jp-RenderedMarkdown img, .jp-OutputArea img').filter(i => !(i.complete && i.naturalWidth)).map(i => i.alt),
};
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of the notebooks, as `sslbook lab` makes them, and settings by which all cells are shown at once."""
    root = tmp_path_factory.mktemp("lab")
    notebooks.copy_notebooks(BOOK, root / "notebooks")
    settings = root / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}')
    return root


@pytest.fixture(scope="module")
def lab(root: Path) -> Iterator[Any]:
    """A headless Chromium that shows JupyterLab as `sslbook lab` starts it."""
    port = free_port()
    options = f"--no-browser --port={port} --ServerApp.port_retries=0 --IdentityProvider.token="
    command = [*notebooks.lab_command(root / "notebooks"), *options.split(), "--LabApp.expose_app_in_browser=True"]
    folders = {"JUPYTERLAB_SETTINGS_DIR": str(root / "settings"), "JUPYTER_CONFIG_DIR": str(root / "config")}

    def answers() -> bool:
        assert server.poll() is None, (root / "lab.log").read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5))
        return False

    with (
        (root / "lab.log").open("w") as log,
        subprocess.Popen(command, env=os.environ | folders, stdout=log, stderr=log) as server,
    ):
        until(answers)
        driver = browser_cases.headless("window-size=1400,1200")
        driver.set_script_timeout(PATIENCE)
        driver.get(f"http://127.0.0.1:{port}/lab?reset")
        until(lambda: driver.execute_script("return Boolean(window.jupyterapp && window.jupyterapp.shell)"))
        driver.execute_script("return window.jupyterapp.restored.then(() => true)")
        yield driver
        driver.quit()
        server.terminate()


@pytest.mark.parametrize("name", ["training", "byol"])
def test_every_formula_and_every_picture_of_a_notebook_is_seen(lab: Any, root: Path, name: str) -> None:
    cells = nbformat.read(root / f"notebooks/{name}.ipynb", as_version=4).cells
    markdown = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    formulas = len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", re.sub(r"`[^`]*`", "", markdown), re.DOTALL))
    lab.execute_async_script(OPEN, f"{name}.ipynb")
    until(lambda: lab.execute_script(READ)["waiting"] == 0)
    until(lambda: lab.execute_script(READ)["formulas"] >= formulas)
    time.sleep(1)
    assert lab.execute_script(READ) == {"waiting": 0, "formulas": formulas, "wrong": 0, "lost": []}
