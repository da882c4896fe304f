"""A network held still: a private copy with the weights that it had, run so that what is above a layer has two derivatives.

Definition 1 of [tian2020] takes a network to be a function of one sample with fixed weights.  The caller's network goes on:
it may be trained, moved, or used by another thread, and has its modes, hooks, buffers and gradients as before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from sslbook._ambient import copied, default_device_of, default_settings
from sslbook.operator.fast_double_backward import FastDoubleBackward


def in_full(tensor: Tensor) -> Tensor:
    """The same numbers in float32, where they are given in half precision, whose products would lose two of three digits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def frozen(net: nn.Module) -> nn.Module:
    """A copy of a network, in float32 at least, in which no number wants a gradient.

    Raises ValueError for a network that can't be copied.
    """
    net = copied(net)
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data = in_full(tensor.data)
    return net.requires_grad_(False)


@contextlib.contextmanager
def sentences(what: str, kinds: tuple[type[Exception], ...] = (RuntimeError, IndexError)) -> Iterator[None]:
    """Say ``what`` failed in front of the first line of an error of these kinds, by default PyTorch's, as a ValueError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except kinds as error:
        raise ValueError(f"{what}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}") from error


_ONE_AT_A_TIME = threading.RLock()
"""What a pass sets below holds for all threads."""


@contextlib.contextmanager
def held_still(x: Tensor) -> Iterator[None]:
    """A pass on ``x`` that can be differentiated twice, whatever is set around it.

    Raises ValueError for a network that recomputes activations (PyTorch would recompute them without what is set here), and
    for one that draws random numbers, such as dropout in training mode, whose output isn't a function of the sample.
    """
    device, message = x.device, "it recomputes activations when they are needed (checkpointing): switch that off"

    def generators() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    with (
        _ONE_AT_A_TIME,
        default_settings(gradients=True),
        default_device_of(x),
        sdpa_kernel(SDPBackend.MATH),  # fused attention can't be differentiated twice
        FastDoubleBackward(),
        parametrize.cached(),  # one weight for the layer and for us
        torch.autograd.graph.disable_saved_tensors_hooks(message),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
    ):
        before = generators()
        yield
        if not all(map(torch.equal, before, generators())):
            raise ValueError(
                "net draws random numbers (dropout, noise), so that its output depends on chance: call net.eval() first"
            )
