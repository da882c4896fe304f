r"""What a network's representations are worth: nearest neighbours, the papers' linear protocol, effective rank.

Representations are the encoder's, before the projector, of un-augmented images, with BatchNorm by its running statistics.
Accuracies are computed in the features' own precision, whatever is set around the call.

Nearest neighbours and rank are for the way, as seldom as :func:`epochs_between` says; the linear protocol is for the end.  Whether
different images are still told apart is asked without labels, by :func:`measure` and :func:`collapse`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook._ambient import anywhere, copied, default_device_of, seeded
from sslbook._check import require_number, require_whole
from sslbook.images.datasets import Dataset
from sslbook.training.augment import Pipeline, draws, plain

if TYPE_CHECKING:
    from sslbook.training.run.settings import Settings
    from sslbook.training.run.step import Step

SIMILARITIES = 2**25
"""Numbers of one block of cosines, 128 MB of them."""
RESOLUTION = 2 * torch.finfo(torch.bfloat16).eps
"""Of representations computed in bfloat16: of one image with noise too faint to matter they vary by 0.7 eps, of digits by 14 eps
or more, before any training."""


@dataclass(frozen=True)
class LinearAccuracy:
    """The test accuracy of the linear protocol, in [0, 1], is ``curve`` after each epoch and ``final`` after the last.

    The highest value of ``curve`` is ``best``.  The released code reports it, although the epoch is chosen on the test set.
    """

    final: float
    best: float
    curve: tuple[float, ...] = field(repr=False)


def epochs_between(trained: int, evaluated: int) -> int:
    r"""The least number of epochs of ``trained`` images of which an evaluation of ``evaluated`` images costs at most 5 %.

    An epoch passes each image twice forwards and twice backwards, which is about six times an evaluation's one pass.  So it is
    :math:`\lceil E/(0.05 \cdot 6\,T) \rceil` for :math:`T` images trained and :math:`E` evaluated.

    CIFAR-10: 4 for all 60,000 images.  STL-10: 1.  5,000 images of CIFAR-10, and its 10,000 test images: 10.

    >>> epochs_between(50_000, 60_000)
    4
    """
    return max(1, math.ceil(evaluated / (0.05 * 6 * trained) - 1e-9))


@anywhere
@torch.no_grad()
@seeded(None)
def embed(
    features: Callable[[Tensor], Tensor],
    dataset: Dataset,
    pipeline: Pipeline,
    device: torch.device | str | None = None,
    batch: int = 512,
) -> Tensor:
    """Return the representations ``(N, F)`` of all images, in float32 on ``device``; a GPU computes them in bfloat16.

    features: a function from ``(B, C, size, size)`` to ``(B, F)``, or a module, of which a copy runs in evaluation mode.
    device: by default, the device of a module's weights, or otherwise the CPU.

    >>> images = Dataset(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), "black", 1)
    >>> embed(nn.Flatten(), images, Pipeline(8)).shape
    torch.Size([5, 64])
    """
    weights = next(features.parameters(), None) if isinstance(features, nn.Module) else None
    features = copied(features).eval() if isinstance(features, nn.Module) else features
    place, parts = torch.device(device or ("cpu" if weights is None else weights.device)), []
    for pixels in dataset.pixels.split(batch):
        images = plain(pixels.to(place, non_blocking=True), pipeline)
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"), default_device_of(images):
            parts.append(features(images if weights is None else images.to(weights.dtype)).float())
    return torch.cat(parts)


def _unit(z: Tensor) -> Tensor:
    """``z / |z|`` along the last axis, ``(..., F) -> (..., F)``.

    First it is divided by its largest entry: the square of that quotient's norm, from 1 to F, no dtype loses.
    """
    return F.normalize(z / z.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny), dim=-1)


@anywhere
@torch.no_grad()
def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    r"""Return the accuracy, in [0, 1], of a weighted vote of ``k`` nearest neighbours (Wu et al. 2018, Section 3.4).

    A neighbour at cosine :math:`c` adds the weight :math:`e^{(c - c_1)/\tau}` to its class, where :math:`c_1` is the
    cosine of the nearest neighbour.  At a small ``temperature`` :math:`\tau`, only the nearest neighbour counts.
    The features are ``(N, F)`` and ``(M, F)``, and the labels ``(N,)`` and ``(M,)``, all on one device.

    Raises ValueError for shapes that don't fit, features that aren't finite, an unlabelled image, or a ``k`` outside
    ``1 .. N``, and TypeError for features of an integer dtype.

    >>> directions, labels = torch.eye(3), torch.tensor([0, 1, 2])
    >>> knn_accuracy(directions, labels, 5 * directions, labels, k=1)
    1.0
    """
    labels, truth, classes = _numbered(train_features, train_labels, test_features, test_labels)
    k = require_whole("k", k, least=1, most=len(train_features))
    temperature = require_number("temperature", temperature, above=0)
    right = torch.zeros((), dtype=torch.int64, device=test_features.device)
    rows = max(1, SIMILARITIES // len(train_features))
    neighbours, queries = _unit(train_features), _unit(test_features)
    for block, answers in zip(queries.split(rows), truth.split(rows), strict=True):
        cosine, near = (block @ neighbours.T).topk(k, dim=1, sorted=False)
        weights = ((cosine - cosine.amax(1, keepdim=True)) / temperature).exp()
        votes = cosine.new_zeros(len(block), classes).scatter_add_(1, labels[near], weights)
        right += (votes.argmax(1) == answers).sum()
    return right.item() / len(test_features)


@anywhere
@torch.no_grad()
def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    epochs: int = 50,
    batch: int = 128,
    lr: float = 3e-4,
    weight_decay: float = 1e-3,
    seed: int = 0,
) -> LinearAccuracy:
    """Evaluate features by the papers' linear protocol, as released: multinomial logistic regression, trained by Adam.

    Features are standardised by the training images' mean and (biased) standard deviation; weights start as in PyTorch.
    Adam's ``weight_decay`` applies to weights and biases, and a smaller last batch is used too.  Features and labels
    are as for :func:`knn_accuracy`; the order and initial weights depend only on ``seed``.  The defaults of
    ``epochs`` and ``lr`` suit the papers' 50,000 images; for a thousand images, try ``epochs=200, lr=1e-2``.

    Raises ValueError for features and labels for which :func:`knn_accuracy` does.

    >>> directions, labels = torch.eye(3).repeat(20, 1), torch.arange(60) % 3
    >>> linear_probe(directions, labels, directions, labels, epochs=200, lr=1e-2).final
    1.0
    """
    labels, truth, classes = _numbered(train_features, train_labels, test_features, test_labels)
    # Both by the training images' mean and deviation, with a column of ones; what never varies is only centred.
    train, test = train_features.double(), test_features.double()
    centre, spread = train.mean(0), train.std(0, correction=0)
    spread[spread <= 1e-6 * centre.abs()] = 1  # a constant and the last places of float32, which are 1.2e-7 apart
    x, y = (F.pad(((part - centre) / spread).float(), (0, 1), value=1.0) for part in (train, test))

    generator = torch.Generator().manual_seed(int(seed))
    bound = 1 / math.sqrt(x.shape[1] - 1)
    start = torch.empty(x.shape[1], classes, dtype=x.dtype).uniform_(-bound, bound, generator=generator)
    weights = torch.nn.Parameter(start.to(x))
    optimizer = torch.optim.Adam([weights], lr=lr, weight_decay=weight_decay, fused=True)
    less, right = x.new_full((1, 1), -1.0).expand(batch, 1), []
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for inputs, targets in zip(x[order].split(batch), labels[order, None].split(batch), strict=True):
            # x^T (softmax(x W) - onehot) / batch, written out: automatic differentiation would double these small steps' time
            excess = torch.softmax(inputs @ weights, dim=1).scatter_add_(1, targets, less)
            weights.grad = (inputs.T @ excess).div_(len(inputs))
            optimizer.step()
        right.append(((y @ weights).argmax(1) == truth).double().mean())
    curve = torch.stack(right).tolist()
    return LinearAccuracy(curve[-1], max(curve), tuple(curve))


def _numbered(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, int]:
    """Both parts' classes, numbered from 0 on in their order as int64, which indices must be; and how many classes occur.

    Raises ValueError where, by broadcasting, by a class of -1 or by a NaN, an accuracy would be silently wrong.
    """
    for features, classes in ((train, labels), (test, truth)):
        if features.shape != (len(classes), train.shape[-1]) or not classes.double().min() >= 0:
            shapes = f"{tuple(features.shape)} and {tuple(classes.shape)}"
            raise ValueError(f"features must be (N, F), and labels (N,), each a class from 0 on, got {shapes}")
        _require_finite(features)
    found, numbers = torch.cat([labels, truth]).cpu().unique(return_inverse=True)
    labels, truth = numbers.to(labels.device).split([len(labels), len(truth)])
    return labels, truth, len(found)


def report(
    encoder: nn.Module,
    train: Dataset,
    test: Dataset,
    pipeline: Pipeline,
    device: torch.device | str,
    *,
    linear: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Accuracies in [0, 1], ``knn``, ``linear`` and ``linear_best``, and ``rank``, that of the test images' representations.

    The 200 nearest training images vote, or all where there are fewer.  The linear protocol is None unless ``linear``.
    Raises ValueError for an image without a label, and where representations are no finite numbers.
    """
    features, tests = (embed(encoder, part, pipeline, device) for part in (train, test))
    both = features, train.labels.to(device), tests, test.labels.to(device)
    rank = effective_rank(tests, RESOLUTION if features.device.type == "cuda" else None).item()
    row: dict[str, Any] = {"knn": knn_accuracy(*both, k=min(200, len(features))), "rank": rank}
    probe = linear_probe(*both, seed=seed) if linear else None
    return row | {"linear": probe and probe.final, "linear_best": probe and probe.best}


