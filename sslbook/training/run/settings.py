"""What a run is: one frozen value that says everything that its weights depend on, how to change it, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sslbook._check import hint, keep_plain, require_number, require_one_of, require_whole
from sslbook.networks.siamese import Networks
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import ARGUMENTS, OBJECTIVES, TAKES, checked

CHOICES = {
    "dataset": ("cifar10", "stl10", "mnist", "digits"),
    "split": ("train", "train+unlabeled"),
    "pipeline": tuple(PIPELINES),
    "objective": tuple(OBJECTIVES),
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "cosine", "released"),
    "precision": ("auto", "float32", "bfloat16"),
}
"""Settings that are names, and the names that there are."""
WHOLE = {"batch": 2, "epochs": 1, "subset": 1, "seed": 0, "warmup": 0, "reset": 0, "evaluate": 0}
"""Settings that are whole numbers, and the least of each."""
REAL: dict[str, dict[str, float]] = {
    **{name: {"above": 0} for name in ("lr", "predictor_lr")},
    **{name: {"least": 0, "below": 1} for name in ("momentum", "ema", "noise")},
    "weight_decay": {"least": 0},
    "ema_end": {"least": 0, "most": 1},
}
"""Settings that are real numbers, and the bounds of each."""
FREE = ("seed", "evaluate", "probes")
"""Settings that the hash leaves out: the seed is named beside it, and the others don't touch the weights."""
REPLACED = ("dataset", "split", "subset", "pipeline")
"""Settings that a run with its caller's own images has no use for, and those of the loss where that is the caller's too."""


