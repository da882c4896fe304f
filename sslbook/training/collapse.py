r"""Whether a run works, asked without labels: are different images still told apart?

:func:`measure` looks at a few hundred training images as a step does: two views of each, BatchNorm by the batch, dropout on.
The draws are the same each time, and none of training's, so that a run that is looked at ends with the same weights.

:func:`collapse` compares with the values before the first step.  With :math:`d = 1 - \cos` of the embeddings of two different
images and :math:`w` of two views of one, on average, training shall make :math:`w` small and leave :math:`d`.  A collapse makes
both small: :math:`d` is gone (a mean cosine of 0.99 or more) and :math:`w/d`, which learning lowers, is not.  So a large common
part of all embeddings is no collapse while views of one image are nearer to each other than those of two, and low rank is none
where it was low before, as with few images or outputs.  Losses that see the embeddings' length can shrink them; others can
let it explode, after which steps hardly turn them.  Where both views of an image were alike from the start, nothing
can be learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from sslbook._ambient import anywhere, copied, default_device_of, seeded
from sslbook.training.augment import draws
from sslbook.training.evaluate import effective_rank, mean_cosine

if TYPE_CHECKING:
    from sslbook.training.run.settings import Settings
    from sslbook.training.run.step import Step

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
    """What the row ``now`` says of a collapse, as a sentence; "" where there is none.

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