# --- how many directions representations take ------------------------------------------------------------------------


@anywhere
def effective_rank(features: Tensor, resolution: float | None = None) -> Tensor:
    r"""Return the effective rank :math:`\exp(-\sum_i p_i \log p_i)` of features, ``(..., N, F) -> (...)``.

    The :math:`p_i` are the shares of the variance along the principal axes.  The rank is at most the smaller of the
    numbers of features and images; it is 1 if all features lie on a line, and 0 if nothing varies.  RankMe (Garrido et
    al. 2023) uses singular values of uncentred features, so weak directions count for more.

    resolution: variation below this value, relative to the features' root mean square, counts as rounding error.  The
    default is 4 units in the last place of the features' dtype, but at least 1e-10.  Raises ValueError for infinite
    values, and TypeError for an integer dtype.

    >>> effective_rank(torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]]))  # two directions, equally strong
    tensor(2., dtype=torch.float64)
    """
    _require_finite(features)
    finest = 4 * torch.finfo(features.dtype).eps if resolution is None else resolution
    tiny, largest = torch.finfo(torch.float64).tiny, features.detach().double().abs().amax((-2, -1), keepdim=True)
    features = features.double() / torch.where(largest > 0, largest, 1)  # squares that are neither 0 nor infinite
    centred = features - features.mean(-2, keepdim=True)
    varies = centred.square().sum((-2, -1)) > max(finest, 1e-10) ** 2 * features.square().sum((-2, -1)).clamp(min=tiny)
    values = torch.linalg.eigvalsh(centred.mT @ centred).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True).clamp(min=tiny)
    return torch.where(varies, (-torch.special.xlogy(shares, shares).sum(-1)).exp(), 0.0)


