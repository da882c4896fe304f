"""The training loop, in one function: :func:`train`.

Everything random is a function of the run's seed and of the step or epoch: the order of the images, the views, a new predictor,
noise in the weights.  So a run that is killed and resumed from its last checkpoint ends with the same weights, bit for bit on
a CPU, as one that was left alone.  Checkpoints are written where an epoch ends and the last one is :data:`SAVE_SECONDS` old, or
:data:`LONG_SECONDS` within an epoch; when a signal asks to stop; and at the end.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

import sslbook
from sslbook._ambient import anywhere, in_float32, put_back, warn
from sslbook._files import commit, remove_parts, write_text
from sslbook._machine import GOES_ON, Stopped, asked_to_stop, device_name, figure, keep_freed_memory
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese
from sslbook.training import evaluate
from sslbook.training.augment import Pipeline
from sslbook.training.objectives import least
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.checkpoints import COLUMNS, Row
from sslbook.training.run.checkpoints import Diverged as Diverged
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import FACTOR, Batches, Step, Views, generator, learning_rate, load_data, make_optimizer

try:
    from tqdm import tqdm
except ImportError:  # which the extra [train] brings
    tqdm = None  # type: ignore[assignment, misc]
if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVE_SECONDS = 30.0
"""Least time between two checkpoints at the ends of epochs."""
LONG_SECONDS = 600.0
"""Most time between two checkpoints, within an epoch too."""


class History:
    """What a run leaves behind epoch by epoch, in ``rows``: drawn, and in short."""

    rows: list[Row]

    @property
    def collapsed(self) -> str:
        """What the last evaluation says of a collapse, in a sentence; empty if it says none."""
        return next((str(row["collapsed"]) for row in reversed(self.rows) if "collapsed" in row), "")

    def plot(self) -> Figure:
        """Plot the loss, and what was measured: accuracy by nearest neighbours, cosines of different images, effective ranks."""
        return curves({"": self.rows})

    def in_short(self) -> str:
        """The last row's numbers, for one line of a notebook: ``20 epochs, loss 0.8120, k-NN 61.20 %``."""
        if not self.rows:
            return "no epoch"
        last = {name: self.rows[-1].get(name) for name in ("loss", "knn")}
        said = [f"{self.rows[-1]['epoch']} epochs", *line(last).split("  "), "collapsed" * bool(self.collapsed)]
        return ", ".join(part for part in said if part)


@dataclass(frozen=True)
class Result(History):
    """The result of a run tells whether the run has finished, and holds a row for each epoch and the model.

    The columns of a row are listed in :data:`sslbook.training.run.checkpoints.COLUMNS`.
    """

    settings: Settings
    folder: Path
    step: int
    finished: bool
    rows: list[Row]
    model: Siamese

    def __repr__(self) -> str:
        end = "finished" if self.finished else f"stopped at step {self.step}"
        return f"Result({self.folder.name}, {end}, {self.in_short()})"


