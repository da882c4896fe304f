"""What a run is: one frozen value that says everything that its weights depend on, how to change it, and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import UnionType
from typing import Any, TypeVar

from sslbook._check import keep_plain, nearest, plain, require_number, require_one_of, require_whole
from sslbook.networks.siamese import Networks
from sslbook.training.augment import PIPELINES, Pipeline
from sslbook.training.objectives import ARGUMENTS, OBJECTIVES, arguments, objective

DATASETS = ("cifar10", "stl10", "mnist", "digits")
SPLITS = ("train", "train+unlabeled")
OPTIMIZERS = ("sgd", "adam", "lars")
PRECISIONS = ("auto", "float32", "bfloat16")
CAPTURES = ("auto", "none", "graph", "compile", "both")

FREE = ("seed", "evaluate", "probes", "capture")
"""Settings that the hash leaves out: the seed is named beside it, and the others don't touch the weights."""

STORED = {
    "lr": "rate",
    "weight_decay": "decay",
    "predictor_lr": "predictor_rate",
    "loss_kwargs": "numbers",
    "temperature": "tau",
}
"""What a setting was called at first, by its name of today: hashes go by the old name, and old files have it."""

OURS = ("dataset", "split", "subset", "pipeline", "stem", "width", "channels")
"""Settings, of the networks too, that a run with images and a network of its caller's doesn't use."""

DIGESTS = ("images", "backbone", "labels")
"""What of a caller's own a run knows by its digest."""


Record = TypeVar("Record", "Settings", Networks)


class Refused(ValueError):
    """A run that can't be made here as it is asked for; not an error of the program."""


