"""Modules that stand around a network: those of ``torch.compile``, of several devices, and of averaged weights."""

from __future__ import annotations

from typing import Any

WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    **dict.fromkeys(("DataParallel", "DistributedDataParallel", "AveragedModel"), "module"),
}
"""The classes by name, and what each calls the network inside."""


def unwrapped(net: Any) -> Any:
    """A network without the wrappers around it.

    >>> import torch
    >>> unwrapped(torch.nn.DataParallel(torch.nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    while hasattr(net, inner := WRAPPERS.get(type(net).__name__, "")):
        net = getattr(net, inner)
    return net


def unwrapped_name(name: str) -> str:
    """The name of a part of a network, such as ``module.layer1.weight``, without what wrappers have put into it."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS.values())
