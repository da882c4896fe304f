r"""The covariance operator of [tian2020] on the layers of a ResNet in training, beside the operators that it is mistaken for.

The network that is opened is encoder and projector, as the loss sees it, with BatchNorm by its running statistics: in a batch's own
statistics one sample's connection would depend on the others.  Then a layer's operator is
:math:`\mathrm{OP}_l = \mathbb V_x[\bar K_l(x)]`, and BatchNorm is part of what stands above.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook._files import atomic
from sslbook._machine import cores
from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.inspect.measure import Seen, inspect_network, look, settle
from sslbook.inspect.report import KINDS, open_run
from sslbook.networks.siamese import build, initialize
from sslbook.operator.layer import layers_of, open_layer, unvec, vec
from sslbook.training.augment import PIPELINES, apply, random_view
from sslbook.training.evaluate import report
from sslbook.training.run.distributed import join
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import Batches, generator, layout_of, learning_rate, load_data, make_optimizer
from sslbook.training.run.trainer import train
from sslchapters.records import kept, parts_folder, rounded
from sslchapters.sweep import Study, spread
from sslchapters.training import records as small
from sslchapters.training.records import HUNDRED, RELEASED, WHOLE, WORKING, settings_of

DIRECTIONS = ("weights", "first weights")
"""What is asked about: a layer's weights, and those before training."""
SUPERVISED = "supervised"
RUNS = ("info_nce", "byol, plain", "byol, no EMA, no stop-gradient", SUPERVISED)
"""A contrastive run, one without negatives that learns, one that collapses, and one that is told the labels."""
PROBES, LEADING = 12, 8
BLOCKS = ("1.0.conv2", "1.1.conv2", "2.0.conv1", "2.1.conv2", "3.0.conv1", "3.1.conv2", "4.0.conv1", "4.1.conv2")
LAYERS = ("0.conv1", *(f"0.layer{block}" for block in BLOCKS), "1.linears.0", "1.linears.1", "1")
"""Of each stage of the encoder the first and the last, and what stands above."""
SHARED = ("0.layer3.1.conv2", "0.layer4.0.conv1", "0.layer4.1.conv2", "1.linears.1")
"""Layers whose leading modes are looked for."""
SMALLER = ("subset=20000", "networks.width=8", "epochs=5", "probes=5", "evaluate=0", "shuffle=true", "drop_last=true")
"""Half as wide as the chapter's other runs, of which there are fewer; nothing is evaluated on the way."""


@dataclass(frozen=True)
class How:
    """Runs with these ``changes``, and how they are looked at: on so many test images, in so many views of each.

    The networks have not seen the images.  gpu: the runs are made on one where there is one.
    more: views of another look at the first run at its end, by which the correction for few views is seen; 0 for none.
    shared: layers whose leading modes are looked for.  fewer: numbers of views, below ``views``, to ask with again.
    network: the seed of every run, if there is one network a name and the seeds draw images alone; else a seed is the run's too.
    """

    changes: tuple[str, ...]
    images: int
    views: int
    more: int = 0
    shared: tuple[str, ...] = ()
    fewer: tuple[int, ...] = ()
    network: int | None = None
    gpu: bool = False


SHORT, DRAWN = How(SMALLER, 24, 8, 16, SHARED), How(WORKING, 32, 32, fewer=(2, 4, 8, 16), network=1)
FULL = replace(DRAWN, changes=("epochs=100", "probes=100"), gpu=True)
"""A run of the first column of Table 2 of [tian2020], at full width."""