@anywhere
@torch.enable_grad()
def train(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = True,
    stop_after: int | None = None,
    device: str | torch.device | None = None,
    data: tuple[Dataset, Dataset | None] | None = None,
    backbone: tuple[nn.Module, int] | None = None,
    pipeline: Pipeline | None = None,
    views: Views | None = None,
    loss: Callable[[Tensor], Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    on_step: Callable[[int], object] | None = None,
    on_epoch: Callable[[Row], object] | None = None,
    download: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    name: str = "train",
) -> Result:
    """Train with ``settings`` to the end; by default, resume from the last checkpoint in ``folder``, if there is one.

    resume: whether to go on from a checkpoint; with False the folder is cleared.
    stop_after: the total number of steps after which the run writes a checkpoint and stops.
    device: by default, ``cuda`` if there is a GPU.  Under ``torchrun``, the processes share each batch.
    data: training and test images in the place of those that the settings name; without test images no accuracy is measured.
    backbone, pipeline: an encoder with its number of features, and an augmentation, in the place of the settings'; the
    encoder is trained in place.  views, loss: the arguments ``views`` and ``method`` of ``pretrain``, where these are
    functions.  weights: a state of the networks in the place of the first weights.
    on_step: a function that is called with the number of steps done; the networks' modes and hooks are put back.
    on_epoch: a function that is called with the row of each epoch, in the first process.  It may look at the networks:
    what it changes in them is put back, as a run that is resumed doesn't call it again.
    download: whether to fetch the images if they are not here.  tensorboard: whether to write curves to the folder.
    quiet: whether to print nothing.  name: what the run is called in what is printed.

    Before the first step and at each evaluation, a row tells whether images are still told apart, on some training images
    without labels: the effective rank and the mean cosine of embeddings and features.  If they say twice, or at the end,
    that the run has collapsed, a line says so, or a warning where the run is quiet.

    Raises ValueError for settings that this machine or data can't run, and :class:`~sslbook.training.run.checkpoints.Busy`, which
    is one, if another process trains in the folder.  Raises FileNotFoundError if the data are missing, and :class:`Diverged`,
    with the step, if the loss is no longer finite.

    >>> import tempfile
    >>> from sslbook.networks.siamese import Networks
    >>> small = Settings(dataset="digits", pipeline="digits", networks=Networks(width=2, channels=1), epochs=1)
    >>> with tempfile.TemporaryDirectory() as there:
    ...     train(small, Path(there) / "run", device="cpu", stop_after=3, quiet=True)
    Result(run, stopped at step 3, 0 epochs, k-NN 39.00 %)
    """
    begun = time.monotonic()
    with in_float32(), asked_to_stop() as asked, contextlib.ExitStack() as stack:
        # Data: bytes, of which each step takes a batch, and labelled images by which representations are evaluated.
        place, first = distributed.join(device), distributed.rank() == 0
        images, tests = data or load_data(settings, download=download)
        batches = Batches(settings, len(images))
        per_epoch, evaluated = batches.per_epoch, list[Dataset]()
        for part in () if tests is None else (images, tests):
            if (part.class_names, part.pixels.shape[1:]) != (images.class_names, images.pixels.shape[1:]):
                kinds = [(these.class_names, *these.pixels.shape[1:]) for these in (images, part)]
                hint = "read_images(val, classes=images.class_names) takes classes that images alone has"
                raise ValueError("val must have the classes and the size of images, {}, got {}; ".format(*kinds) + hint)
            if not (there := part.labels >= 0).any():
                raise ValueError(f"{part.name} must hold labelled images, by which accuracy is measured, and has none")
            evaluated.append(part if there.all() else part.take(there))
        every, probes = settings.evaluate, {settings.epochs, *settings.probes}
        if every is None:
            seen = sum(map(len, evaluated)) or 2 * min(evaluate.IMAGES, len(images))
            every = evaluate.epochs_between(len(images), seen)

        # Model, objective and augmentation: a step computes the loss and leaves the gradients.
        if place.type == "cuda":
            torch.backends.cudnn.benchmark = True  # all batches have one shape
        else:
            keep_freed_memory()
        step = Step(settings, images, place, backbone, pipeline, views, loss)
        model = step.model
        if weights is not None:
            model.load_state_dict(weights)
        floor = None
        if loss is None and settings.drop_last:  # a smaller last batch has another one
            floor = least(settings.objective, settings.batch, **settings.loss_kwargs)
        sort = {"labels": step.labels is not None, "length": settings.objective == "vicreg" or loss is not None}

        # Optimiser; its rate is a function of the step.
        optimizer = make_optimizer(settings, model.learning(), model.predictor)

        # Where a run in this folder has come to.
        last = per_epoch * settings.epochs
        end = last if stop_after is None else min(last, stop_after)
        rows, start, earlier, losses = list[Row](), 0, 0.0, torch.zeros(per_epoch, device=place)
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            try:  # the system lets the folder go if the process dies
                stack.enter_context(FileLock(folder / ".lock", timeout=0))
            except Timeout:
                raise checkpoints.Busy(f"{folder} is being trained by another process") from None
            remove_parts(folder)
            if not resume:  # the result first: nobody shall take it for that of an interrupted new run
                kept = (checkpoints.RESULT, checkpoints.DIVERGED, checkpoints.WEIGHTS, checkpoints.LOG)
                for path in (*map(folder.joinpath, kept), *folder.glob(checkpoints.STEPS)):
                    path.unlink(missing_ok=True)
        if found := checkpoints.latest(folder) if resume else None:
            checkpoints.restore(found, folder, settings, model, optimizer, losses)
            rows, start, earlier = json.loads(found["rows"]), found["step"], found["seconds"]
            step.precision = getattr(torch, found["precision"])  # where it is ``auto``, it stays what it was
            looks = [row for row in rows if evaluated and row["epoch"] in probes]
            missed = [row["epoch"] for row in looks if row.get("linear") is None]
            if start > end or missed:
                lacks = f"without the linear protocol after epoch {missed[0]}" if missed else ""
                why = f"{lacks or f'past the {end} of this run'}: choose another folder, or begin anew with --again"
                raise ValueError(f"the checkpoint in {folder} is at step {start}, {why}")
        elif first:
            shutil.rmtree(folder / checkpoints.CURVES, ignore_errors=True)  # of which each step would come twice
        steps = distributed.gather(torch.tensor([start], device=place)).unique().tolist()
        if len(steps) > 1:
            raise ValueError(f"the processes read checkpoints of steps {steps}: all must see the same folder")

        # What is told: lines and a bar, curves, and where the result comes from; the checkout may be another one by the end.
        say: Callable[[str], object] = str
        if first and not quiet:
            say = partial(print if tqdm is None else tqdm.write, file=sys.stderr)  # above the bar if there is one
        if start:
            finished = f"{folder} holds this run, finished; another folder trains anew"
            say(f"{name}: " + (finished if start == last else f"going on after step {start} of {last}"))
        bar = None
        if tqdm is not None and first and not quiet:
            bar = stack.enter_context(tqdm(total=last, initial=start, desc=name, unit="step", disable=None))
        writer = None
        if tensorboard and first:
            from torch.utils.tensorboard import SummaryWriter

            # points of an interrupted run after this step are not shown
            writer = stack.enter_context(SummaryWriter(str(folder / checkpoints.CURVES), purge_step=start + 1))
        precision = str(step.precision).removeprefix("torch.")
        origin: dict[str, Any] = {"device": device_name(place), "torch": torch.__version__, "commit": commit()}
        origin |= {"sslbook": sslbook.__version__, "capture": "graph" if step.captured else "none"}
        origin |= {"processes": distributed.world()}
        if backbone is not None:
            origin |= {"data": images.name, "images": len(images), "backbone": str(backbone[0])}

        saved = epoch_begun = time.monotonic()
        epoch_from, told = start, False
        try:
            for done in range(start, end + 1):
                if done > start:  # the first turn only looks at where the run stands
                    epoch, within = divmod(done - 1, per_epoch)
                    if within == 0:
                        epoch_begun, epoch_from = time.monotonic(), done - 1
                        if epoch and settings.reset and epoch % settings.reset == 0:
                            model.reset_predictor(generator(settings.seed, "predictor", epoch))
                        if epoch and settings.noise:
                            model.blend_noise(settings.noise, generator(settings.seed, "noise", epoch))
                    if backbone is not None:  # its dropout draws from PyTorch's own generators
                        number = (done - 1) * distributed.world() + distributed.rank()
                        chosen = generator(settings.seed, "step", number).initial_seed()
                        torch.default_generator.manual_seed(chosen)
                        if place.type == "cuda":
                            torch.cuda.manual_seed(chosen)
                    rate = learning_rate(settings, done - 1, per_epoch)
                    for group in optimizer.param_groups:
                        group["lr"] = rate * group.get(FACTOR, 1.0)
                    losses[within] = step(*batches.at(done - 1))
                    distributed.average_gradients(model.learning())
                    optimizer.step()
                    if settings.symmetric:
                        model.symmetrize_predictor()
                    average = settings.ema
                    if settings.ema_end is not None:  # half a wave, as in BYOL (Grill et al. 2020, Section 3.3)
                        wave = 0.5 * (1 + math.cos(math.pi * (done - 1) / last))
                        average = settings.ema_end - (settings.ema_end - settings.ema) * wave
                    model.update_target(average)
                    if bar is not None:
                        bar.update()

                # Evaluation: a row after each epoch, and one before the first if anything is measured.
                epoch, within = divmod(done, per_epoch)
                signal, waited = asked(), time.monotonic() - saved
                keep = done > start and (signal or done == end or waited > (LONG_SECONDS if within else SAVE_SECONDS))
                if keep or (done > start and within == 0):
                    checkpoints.require_finite(folder, done, losses, model)
                if within == 0 and (epoch or every) and (done > start or not rows):
                    row: Row = {"epoch": epoch, "step": done}
                    if epoch:
                        seconds = max(time.monotonic() - epoch_begun, 1e-9)
                        row |= {"lr": rate, "loss": losses.cpu().double().mean().item()}
                        row |= {} if floor is None else {"least": floor}
                        row["images_per_second"] = round((done - epoch_from) * settings.batch / seconds, 1)
                    if epoch in probes or (every and epoch % every == 0):
                        row |= evaluate.measure(step, settings)  # in all processes, which share BatchNorm's batch
                        if epoch:
                            before = rows[0] if rows and rows[0]["epoch"] == 0 else {}
                            row["collapsed"] = evaluate.collapse(row, before, **sort)
                        if first and evaluated:
                            known, asks = evaluated
                            how: dict[str, Any] = {"linear": epoch in probes, "seed": settings.seed}
                            row |= evaluate.report(model.encoder, known, asks, step.pipeline, place, **how)
                    row["seconds"] = round(earlier + time.monotonic() - begun, 3)
                    rows.append(row)
                    if first:
                        names = (*COLUMNS, *checkpoints.WATCHED, "collapsed")
                        log = csv.DictWriter(text := io.StringIO(), names, extrasaction="ignore", lineterminator="\n")
                        log.writeheader()
                        log.writerows(rows)  # anew: a resumed run begins again with those of its checkpoint
                        write_text(folder / checkpoints.LOG, text.getvalue())
                        if writer is not None:
                            for column in [name for name, value in row.items() if isinstance(value, float)]:
                                writer.add_scalar(column, row[column], done)
                        left = settings.epochs - epoch
                        minutes = f"  ({left} to go, {left * row['seconds'] / max(epoch, 1) / 60:.0f} min)"
                        say(f"{name}: {line(row)}{minutes * (epoch > 0 and left > 0)}")
                        twice = [bool(old["collapsed"]) for old in rows if "collapsed" in old][-2:] == [True, True]
                        if row.get("collapsed") and not told and (twice or left == 0):
                            told = True
                            (warn if quiet else say)(f"{name}: {row['collapsed']}")
                        if on_epoch is not None:
                            with put_back(model):
                                on_epoch(dict(row))

                # Checkpoint: all that changes while a run goes on; and the end of one that a signal asks to stop.
                if keep:
                    if first:
                        content = {"settings": json.dumps(settings.as_json()), "hash": settings.hash(), "step": done}
                        content |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        content |= {"losses": losses.cpu(), "rows": json.dumps(rows), "precision": precision}
                        checkpoints.save(folder, content | {"seconds": earlier + time.monotonic() - begun})
                    saved = time.monotonic()
                if signal:
                    raise Stopped(signal, GOES_ON)
                if on_step is not None and done > start:
                    with put_back(model, numbers=False):
                        on_step(done)
        except RuntimeError as error:
            if distributed.world() == 1 or not re.search(distributed.LOST, str(error)):
                raise
            if asked():  # which the other one heard a step earlier
                raise Stopped(asked(), GOES_ON) from None
            raise distributed.Lost(f"another process of this run has ended ({error}); {GOES_ON}") from None
        if first and done == last:
            content = {"settings": settings.as_json(), "hash": settings.hash(), "seed": settings.seed}
            content |= {"seconds": rows[-1]["seconds"], "precision": precision}
            checkpoints.write_result(folder, model.encoder, content | origin | {"rows": rows})
        if distributed.world() > 1:  # what the first process has written is there for all
            torch.distributed.barrier()
        return Result(settings, folder, done, done == last, rows, model)


def line(row: Row) -> str:
    """What is there of a row, as a line to read.

    >>> line({"epoch": 3, "loss": 4.5123, "knn": 0.381, "linear": None, "images_per_second": 1204.0})
    'epoch 3  loss 4.5123  k-NN 38.10 %  1,204 images/s'
    >>> line({"loss": -3.9966, "least": -4.0, "embedding_cosine": 0.9985, "embedding_rank": 1.29})
    'loss -3.9966 (least -4.0000)  embeddings: cosine 0.999, rank 1.3'
    """
    forms = {
        "epoch": "epoch {epoch}",
        "loss": "loss {loss:.4f}" + " (least {least:.4f})" * ("least" in row),
        "knn": "k-NN {knn:.2%}",
        "linear": "linear {linear:.2%}",
        "embedding_rank": "embeddings: cosine {embedding_cosine:.3f}, rank {embedding_rank:.1f}",
        "feature_rank": "features: cosine {feature_cosine:.3f}, rank {feature_rank:.1f}",
        "images_per_second": "{images_per_second:,.0f} images/s",
    }
    said = (form.format(**row) for name, form in forms.items() if row.get(name) is not None)
    return "  ".join(said).replace("%", " %")


def curves(runs: Mapping[str, list[Row]]) -> Figure:
    """Runs' rows by name, over one another: loss, accuracy by nearest neighbours, cosines of different images, effective ranks.

    Curves of embeddings are whole, those of features dashed; what the loss of a single run can't fall below is dotted.
    """
    panels = {
        "loss": ("loss",),
        "accuracy by nearest neighbours": ("knn",),
        "mean cosine of different images": ("embedding_cosine", "feature_cosine"),
        "effective rank": ("embedding_rank", "feature_rank"),
    }
    rows = [row for run in runs.values() for row in run]
    shown = [title for title, names in panels.items() if any(row.get(names[0]) is not None for row in rows)] or ["loss"]
    drawn = figure(figsize=(4 * len(shown), 3))
    for axes, title in zip(drawn.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for number, (run, of_run) in enumerate(runs.items()):
            for name, style in zip(panels[title], (".-", ".--")):
                there = [row for row in of_run if row.get(name) is not None]
                label = run or (f"{name.partition('_')[0]}s" if len(panels[title]) > 1 else None)
                shade = {"color": f"C{number}", "label": label if style == ".-" or not run else None}
                axes.plot([row["epoch"] for row in there], [row[name] for row in there], style, **shade)
        if title == "loss" and len(runs) == 1 and (floors := {row["least"] for row in rows if "least" in row}):
            axes.axhline(max(floors), color="grey", ls=":", label="least")
        axes.set(xlabel="epoch", ylabel=title)
        if len(runs) == 1 and axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    if len(runs) > 1:  # one legend for all panels, beside them
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return drawn
