"""The experiments with many replicas on a GPU that isn't there: trees, tokens and patches, BYOL's ablation, two layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from fake_gpu import GPU, Mixed, fake_gpu
from torch import Tensor

from sslbook.chapters.byol import ablation
from sslbook.chapters.byol import tables as byol_tables
from sslbook.chapters.emergence import two_layer
from sslbook.chapters.hltm import norms
from sslbook.chapters.hltm import tables as trees_tables
from sslbook.chapters.hltm import training as trees
from sslbook.chapters.modulation import patches
from sslbook.chapters.modulation import tables as tokens_tables
from sslbook.chapters.modulation import training as tokens
from sslbook.chapters.modulation.reference import ACTIVATIONS
from sslbook.images import Images
from sslbook.tables.ablation import NAMES

BEFORE = {"trees.latent._check_probabilities": "a tree's tables are checked when it is made"}


# --- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", trees.FORMULAS)
def test_trees_train_without_reading(loss: str) -> None:
    protocol = trees.Protocol(loss=loss, epoch_size=3 * 128)

    def measure(tree: trees.LatentTree, net: trees.TreeNetwork, seeds: object, epoch: int) -> dict[str, Tensor]:
        assert {part.device for part in (*tree.tables, *net.weights, *net.biases)} == {GPU}
        gpu.waits.clear()
        return {}

    with fake_gpu(BEFORE) as gpu:
        trees.train(protocol, range(1, 11), 2, measure, (0, 1), device="cuda")
        assert gpu.waits == []


def test_tables_of_trees() -> None:
    """A-Tab6 in one chunk a protocol; what it measures is read at the end of a measurement."""
    base, allowed = trees.Protocol(epoch_size=128), [*BEFORE, "chapters.hltm.tables.best_correlations"]
    with fake_gpu(allowed) as gpu:
        found = trees_tables.rerun(
            [base], range(1, 11), latents=("s", "s0"), epochs=(0, 1), processes=1, samples=128, device="cuda"
        )
        assert set(gpu.reads) == set(allowed)
    assert {name: values.shape for name, values in found[0].items()} == dict.fromkeys(
        trees_tables.STATISTICS, (2, 10, 2)
    )
    assert found[0]["exact"].device.type == "cpu"


def test_norms_of_trees() -> None:
    with fake_gpu([*BEFORE, "chapters.hltm.norms.operator_norms"]):
        trees.train(trees.Protocol(epoch_size=128), (1, 2), 1, norms.operator_norms, (1,), device="cuda")


# --- tokens and patches ----------------------------------------------------------------------------------------------

ONCE = {
    "chapters.modulation.training.settings_of": "whether all tokens are of length 1, before the first step",
    "chapters.modulation.training._measured": "scores and weights, after the last one",
}


@pytest.mark.parametrize("form", ["released", "printed"])
def test_tokens_train_without_reading(form: str) -> None:
    """Every kind of activation and loss, and every column of Table 1, in one chunk."""
    cells = [tokens.Cell(3, 2, a, *modes, loss=loss, zeta=z) for a in ACTIVATIONS for loss in tokens.REFERENCES
             for z, modes in ((1.0, ("omit", "omit")), (10.0, ("normal", "detach")))]  # fmt: skip
    cells += tokens_tables.curves("C-Tab1").values()
    cells = [replace(cell, patterns=3, beta=2) for cell in cells]
    base = replace({"released": tokens.Protocol(), "printed": tokens.PRINTED}[form], steps=tokens.BLOCK + 2)
    with fake_gpu(["chapters.modulation.training.settings_of"]) as gpu:
        world, state = tokens._start(base, [(cell, 1) for cell in cells], torch.float32, None, "cuda")
        gpu.waits.clear()
        steps = tokens._descent(base, [(cell, 1) for cell in cells], state, world)
        next(steps)
        waits = list(gpu.waits)
        assert {where.split(" < ")[0] for where in waits} <= {"chapters.modulation.network.norms.<locals>.flags"}
        list(steps)
        assert gpu.waits == waits
    assert state.weights.shape == (len(cells), 10, 20, 6)


def test_tables_of_tokens() -> None:
    """C-Tab1's cells of one size, from the command's own function; what comes back lies on the processor."""
    cells = [replace(cell, patterns=3, beta=2) for cell in tokens_tables.curves("C-Tab1").values()]
    with fake_gpu(ONCE) as gpu:
        found = tokens.run(tokens.Protocol(steps=2), cells, (1, 2, 3), keep=True, device="cuda")
        assert gpu.reads.count("chapters.modulation.training.settings_of") == 1
    assert {values.device.type for scores in found.values() for values in scores.values()} == {"cpu"}


def test_filters_of_patches() -> None:
    data = Images(torch.zeros(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64), "nothing")
    with fake_gpu() as gpu:
        found = patches.train_filters(data, patches.PatchProtocol(steps=3, strength=0.5), [1, 2], device="cuda")
        assert found.device == GPU
        assert len(gpu.waits) == 3  # images and first weights


# --- BYOL's ablation -------------------------------------------------------------------------------------------------

MEASURED = {"chapters.byol.ablation._measured": "accuracy, rank and likeness"}
EXTRA = {
    "symmetric, reset": ablation.Cell(2, 0.9, symmetric=True, reset=1, span=(-0.1, 0.1)),
    "one layer, reset": ablation.Cell(1, symmetric=True, reset=1),
    "none": ablation.Cell(0),
}


def byol_run(cells: Mapping[str, ablation.Cell], epochs: int = 1, at: tuple[int, ...] = (1,)) -> list[str]:
    """A step an epoch on CIFAR-10's shapes; where it waited."""
    protocol = replace(byol_tables.CIFAR10, epochs=epochs)

    def images(count: int) -> Images:
        return Images(torch.zeros(count, 3, 32, 32), torch.arange(count) % 10, "nothing")

    with fake_gpu(MEASURED) as gpu:
        ablation.run(
            protocol, cells, (0, 1, 2), ablation.Split(images(protocol.batch), images(50)), at=at, device="cuda"
        )
    return gpu.waits