def population(settings: Settings, seed: int, images: int, views: int, first: int = 0) -> Tensor:
    """Test images drawn by ``seed``: views numbered from ``first`` on, ``(N, V, C, S, S)``."""
    pixels = datasets.subset(load_data(settings)[1], images, seed).pixels
    pipeline = PIPELINES[settings.pipeline]
    drawn = [random_view(pixels, pipeline, seed=seed, view=view) for view in range(first, first + views)]
    return torch.stack(drawn, dim=1)


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # convolutions of three digits would be no covariance
def look_at(
    net: nn.Module,
    views: Tensor,
    *,
    first: Mapping[str, Tensor] | None = None,
    layers: Sequence[str] | None = None,
    shared: Sequence[str] = (),
    fewer: Sequence[int] = (),
    probes: int = PROBES,
) -> dict[str, Any]:
    r"""What the weights of each layer see of the operators, as lists; a row a layer, in the order of the network.

    views ``(N, V, ...)``.  first: the weights before training, by name; the same if not given.  layers: all by default.
    fewer: numbers of views, below V, with which the same is asked again.
    probes: random weights, whose mean square is an operator's mean eigenvalue; each costs a product.

    names; sizes: weights.  seen: :math:`d^\top \mathrm{OP} d / \|d\|^2` by layer, operator of
    :data:`~sslbook.inspect.report.KINDS` and direction of :data:`DIRECTIONS`.  mean: of random weights, by layer and operator.
    fewer: what is ``seen`` with so many of the views, by their number.
    share: of the layers ``shared``, by name: a row an operator, in whose :data:`LEADING` modes the directions lie.
    outputs: the variance of the normalised outputs, by operator; at most 1.
    """
    names = tuple(layers) if layers is not None else tuple(layers_of(net))
    weights, shape = dict(net.named_modules()), (len(views), views.shape[1])
    found: dict[str, Any] = {"names": list(names), "sizes": [], "seen": [], "mean": [], "share": {}}
    found["fewer"] = {str(count): [] for count in fewer}
    for number, name in enumerate(names):
        weight = weights[name].weight.detach()
        asked = torch.stack([vec(weight), vec(weight if first is None else first[name].to(weight))], dim=1)
        draw = torch.Generator().manual_seed(number)
        signs = torch.randint(0, 2, (len(asked), probes), generator=draw).to(asked) * 2 - 1
        directions = torch.cat([asked, signs], dim=1)
        scene = open_layer(net, name, views.flatten(0, 1))
        # what the outputs do along each direction, as a `Seen` through directions that need not be orthonormal
        rows = [scene.jvp(unvec(column, scene.weight.shape)) for column in directions.T]
        fields = torch.stack(rows, dim=-1).double().unflatten(0, (len(views), -1))
        through = Seen(scene, shape, directions.double(), fields)
        lengths = asked.double().square().sum(0)
        squares = _squares(through)
        found["sizes"].append(len(asked))
        found["seen"].append([rounded(row, digits=5) for row in squares[:, :2] / lengths])
        for count, asked_again in found["fewer"].items():
            few = replace(through, population=(len(views), int(count)), fields=through.fields[:, : int(count), :, :2])
            asked_again.append([rounded(row, digits=5) for row in _squares(few) / lengths])
        found["mean"].append(rounded(squares[:, 2:].mean(1) / len(asked), digits=5))
        if name in shared:
            modes = look(scene, shape, LEADING)
            found["share"][name] = [rounded(modes.share(kind, LEADING, asked), digits=5) for kind in KINDS]
    unit = nn.functional.normalize(scene.output.double(), dim=1).unflatten(0, views.shape[:2])
    spread = Seen(scene, shape, views.new_zeros(0, 1), unit[..., None])
    found["outputs"] = rounded(torch.stack([spread.matrices(kind)[0, 0] for kind in KINDS]), digits=5)
    return found


def _squares(through: Seen) -> Tensor:
    """What each operator is along each direction, ``(KINDS, directions)``."""
    return torch.stack([through.matrices(kind).diagonal() for kind in KINDS])


# -- a run that is told the labels ------------------------------------------------------------------------------------


def trained_on_labels(settings: Settings, data: Dataset, epochs: int, device: str = "cpu") -> nn.Sequential:
    """Encoder and classifier after ``epochs`` of a run with these settings, whose objective is replaced; both views count."""
    siamese = build(settings.networks, settings.seed)
    top = nn.Linear(8 * settings.networks.width, data.classes)
    initialize(top, generator(settings.seed, "classifier", 0))
    net = nn.Sequential(siamese.encoder, top).to(device)
    net.to(memory_format=layout_of(settings.networks.width, torch.device(device)))  # type: ignore[call-overload]
    optimizer, pipeline = make_optimizer(settings, list(net.parameters())), PIPELINES[settings.pipeline]
    batches = Batches(settings, len(data))
    for step in range(epochs * batches.per_epoch):
        index, *draws = batches.at(step)
        pixels, labels = data.pixels[index].to(device), data.labels[index].to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, batches.per_epoch)
        optimizer.zero_grad()
        for drawn in draws:
            F.cross_entropy(net(apply(pixels, pipeline, drawn)), labels).div(len(draws)).backward()
        optimizer.step()
    return net


# -- along real runs --------------------------------------------------------------------------------------------------


class Run(small.Run):
    """A run of :data:`RUNS`, and where it lies."""

    @property
    def settings(self) -> Settings:
        """With labels those of the first run, whose images, views and optimiser they are."""
        return settings_of(RUNS[0] if self.name == SUPERVISED else self.name, self.seed, self.changes)

    @property
    def folder(self) -> Path:
        """The run's own; without labels that of the chapter's record of it, which is opened as it stands."""
        if self.name != SUPERVISED:
            return super().folder
        return self.root / f"labels-s{self.seed}-{self.settings.hash()}-{self.settings.epochs}"

    def network(self, epoch: int) -> nn.Module:
        """What the loss sees, after so many epochs; raises ValueError for a run that is past them."""
        settings, data, told = self.settings, load_data(self.settings)[0], self.name == SUPERVISED
        first = trained_on_labels(settings, data, 0, self.device).eval() if told else None
        if not epoch:
            model = build(settings.networks, self.seed).to(self.device)
            return first or nn.Sequential(model.encoder, model.projector).eval()
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "made.lock"):  # another look at it may be under way
            if first:
                weights = self.folder / f"weights-{epoch}.pt"
                if not weights.exists():
                    with atomic(weights) as part:
                        torch.save(trained_on_labels(settings, data, epoch, self.device).state_dict(), part)
                first.load_state_dict(torch.load(weights, weights_only=True))
                return first
            last = epoch * Batches(settings, len(data)).per_epoch
            result = train(settings, self.folder, stop_after=last, data=(data, None), device=self.device, quiet=True)
        return nn.Sequential(result.model.encoder, result.model.projector).eval()


