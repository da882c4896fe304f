"""tools/environment.py: which Python, which torch, and what it says when it can't."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from reader_cases import tool

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "environment.py"


environment = tool("environment")


def test_an_old_python_can_read_it() -> None:
    """It must parse where it only looks for a better Python, and need nothing beyond the standard library."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names), imported - set(sys.stdlib_module_names)


def test_a_cpu_machine_tries_every_cpu_build_before_the_package_index_and_a_gpu_machine_takes_no_cpu_wheel() -> None:
    *before, _, _ = environment.torch_sources("2.13.0", cuda=False, linux=True).values()
    assert len(before) == 3
    for arguments in before:
        assert "--no-index" in arguments or (environment.CPU_INDEX in arguments and arguments[-1].endswith("+cpu"))
        assert "--no-deps" in arguments, "a CUDA build's dependencies must not come in by the back door"
    first, *_ = environment.torch_sources("2.13.0", cuda=True, linux=True).values()
    assert first == ["torch===2.13.0"], "'==' would prefer a local 2.13.0+cpu"


def test_every_pin_but_torchs_has_the_hashes_of_its_files() -> None:
    hashed, plain = environment.locked(environment.LOCK), environment.locked(environment.LOCK, hashes=False)
    assert len(hashed) == len(plain) > 100
    assert all(pin.count("--hash=sha256:") >= 1 for pin in hashed)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?\n", pin) for pin in plain)
    assert not any(pin.startswith("torch==") for pin in hashed)


def test_an_old_python_is_refused_and_a_newer_one_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(environment, "NEWEST_TESTED", (3, 10))
    environment.check_python()
    assert "newer than 3.10" in capsys.readouterr().out
    monkeypatch.setattr(environment, "OLDEST", (4, 0))
    with pytest.raises(SystemExit):
        environment.check_python()
    assert "make book PYTHON=" in capsys.readouterr().err


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit):
        environment.make_venv(tmp_path, system_packages=False)
    assert "is not a virtual environment" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
