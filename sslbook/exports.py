"""What a package offers: the names that its ``__init__.pyi`` imports, each loaded when it is first used (PEP 562).

The stub says each name once, for type checkers, for editors and for Python.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sslbook._check import nearest


@functools.cache
def homes(stub: Path) -> dict[str, str]:
    """Return each name that a stub offers, and the module that defines it, from lines ``from module import name as name``.

    The parser takes milliseconds to import, and the stub to read: only those wait who use a name, and once.
    """
    import ast

    tree = ast.parse(stub.read_bytes())
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in found for alias in node.names if node.module}


def offer(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of the package whose ``__init__.py`` is ``file``; ``__all__`` is answered, too."""
    stub = Path(file).with_suffix(".pyi")

    def load(name: str) -> Any:
        """Return the object of that name, from the module that defines it, and keep it, so that Python finds it by itself.

        Raises AttributeError for a name that there is not, and says the nearest in its own text: Jupyter shows no hint of Python's.
        """
        if name == "__all__":
            return sorted(homes(stub))
        if name.startswith("_") or name not in homes(stub):
            near = "".join(f"; did you mean {known}?" for known in nearest(name, homes(stub), 0.6)[:1])
            raise AttributeError(f"module {package!r} has no attribute {name!r}{near}", name=name)
        value = getattr(importlib.import_module(homes(stub)[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes(stub)})
