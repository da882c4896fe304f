"""Arguments that can't be used are answered in one sentence: what was given, and what is allowed.

A function raises TypeError for another kind of thing and ValueError for a value that isn't allowed; a command line ends with
status 2.  Checks stand where a call comes in, and where a result would otherwise be silently wrong.

Here is also what a package offers: the names that its ``__init__.pyi`` imports, each loaded when it is first used (PEP 562).
The stub says each name once, for type checkers, for editors and for Python; whoever asks for another is told the nearest.
"""

from __future__ import annotations

import functools
import importlib
import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """What the caller gave can't be used; the message says what was given and what is allowed (CLI: exit status 2)."""


def nearest(name: object, names: Iterable[str], cutoff: float = 0.4) -> list[str]:
    """At most three of the names that ``name`` may be a slip of, the nearest first; upper and lower case are alike.

    >>> nearest("widht", ["width", "weight", "batch"])
    ['width', 'weight']
    """
    import difflib  # milliseconds, as argparse below, which `import sslbook` does not need

    known = {known.casefold(): known for known in names}
    return [known[near] for near in difflib.get_close_matches(str(name).casefold(), list(known), n=3, cutoff=cutoff)]


def hint(given: object, names: Iterable[str], cutoff: float = 0.4) -> str:
    """Say what a name that doesn't exist may mean by its spelling, or else which names there are.

    >>> hint("bacth", ["networks", "batch"])
    'did you mean batch?'
    >>> hint("optimiser", ["networks", "batch"])
    'there are networks, batch'
    """
    names = tuple(names)
    near = nearest(given, names, cutoff)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"


def require_one_of(argument: str, given: object, allowed: Iterable[str]) -> None:
    """Raise ValueError, which lists the names, unless ``given`` is one of them."""
    if given not in (names := tuple(allowed)):
        raise ValueError(f"{argument} must be one of {', '.join(names)}, got {given!r}")


def unknown(what: str, given: object, allowed: Iterable[str]) -> InputError:
    """The error for a name that doesn't exist, with what :func:`hint` says of it; to be raised.

    >>> print(unknown("preset", "digits-bol", ["digits-byol", "cifar10-small"]))
    preset: got 'digits-bol'; did you mean digits-byol?
    """
    return InputError(f"{what}: got {given!r}; {hint(given, sorted(allowed), 0.5)}")


def plain(value: Any) -> Any:
    """Numbers, arrays and tensors of NumPy and torch as Python's own, also within tuples, lists and mappings; all else as it is.

    So is a tensor that wants a gradient, which a number would lose, and one without numbers, as on the device "meta".
    """
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    known = type(value) in (bool, int, float, str)  # torch.compile can't ask its floats for an attribute
    if known or not hasattr(value, "tolist") or getattr(value, "requires_grad", False):
        return value
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError):
        return value


def keep_plain(record: Any) -> None:
    """Make the fields of a frozen dataclass :func:`plain`, in its ``__post_init__``.

    Else settings with ``np.float32(0.1)`` could not be written as JSON, and would have another hash.
    """
    for name in record.__dataclass_fields__:
        object.__setattr__(record, name, plain(getattr(record, name)))


_BOUNDS = {"above": ("above", gt), "least": ("at least", ge), "below": ("below", lt), "most": ("at most", le)}


def require_number(argument: str, given: object, **bounds: float) -> float:
    """``given`` as Python's number; TypeError unless it is a number, ValueError unless it is finite and within the bounds.

    bounds: any of ``above`` (>), ``least`` (>=), ``below`` (<) and ``most`` (<=), as in ``require_number("lr", lr, above=0)``.
    """
    number = plain(given)
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{argument} must be a number, got {reprlib.repr(given)}")
    if not (math.isfinite(number) and all(_BOUNDS[name][1](number, bound) for name, bound in bounds.items())):
        words = " and ".join(f"{_BOUNDS[name][0]} {bound}" for name, bound in bounds.items())
        raise ValueError(f"{argument} must be {words or 'finite'}, got {number}")
    return int(number) if isinstance(number, Integral) else float(number)


def require_whole(argument: str, given: object, **bounds: int) -> int:
    """:func:`require_number` of an integer type: 3, ``np.int64(3)`` or ``torch.tensor(3)``, but not 3.0.

    >>> require_whole("k", 3, least=1)
    3
    """
    if not isinstance(plain(given), Integral):
        raise TypeError(f"{argument} must be a whole number, got {reprlib.repr(given)}")
    return int(require_number(argument, given, **bounds))


def _whole(text: str, words: str, least: int, most: float = math.inf) -> int:
    """A whole number of a command line; raises ArgumentTypeError, with the ``words`` for what is allowed, for anything else."""
    import argparse

    if not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {words}")
    return int(text)


positive = functools.partial(_whole, words="of at least 1", least=1)
seed = functools.partial(_whole, words="from 0 to 2**32 - 1", least=0, most=2**32 - 1)


def counted(number: int, what: str) -> str:
    """A number with its noun, in the plural where it is not 1.

    >>> counted(1, "trial"), counted(2, "trial"), counted(3, "batch")
    ('1 trial', '2 trials', '3 batches')
    """
    plural = what + ("es" if what.endswith(("s", "ch")) else "s")
    return f"{number} {what if number == 1 else plural}"


# --- what a package offers -------------------------------------------------------------------------------------------


@functools.cache
def homes(stub: Path) -> dict[str, str]:
    """Return each name that a stub offers, and the module that defines it, from lines ``from module import name as name``.

    The parser takes milliseconds to import, and the stub to read: only those wait who use a name, and once.

    >>> homes(Path(__file__).with_name("__init__.pyi"))["mlp"]
    'sslbook.networks.small'
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
