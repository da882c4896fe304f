"""The augmentations by name: as in the released code, as SimCLR has them, and ours for digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sslbook.runtime.arguments import require_number, require_whole


@dataclass(frozen=True)
class Pipeline:
    """One augmentation.

    size: the side of a view, in pixels.  scale, ratio: of a crop's area to the image's, and of its width to its height.
    jitter: strengths of brightness, contrast, saturation and hue.  flip, jitter_probability, grey, blur: probabilities.
    blur_kernel: taps, an odd number.  blur_sigma: smallest and largest width, in pixels.
    mean, std: of each channel, of pixels in [0, 1]; none of either leaves the pixels as they are.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 0.8
    grey: float = 0.2
    blur: float = 0.0
    blur_kernel: int = 9
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for what can't be carried out; lists, as JSON has them, become tuples."""
        require_whole("size", self.size, least=1)
        for name in ("scale", "ratio", "jitter", "blur_sigma", "mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        _range("scale", self.scale, 1.0)
        _range("ratio", self.ratio)
        _range("blur_sigma", self.blur_sigma)
        for name in ("flip", "jitter_probability", "grey", "blur"):
            require_number(name, getattr(self, name), least=0, most=1)
        if len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ValueError(
                "jitter must be four strengths of at least 0, of brightness, contrast, saturation and hue, "
                f"the last at most 0.5, got {self.jitter}"
            )
        require_whole("blur_kernel", self.blur_kernel, least=1)
        if self.blur_kernel % 2 == 0 or (self.blur and self.blur_kernel // 2 >= self.size):
            raise ValueError(
                f"blur_kernel must be odd and less than twice the size {self.size}, got {self.blur_kernel}"
            )
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(
                f"mean and std must have one number a channel, std above 0, got {self.mean} and {self.std}"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(name: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, tuple | list) or not all(map(_is_number, value)):
        raise ValueError(f"{name} must be a tuple of finite numbers, got {value!r}")
    return tuple(value)


def _range(name: str, value: tuple[float, ...], high: float = math.inf) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= high:
        top = "" if high == math.inf else f", the second at most {high:g}"
        raise ValueError(f"{name} must be two numbers above 0 in increasing order{top}, got {value}")


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PIPELINES: dict[str, Pipeline] = {
    "cifar10": Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.1), mean=CIFAR10_MEAN, std=CIFAR10_STD),
    "stl10": Pipeline(96, jitter=(0.8, 0.8, 0.8, 0.2), blur=1.0),
    "simclr-cifar10": Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.1)),
    "simclr-stl10": Pipeline(96, jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5),
    "digits": Pipeline(8, scale=(0.5, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
    "mnist": Pipeline(28, scale=(0.3, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
}
"""By name.  "cifar10" and "stl10" are those of the released code, where STL-10 is always blurred and has no mean and deviation;
"simclr-cifar10" and "simclr-stl10" those of [chen2020simclr], of strengths 0.5 and 1, with pixels in [0, 1] and blur for half of
the larger images; "digits" and "mnist" are ours: gentler crops, and no mirror images, since a digit's is no digit."""
