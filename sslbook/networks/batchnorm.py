r"""BatchNorm taken apart: its mean and its deviation, each with or without its forward and its backward half.

Section 5 and Table 4 of [tian2021iclr] ask which of these halves matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sslbook._ambient import anywhere
from sslbook._check import require_one_of

MODES = ("normal", "detach", "omit", "backward")


def batch_normalize(
    x: Tensor,
    *,
    mean: str = "normal",
    std: str = "normal",
    dims: int | Sequence[int] = 0,
    eps: float = 1e-5,
    unbiased: bool = False,
) -> Tensor:
    r"""Return :math:`(x - \mu)/\sqrt{\sigma^2 + \epsilon}`, the statistics over ``dims``, each in a mode of its own.

    ========== ======================= ==========================================
    mode       forward                 gradient through the statistic
    ========== ======================= ==========================================
    normal     yes                     yes
    detach     yes                     no: the statistic is a constant
    omit       no                      no
    backward   no: the identity        yes: Eq. 12 of [tian2021iclr] for the mean
    ========== ======================= ==========================================

    With ``mean="backward"``, ``std="omit"`` the result is ``x``, and its gradient :math:`g_i - \frac1{|B|}\sum_j g_j`
    (Eq. 12 of [tian2021iclr]).  With ``std="backward"`` the forward pass does not divide, and the gradient loses its part
    along the normalised activations, as it does behind the division, without the factor :math:`1/\sigma`.

    The deviation is always taken about the mean, also where the mean is not subtracted.  unbiased: divide the squares by one
    less than their number.  Raises KeyError for an unknown mode, and ValueError for a variance of one number only.

    >>> batch_normalize(torch.tensor([[1.0], [3.0]]), std="omit").flatten()
    tensor([-1.,  1.])
    """
    over = (dims,) if isinstance(dims, int) else tuple(dims)
    centre = x.mean(over, keepdim=True)
    y = x
    if mean != "omit":
        y = x - {"normal": centre, "detach": centre.detach(), "backward": centre - centre.detach()}[mean]
    if std == "omit":
        return y
    count = x.numel() // centre.numel()
    if count < 2:
        raise ValueError(f"dims must cover two numbers or more, as a deviation does, got {tuple(x.shape)} over {over}")
    scale = ((x - centre).square().sum(over, keepdim=True) / (count - unbiased) + eps).sqrt()
    return y / {"normal": scale, "detach": scale.detach(), "backward": scale / scale.detach()}[std]


class BatchNorm(nn.Module):
    r"""BatchNorm with a mode each for mean and deviation, of inputs ``(N, C)`` or ``(N, C, ...)``, with ``C = features``.

    mean, std: the modes.  With ``detach``, no gradient flows through the statistic; with ``omit``, it is not used; with
    ``backward``, it changes only the gradient.  So ``BatchNorm(16, std="omit")`` only subtracts the mean.

    With both modes ``normal``, it has the values, gradients and running statistics of PyTorch's BatchNorm.  In
    evaluation mode, running statistics replace the batch's unless a mode is ``omit``, and ``backward`` has no effect.

    affine: whether channels have a learned scale and shift.  momentum: the newest batch's weight in running statistics.
    Inputs in half precision are normalised and returned in the precision of the running statistics.

    >>> BatchNorm(1, std="detach")(torch.tensor([[1.0], [3.0]])).flatten()
    tensor([-1.0000,  1.0000])
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        features: int,
        *,
        mean: str = "normal",
        std: str = "normal",
        affine: bool = False,
        eps: float = 1e-5,
        unbiased: bool = False,
        momentum: float = 0.1,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_one_of("mean", mean, MODES)
        require_one_of("std", std, MODES)
        self.features, self.mean, self.std, self.eps, self.unbiased = features, mean, std, eps, unbiased
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features, dtype=dtype)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features, dtype=dtype))
        self.register_buffer("running_var", torch.ones(features, dtype=dtype))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set running means and biases to 0, and running variances and weights to 1, as in a new layer."""
        self.running_mean.zero_()
        self.running_var.fill_(1)
        if self.weight is not None and self.bias is not None:
            self.weight.fill_(1)
            self.bias.zero_()

    @anywhere
    def forward(self, x: Tensor) -> Tensor:
        r"""Return ``x``, normalised per channel; raises ValueError unless its shape is ``(N, features, ...)``.

        In training mode also the running statistics move, by the share ``momentum`` of the way to the batch's: its mean, and its
        unbiased variance, as in PyTorch.  A batch of one number a channel has none, and moves nothing.
        """
        if x.ndim < 2 or x.shape[1] != self.features:
            raise ValueError(f"x must have shape (N, {self.features}, ...), got {tuple(x.shape)}")
        over, channels = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
        if x.dtype in (torch.bfloat16, torch.float16):  # a mean of half precision would keep two or three digits
            x = x.to(self.running_mean.dtype)
        if self.training:
            y = batch_normalize(x, mean=self.mean, std=self.std, dims=over, eps=self.eps, unbiased=self.unbiased)
            with torch.no_grad():
                count, centre = x.numel() // self.features, x.mean(over, keepdim=True)
                if count > 1:
                    variance = (x - centre).square().sum(over) / (count - 1)
                    self.running_mean.lerp_(centre.flatten(), self.momentum)
                    self.running_var.lerp_(variance, self.momentum)
        else:
            y = x if self.mean in ("omit", "backward") else x - self.running_mean.view(channels)
            if self.std not in ("omit", "backward"):
                y = y / (self.running_var.view(channels) + self.eps).sqrt()
        if self.weight is None or self.bias is None:
            return y
        return y * self.weight.view(channels) + self.bias.view(channels)

    def extra_repr(self) -> str:
        """Return what ``print`` shows in the parentheses."""
        return f"{self.features}, mean={self.mean!r}, std={self.std!r}, affine={self.weight is not None}"
