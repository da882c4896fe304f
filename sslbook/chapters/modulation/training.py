r"""The experiments of Section 5 and Appendix E.2 of [tian2023]: every setting and seed of one shape trains in one batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sslbook.arguments import require_number, require_one_of, require_whole
from sslbook.chapters.modulation.network import Segments, Settings, gradients, lookups, norms
from sslbook.chapters.modulation.reference import ACTIVATIONS, FORMS, GROUPS, REFERENCES, printed_factor
from sslbook.chapters.modulation.scores import scores
from sslbook.chapters.modulation.tokens import World, draw_pairs, make_world
from sslbook.machine import process_pool
from sslbook.streams import Streams


@dataclass(frozen=True)
class Cell:
    r"""One setting of a table or figure.

    patterns: :math:`P`, tokens in each :math:`R_k^g`.  beta: :math:`\beta`, so that each field has :math:`M = \beta P` filters.
    mean, std: BatchNorm's statistics, ``normal``, ``detach`` (not differentiated through) or ``omit``; the default is
    Definition 5.
    zeta: :math:`\zeta`, the lengths of the tokens' vectors are :math:`\zeta` and :math:`1/\zeta`.
    """

    patterns: int = 1
    beta: int = 1
    activation: str = "relu"
    mean: str = "normal"
    std: str = "detach"
    loss: str = "info_nce"
    zeta: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("activation", tuple(ACTIVATIONS)), ("loss", REFERENCES)):
            require_one_of(name, getattr(self, name), known)
        for name in ("patterns", "beta"):
            require_whole(name, getattr(self, name), least=1)
        norms([(self.mean, self.std)], torch.float32)

    @property
    def filters(self) -> int:
        """:math:`M`, filters in a field."""
        return self.beta * self.patterns


@dataclass(frozen=True)
class Protocol:
    """What all settings share; the default is the released code's, as its instructions have it.

    group: BatchNorm's statistics are those of a ``view`` or of the ``batch`` of both.  form: of the losses, see
    :func:`sslbook.chapters.modulation.reference.loss`.  rate, momentum, decay: of SGD.
    """

    fields: int = 10
    tokens: int = 20
    generators: int = 40
    fixed: int = 5
    outputs: int = 50
    batch: int = 128
    steps: int = 5000
    rate: float = 0.02
    momentum: float = 0.9
    decay: float = 5e-3
    tau: float = 0.1
    group: str = "view"
    form: str = "released"

    def __post_init__(self) -> None:
        for name, known in (("group", GROUPS), ("form", FORMS)):
            require_one_of(name, getattr(self, name), known)
        for name, least in (("outputs", 1), ("batch", 2), ("steps", 1)):
            require_whole(name, getattr(self, name), least=least)
        for name in ("rate", "tau"):
            require_number(name, getattr(self, name), above=0)
        for name in ("momentum", "decay"):
            require_number(name, getattr(self, name), least=0, below=1)


PRINTED = Protocol(outputs=20, rate=2e-3, group="batch", form="printed")
"""The paper's text: its learning rate, Eq. 1, statistics over all ``2B`` samples; ``outputs`` it leaves open (the code's
default)."""


Replica = tuple[Cell, int]


@dataclass
class State:
    """Weights of ``R`` replicas of one shape, ``(R, K, d, M)`` and ``(R, K, M, O)``, with their momenta."""

    weights: Tensor
    top: Tensor
    momenta: tuple[Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.momenta = (torch.zeros_like(self.weights), torch.zeros_like(self.top))


def initial_state(protocol: Protocol, seeds: Sequence[int], filters: int, dtype: torch.dtype = torch.float32) -> State:
    r"""PyTorch's initial weights, uniform on :math:`\pm1/\sqrt{\text{inputs}}`, no biases; one stream a seed."""
    streams = Streams(seeds, "weights")
    k, d = protocol.fields, protocol.tokens
    weights = streams.uniform((k, d, filters), torch.float64).mul_(2).sub_(1).div_(d**0.5)
    top = streams.uniform((k, filters, protocol.outputs), torch.float64).mul_(2).sub_(1).div_((k * filters) ** 0.5)
    return State(weights.to(dtype), top.to(dtype))


