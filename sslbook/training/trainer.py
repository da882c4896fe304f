"""The training loop: what a run does in each step and epoch, and how it goes on where it was stopped.

Everything random is a function of the run's seed and of the step or epoch: the order of the images, the views, a new predictor,
noise in the weights.  So a run that is killed and resumed from its last checkpoint ends with the same weights, bit for bit on
a CPU, as one that was left alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbook.datasets import Dataset
from sslbook.processes import keep_freed_memory
from sslbook.training import checkpoints, distributed
from sslbook.training.augment import PIPELINES
from sslbook.training.evaluate import epochs_between, report
from sslbook.training.logs import Curves, Progress, Row, line, write_csv
from sslbook.training.objectives import needs_clean, objective
from sslbook.training.optimizers import make_optimizer, set_rate
from sslbook.training.resources import device_name, join, labelled, load_data, together
from sslbook.training.rules import begin_epoch, epoch_order, rate_at, share, steps_per_epoch
from sslbook.training.schedules import Length
from sslbook.training.settings import Settings
from sslbook.training.siamese import Siamese, build
from sslbook.training.steps import Step, capture_of, precision_of

SAVE_SECONDS = 30.0
"""Least time between two checkpoints at the ends of epochs."""
RESULT = "result.json"


class Diverged(FloatingPointError):
    """The loss or a weight is no finite number any more; the last good checkpoint stays."""


@dataclass(frozen=True)
class Result:
    """What a run gave: a row for each epoch (:data:`sslbook.training.logs.COLUMNS`), whether it came to its end, its model."""

    settings: Settings
    folder: Path
    step: int
    finished: bool
    rows: list[Row]
    model: Siamese

    def at(self, epoch: int) -> Row:
        """The row after ``epoch`` epochs (0: before the first); raises ValueError if there is none."""
        return row_at(self.rows, epoch)


def row_at(rows: list[Row], epoch: int) -> Row:
    """The row of an epoch; raises ValueError, naming the epochs there are."""
    for row in rows:
        if row["epoch"] == epoch:
            return row
    raise ValueError(f"epoch must be one of {', '.join(str(row['epoch']) for row in rows) or 'none'}, got {epoch}")


@dataclass
class State:
    """What changes while a run goes on, and all of it that a checkpoint holds."""

    model: Siamese
    optimizer: torch.optim.Optimizer
    losses: Tensor
    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def content(self, settings: Settings) -> dict[str, Any]:
        """As :func:`sslbook.training.checkpoints.save` takes it."""
        return {
            "settings": json.dumps(settings.as_json()),
            "hash": settings.hash(),
            "seed": settings.seed,
            "step": self.step,
            "seconds": self.seconds,
            "rows": json.dumps(self.rows),
            "losses": self.losses.cpu(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, content: dict[str, Any], settings: Settings, folder: Path) -> None:
        """Go back to a checkpoint; raises ValueError if it is another run's."""
        theirs, ours = (content["hash"], content["seed"]), (settings.hash(), settings.seed)
        if theirs != ours:
            raise ValueError(
                f"{folder} holds another run: settings {theirs[0]} with seed {theirs[1]}, and this is {ours[0]} with seed "
                f"{ours[1]}; choose another folder"
            )
        self.step, self.seconds, self.rows = content["step"], content["seconds"], json.loads(content["rows"])
        self.losses.copy_(content["losses"])
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])