@anywhere
def mean_cosine(features: Tensor) -> Tensor:
    r"""Return the mean cosine of two different rows of ``features``, ``(..., N, F) -> (...)``; the book calls it likeness.

    It is 1 if all rows have one direction, as after a complete collapse, and at least :math:`-1/(N - 1)`.  Of unit vectors
    :math:`u_i` it is :math:`(\|\sum_i u_i\|^2 - N)/(N(N - 1))`, so that no pair is made.  A row of zeros has no direction,
    and its cosines are 0.  Raises ValueError for fewer than two rows or infinite values.

    >>> mean_cosine(torch.tensor([[1.0, 0], [0, 1], [0, 5]]))  # of three pairs, one has one direction
    tensor(0.3333, dtype=torch.float64)
    """
    if features.ndim < 2 or features.shape[-2] < 2:
        raise ValueError(f"features must be (..., N, F) with N of at least 2, got {tuple(features.shape)}")
    _require_finite(features)
    units, count = _unit(features.double()), features.shape[-2]
    return (units.sum(-2).square().sum(-1) - count) / (count * (count - 1))


def _require_finite(features: Tensor) -> None:
    """Raise ValueError where features hold a NaN or an infinity; inside of vmap nobody can look."""
    finite = features.isfinite().all()
    if not torch._C._functorch.is_functorch_wrapped_tensor(finite) and not bool(finite):
        raise ValueError("features must be finite numbers, and some are NaN or infinite: the network has diverged")


# --- without labels: are different images still told apart? ----------------------------------------------------------

IMAGES = 256
"""Images that are looked at, evenly over the training set, in batches of the run's size."""
VIEWS = (8, 9)
"""Numbers of their views; training draws those from 0 to 3."""
ALIKE, SHRUNK, KEPT, DIRECTIONS, FEWER = 0.99, 0.02, 0.5, 1.8, 8
"""A collapse: a mean cosine from the first on, or a share of the variance up to the second, while of w/d at least the third is
left; or a rank below the fourth that was that many times as large."""
LONGER, SAME = 1e5, 1 - 1e-9
"""A variance so many times as large comes from steps that are too long; views of so large a cosine are the same."""
READ = (
    "negatives, a predictor before a stopped target, BatchNorm in the projector or a smaller learning rate prevent it; "
    "see “Has it collapsed?” on the book's page The library (library.html#library-collapse)"
)