def world_of(protocol: Protocol, replicas: Sequence[Replica]) -> World:
    """The worlds of the replicas, by their seeds."""
    cells, seeds = [cell for cell, _ in replicas], [seed for _, seed in replicas]
    return make_world(
        seeds,
        [cell.patterns for cell in cells],
        fields=protocol.fields,
        tokens=protocol.tokens,
        generators=protocol.generators,
        fixed=protocol.fixed,
        zeta=[cell.zeta for cell in cells],
    )


def settings_of(protocol: Protocol, replicas: Sequence[Replica], world: World, dtype: torch.dtype) -> Settings:
    """Kinds of activation, loss and BatchNorm by replica; it costs least where replicas of a kind lie side by side."""
    cells = [cell for cell, _ in replicas]
    even = bool((world.lengths == 1).all())
    return Settings(
        activations=_segments([cell.activation for cell in cells]),
        losses=_segments([cell.loss for cell in cells]),
        norms=norms([(cell.mean, cell.std) for cell in cells], dtype, world.lengths.device),
        tau=protocol.tau,
        factors={
            loss: printed_factor(loss, protocol.tau, protocol.batch) if protocol.form == "printed" else 1.0
            for loss in REFERENCES
        },
        lengths=None if even else world.lengths.to(dtype)[:, None, :, None],
    )


def _segments(kinds: Sequence[str]) -> Segments:
    found: list[tuple[str, slice]] = []
    for r, kind in enumerate(kinds):
        if found and found[-1][0] == kind:
            found[-1] = (kind, slice(found[-1][1].start, r + 1))
        else:
            found.append((kind, slice(r, r + 1)))
    return found


def descend(state: State, grads: tuple[Tensor, Tensor], protocol: Protocol) -> None:
    """One step of SGD with momentum and weight decay, in place."""
    for parameter, momentum, grad in zip((state.weights, state.top), state.momenta, grads, strict=True):
        momentum.mul_(protocol.momentum).add_(grad).add_(parameter, alpha=protocol.decay)
        parameter.sub_(momentum, alpha=protocol.rate)


BLOCK = 16
"""Minibatches drawn at a time; how many changes nothing, since streams are read in order."""


@torch.no_grad()
def train(
    protocol: Protocol,
    replicas: Sequence[Replica],
    *,
    dtype: torch.dtype = torch.float32,
    world: World | None = None,
    device: torch.device | str = "cpu",
) -> tuple[State, World]:
    """Train replicas with one number of filters, side by side; replica ``r`` draws from streams of its seed alone.

    world: in place of the one that the seeds draw, such as a single place of it.  Raises ValueError for no replicas, for
    different numbers of filters, or for a world of another shape.
    """
    world, state = _start(protocol, replicas, dtype, world, device)
    for _ in _descent(protocol, replicas, state, world):
        pass
    return state, world


@torch.no_grad()
def course(
    protocol: Protocol, replicas: Sequence[Replica], at: Sequence[int], *, world: World | None = None
) -> tuple[list[State], World]:
    """The same training, looked at on the way: the state after each of ``at`` minibatches, 0 the start.

    Raises ValueError for numbers of minibatches that do not increase from 0 or more to ``protocol.steps`` at most; else as
    :func:`train`.
    """
    if not at or at[0] < 0 or at[-1] > protocol.steps or any(b <= a for a, b in itertools.pairwise(at)):
        raise ValueError(f"at must increase within 0 to steps = {protocol.steps}, got {list(at)}")
    world, state = _start(protocol, replicas, torch.float32, world, "cpu")
    steps = itertools.chain([0], _descent(protocol, replicas, state, world))
    passing = itertools.islice(steps, at[-1] + 1)
    return [State(state.weights.clone(), state.top.clone()) for done in passing if done in at], world


def _start(
    protocol: Protocol, replicas: Sequence[Replica], dtype: torch.dtype, world: World | None, device: torch.device | str
) -> tuple[World, State]:
    if not replicas:
        raise ValueError("replicas must hold at least one cell with a seed, got none")
    filters = {cell.filters for cell, _ in replicas}
    if len(filters) > 1:
        raise ValueError(f"replicas must share one number of filters, got {sorted(filters)}")
    seeds = [seed for _, seed in replicas]
    world = world_of(protocol, replicas) if world is None else world
    if (wanted := (len(replicas), protocol.fields, protocol.tokens)) != (shape := tuple(world.allowed.shape)):
        raise ValueError(f"world must have {wanted} replicas, fields and tokens, got {shape}")
    state = initial_state(protocol, seeds, filters.pop(), dtype)
    return world.to(device), State(state.weights.to(device), state.top.to(device))