@dataclass(frozen=True)
class Settings:
    r"""These settings determine a run; the defaults are those of the papers' SimCLR on CIFAR-10, as released.

    dataset, split, subset: the images; ``subset`` is their number, or None for all.  Every seed uses the same images.
    pipeline: a name in :data:`sslbook.training.augment.PIPELINES`.  networks: the networks' sizes and kinds.
    objective, loss_kwargs: a name in :data:`sslbook.training.objectives.OBJECTIVES`, and this objective's arguments.
    optimizer, lr, momentum, betas, weight_decay: the optimiser; ``momentum`` is for ``sgd`` and ``lars``, ``betas`` for
    ``adam``.  schedule, warmup: a name in :data:`sslbook.training.run.settings.SCHEDULES`, and the number of epochs in
    which the learning rate grows linearly before it follows the ``cosine`` schedule.
    batch: the batch size, in all processes together.  drop_last: whether to leave out a last batch that is not full.
    shuffle: whether each epoch has its own order of the images; the released SimCLR has a single one.
    predictor_lr: the predictor's learning rate, as a multiple of ``lr``.
    ema, ema_end: the target's :math:`\gamma_{\text{ema}}`, if there is a target.  It grows to ``ema_end``, if that is
    given, along half a cosine wave over the run, as in BYOL (Grill et al. 2020).
    reset: the number of epochs between re-initialisations of the predictor, or 0 for none.
    symmetric: whether the predictor keeps :math:`W_1 = W_0^\top`, as in the released code.
    noise: :math:`\eta`; each epoch after the first starts from :math:`(1-\eta) W + \eta \cdot \text{Xavier}`.
    evaluate: the number of epochs between measurements of k-NN accuracy and rank.  With 0, both are measured only
    at the end; with None, they take at most 5 % of the training time.
    probes: the epochs after which the linear protocol runs, besides the last.
    precision: ``auto`` means bfloat16 on a GPU, and on a processor with instructions for it (AVX-512 BF16, AMX) if the
    backbone has a million weights or more.  Otherwise ``auto`` means float32.
    capture: how steps on a GPU are sped up: by a CUDA graph, ``torch.compile``, both, or neither; ``auto`` uses the graph.
    own: a JSON value that identifies your own dataset, pipeline and backbone; ``pretrain`` writes it.
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
    capture: str = "auto"
    own: Mapping[str, Any] = field(default_factory=dict)
    predictor_lr: float = 1.0
    ema_end: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, with an explanation, for settings that can't be run, and TypeError for wrong types."""
        keep_plain(self)
        require_one_of("dataset", self.dataset, DATASETS)
        require_one_of("split", self.split, SPLITS if self.dataset == "stl10" else SPLITS[:1])
        require_one_of("pipeline", self.pipeline, tuple(PIPELINES))
        require_one_of("objective", self.objective, tuple(OBJECTIVES))
        require_one_of("optimizer", self.optimizer, OPTIMIZERS)
        require_one_of("schedule", self.schedule, tuple(SCHEDULES))
        require_one_of("precision", self.precision, PRECISIONS)
        require_one_of("capture", self.capture, CAPTURES)
        least = {"batch": 2, "epochs": 1, "subset": 1}
        for name in ("batch", "epochs", "seed", "warmup", "reset", "subset", "evaluate"):
            if getattr(self, name) is not None or name not in ("subset", "evaluate"):
                require_whole(name, getattr(self, name), least=least.get(name, 0))
        for name in ("shuffle", "drop_last", "symmetric"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        require_number("lr", self.lr, above=0)
        require_number("predictor_lr", self.predictor_lr, above=0)
        if self.ema_end is not None:
            require_number("ema_end", self.ema_end, least=0, most=1)
        require_number("weight_decay", self.weight_decay, least=0)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, such as 0.9,0.999, got {self.betas!r}")
        for name in ("momentum", "ema", "noise"):
            require_number(name, getattr(self, name), least=0, below=1)
        for beta in self.betas:
            require_number("betas", beta, least=0, below=1)
        if not isinstance(self.probes, tuple):
            raise ValueError(f"probes must be epochs, such as 100,300, got {self.probes!r}")
        for epoch in self.probes:
            require_whole("probes", epoch, least=1)
        if self.warmup and self.schedule != "cosine":
            raise ValueError(f"warmup is for the cosine schedule, and schedule is {self.schedule}: got {self.warmup}")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup must be shorter than the {self.epochs} epochs of the run, got {self.warmup}")
        if not isinstance(self.networks, Networks):
            raise ValueError(f"networks must be a Networks, got {self.networks!r}")
        if self.networks.predictor == 0 and (self.reset or self.symmetric):
            raise ValueError("reset and symmetric are for a predictor, and networks.predictor is 0")
        if not isinstance(self.loss_kwargs, Mapping):
            raise ValueError(f"loss_kwargs must be a mapping, such as {{'temperature': 0.2}}, got {self.loss_kwargs!r}")
        objective(self.objective, **self.loss_kwargs)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON, without those that your own images and network replace."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in OURS if self.own else ():
            content.pop(name, None)
            content["networks"].pop(name, None)
        return content

    def hash(self) -> str:
        """Return ten hexadecimal digits that identify a run, a hash of the canonical JSON of :meth:`essence`.

        Two runs have the same digits if one is the beginning of the other.
        """
        text = json.dumps(self.essence(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def essence(self) -> dict[str, Any]:
        """Return the settings that determine the weights and differ from the defaults; a new setting keeps old hashes.

        Settings have their names in :data:`STORED`, and the augmentation is given by its values and not by its name.
        Settings that this run doesn't use are left out.
        """
        unused = self._unused()
        content = _differing(self, type(self)(), unused)
        defaults = arguments(self.objective)
        given = {name: _canonical(value) for name, value in self.loss_kwargs.items() if name not in unused}
        given = {name: value for name, value in given.items() if value != _canonical(defaults[name])}
        content["loss_kwargs"] = {STORED.get(name, name): value for name, value in given.items()}
        content["networks"] = _differing(self.networks, Networks(), unused)
        content["pipeline"] = {} if self.own else _differing(PIPELINES[self.pipeline], Pipeline(size=32), set())
        return {STORED.get(name, name): value for name, value in content.items()}

    def _unused(self) -> set[str]:
        """Names of settings that don't touch the weights of this run."""
        networks = self.networks
        unused = {*FREE, "momentum" if self.optimizer == "adam" else "betas"}
        if self.own:
            unused.update(OURS)
        if self.schedule != "cosine" and self.ema_end is None:  # which the number of epochs says nothing to
            unused.add("epochs")
        if networks.target is None:
            unused |= {"ema", "ema_end", "target_init"}
        else:
            unused.add("stop_gradient")  # no gradient reaches a target tower in any case
        if networks.predictor == 0:
            unused |= {"predictor_norm", "predictor_range", "predictor_lr"}
        if networks.predictor != 2:
            unused.add("predictor_hidden")
        norms = (networks.projector_norm, networks.projector_out_norm, networks.predictor and networks.predictor_norm)
        if not any(norms):
            unused.add("unbiased")
        return unused


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """``epochs 4, now 6; lr 0.1, now 0.2``: where two runs' settings, as :meth:`Settings.as_json` has them, differ."""
    was, now, usual = _flat(theirs), _flat(ours), _flat(Settings().as_json())
    told = []
    for name in (name for name in {**was, **now} if name not in FREE or name == "seed"):
        one, other = (part.get(name, usual.get(name, "unset")) for part in (was, now))
        if one != other:
            told.append(f"other {name}" if name in DIGESTS else f"{name} {one}, now {other}")
    return "; ".join(told)


def _flat(content: Mapping[str, Any], room: str = "") -> dict[str, Any]:
    """The same by plain names, those within ``networks`` and ``pipeline`` with it."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        below = "" if name in ("loss_kwargs", "own") else f"{room}{name}."
        found |= _flat(value, below) if isinstance(value, Mapping) else {room + name: value}
    return found


def known_keys(objective: object = None) -> list[str]:
    """What a command line can set, in a run with that objective if it has one."""
    top = [f.name for f in dataclasses.fields(Settings) if f.name not in ("networks", "loss_kwargs", "own")]
    return [*top, *arguments(objective), *(f"networks.{f.name}" for f in dataclasses.fields(Networks))]


def _differing(value: Any, default: Any, unused: set[str]) -> dict[str, Any]:
    """The fields of a dataclass that differ from those of another one, but for the unused."""
    names = [f.name for f in dataclasses.fields(value) if f.name not in unused]
    both = {name: (_canonical(getattr(value, name)), _canonical(getattr(default, name))) for name in names}
    return {name: mine for name, (mine, theirs) in both.items() if mine != theirs}


def _canonical(value: Any) -> Any:
    """A value as JSON has it, with 1 and 1.0 the same."""
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def with_values(value: Record, changes: Mapping[str, Any], room: str = "") -> Record:
    """Settings or networks with some fields replaced; whole numbers become floats, and lists tuples, where the field has them.

    What an objective takes comes by its plain name, or within ``loss_kwargs``; another objective keeps of it what it takes too.
    room: ``networks.`` for networks, said in errors.  Raises ValueError for a name that there is not, with the nearest ones, and
    for a value that is not allowed.
    """
    hints = typing.get_type_hints(type(value))
    objective = changes.get("objective", getattr(value, "objective", None))
    if isinstance(value, Settings):
        kept = {name: given for name, given in value.loss_kwargs.items() if name in arguments(objective)}
        plain = {name: given for name, given in changes.items() if name in ARGUMENTS}
        rest = {name: given for name, given in changes.items() if name not in ARGUMENTS}
        held = changes.get("loss_kwargs", kept)
        changes = {**rest, "loss_kwargs": {**held, **plain} if isinstance(held, Mapping) else held}
    fitted = {}
    for name, new in changes.items():
        if name not in hints:
            near = nearest(room + name, known := known_keys(objective))
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"there is no setting {room}{name}{hint}")
        fitted[name] = _fitted(new, hints[name])
    try:
        return dataclasses.replace(value, **fitted)
    except TypeError as error:  # whoever writes key=value gives words
        raise ValueError(str(error)) from None


def stored(text: str) -> Any:
    """The JSON of a run's files, whose settings may have the names of :data:`STORED`, with those of today."""
    today = {old: name for name, old in STORED.items()}
    return json.loads(text, object_hook=lambda found: {today.get(name, name): part for name, part in found.items()})


def stored_settings(text: str) -> Settings:
    """The settings that a checkpoint holds as JSON."""
    values = stored(text)
    networks = with_values(Networks(), values.pop("networks"))
    return with_values(Settings(), {**values, "networks": networks})


def _fitted(value: Any, hint: Any) -> Any:
    value = plain(value)
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    for kind in kinds:
        if typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is Ellipsis and value in (None, ""):
            return ()
        if typing.get_origin(kind) is tuple and value is not None:
            inner = typing.get_args(kind)[0]
            items: Sequence[Any] = value if isinstance(value, (list, tuple)) else (value,)
            return tuple(_fitted(item, inner) for item in items)
    if value is None and kinds == (str,):
        return "none"  # the word, as in capture=none
    if float in kinds and not isinstance(value, bool) and isinstance(value, Real):
        return float(value)
    return value


# --- learning rates by step ------------------------------------------------------------------------------------------
# Pure functions of the step: what a run has done doesn't matter, so a resumed one has nothing to restore.

STEADY = 10
"""Epochs before the released schedule begins to fall."""


@dataclass(frozen=True)
class Length:
    """How long a run is: steps in an epoch, and epochs; the first ``warmup`` of them grow linearly where the schedule asks."""

    steps: int
    epochs: int
    warmup: int = 0


def constant(step: int, length: Length) -> float:
    """1, as the released BYOL has it."""
    return 1.0


def cosine(step: int, length: Length) -> float:
    r"""SimCLR's: grows as :math:`(s+1)/w` over the :math:`w` steps of the warm-up, then
    :math:`\frac12(1 + \cos\pi\frac{s - w}{S - w})` of the run's :math:`S` steps.
    """
    warm = length.warmup * length.steps
    if step < warm:
        return (step + 1) / warm
    total = length.epochs * length.steps
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def released(step: int, length: Length) -> float:
    r"""The released SimCLR's: :math:`\frac12(1 + \cos\pi t/T)` with :math:`t` epochs after the first ten plus one.

    Its half period :math:`T` is the number of *batches in an epoch*, though it moves once an epoch: on CIFAR-10 with batches of
    128, :math:`T = 390`, the rate reaches 0 in epoch 401 and rises after it; on STL-10 it never gets there.  It does not depend
    on the length of the run, so a run of 100 epochs is the beginning of one of 500.
    """
    return 0.5 * (1 + math.cos(math.pi * max(0, step // length.steps - STEADY) / length.steps))


SCHEDULES: dict[str, Callable[[int, Length], float]] = {"constant": constant, "cosine": cosine, "released": released}
"""The factor of the learning rate in step ``s`` (from 0), by name."""
