"""What is asked of an argument, and how one that can't be used is answered."""

from __future__ import annotations

import argparse
import difflib
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor


T = TypeVar("T")


class InputError(ValueError):
    """What the caller gave can't be used; the message says what was given and what is allowed (CLI: exit status 2)."""


def folded(name: object) -> str:
    """A name without case, hyphens, underscores and blanks."""
    return "".join(letter for letter in str(name).casefold() if letter not in "-_ ")


def meant(given: T, names: Iterable[str]) -> T | str:
    """The name that differs from ``given`` in case, hyphens and underscores alone, if there is one; else ``given``."""
    return next((name for name in names if isinstance(given, str) and folded(name) == folded(given)), given)


def nearest(given: object, names: Iterable[str], cutoff: float = 0.4) -> list[str]:
    """At most three names that ``given`` may be a slip of, the nearest first."""
    plain = {folded(name): name for name in names}
    return [plain[near] for near in difflib.get_close_matches(folded(given), list(plain), n=3, cutoff=cutoff)]


# --- what a function was given: TypeError for another kind of thing, ValueError for a value that isn't allowed ----------


def require_one_of(argument: str, given: object, allowed: Iterable[str], otherwise: str = "") -> None:
    """Raise ValueError, with the nearest name, or else with ``otherwise``, unless ``given`` is one of the names."""
    names = tuple(allowed)
    if given not in names:
        near = nearest(given, names, 0.6 if otherwise else 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else otherwise and f"; {otherwise}"
        raise ValueError(f"{argument} must be one of {', '.join(names)}, got {given!r}{hint}")


def plain(value: Any) -> Any:
    """Numbers, arrays and tensors of NumPy and torch as Python's own, also within tuples, lists and mappings; all else as it is.

    So is what wants a gradient, which a number would lose, and what has no numbers, such as a tensor on the device "meta".
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
    """The fields of a frozen dataclass, made :func:`plain` while it is made."""
    for name in record.__dataclass_fields__:
        object.__setattr__(record, name, plain(getattr(record, name)))


def require_number(argument: str, given: object, **bounds: float) -> float:
    """``given`` as Python's number; TypeError unless it is a number, ValueError unless it is finite and within the bounds.

    bounds: any of ``above``, ``least``, ``below`` and ``most``.
    """
    return _within(argument, given, Real, "a number", bounds)


def require_whole(argument: str, given: object, **bounds: int) -> int:
    """The same of a number of an integer type."""
    return int(_within(argument, given, Integral, "a whole number", bounds))


_BOUNDS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}


def _within(argument: str, given: object, kind: Any, what: str, bounds: Mapping[str, float]) -> float:
    number = plain(given)
    if isinstance(number, bool) or not isinstance(number, kind):
        raise TypeError(f"{argument} must be {what}, got {reprlib.repr(given)}")
    if isinstance(number, Integral) and not -(2**63) <= int(number) < 2**63:
        raise ValueError(f"{argument} must be a whole number of 64 bits, got {reprlib.repr(number)}")
    if not -math.inf < number < math.inf:
        raise ValueError(f"{argument} must be finite, got {number}")
    told = {{"least": "at least", "most": "at most"}.get(name, name): bound for name, bound in bounds.items()}
    if all(_BOUNDS[words](number, bound) for words, bound in told.items()):
        return int(number) if isinstance(number, Integral) else float(number)
    words = " and ".join(f"{words} {bound}" for words, bound in told.items())
    if set(bounds) == {"least", "most"}:
        words = f"between {bounds['least']} and {bounds['most']}"
    raise ValueError(f"{argument} must be {words}, got {number}")


def refuse_unused(owner: str, **arguments: object) -> None:
    """Raise ValueError for an argument that was given, and is not zero, and that ``owner`` has no use for."""
    import torch  # seconds, which a list of options does not need

    for argument, given in arguments.items():
        if isinstance(given, torch.Tensor) or given:
            raise ValueError(f"{argument} has no use with {owner}, got it")


def require_floating(**tensors: Tensor) -> None:
    """Raise TypeError, which names the argument, unless each is a torch tensor of a floating dtype."""
    import torch  # seconds, which a list of options does not need

    for argument, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{argument} must be a torch tensor, got {type(tensor).__name__}: torch.tensor makes one")
        if not tensor.is_floating_point():
            scale = "; bytes / 255 are pixels" if tensor.dtype == torch.uint8 else ""
            raise TypeError(f"{argument} must have a floating dtype, got {tensor.dtype}{scale}")
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "meta" if tensor.device.type == "meta" else str(tensor.layout).removeprefix("torch.")
            raise TypeError(f"{argument} must be a dense tensor of numbers, got a {kind} one")


def require_finite(**features: Tensor) -> None:
    """Raise ValueError, which says how many rows it is, where features ``(..., F)`` hold a NaN or an infinity."""
    for argument, values in features.items():
        bad = (~values.isfinite()).any(-1)
        if may_look(values, wait=True) and bad.any():
            raise ValueError(
                f"{argument} must be finite numbers, got {int(bad.sum())} of {bad.numel()} rows that are not: "
                "the network has diverged"
            )


def require_temperature(given: object, dtype: torch.dtype) -> float:
    """A :func:`require_number`; ValueError unless distances of unit vectors over it, and sums, are finite in ``dtype``."""
    import torch  # seconds, which a list of options does not need

    temperature = require_number("temperature", given, above=0)
    least, most = max(1e-30, torch.finfo(dtype).tiny), min(1e30, torch.finfo(dtype).max)
    if not least <= temperature <= most:
        raise ValueError(
            f"temperature must be {least:.2g} to {most:.2g}, so that {dtype} holds what is divided by it, got {temperature}"
        )
    return temperature


def may_look(values: Tensor, wait: bool = False) -> bool:
    """Whether a check may read values: outside of a compiler and of vmap, and not on a GPU, unless it may ``wait``."""
    import torch  # seconds, which a list of options does not need

    hidden = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(values)
    return (wait or values.device.type == "cpu") and not hidden and values.numel() > 0


def require_classes(argument: str, classes: Tensor, *, look: bool = True) -> None:
    """Raise TypeError unless these are a tensor of an integer dtype, and ValueError, if we may ``look``, for one below 0.

    To look makes a GPU wait.
    """
    import torch  # seconds, which a list of options does not need

    if not isinstance(classes, torch.Tensor):
        raise TypeError(f"{argument} must be a torch tensor, got {type(classes).__name__}")
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TypeError(f"{argument} must have an integer dtype, got {classes.dtype}")
    if look and may_look(classes, wait=True) and (least := int(classes.long().min())) < 0:
        raise ValueError(f"{argument} must be classes from 0 on, got {least}: an image without a label")


# --- names of a network's parts -----------------------------------------------------------------------------------------

WRAPPERS = {"OptimizedModule": "_orig_mod", "FullyShardedDataParallel": "_fsdp_wrapped_module"}
WRAPPERS |= dict.fromkeys(("DataParallel", "DistributedDataParallel", "AveragedModel"), "module")
"""Modules around a network, of a compiler or of several devices, and what each calls it."""


def unwrapped(net: Any) -> Any:
    """A network without the wrappers around it."""
    while hasattr(net, inner := WRAPPERS.get(type(net).__name__, "")):
        net = getattr(net, inner)
    return net


def unwrapped_name(name: str) -> str:
    """The name of a part of a network without what wrappers may have put into it."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS.values())


# --- words of a command line --------------------------------------------------------------------------------------------


def positive(text: str) -> int:
    """A whole number of at least 1; raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def device(text: str) -> str:
    """``cpu``, or a GPU that is here, ``cuda`` or ``cuda:N``; raises ArgumentTypeError for anything else."""
    import torch  # seconds, which a list of options does not need

    here = ["cpu"]
    if torch.cuda.is_available():
        here += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if text not in here:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of this machine's devices, {', '.join(here)}")
    return text


def seed(text: str) -> int:
    """A whole number from 0 to 2**32 - 1; raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**32 - 1")
    return int(text)


def installing(extra: str) -> str:
    """How the packages of an extra are installed. No registry is asked for `sslbook`: a name that isn't ours is anybody's."""
    return f"pip install '.[{extra}]' in a checkout of the book"


def counted(number: int, what: str) -> str:
    """``1 trial``, ``2 trials``, ``3 batches``."""
    plural = what + ("es" if what.endswith(("s", "ch")) else "s")
    return f"{number} {what if number == 1 else plural}"


def unknown(what: str, given: object, allowed: Iterable[str]) -> InputError:
    """The error for a name that doesn't exist, with the nearest that do (all of them if none is near)."""
    names = sorted(allowed)
    if near := nearest(given, names, 0.5):
        return InputError(f"{what}: got {given!r}; did you mean {', '.join(near)}?")
    return InputError(f"{what}: got {given!r}; there are {', '.join(names) or 'none'}")