class Trainer:
    """One run on one process: its state, its step, and what it writes.  :func:`train` is the way to use it."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        data: tuple[Dataset, Dataset],
        device: torch.device,
        *,
        name: str = "train",
        tensorboard: bool = False,
        quiet: bool = False,
    ) -> None:
        self.settings, self.folder, self.data, self.device, self.name = settings, folder, data, device, name
        self.images = len(data[0].pixels)
        self.known = labelled(data[0])  # the neighbours, and what the linear protocol learns from
        self.interval = settings.evaluate
        if self.interval is None:
            self.interval = epochs_between(self.images, len(self.known.pixels) + len(data[1].pixels))
        self.per_epoch = steps_per_epoch(settings, self.images)
        self.total = self.per_epoch * settings.epochs
        self.length = Length(self.per_epoch, settings.epochs, settings.warmup)
        self.first = distributed.rank() == 0
        model = build(settings.networks, settings.seed).to(device)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if distributed.world() > 1:
            distributed.synchronize_batchnorm(model)
        self.step = Step(
            model,
            objective(settings.objective, **settings.numbers),
            PIPELINES[settings.pipeline],
            data[0].pixels.to(device),
            precision=precision_of(settings.precision, device),
            capture=capture_of(settings.capture, device, distributed.world()),
            clean=needs_clean(settings.objective, **settings.numbers),
        )
        losses = torch.zeros(self.per_epoch, device=device)
        self.state = State(model, make_optimizer(model.learning(), settings), losses)
        self.progress = Progress(self.total, 0, name, visible=self.first and not quiet)
        self.say = self.progress.say if self.first and not quiet else lambda text: None
        self.curves = Curves(folder / "curves" if tensorboard and self.first else None)
        self.order = (-1, torch.empty(0, dtype=torch.int64))
        self.begun = self.epoch_begun = self.saved = time.monotonic()
        self.epoch_from, self.spent = 0, 0.0

    def resume(self) -> None:
        """Go back to the last whole checkpoint in the folder, if there is one."""
        content = checkpoints.latest(self.folder, self.say)
        if content is not None:
            self.state.restore(content, self.settings, self.folder)
            self.spent, self.epoch_from = self.state.seconds, self.state.step
            self.say(f"{self.name}: going on after step {self.state.step} of {self.total}")
        together()  # nobody writes before all have read

    def go(self, stop_after: int | None, save_every: int | None, on_step: Callable[[int], None] | None) -> Result:
        """Train to the end, or until ``stop_after`` steps are done in all."""
        state, last = self.state, min(self.total, self.total if stop_after is None else stop_after)
        if state.step == 0 and not state.rows and self.interval:
            self._end_epoch(0)
        try:
            while state.step < last:
                epoch, within = divmod(state.step, self.per_epoch)
                if within == 0:
                    begin_epoch(state.model, self.settings, epoch)
                    self.epoch_begun, self.epoch_from = time.monotonic(), state.step
                self.advance()
                ended = within + 1 == self.per_epoch
                if ended:
                    self._end_epoch(epoch + 1)
                late = ended and time.monotonic() - self.saved > SAVE_SECONDS
                if late or state.step == last or (save_every is not None and state.step % save_every == 0):
                    self._save(within)
                if on_step is not None:
                    on_step(state.step)
        finally:
            self.curves.close()
            self.progress.close()
        finished = state.step >= self.total
        if finished and self.first:
            write_result(self.folder, self.settings, state)
        together()
        return Result(self.settings, self.folder, state.step, finished, state.rows, state.model)

    def advance(self) -> None:
        """One step: nothing in it waits for the device."""
        settings, state = self.settings, self.state
        epoch, within = divmod(state.step, self.per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, epoch_order(settings, self.images, epoch))
        batch = self.order[1][within * settings.batch : (within + 1) * settings.batch]
        set_rate(state.optimizer, rate_at(settings, state.step, self.length))
        state.losses[within] = self.step(*share(settings, batch, state.step))
        distributed.average_gradients(state.model.learning())
        state.optimizer.step()
        if settings.symmetric:
            state.model.symmetrize_predictor()
        if settings.networks.target is not None:
            state.model.update_target(settings.ema)
        state.step += 1
        self.progress.step()

    def _end_epoch(self, epoch: int) -> None:
        """A row for the epoch; with k-NN accuracy and rank, and the linear protocol, where the settings ask for them."""
        state, settings = self.state, self.settings
        row: Row = {"epoch": epoch, "step": state.step}
        if epoch:
            losses = state.losses.cpu()
            check(losses, state)
            elapsed = max(time.monotonic() - self.epoch_begun, 1e-9)
            row |= {"rate": rate_at(settings, state.step - 1, self.length), "loss": losses.double().mean().item()}
            row["images_per_second"] = round((state.step - self.epoch_from) * settings.batch / elapsed, 1)
        if self.first and looks(settings, self.interval, epoch):
            row |= look(state.model, settings, (self.known, self.data[1]), self.device, linear=probes(settings, epoch))
        row["seconds"] = round(self._seconds(), 3)
        state.rows.append(row)
        if self.first:
            write_csv(self.folder / "log.csv", state.rows)
            self.curves.add(row)
            self.progress.show({key: row.get(key) for key in ("loss", "knn")})
            self.say(f"{self.name}: {line(row)}")
        together()

    def _save(self, within: int) -> None:
        """A checkpoint, unless the run has diverged: then the one before it stays."""
        check(self.state.losses[: within + 1].cpu(), self.state)
        self.state.seconds = self._seconds()
        if self.first:
            checkpoints.save(self.folder, self.state.step, self.state.content(self.settings))
        self.saved = time.monotonic()

    def _seconds(self) -> float:
        return self.spent + time.monotonic() - self.begun


def train(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = True,
    stop_after: int | None = None,
    on_step: Callable[[int], None] | None = None,
    device: str | torch.device | None = None,
    save_every: int | None = None,
    data: tuple[Dataset, Dataset] | None = None,
    download: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    name: str = "train",
) -> Result:
    """Run ``settings`` in ``folder`` to its end, from its last checkpoint if there is one and ``resume`` says so.

    stop_after: leave off, with a checkpoint, after this many steps in all.  on_step: called with the number of steps done.
    device: ``cuda`` if there is one.  save_every: a checkpoint every so many steps, beside those at the ends of epochs.
    data: training and test images, instead of the settings' own.  Under ``torchrun`` each process takes its share of a batch.

    Raises ValueError for settings that this machine or data can't run, FileNotFoundError without the data, and
    :class:`Diverged`, naming the step, when the loss is no number any more.
    """
    for given, value in (("stop_after", stop_after), ("save_every", save_every)):
        if value is not None and value < 1:
            raise ValueError(f"{given} must be at least 1, got {value}")
    place = join(device)
    if place.type == "cpu":
        keep_freed_memory()
    else:
        torch.backends.cudnn.benchmark = True  # all batches have one shape
    if download and distributed.rank() == 0:
        load_data(settings, download=True)
    together()  # the others find the files there
    run = Trainer(
        settings,
        folder,
        data or load_data(settings),
        place,
        name=name,
        tensorboard=tensorboard,
        quiet=quiet,
    )
    if resume:
        run.resume()
    elif run.first:
        checkpoints.clear(folder)
    return run.go(stop_after, save_every, on_step)


# -- looking ----------------------------------------------------------------------------------------------------------


def looks(settings: Settings, interval: int | None, epoch: int) -> bool:
    """Whether accuracy and rank are measured after this epoch: every ``interval`` epochs, and with the linear protocol."""
    return probes(settings, epoch) or bool(interval and epoch % interval == 0)


def probes(settings: Settings, epoch: int) -> bool:
    """Whether the linear protocol runs after this epoch."""
    return epoch == settings.epochs or epoch in settings.probes


def look(
    model: Siamese, settings: Settings, data: tuple[Dataset, Dataset], device: torch.device, *, linear: bool
) -> dict[str, Any]:
    """k-NN accuracy and rank, and the linear protocol's accuracy at its end and at its best, as columns of a row."""
    found = report(model, *data, PIPELINES[settings.pipeline], device, linear=linear, seed=settings.seed)
    return {"knn": found.knn, "rank": found.rank, "linear": found.linear_final, "linear_best": found.linear_best}


def check(losses: Tensor, state: State) -> None:
    """Raise :class:`Diverged` unless the epoch's losses so far and all weights are finite numbers."""
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at = (state.step - 1) // len(state.losses) * len(state.losses) + int(bad[0]) + 1
        raise Diverged(f"the loss is {losses[bad[0]].item()} at step {at}; the last good checkpoint stays")
    sizes = torch._foreach_norm([p.detach() for p in state.model.parameters()])
    if not bool(torch.stack(sizes).isfinite().all()):
        raise Diverged(f"a weight is no finite number after step {state.step}; the last good checkpoint stays")


def write_result(folder: Path, settings: Settings, state: State) -> None:
    """``result.json``: the settings, their hash, and a row for each epoch; it is there as soon as a run is finished."""
    content = {
        "settings": settings.as_json(),
        "hash": settings.hash(),
        "seed": settings.seed,
        "seconds": round(state.seconds, 3),
        "device": device_name(state.losses.device),
        "torch": torch.__version__,
        "rows": state.rows,
    }
    checkpoints.write_bytes(folder / RESULT, (json.dumps(content, indent=2) + "\n").encode())
