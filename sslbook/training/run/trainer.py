"""The training loop: what a run does in each step and epoch, and how it goes on where it was stopped.

Everything random is a function of the run's seed and of the step or epoch: the order of the images, the views, a new predictor,
noise in the weights.  So a run that is killed and resumed from its last checkpoint ends with the same weights, bit for bit on
a CPU, as one that was left alone.  Checkpoints are written where an epoch ends and the last one is :data:`SAVE_SECONDS` old, or
:data:`LONG_SECONDS` within an epoch; when a signal asks to stop; and at the end.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import sslbook
from sslbook._ambient import anywhere, in_float32, put_back
from sslbook._check import installing, require_whole
from sslbook._files import commit, write_text
from sslbook._machine import BROKEN_PIPE, GOES_ON, Stopped, asked_to_stop, device_name, figure, keep_freed_memory
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese
from sslbook.training.evaluate import report
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.checkpoints import Diverged, Row, State, check, write_csv, write_result
from sslbook.training.run.determinism import draw_alike, generator
from sslbook.training.run.parts import FACTOR, Own, Parts, images_of, make_parts
from sslbook.training.run.settings import Refused, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVE_SECONDS = 30.0
"""Least time between two checkpoints at the ends of epochs."""
LONG_SECONDS = 600.0
"""Most time between two checkpoints, within an epoch too."""


@dataclass(frozen=True)
class Result:
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
        return f"Result({self.folder.name}, {end}, {told(self.rows)})"

    def plot(self) -> Figure:
        """Plot the loss of each epoch, and the accuracy of nearest neighbours where it was measured."""
        return plot_rows(self.rows)


def curves(folder: Path, first: int) -> Any:
    """TensorBoard's writer of curves in a folder; raises ValueError without the package.

    first: the first step that is yet to come; points of an interrupted run from there on are not shown.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(f"TensorBoard is not installed: {installing('train')}") from None
    return SummaryWriter(str(folder), purge_step=first)


def draw(writer: Any, row: Row) -> None:
    """One point a column."""
    for name, value in row.items():
        if name not in ("epoch", "step") and value is not None:
            writer.add_scalar(name, value, row["step"])
    writer.flush()