@dataclass(frozen=True)
class Settings:
    r"""These settings determine a run; the defaults are those of the papers' SimCLR on CIFAR-10, as released.

    dataset, split, subset: the images; ``subset`` is their number, or None for all.  Every seed uses the same images.
    pipeline: a name in :data:`sslbook.training.augment.PIPELINES`.  networks: the networks' sizes and kinds.
    objective, loss_kwargs: a name in :data:`sslbook.training.objectives.OBJECTIVES`, and this objective's arguments.
    optimizer, lr, momentum, betas, weight_decay: the optimiser; ``momentum`` is for ``sgd``, ``betas`` for
    ``adam`` and ``adamw``.  schedule, warmup: "constant", "cosine" or "released" (:func:`sslbook.training.run.step.learning_rate`),
    and the number of epochs in which the learning rate grows linearly before it follows the ``cosine`` schedule.
    batch: the batch size, in all processes together.  drop_last: whether to leave out a last batch that is not full.
    shuffle: whether each epoch has its own order of the images; the released SimCLR has a single one.
    predictor_lr: the predictor's learning rate, as a multiple of ``lr``.
    ema, ema_end: the target's :math:`\gamma_{\text{ema}}`, if there is a target.  It grows to ``ema_end``, if that is
    given, along half a cosine wave over the run, as in BYOL (Grill et al. 2020).
    reset: the number of epochs between re-initialisations of the predictor, or 0 for none.
    symmetric: whether the predictor keeps :math:`W_1 = W_0^\top`, as in the released code.
    noise: :math:`\eta`; each epoch after the first starts from :math:`(1-\eta) W + \eta \cdot \text{Xavier}`.
    evaluate: the number of epochs between measurements of k-NN accuracy, ranks and cosines.  With 0, they are measured
    only at the end; with None, they take at most 5 % of the training time.
    probes: the epochs after which the linear protocol runs, besides the last.
    precision: ``auto`` means bfloat16 on a GPU, and on a processor with instructions for it (AVX-512 BF16, AMX) if the
    backbone has a million weights or more.  Otherwise ``auto`` means float32.
    own: a JSON value that identifies your own dataset and pipeline; ``pretrain`` writes it.

    Raises ValueError, with an explanation, for settings that can't be run, and TypeError for wrong types.

    >>> Settings(batch=1)
    Traceback (most recent call last):
    ...
    ValueError: batch must be at least 2, got 1
    """

    dataset: str = "cifar10"
    split: str = "train"
    subset: int | None = None
    pipeline: str = "cifar10"
    networks: Networks = field(default_factory=lambda: Networks(stem="cifar"))
    objective: str = "info_nce"
    loss_kwargs: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "adam"
    lr: float = 1e-2
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    schedule: str = "released"
    warmup: int = 0
    batch: int = 128
    epochs: int = 100
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = True
    ema: float = 0.996
    reset: int = 0
    symmetric: bool = False
    noise: float = 0.0
    evaluate: int | None = None
    probes: tuple[int, ...] = ()
    precision: str = "auto"
    own: Mapping[str, Any] = field(default_factory=dict)
    predictor_lr: float = 1.0
    ema_end: float | None = None

    def __post_init__(self) -> None:
        """Check each setting, make numbers Python's own, and lists tuples, as JSON and command lines don't have them."""
        keep_plain(self)
        for name, allowed in CHOICES.items():
            require_one_of(name, getattr(self, name), allowed)
        for name, least in WHOLE.items():
            if getattr(self, name) is not None or name not in ("subset", "evaluate"):
                require_whole(name, getattr(self, name), least=least)
        made: dict[str, Any] = {"loss_kwargs": checked(self.objective, self.loss_kwargs)}
        for name, bounds in REAL.items():
            if getattr(self, name) is not None or name != "ema_end":
                made[name] = float(require_number(name, getattr(self, name), **bounds))
        probes = self.probes if isinstance(self.probes, tuple | list) else (self.probes,)
        made["probes"] = tuple(require_whole("probes", epoch, least=1) for epoch in probes if epoch is not None)
        made["betas"] = tuple(map(float, self.betas))
        for name in ("shuffle", "drop_last", "symmetric"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.warmup and (self.schedule != "cosine" or self.warmup >= self.epochs):
            where = f"the cosine schedule, and shorter than its {self.epochs} epochs"
            raise ValueError(f"warmup is for {where}, got {self.warmup} with schedule {self.schedule}")
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, with lists and objects; without :data:`REPLACED` where the images are your own."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        unused = (*(REPLACED if self.own else ()), *(("objective", "loss_kwargs") if "loss" in self.own else ()))
        return {name: value for name, value in content.items() if name not in unused}

    def hash(self) -> str:
        """Return the ten hexadecimal digits that name a run: a SHA-256 of its settings as JSON, but for :data:`FREE`.

        ``epochs`` counts only where a step depends on it, by the cosine schedule or by ``ema_end``.  Otherwise a run is the
        beginning of one with more epochs, which has the same hash and goes on where the shorter one ended.

        >>> Settings(epochs=100, seed=1).hash() == Settings(epochs=500).hash() != Settings(lr=0.1).hash()
        True
        """
        content = {name: value for name, value in self.as_json().items() if name not in FREE}
        if self.schedule != "cosine" and self.ema_end is None:
            del content["epochs"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def stored_settings(text: str) -> Settings:
    """The settings that a checkpoint, a result or a record holds as JSON, checked like any others.

    Earlier versions had a setting ``capture``, on which no weight depends.  Raises ValueError or TypeError for values that are
    not allowed, KeyError without ``networks``.

    >>> stored_settings('{"lr": 0.1, "networks": {"width": 8}}').networks.width
    8
    """
    values = json.loads(text)
    values.pop("capture", None)
    return Settings(**{**values, "networks": Networks(**values["networks"])})


def flat(settings: Mapping[str, Any], room: str = "") -> dict[str, Any]:
    """Settings, as :meth:`Settings.as_json` has them, by the names that a command line has for them.

    :func:`with_values` takes these names back.

    >>> flat({"lr": 0.1, "networks": {"width": 8}, "loss_kwargs": {"temperature": 0.2}})
    {'lr': 0.1, 'networks.width': 8, 'temperature': 0.2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = "" if name == "loss_kwargs" else f"{name}."
        found |= flat(value, room + inner) if isinstance(value, Mapping) else {room + name: value}
    return found


def with_values(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with some changed: fields, parts of the networks as ``networks.width``, and what the objective takes.

    That comes by its plain name, or within ``loss_kwargs``; another objective keeps of it what it takes too.
    Raises ValueError for a name that there is not, with the nearest ones, and for a value that is not allowed.

    >>> with_values(Settings(), {"networks.width": 8, "temperature": 0.2}).networks.width
    8
    """
    takes = TAKES.get(str(changes.get("objective", settings.objective)), {})
    kept = {name: part for name, part in settings.loss_kwargs.items() if name in takes}
    loss, networks = dict(changes.get("loss_kwargs", kept)), dict[str, Any]()
    fields = {"loss_kwargs": loss, "networks": changes.get("networks", settings.networks)}
    for name, new in changes.items():
        room, _, part = name.rpartition(".")
        if name in ARGUMENTS:
            loss[name] = new
        elif room == "networks" and part in vars(settings.networks):
            networks[part] = new
        elif name not in vars(settings):
            sizes = (f"networks.{size}" for size in vars(settings.networks))
            raise ValueError(f"there is no setting {name}; {hint(name, [*vars(settings), *sizes, *takes])}")
        elif name not in fields:
            fields[name] = new
    try:
        return replace(settings, **{**fields, "networks": replace(fields["networks"], **networks)})
    except TypeError as error:  # whoever writes key=value gives words
        raise ValueError(str(error)) from None