@pytest.mark.parametrize("name", NAMES)
def test_every_table_of_byol(name: str) -> None:
    byol_run(byol_tables.cells(name, byol_tables.CIFAR10))


def test_every_kind_of_cell_of_byol() -> None:
    """Also a new predictor, and nothing that is waited for but that and what moves before the first step."""
    waits = {where.split(" < ")[0] for where in byol_run(EXTRA, epochs=2, at=(0, 2))}
    assert not {
        where
        for where in waits
        if where.startswith(("chapters.byol.ablation._step", "chapters.byol.ablation._epochs", "chapters.byol.siamese"))
    }


# --- two layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", two_layer.COMPARED)
@pytest.mark.parametrize("normalize", [False, True])
def test_two_layers(loss: str, normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks once a chunk whether every replica has stopped."""
    monkeypatch.setattr(two_layer, "CHUNK", 3)
    with fake_gpu({"chapters.emergence.two_layer.train": "once a chunk, and in the end"}) as gpu:
        found = two_layer.train(range(30), loss, normalize, steps=7, device="cuda")
        assert len(gpu.reads) == 3 + 4
    assert found.end.w1.device.type == found.norms.device.type == "cpu"


# --- faults ----------------------------------------------------------------------------------------------------------


def test_numbers_that_stay_on_the_host_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trees, ablation, patches, two_layer):
        monkeypatch.setattr(module, "to_device", lambda drawn, device: drawn)
    with pytest.raises(Mixed, match="hltm"), fake_gpu(BEFORE):
        trees.train(trees.Protocol(epoch_size=128), (1,), 1, lambda *_: None, (1,), device="cuda")
    with pytest.raises(Mixed, match="byol"):
        byol_run(EXTRA)
    with pytest.raises(Mixed, match="emergence"), fake_gpu(["chapters.emergence.two_layer.train"]):
        two_layer.train((1,), steps=1, device="cuda")


def test_a_step_that_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "to_device", lambda drawn, device: drawn.to(device))
    assert any(
        where.startswith("chapters.byol.ablation._epochs") for where in byol_run(EXTRA) for where in where.split(" < ")
    )
    real = two_layer.gradients
    monkeypatch.setattr(two_layer, "gradients", lambda *parts: [g * float(g.isfinite().all()) for g in real(*parts)])
    with fake_gpu(["chapters.emergence.two_layer.train"]) as gpu:
        two_layer.train((1,), steps=2, device="cuda")
    assert len(gpu.reads) == 1 + 4 + 2 * 2