def _progress_bar(total: int, done: int, name: str) -> Any:
    """A line on the terminal that grows with the steps; None where tqdm is absent or nobody looks."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(total=total, initial=done, desc=name, unit="step", dynamic_ncols=True)
    return None


def line(row: Row) -> str:
    """A row as a line to read: ``epoch 3  loss 4.512  k-NN 38.1 %  rank 12.3  1,204 images/s``."""
    forms = {
        "epoch": "epoch {}",
        "loss": "loss {:.4f}",
        "knn": "k-NN {:.2%}",
        "linear": "linear {:.2%}",
        "rank": "rank {:.1f}",
        "images_per_second": "{:,.0f} images/s",
    }
    said = (form.format(row[name]) for name, form in forms.items() if row.get(name) is not None)
    return "  ".join(said).replace("%", " %")


def told(rows: Sequence[Row]) -> str:
    """Rows in short: ``20 epochs, loss 0.812, k-NN 61.2 %``."""
    if not rows:
        return "no epoch"
    said = line({name: rows[-1].get(name) for name in ("loss", "knn")}).replace("  ", ", ")
    return f"{rows[-1]['epoch']} epochs{', ' * bool(said)}{said}"


def plot_rows(rows: Sequence[Row]) -> Figure:
    """The loss by epoch, and beside it accuracy by nearest neighbours where it was measured."""
    names = {"loss": "loss", "knn": "accuracy by nearest neighbours"}
    there = {name: [row for row in rows if row.get(name) is not None] for name in names}
    shown = [name for name in names if there[name]] or ["loss"]
    drawn = figure(figsize=(4.5 * len(shown), 3))
    for axes, name in zip(drawn.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axes.plot([row["epoch"] for row in there[name]], [row[name] for row in there[name]], ".-")
        axes.set(xlabel="epoch", ylabel=names[name])
    return drawn


class Trainer:
    """One run on one process: its parts, its state, and what it writes.  :func:`train` is the way to use it."""

    def __init__(
        self, parts: Parts, folder: Path, *, name: str = "train", tensorboard: bool = False, quiet: bool = False
    ) -> None:
        self.parts, self.folder = parts, folder
        self.name, self.tensorboard, self.quiet = name, tensorboard, quiet
        self.first = distributed.rank() == 0
        losses = torch.zeros(parts.batches.per_epoch, device=parts.device)
        precision = str(parts.step.precision).removeprefix("torch.")
        self.state = State(parts.settings, parts.step.model, parts.optimizer, losses, precision)
        self.origin = self._origin() if self.first else {}  # now: the checkout may be another one by the end
        self.bar: Any = None
        self.curves: Any = None
        self.gone = False
        self.asked: Callable[[], int] = lambda: 0
        self.on_epoch: Callable[[Row], object] | None = None
        self.begun = self.epoch_begun = self.saved = time.monotonic()
        self.epoch_from, self.spent = 0, 0.0

    def say(self, text: str) -> None:
        """A line for the person who waits, from one of the processes."""
        if not self.quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that also a quiet run prints, above the bar; ``gone`` is true once nobody reads them."""
        if not self.first:
            return
        try:
            if self.bar is None:
                print(text, file=sys.stderr, flush=True)
            else:
                self.bar.write(text, file=sys.stderr)
        except OSError:  # a terminal that was closed, or head, which has had enough
            self.gone = True

    def begin(self, resume: bool) -> None:
        """Go back to the last whole checkpoint in the folder, if there is one; or clear the folder."""
        if resume:
            self._resume()
        elif self.first:
            checkpoints.clear(self.folder)
        distributed.wait_for_all()  # nobody writes before all have read
        at = self.state.step
        if self.first and not self.quiet:
            self.bar = _progress_bar(self.parts.total, at, self.name)
        if self.first and self.tensorboard:
            self.curves = curves(self.folder / "curves", at + 1)

    def _resume(self) -> None:
        content, state = checkpoints.latest(self.folder, self.warn), self.state
        if content is not None:
            if (
                state.settings.precision == "auto"
                and self.parts.device.type == "cpu"
                and content["precision"] == "float32"
            ):
                # begun where ``auto`` was float32, on another processor or by an earlier version
                self.parts.step.precision, state.precision = torch.float32, "float32"
            state.restore(content, self.folder)
        distributed.agree(state.step)
        if content is None:
            return
        for row in state.rows:
            if row["step"] < state.step and self.parts.looks.probe(row["epoch"]) and row.get("linear") is None:
                raise ValueError(
                    f"the checkpoint in {self.folder} is at step {state.step}, past epoch {row['epoch']}, after which the "
                    "linear protocol was not run: leave that epoch out, or begin anew with --again"
                )
        measured = {row["epoch"] for row in state.rows if row.get("knn") is not None}
        past, looks = range(-(-state.step // self.parts.batches.per_epoch)), self.parts.looks
        if missed := [epoch for epoch in past if looks.due(epoch) and epoch not in measured]:
            self.warn(f"{self.name}: accuracy after epochs {str(missed)[1:-1]} was not measured, and can't be any more")
        self.spent, self.epoch_from = state.seconds, state.step
        self.say(f"{self.name}: going on after step {state.step} of {self.parts.total}")

    def go(
        self, stop_after: int | None = None, save_every: int | None = None, on_step: Callable[[int], None] | None = None
    ) -> Result:
        """Train to the end, or until ``stop_after`` steps are done in all.

        Signals that ask to stop are heard between two steps, and leave a checkpoint.
        """
        parts, state = self.parts, self.state
        last = parts.total if stop_after is None else min(parts.total, stop_after)
        if state.step > last:
            at = f"is at step {state.step}, past the {last} of epoch {last / parts.batches.per_epoch:g}, where this run is to end"
            raise Refused(f"the checkpoint in {self.folder} {at}: choose another folder, or begin anew with --again")
        try:
            if state.step == 0 and self._asked():
                self._save(0)
                raise Stopped(self._asked(), GOES_ON)
            self._look_again()
            while state.step < last:
                epoch, within = divmod(state.step, parts.batches.per_epoch)
                if within == 0:
                    self._begin_epoch(epoch)
                self.advance()
                ended = within + 1 == parts.batches.per_epoch
                if ended:
                    self._end_epoch(epoch + 1)
                stop = self._asked()
                late = time.monotonic() - self.saved > (SAVE_SECONDS if ended else LONG_SECONDS)
                if stop or late or state.step == last or (save_every is not None and state.step % save_every == 0):
                    self._save(within)
                if stop:
                    raise Stopped(stop, GOES_ON)
                if on_step is not None:
                    with put_back(state.model, numbers=False):
                        on_step(state.step)
        except Diverged as error:
            raise self._diverged(error) from None
        except RuntimeError as error:
            if self._asked() and distributed.lost_another(error):  # which heard of it a step earlier
                raise Stopped(self._asked(), GOES_ON) from None
            raise
        finally:
            for shown in (self.curves, self.bar):
                if shown is not None:
                    shown.close()
        finished = state.step >= parts.total
        if finished and self.first:
            checkpoints.save_weights(self.folder, state.model.encoder)
            write_result(self.folder, state, self.origin)
            (self.folder / checkpoints.DIVERGED).unlink(missing_ok=True)
        distributed.wait_for_all()
        return Result(parts.settings, self.folder, state.step, finished, list(state.rows), state.model)

    def _origin(self) -> dict[str, Any]:
        """Where a result comes from: device, versions, commit, how a step was computed, and what of it is the caller's own."""
        parts = self.parts
        origin = {
            "device": device_name(parts.device),
            "torch": torch.__version__,
            "sslbook": sslbook.__version__,
            "commit": commit(),
            "capture": parts.step.capture,
            "processes": distributed.world(),
        }
        if parts.own is not None:
            origin |= {"data": parts.data.name, "images": len(parts.data), "backbone": str(parts.own.encoder)}
        return origin

    def _asked(self) -> int:
        """The signal that asks to stop, or that of a pipe which nobody reads any more; or 0."""
        return self.asked() or BROKEN_PIPE * self.gone

    def _look_again(self) -> None:
        """The row before the first step; or what this run's last row lacks, if an earlier one did not ask for it."""
        state = self.state
        if state.step == 0 and not state.rows and self.parts.looks.interval:
            self._end_epoch(0)
        if not state.rows or state.rows[-1]["step"] != state.step:
            return
        row = state.rows[-1]
        linear = self.parts.looks.probe(row["epoch"])
        if self.first and self.parts.looks.due(row["epoch"]) and row.get("linear" if linear else "knn") is None:
            row |= self._look(linear=linear)
        distributed.wait_for_all()

    def _diverged(self, error: Diverged) -> Diverged:
        """Written down for the tables, and told with what is left."""
        if self.first:
            write_text(self.folder / checkpoints.DIVERGED, f"diverged at step {error.step}\n")
        kept = checkpoints.newest_step(self.folder)
        left = "there is no checkpoint before it" if kept is None else f"the checkpoint of step {kept} stays"
        return Diverged(f"{error}; {left}", error.step)

    def advance(self) -> None:
        """One step: nothing in it waits for the device."""
        parts, state = self.parts, self.state
        if parts.own is not None:
            draw_alike(parts.batches.seed, state.step, parts.device)
        for group in state.optimizer.param_groups:
            group["lr"] = parts.rate(state.step) * group.get(FACTOR, 1.0)
        state.losses[state.step % parts.batches.per_epoch] = parts.step(*parts.batches.at(state.step))
        distributed.average_gradients(state.model.learning())
        state.optimizer.step()
        if state.settings.symmetric:
            state.model.symmetrize_predictor()
        state.model.update_target(parts.ema(state.step))
        state.step += 1
        if self.bar is not None:
            self.bar.update()

    def _begin_epoch(self, epoch: int) -> None:
        """A new predictor, or noise in the weights, where it is asked for; never before the first epoch."""
        settings, model = self.state.settings, self.state.model
        if epoch and settings.reset and epoch % settings.reset == 0:
            model.reset_predictor(generator(settings.seed, "predictor", epoch))
        if epoch and settings.noise:
            model.blend_noise(settings.noise, generator(settings.seed, "noise", epoch))
        self.epoch_begun, self.epoch_from = time.monotonic(), self.state.step

    def _end_epoch(self, epoch: int) -> None:
        """A row for the epoch; with k-NN accuracy and rank, and the linear protocol, where they are due."""
        parts, state = self.parts, self.state
        row: Row = {"epoch": epoch, "step": state.step}
        if epoch:
            losses = state.losses.cpu()
            check(losses, state)
            elapsed = max(time.monotonic() - self.epoch_begun, 1e-9)
            row |= {"lr": parts.rate(state.step - 1), "loss": losses.double().mean().item()}
            row["images_per_second"] = round((state.step - self.epoch_from) * parts.batches.size / elapsed, 1)
        if self.first and parts.looks.due(epoch):
            row |= self._look(linear=parts.looks.probe(epoch))
        row["seconds"] = round(self._seconds(), 3)
        state.rows.append(row)
        if self.first:
            write_csv(self.folder / "log.csv", state.rows)
            if self.curves is not None:
                draw(self.curves, row)
            self.say(f"{self.name}: {line(row)}{self._left(epoch)}")
            if self.on_epoch is not None:
                with put_back(self.state.model):
                    self.on_epoch(dict(row))
        distributed.wait_for_all()

    def _left(self, epoch: int) -> str:
        """How many epochs, and minutes at this pace, are left."""
        left = self.parts.settings.epochs - epoch
        return f"  ({left} to go, {left * self._seconds() / epoch / 60:.0f} min)" if epoch and left > 0 else ""

    def _look(self, *, linear: bool) -> Row:
        """k-NN accuracy and rank, and the linear protocol's accuracy at its end and at its best, as columns of a row."""
        parts = self.parts
        assert parts.looks.shown is not None
        pipeline, seed = parts.step.pipeline, parts.batches.seed
        found = report(self.state.model.encoder, *parts.looks.shown, pipeline, parts.device, linear=linear, seed=seed)
        return {"knn": found.knn, "rank": found.rank, "linear": found.linear_final, "linear_best": found.linear_best}

    def _save(self, within: int) -> None:
        """A checkpoint, unless the run has diverged: then the one before it stays."""
        check(self.state.losses[: within + 1].cpu(), self.state)
        self.state.seconds = self._seconds()
        if self.first:
            checkpoints.save(self.folder, self.state.step, self.state.content())
        self.saved = time.monotonic()

    def _seconds(self) -> float:
        return self.spent + time.monotonic() - self.begun


@contextlib.contextmanager
def prepared(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = True,
    device: str | torch.device | None = None,
    data: tuple[Dataset, Dataset | None] | None = None,
    own: Own | None = None,
    download: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    name: str = "train",
) -> Iterator[Trainer]:
    """A run that is ready to go, in a folder that no other process trains in meanwhile; options and errors as in :func:`train`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_float32())
        try:
            asked = stack.enter_context(asked_to_stop())
            place = distributed.join(device)
            if place.type == "cpu":
                keep_freed_memory()
            else:
                torch.backends.cudnn.benchmark = True  # all batches have one shape
            images = data or images_of(settings, download=download)
            parts = make_parts(settings, images, place, own)
            run = Trainer(parts, folder, name=name, tensorboard=tensorboard, quiet=quiet)
            run.asked = asked
            if run.first:
                stack.enter_context(checkpoints.locked(folder))
            run.begin(resume)
        except Refused:
            raise
        except ValueError as error:
            raise Refused(str(error)) from error
        except RuntimeError as error:
            if re.search("allocate memory|out of memory", str(error)) is None:
                raise
            raise Refused(f"networks and images don't fit into the memory of {device or 'this machine'}") from error
        yield run


@anywhere
@torch.enable_grad()
def train(
    settings: Settings,
    folder: Path,
    *,
    stop_after: int | None = None,
    on_step: Callable[[int], None] | None = None,
    on_epoch: Callable[[Row], object] | None = None,
    save_every: int | None = None,
    **options: Any,
) -> Result:
    """Train with ``settings`` to the end; by default, resume from the last checkpoint in ``folder``, if there is one.

    stop_after: the total number of steps after which the run writes a checkpoint and stops.
    on_step: a function that is called with the number of steps done; the networks' modes and hooks are put back.
    on_epoch: a function that is called with the row of each epoch, in the first process.  It may look at the networks:
    what it changes in them is put back, as a run that is resumed doesn't call it again.
    save_every: the number of steps between checkpoints, besides those at the ends of epochs.

    The options are ``resume``, ``device``, ``data``, ``own``, ``download``, ``tensorboard``, ``quiet`` and ``name``.
    The default of ``device`` is ``cuda`` if there is a GPU.  The training and test images in ``data`` replace those of
    the settings; without test images nothing is evaluated.  Under ``torchrun``, the processes share each batch.

    Raises Refused, a ValueError, for settings that this machine or data can't run, or if another process trains in the
    folder (:class:`~sslbook.training.run.checkpoints.Busy`).  Raises FileNotFoundError if the data are missing, and
    :class:`Diverged`, with the step, if the loss is no longer finite.
    """
    for given, value in (("stop_after", stop_after), ("save_every", save_every)):
        if value is not None:
            require_whole(given, value, least=1)
    with prepared(settings, folder, **options) as run:
        run.on_epoch = on_epoch
        return run.go(stop_after, save_every, on_step)
