"""What a run keeps in its folder: a checkpoint that a process killed at any moment can't spoil, its log, and its result.

====================  ============================================================================================
step-000000390.pt     all that changes while a run goes on, as ``torch.save`` writes it; the newest stays
log.csv               a row an epoch, of :data:`COLUMNS`
curves/               the same for TensorBoard, if asked for
backbone.pt           the backbone's weights by name, at the end: ``torch.load(path, weights_only=True)`` opens them anywhere
result.json           the settings, their hash, where the run was made, and its rows, at the end
diverged              where a run came to no end
====================  ============================================================================================

Each file is written whole or not at all (:mod:`sslbook._files`).  Everything random in a run is a function of its seed
and the step, so no state of a generator is in a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbook._ambient import WRAPPERS, unwrapped
from sslbook._files import atomic, write_text
from sslbook.training.run import distributed
from sslbook.training.run.settings import Settings, flat, stored_settings

STEPS = "step-" + 9 * "[0-9]" + ".pt"
"""A checkpoint's name, by the steps done; the last by name is the newest."""
RESULT, WEIGHTS, DIVERGED, LOG, CURVES = "result.json", "backbone.pt", "diverged", "log.csv", "curves"
COLUMNS = ("epoch", "step", "lr", "loss", "knn", "rank", "linear", "linear_best", "seconds", "images_per_second")
"""``epoch`` and ``step`` are those done; ``loss`` is the epoch's mean; accuracies are shares of 1; a cell may be empty."""
WATCHED = ("embedding_cosine", "embedding_rank", "feature_cosine", "feature_rank", "view_cosine", "variance", "least")
"""Those of :mod:`sslbook.training.evaluate`, and what the loss can't fall below; ``rank`` above is that of test images."""

Row = dict[str, Any]


class Busy(ValueError):
    """Another process trains in the folder."""


class Diverged(FloatingPointError):
    """The loss or a weight is no finite number any more, since ``step`` or before it; the last good checkpoint stays."""

    step = 0


def save(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write a checkpoint, whole or not at all, drop those before it, and return its file.

    content: its ``step``, ``settings`` as JSON, and more numbers and words, tensors, and containers of them.
    """
    path = folder / f"step-{content['step']:09d}.pt"
    with atomic(path) as part, part.open("wb") as file:
        torch.save(dict(content), file)
    for old in folder.glob(STEPS):
        if old != path:
            old.unlink(missing_ok=True)
    return path


def latest(place: Path) -> dict[str, Any] | None:
    """What :func:`save` wrote last in a folder, or the checkpoint that a file is, on the CPU; None if there is nothing.

    It can't run code: ``weights_only`` builds tensors and plain containers alone.  Raises ValueError, which names the file, for
    one that is damaged: a run that began anew in its place would pass for the one that it replaced.
    """
    path = place if place.is_file() else max(place.glob(STEPS), default=None)
    if path is None:
        return None
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        stored_settings(content["settings"])
    except FileNotFoundError:  # a run that goes on has written another one
        return latest(place)
    except Exception as error:  # a damaged archive may fail in any way
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is no whole checkpoint of sslbook train, remove it to begin anew: {why}") from None
    return content


def restore(
    content: Mapping[str, Any],
    folder: Path,
    ours: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Tensor,
) -> None:
    """Put networks, optimiser and the epoch's losses back to the ``content`` of a checkpoint in ``folder``.

    Raises ValueError, with what differs, if it is another run's, and if it doesn't fit these networks and images.
    """
    theirs = stored_settings(content["settings"])
    if (theirs.hash(), theirs.seed) != (ours.hash(), ours.seed):
        was, now = flat(theirs.as_json()), flat(ours.as_json())
        names = sorted((was.keys() | now.keys()) - {"evaluate", "probes"})
        names = [name for name in names if was.get(name) != now.get(name)]
        told = "; ".join(f"{name} {was.get(name)}, now {now.get(name)}" for name in names)
        hint = "choose another folder"
        if names == ["epochs"] and ours.epochs > theirs.epochs:
            why = f"its rate has fallen to 0 by epoch {theirs.epochs}; " if ours.schedule == "cosine" else ""
            hint = f"{why}a run with schedule='constant' and no ema_end can be trained on; {hint}"
        raise ValueError(f"{folder} holds another run ({told}); {hint}")
    try:
        losses.copy_(content["losses"].view(len(losses)))  # copy_ alone would repeat a single one
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    except (RuntimeError, ValueError) as error:
        why = f"of other networks or images: {' '.join(str(error).split())}"
        raise ValueError(f"{folder} holds a run {why}; choose another folder") from None


def require_finite(folder: Path, step: int, losses: Tensor, model: nn.Module) -> None:
    """Raise :class:`Diverged`, and note it in the folder, unless the epoch's losses up to ``step`` and all weights are finite.

    Asked at the ends of epochs and before a checkpoint is written, so that none holds what is no number; the step that the
    error names is that of the first such loss, and the one done where a weight alone is none.
    """
    begun = (step - 1) // len(losses) * len(losses)
    bad = (~losses[: step - begun].isfinite()).nonzero()
    sizes = torch.stack(torch._foreach_norm([weights.detach() for weights in model.parameters()]))
    if not len(bad) and bool(sizes.isfinite().all()):
        return
    what = f"a weight is no finite number after step {step}"
    if len(bad):
        step = begun + int(bad[0]) + 1
        what = f"the loss is {losses[bad[0]].item()} at step {step}"
    if distributed.rank() == 0:
        write_text(folder / DIVERGED, f"diverged at step {step}\n")
    last = max(folder.glob(STEPS), default=None)
    kept = f"the checkpoint of step {int(last.stem[5:])} stays" if last else "there is no checkpoint before it"
    error = Diverged(f"{what}; {kept}")
    error.step = step
    raise error


# --- for people and other programs -----------------------------------------------------------------------------------


def write_result(folder: Path, encoder: nn.Module, content: Mapping[str, Any]) -> None:
    """The end of a run: ``backbone.pt``, and ``content`` as ``result.json``.

    Names of weights are those of the plain network: ``torch.compile`` and ``DataParallel`` put themselves between a name's words,
    also within a network.  What a module keeps beside tensors stays as it is.
    """
    net, plain = unwrapped(encoder), {}
    for name, value in net.state_dict().items():
        module, words = net, []
        for word in name.split("."):
            words += [word] * (WRAPPERS.get(type(module).__name__) != word)
            module = getattr(module, word, None)
        plain[".".join(words)] = value.detach().cpu().contiguous() if isinstance(value, Tensor) else value
    with atomic(folder / WEIGHTS) as part, part.open("wb") as file:
        torch.save(plain, file)
    write_text(folder / RESULT, json.dumps(content, indent=2) + "\n")
    (folder / DIVERGED).unlink(missing_ok=True)


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote to ``result.json``: its settings, their hash, and its ``rows``; None if there is no such file."""
    path = folder / RESULT
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