def run_values(names: Sequence[str], epochs: Sequence[int], how: How, seeds: Sequence[int]) -> dict[str, Any]:
    """:func:`look_at` runs after each of ``epochs``; a draw of test images a seed.

    The runs lie in `parts_folder`, to go on there if they are stopped.  Raises FileNotFoundError without the data.
    """
    device, jobs = str(join(None)) if how.gpu else "cpu", []
    for seed, name in itertools.product(seeds, names):
        run = Run(name, how.network or seed, how.changes, device, parts_folder())
        jobs.append((run, seed, epochs, how, how.more * (name == names[0])))
    found = spread(along, jobs, cores() if device == "cpu" else 1)
    runs: dict[str, Any] = {name: [] for name in names}
    for (run, *_), looks in zip(jobs, found, strict=True):
        runs[run.name].append(looks)
    return {
        "axes": "runs[name][seed][look]: of each look seen[layer][operator][direction], mean[layer][operator], knn, rank",
        "operators": list(KINDS),
        "directions": list(DIRECTIONS),
        "epochs": list(epochs),
        "images": how.images,
        "views": how.views,
        "more": how.more,
        "modes": LEADING,
        "runs": runs,
    }


def along(run: Run, draw: int, epochs: Sequence[int], how: How, more: int) -> list[dict[str, Any]]:
    """The looks at one run, with ``more`` views another; those that lie in its folder are not made again."""
    asked = [(epoch, how.views, 0) for epoch in epochs] + [(epochs[-1], more, how.views)] * bool(more)
    return [
        kept(run.folder / f"look-{epoch}-{views}-{draw}.json", partial(_looked, run, draw, how, epoch, views, begin))
        for epoch, views, begin in asked
    ]


def _looked(run: Run, draw: int, how: How, epoch: int, views: int, begin: int) -> dict[str, Any]:
    """One look, and what the encoder's representations are worth; BatchNorm that has counted nothing goes by the views."""
    net, before = run.network(epoch), run.network(0)

    def made() -> dict[str, float]:  # of what the lower of the two parts of a network gives, on all test images
        found = report(net.get_submodule("0"), *load_data(run.settings), PIPELINES[run.settings.pipeline], run.device)
        return {"knn": round(found["knn"], 4), "rank": round(found["rank"], 3)}

    worth = kept(run.folder / f"worth-{epoch}.json", made)
    x = population(run.settings, draw, how.images, views, begin).to(run.device)
    if epoch == 0:
        settle(net, x.flatten(0, 1))
    there = tuple(layers_of(net))
    first = {name: before.get_parameter(f"{name}.weight").detach() for name in there}
    layers = [name for name in LAYERS if name in there]
    return look_at(net, x, first=first, layers=layers, shared=how.shared, fewer=how.fewer) | worth


def _hundred(seeds: Sequence[int]) -> dict[str, Any]:
    """Looks at the networks of ``training-hundred``, made first, at the same commit; with labels after 20 epochs.

    There is one network of each kind, and a seed draws test images. ``inspected``: what ``sslbook inspect RUN cifar10 --views 16``
    prints of layers of InfoNCE's, and how they stand.
    """
    found = run_values(tuple(HUNDRED), (0, 100), DRAWN, seeds)
    told = run_values((SUPERVISED,), (0, 20), replace(DRAWN, changes=WHOLE), seeds)
    run = Run(RUNS[0], 1, WORKING, "cpu", parts_folder())

    def made() -> dict[str, Any]:
        images, parts = datasets.subset(load_data(run.settings)[1], 32, 0), open_run(run.folder)
        chosen = [name for name in LAYERS if name in layers_of(parts["net"])]
        told = inspect_network(**parts, images=images, layers=chosen, views=16, loss="info_nce")
        clear = [layer for layer in told.layers if layer.clear]
        ahead = [layer.name for layer in clear if layer.outcome == "surely"]
        return {"lines": told.table().splitlines(), "clear": [layer.name for layer in clear], "ahead": ahead}

    inspected = kept(run.folder / "inspected.json", made)
    return {**found, "runs": found["runs"] | told["runs"], "inspected": inspected}


DRAWS = (1, 2, 3, 4, 5)
"""Of test images."""
STUDIES = {
    "training-operator": Study(partial(run_values, RUNS, (0, 5), SHORT), (1, 2, 3, 4)),
    "training-operator-full": Study(partial(run_values, tuple(RELEASED), (0, 100), FULL), DRAWS),
    "training-opened": Study(_hundred, DRAWS),
}
