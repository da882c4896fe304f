"""The files of examples/: each runs as it stands, small, uses promised names alone, and stays short."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import sslbook
from sslbook._check import homes

FOLDER = Path(__file__).resolve().parents[1] / "examples"
FILES = sorted(FOLDER.glob("*.py"))
OFFERED = set(homes(Path(sslbook.__file__).with_suffix(".pyi")))


def main(name: str) -> Callable[..., Any]:
    """What an example runs."""
    run: Callable[..., Any] = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return run


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_short_says_how_it_is_run_and_uses_what_is_promised(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sslbook":
            assert node.attr in OFFERED
        assert not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sslbook")
    assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(text))


def test_the_operator_of_your_network() -> None:
    operator = main("operator_of_your_network")(count=16)
    assert operator.trace() == pytest.approx(float(operator.dense().trace()))


def test_features_are_evaluated(tmp_path: Path) -> None:
    neighbours, _ = main("evaluate_your_features")(epochs=1)
    assert neighbours > 0.95


def test_the_statistics_of_a_tree_without_noise_are_those_of_its_root() -> None:
    found = main("statistics_of_a_tree")(depth=2, polarity=1.0)
    assert [units.shape[1] for units in found] == [1, 2]
    live = found[1].abs()[found[1] != 0]  # with no noise a unit that isn't constant is a function of the root
    torch.testing.assert_close(live, torch.ones_like(live))


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_loops_by_hand_do_not_collapse(method: str) -> None:
    assert main("simclr_and_byol_by_hand")(method, epochs=4, width=2) > 0.3  # 0.1 by chance


def test_a_folder_of_pictures_is_learned(tmp_path: Path) -> None:
    for number in range(6):
        kind = tmp_path / "pictures" / ("even" if number % 2 == 0 else "odd")
        kind.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20, 24 + number), 60).convert("RGB").save(kind / f"{number}.png")
    arguments = {"folder": str(tmp_path / "pictures"), "size": 16, "method": "byol", "keep": str(tmp_path / "run")}
    assert main("pretrain_on_your_images")(**arguments, epochs=1).shape == (6, 1024)
    assert (tmp_path / "run" / "result.json").is_file()


def test_the_readmes_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER.parent / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "pictures").mkdir()
    for number in range(4):
        Image.effect_noise((70, 80 + number), 60).convert("RGB").save(tmp_path / "pictures" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace("epochs=100", "epochs=1"), names)
    assert names["features"].shape == (4, 1024)