@anywhere
@torch.no_grad()
def measure(step: Step, settings: Settings) -> dict[str, float]:
    """The columns of a row that tell of a collapse, of one view each; nothing where an output is no finite number.

    A few hundred training images are looked at as a step does: two views of each, BatchNorm by the batch, dropout on.  The draws
    are the same each time, and none of training's, so that a run that is looked at ends with the same weights.

    embedding_rank, embedding_cosine, feature_rank, feature_cosine: effective rank, and mean cosine of different images.
    view_cosine: mean cosine of the embeddings of two views of one image.  variance: of the embeddings, over all coordinates.
    """
    whole = len(step.pixels)
    size = min(settings.batch, IMAGES, whole)
    count = min(IMAGES, whole) // size * size
    parts = step.pixels[torch.arange(count, device=step.pixels.device) * whole // count].split(size)
    features, embeddings = [], []
    with seeded(0), default_device_of(step.pixels):
        encoder, projector = copied(nn.ModuleList([step.model.encoder, step.model.projector]))
        for view in VIEWS:
            drawn = draws(count, settings.seed, 0, view).split(size)
            features.append(torch.cat([encoder(step.view(*part)).float() for part in zip(parts, drawn, strict=True)]))
            embeddings.append(torch.cat([projector(part) for part in features[-1].split(size)]))
    (h, _), (z, other) = features, embeddings
    if not all(bool(part.isfinite().all()) for part in (*features, *embeddings)):
        return {}
    found = {"embedding_rank": effective_rank(z), "embedding_cosine": mean_cosine(z)}
    found |= {"feature_rank": effective_rank(h), "feature_cosine": mean_cosine(h)}
    found |= {"view_cosine": F.cosine_similarity(z.double(), other.double(), dim=-1).mean()}
    found |= {"variance": z.double().var(0, correction=0).sum()}
    return {name: value.item() for name, value in found.items()}


def collapse(now: dict[str, Any], before: dict[str, Any], *, labels: bool = False, length: bool = False) -> str:
    r"""What the row ``now`` says of a collapse, as a sentence; "" where there is none.

    With :math:`d = 1 - \cos` of the embeddings of two different images and :math:`w` of two views of one, on average, training
    shall make :math:`w` small and leave :math:`d`.  A collapse makes both small: :math:`d` is gone (a mean cosine of 0.99
    or more) and :math:`w/d`, which learning lowers, is not.  So a large common part of all embeddings is no collapse while views of
    one image are nearer to each other than those of two, and low rank is none where it was low before, as with few images or
    outputs.  Losses that see the embeddings' length can shrink them; others can let it explode, after which steps hardly turn
    them.  Where both views of an image were alike from the start, nothing can be learnt.

    before: the row before the first step, or one without these columns, where less can be said.  labels: the loss sees classes, of
    which it may leave one direction less than there are.  length: the loss sees how long the embeddings are.
    """
    if "variance" not in now:
        return ""
    if before.get("view_cosine", 0.0) >= SAME:
        return (
            "two views of an image were the same to the network before the first step: the augmentation changes nothing"
        )
    for what in ("embedding", "feature"):
        if now[f"{what}_rank"] == 0:
            return f"all images have the same {what}s: collapsed; {READ}"
    cosine, was = now["embedding_cosine"], before.get("embedding_cosine", 0.0)
    share = now["variance"] / max(before.get("variance", now["variance"]), 1e-300)
    apart, were = (max(1 - mean, 1e-12) for mean in (cosine, was))
    left = (1 - now["view_cosine"]) / apart * were / max(1 - before.get("view_cosine", was), 1e-12)
    if left >= KEPT and cosine >= ALIKE and apart <= were / 2:
        first = f", {was:.3f} before the first step" if "variance" in before else ""
        return f"the embeddings of different images have a mean cosine of {cosine:.4f}{first}: collapsed; {READ}"
    if left >= KEPT and length and share <= SHRUNK:
        return f"the variance of the embeddings is {share:.2%} of what it was before the first step: collapsed; {READ}"
    if not length and share >= LONGER:
        return f"the variance of the embeddings is {share:.0e} times that before the first step: take a smaller learning rate"
    for what in ("embedding", "feature"):
        rank, was = now[f"{what}_rank"], before.get(f"{what}_rank", 0.0)
        if not labels and rank < DIRECTIONS and was > FEWER * rank:
            return (
                f"the {what}s take {rank:.1f} directions, {was:.1f} before the first step: dimensional collapse; {READ}"
            )
    return ""