def _descent(protocol: Protocol, replicas: Sequence[Replica], state: State, world: World) -> Iterator[int]:
    """Change ``state`` in place, and count the minibatches done."""
    dtype = state.weights.dtype
    how, streams = settings_of(protocol, replicas, world, dtype), Streams([seed for _, seed in replicas], "pairs")
    for done in range(0, protocol.steps, BLOCK):
        pairs = draw_pairs(world, streams, protocol.batch, min(BLOCK, protocol.steps - done))
        for number, look in enumerate(lookups(pairs, protocol.tokens, protocol.group, dtype), done + 1):
            descend(state, gradients(state.weights, state.top, look, how), protocol)
            yield number


# ---------------------------------------------------------------------------------------------------------------------
# Many cells on all cores

CACHE = 8e6
"""Bytes of the arrays that a step of a chunk of replicas goes through: past this, chunks gain nothing by being longer."""

MEMORY = 4e9
"""The same of a GPU, where a step costs its kernels' launches: one chunk for each number of filters."""


def run(
    protocol: Protocol,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    keep: bool = False,
    device: torch.device | str = "cpu",
) -> dict[Cell, dict[str, Tensor]]:
    """Train every cell with every seed; for each cell the scores ``(seeds,)`` of :mod:`scores`, and with ``keep`` its
    ``weights``.

    Cells of equal shape train together, in chunks that fit a processor's cache; how they are cut changes nothing.
    processes: at work at once; 1 trains in this one.  Raises ValueError for less.  What comes back lies on the CPU.
    """
    require_whole("processes", processes, least=1)
    memory = CACHE if torch.device(device).type == "cpu" else MEMORY
    chunks = sorted(_chunks(protocol, cells, seeds, processes, memory), key=lambda chunk: -_cost(protocol, chunk))
    if processes == 1:
        results = [_measured(protocol, chunk, keep, device) for chunk in chunks]
    else:
        with process_pool(processes) as pool:
            calls = [pool.submit(_measured, protocol, chunk, keep, device) for chunk in chunks]
            results = [call.result() for call in calls]
    found = {key: value for chunk, result in zip(chunks, results) for key, value in zip(chunk, _rows(result))}
    return {
        cell: {name: torch.stack([found[cell, seed][name] for seed in seeds]) for name in found[cell, seeds[0]]}
        for cell in dict.fromkeys(cells)
    }


def _measured(
    protocol: Protocol, replicas: Sequence[Replica], keep: bool, device: torch.device | str
) -> dict[str, Tensor]:
    state, world = train(protocol, replicas, device=device)
    linear = torch.tensor([cell.activation == "linear" for cell, _ in replicas])
    found = scores(state.weights.double(), world, linear)
    kept = {"weights": state.weights, "allowed": world.allowed} if keep else {}
    return {name: values.cpu() for name, values in (found | kept).items()}


def _rows(result: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    for values in zip(*result.values()):
        yield dict(zip(result, values, strict=True))


def _chunks(
    protocol: Protocol, cells: Sequence[Cell], seeds: Sequence[int], processes: int, memory: float
) -> Iterator[list[Replica]]:
    """Replicas of one shape, like beside like, cut evenly."""
    by_shape: dict[int, list[Replica]] = {}
    for cell in sorted(dict.fromkeys(cells), key=lambda cell: (cell.loss, cell.activation, cell.zeta != 1)):
        by_shape.setdefault(cell.filters, []).extend((cell, seed) for seed in dict.fromkeys(seeds))
    for replicas in by_shape.values():
        most = max(1, round(memory / _bytes(protocol, replicas[0][0].filters)))
        pieces = max(-(-len(replicas) // most), min(processes, len(replicas)) if len(by_shape) < processes else 1)
        edges = [len(replicas) * i // pieces for i in range(pieces + 1)]
        for start, end in itertools.pairwise(edges):
            yield replicas[start:end]


def _bytes(protocol: Protocol, filters: int) -> int:
    """Of one replica: weights with momenta, tables, similarities and outputs, in float32."""
    k, d, b, o = protocol.fields, protocol.tokens, protocol.batch, protocol.outputs
    return 4 * (3 * k * filters * (d + o) + 4 * 2 * k * d * filters + 3 * b * b + 6 * b * o + 2 * k * d * o)


def _cost(protocol: Protocol, chunk: Sequence[Replica]) -> float:
    return len(chunk) * (4.0 + chunk[0][0].filters / 10)
