"""Networks trained on tokens and on quarters of images: the fast step, worlds, scores, crops, filters; Table 1 and the figures."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from sslbook import cli
from sslbook._random import Streams
from sslchapters import records as store
from sslchapters.enumerated import digits
from sslchapters.modulation import instances, records, runs, theory
from sslchapters.modulation.instances import (
    ACTIVATIONS,
    REFERENCES,
    WILDCARD,
    World,
    contrastive_loss,
    crop_boxes,
    draw_pairs,
    make_world,
    on_circle,
    printed_factor,
    random_crops,
    resize_matrices,
    unit_outputs,
)
from sslchapters.modulation.runs import (
    SCORES,
    PatchRun,
    Replica,
    TableCell,
    TokenRun,
    _bytes,
    cosines,
    gradients,
    initial_state,
    likeness,
    living,
    lookups,
    mean_of,
    roughness,
    scores,
    settings_of,
    train_cells,
    train_course,
    train_filters,
    train_tokens,
    world_of,
)

TINY = TokenRun(fields=4, tokens=6, generators=5, fixed=2, outputs=3, batch=9, steps=20)
MODES = ("normal", "detach", "omit")
GROUPS = ("view", "batch")


def embed(world: World, tokens: torch.Tensor) -> torch.Tensor:
    """Vectors of tokens ``(R, ..., K)``: ``(R, ..., K, d)``, of the world's dtype."""
    hot = torch.nn.functional.one_hot(tokens, world.lengths.shape[1]).to(world.lengths)
    return hot * world.lengths.view(len(world.lengths), *(1,) * (tokens.ndim - 1), -1)


def all_kinds() -> list[Replica]:
    kinds = [(kind, activation) for kind in REFERENCES for activation in ACTIVATIONS]
    modes = [(mean, std) for mean in MODES for std in MODES]
    cells = [TableCell(2, 2, a, mean, std, kind, z) for kind, a in kinds for mean, std in modes for z in (1.0, 3.0)]
    return [(cell, seed) for seed, cell in enumerate(cells)]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("form", ["released", "printed"])
def test_a_step_is_that_of_autograd(group: str, form: str) -> None:
    protocol, replicas = replace(TINY, group=group, form=form), all_kinds()
    seeds = [seed for _, seed in replicas]
    world = world_of(protocol, replicas)
    state = initial_state(protocol, seeds, 4, torch.float64)
    tokens = draw_pairs(world, Streams(seeds, "pairs"), protocol.batch, 2)
    look = lookups(tokens, protocol.tokens, group, torch.float64)[1]
    found = gradients(state.weights, state.top, look, settings_of(protocol, replicas, world, torch.float64))
    x = embed(world, tokens[:, 1])
    for r, (cell, _) in enumerate(replicas):
        w, v = (part[r].clone().requires_grad_() for part in (state.weights, state.top))
        z = unit_outputs(x[r], w, v, activation=cell.activation, mean=cell.mean, std=cell.std, group=group)
        for mine, true in zip(found, torch.autograd.grad(contrastive_loss(z, cell.loss, form, protocol.tau), (w, v))):
            assert (mine[r] - true).norm() <= 1e-10 * true.norm(), cell


@pytest.mark.parametrize("group", GROUPS)
def test_a_gpu_sorts_the_samples_as_the_processor_does(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [(TableCell(2, 2), 3), (TableCell(3, 1), 4)]
    tokens = draw_pairs(world_of(TINY, replicas), Streams([3, 4], "pairs"), 9, 3)
    here = lookups(tokens, TINY.tokens, group, torch.float64)
    monkeypatch.setattr(runs, "_sorted_here", runs.sorted_there)
    there = lookups(tokens, TINY.tokens, group, torch.float64)
    for one, two in zip(here, there, strict=True):
        for name in ("rows", "samples", "starts", "shares"):
            assert getattr(one, name).equal(getattr(two, name)), name


def test_printed_losses_are_those_of_distances() -> None:
    z = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = z / z.norm(dim=-1, keepdim=True)
    far, near = 0.5 * torch.cdist(z[0], z[0]).square(), 0.5 * (z[0] - z[1]).square().sum(-1)
    own, tau = torch.eye(8, dtype=torch.bool), 0.3
    weights = (-far / tau).exp().masked_fill(own, 0).sum(-1)
    eq1 = -tau * ((-near / tau).exp() / ((-near / tau).exp() + weights)).log().sum()
    assert contrastive_loss(z, "info_nce", "printed", tau) == pytest.approx(float(eq1), rel=1e-12)
    z.requires_grad_()
    (mine,) = torch.autograd.grad(contrastive_loss(z, "quadratic", "printed", tau), z)
    far, near = 0.5 * (z[0, :, None] - z[0]).square().sum(-1), 0.5 * (z[0] - z[1]).square().sum(-1)
    (true,) = torch.autograd.grad(-(far - near[:, None]).sum() / (2 * 8**2), z)
    part = mine - true  # distances of unit vectors: equal along the sphere
    assert (part - (part * z).sum(-1, keepdim=True) * z).norm() < 1e-12
    assert printed_factor("info_nce", 0.1, 128) == pytest.approx(12.8)


def test_a_replica_trains_as_it_would_alone() -> None:
    """Few steps, since each multiplies what a product of several replicas rounds otherwise than one alone."""
    protocol = replace(TINY, steps=3)
    replicas = [
        *((TableCell(2, 3, "linear", zeta=z), s) for z, s in ((1.0, 4), (5.0, 4))),
        *((TableCell(p, 6 // p, "relu", "detach", "normal"), s) for p, s in ((1, 0), (2, 4), (3, 7))),
        *((TableCell(6, 1, a, "omit", "omit", "quadratic"), 4) for a in ("relu", "sigmoid")),
    ]
    for dtype, bar in ((torch.float32, 1e-3), (torch.float64, 1e-11)):
        together, _ = train_tokens(protocol, replicas, dtype=dtype)
        for r in (0, 3, 5, 6):
            alone, _ = train_tokens(protocol, [replicas[r]], dtype=dtype)
            assert (together.weights[r] - alone.weights[0]).abs().max() <= bar
            assert (together.top[r] - alone.top[0]).abs().max() <= bar
            assert (together.top[r] - together.top[r - 1]).abs().max() > 100 * bar


def test_a_look_on_the_way_changes_nothing() -> None:
    protocol, replicas = replace(TINY, steps=20), [(TableCell(2, 2), 3), (TableCell(2, 2, "linear"), 3)]
    states, world = train_course(protocol, replicas, [0, 7, 20])
    begun, (end, same) = initial_state(protocol, [3, 3], 4), train_tokens(protocol, replicas)
    assert states[0].weights.equal(begun.weights)
    assert states[2].weights.equal(end.weights)
    assert states[2].top.equal(end.top)
    assert states[1].weights.equal(train_tokens(replace(protocol, steps=7), replicas)[0].weights)
    assert world.generators.equal(same.generators)


def test_training_is_that_of_torch() -> None:
    protocol, replica = replace(TINY, steps=40), (TableCell(2, 2, zeta=2.0), 3)
    mine, world = train_tokens(protocol, [replica], dtype=torch.float64)
    begun = initial_state(protocol, [3], 4, torch.float64)
    w, v = (part[0].clone().requires_grad_() for part in (begun.weights, begun.top))
    optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
    tokens = draw_pairs(world, Streams([3], "pairs"), protocol.batch, protocol.steps)
    for x in embed(world, tokens)[0]:
        optimizer.zero_grad()
        z = unit_outputs(x, w, v, activation="relu", mean="normal", std="detach")
        contrastive_loss(z, "info_nce", "released", protocol.tau).backward()
        optimizer.step()
    assert (mine.weights[0] - w).abs().max() < 1e-9, "rounding, which grows from step to step"
    assert (mine.weights[0] - begun.weights[0]).abs().max() > 1e-3


def test_how_cells_are_cut_and_spread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [TableCell(2, 2), TableCell(1, 4, "linear"), TableCell(2, 1, zeta=3.0), TableCell(2, 2)]
    brief = replace(TINY, steps=3)
    whole = train_cells(brief, cells, [5, 2, 5], keep=True)
    assert list(whole) == cells[:3]
    assert whole[cells[0]]["weights"].shape == (3, 4, 6, 4)
    assert whole[cells[0]]["printed +"][0] == whole[cells[0]]["printed +"][2]
    monkeypatch.setattr(runs, "CACHE", 1.0)
    for other in (train_cells(brief, cells, [5, 2, 5]), train_cells(brief, cells, [5, 2, 5], processes=2)):
        for cell in cells:
            for name in SCORES:
                assert (other[cell][name] - whole[cell][name]).abs().max() < 1e-4


def test_worlds() -> None:
    world = make_world([0, 1, 0], [1, 3, 5], zeta=[1.0, 2.0, 10.0])
    assert world.allowed.sum(-1).eq(torch.tensor([1, 3, 5])[:, None]).all()
    assert (world.generators != WILDCARD).sum(-1).eq(5).all()
    assert (world.allowed | ~world.used).all(), "generators fix allowed tokens only"
    assert (world.generators[0] == WILDCARD).equal(world.generators[2] == WILDCARD), "one seed, the same places"
    assert (world.allowed[2] | ~world.allowed[0]).all(), "one seed, nested subsets"
    assert world.lengths[:, [0, 9, 10, 19]].tolist() == [[1, 1, 1, 1], [0.5, 0.5, 2, 2], [0.1, 0.1, 10, 10]]
    counts = make_world(range(40), [3] * 40).used.float().mean((0, 1))
    assert counts.min() > 0.08
    assert counts.max() < 0.22, "every token is as likely, 3 of 20"


def test_positive_pairs_share_a_generator_and_nothing_else() -> None:
    world = make_world([0, 1], [3, 5])
    pairs = draw_pairs(world, Streams([0, 1], "pairs"), 256, 4)
    assert pairs.shape == (2, 4, 2, 256, 10)
    for r in range(2):
        one, two = pairs[r].transpose(0, 1).flatten(1, 2)
        fits = [
            ((g == WILDCARD) | (g == one)).all(-1) & ((g == WILDCARD) | (g == two)).all(-1) for g in world.generators[r]
        ]
        assert torch.stack(fits).any(0).all()
        places = (one != two).float().mean()
        assert places == pytest.approx(0.5 * 19 / 20, abs=0.02), "half of the places are wildcards, drawn anew"
    both = draw_pairs(world, Streams([0, 1], "pairs"), 256, 2)
    assert both.equal(pairs[:, :2]), "streams are read in order"
    x = embed(world, pairs[:, 0])
    assert x.shape == (2, 2, 256, 10, 20)
    assert x.argmax(-1).equal(pairs[:, 0])


def test_one_place_of_a_world_trains_by_itself() -> None:
    protocol, replicas = replace(TINY, steps=5), [(TableCell(2, 2), 3), (TableCell(2, 2), 4)]
    whole = world_of(protocol, replicas)
    cut = whole.place(2)
    assert cut.generators[..., 0].equal(whole.generators[..., 2])
    assert cut.used[:, 0].equal(whole.used[:, 2])
    assert cut.lengths.equal(whole.lengths)
    narrow = replace(protocol, fields=1, fixed=1)
    (begun, end), world = train_course(narrow, replicas, [0, 5], world=cut)
    assert world.generators is cut.generators
    assert begun.weights.shape == (2, 1, 6, 4)
    assert end.weights.equal(train_tokens(narrow, replicas, world=cut)[0].weights)
    assert not end.weights.equal(train_tokens(narrow, replicas)[0].weights), "there each generator fixes the place"


def test_scores_of_known_filters() -> None:
    allowed = torch.zeros(1, 2, 4, dtype=torch.bool)
    allowed[..., :2] = True
    generators = torch.tensor(
        [[[0, WILDCARD], [0, 1]]]
    )  # token 1 of field 0 and token 0 of field 1 are in no generator
    world = World(allowed, generators, torch.ones(1, 4, dtype=torch.float64))
    filters = torch.tensor([[[1.0, 0, 0, 0], [0, 0, 3, 4]], [[0, -2, 0, 0], [0, 0, 0, 0]]], dtype=torch.float64)
    weights = filters.mT[None]  # (R, K, d, M)
    best = torch.tensor([[[1, 0, 0.6, 0.8], [0, 0, 0, 0]]], dtype=torch.float64)
    assert torch.allclose(cosines(weights), best)
    found = scores(weights, world)
    assert {name: round(float(found[name]), 3) for name in SCORES} == {
        "printed +": 0.25,
        "printed -": 0.35,  # the sum over two others, divided by P = 2
        "released +": 0.498,
        "released -": 0.233,
        "signless +": 0.5,
        "signless -": 0.35,
    }
    assert float(found["released +"]) == pytest.approx(0.5 / 1.004), "a thousandth of 4 on a length of 1"
    assert float(found["released -"]) == pytest.approx(7 / 5.004 / 3 / 2)
    assert [float(score) for score in scores(0 * weights, world).values()] == [0.0] * len(SCORES)
    for name in ("signless +", "signless -"):
        assert scores(-weights, world)[name].equal(found[name])
    assert float(scores(weights, world, linear=True)["released +"]) == pytest.approx(1, abs=3e-3)


def test_crops_are_torchs_enlargement_of_the_box() -> None:
    u = torch.rand(200, 10, 4, generator=torch.Generator().manual_seed(0))
    boxes = crop_boxes(u, 28, 0.5)
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 28).all()
    assert (left + width <= 28).all()
    share = height * width / 784
    assert share.min() > 0.45
    assert 0.6 < share.mean() < 0.75, "large boxes fit less often"
    assert (width / height).min() < 0.7
    assert (width / height).max() > 1.3
    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(1))
    for box in boxes[:20].int().tolist():
        part = image[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        true = functional.interpolate(part[None, None], size=(28, 28), mode="bilinear", align_corners=False)[0, 0]
        rows, columns = (
            resize_matrices(torch.tensor(float(box[i])), torch.tensor(float(box[i + 2])), 28) for i in (0, 1)
        )
        assert (rows @ image @ columns.T - true).abs().max() < 1e-5


def test_a_box_that_never_fits_is_the_whole_image() -> None:
    u = torch.zeros(1, 3, 4)
    u[..., 1] = 1 - 1e-6  # all of the area, in the widest shape
    assert crop_boxes(u, 28, 0.5).tolist() == [[0, 0, 28, 28]]
    whole = torch.rand(2, 3, 8, 8)
    assert random_crops(whole, Streams([0, 1], "crops"), 0.0).allclose(whole, atol=1e-6)


def test_training() -> None:
    data = digits(300)
    protocol = PatchRun(beta=1, outputs=8, steps=3, strength=0.3)
    both = train_filters(data, protocol, [3, 5])
    assert both.shape == (2, 4, 10, 4, 4)
    alone = train_filters(data, protocol, [5])
    assert (both[1] - alone[0]).abs().max() < 1e-4, "float32"
    assert (both[0] - both[1]).abs().max() > 0.1
    plain = train_filters(data, replace(protocol, strength=0.0, steps=1), [3])
    assert plain.shape == (1, 4, 10, 4, 4)


def test_recorded_filters() -> None:
    protocol = PatchRun(beta=2, outputs=8, steps=150)
    values = records.filter_values([1, 2], protocol=protocol, data=digits())
    assert torch.tensor(values["filters"]["C-Fig13"]).shape == (4, records.KEPT, 4, 4)
    for name in ("living", "roughness", "likeness"):
        assert {figure: len(found) for figure, found in values[name].items()} == {
            "untrained": 2,
            "C-Fig12": 2,
            "C-Fig13": 2,
        }
    assert values["data"] == "digits"
    for figure, changes in {"untrained": {"steps": 1}, "C-Fig12": {}, "C-Fig13": {"strength": 0.5}}.items():
        found = train_filters(digits(), replace(protocol, **changes), [1, 2]).double()  # type: ignore[arg-type]
        alive = living(found)
        wanted = {"roughness": mean_of(roughness(found), alive), "living": alive.double().mean((1, 2))}
        for name, each in (wanted | {"likeness": likeness(found, alive)}).items():
            assert values[name][figure] == pytest.approx(each.tolist(), abs=6e-5), (figure, name)
        if figure != "untrained":
            sizes = found[0].flatten(2).norm(dim=2).sort(1, descending=True).values[:, : records.KEPT]
            kept = torch.tensor(values["filters"][figure]).flatten(2).norm(dim=2)
            torch.testing.assert_close(kept, sizes.float(), atol=3e-4, rtol=0)


def test_roughness_and_likeness() -> None:
    row = torch.arange(14.0)
    smooth, noise = (row + row[:, None]), torch.randn(14, 14, generator=torch.Generator().manual_seed(0))
    checks = (-1.0) ** (row + row[:, None])
    assert roughness(smooth) < 0.1
    assert 3 < roughness(noise) < 4.5
    assert roughness(checks) > 7
    for shape in (smooth, noise, checks):
        assert float(roughness(shape / 100)) == pytest.approx(float(roughness(shape)), rel=1e-4)
    assert roughness(torch.ones(14, 14)) == 0
    same = smooth.expand(1, 4, 3, 14, 14)
    assert likeness(same).item() == pytest.approx(1)
    assert likeness(torch.eye(9).view(1, 1, 9, 3, 3)).item() == pytest.approx(0)


def test_filters_that_have_faded_do_not_count() -> None:
    draw = torch.Generator().manual_seed(2)
    filters = torch.randn(2, 4, 3, 5, 5, generator=draw)
    filters[0, :2, 1:] = 1e-20
    filters[0, 3] = 0
    alive = living(filters)
    assert alive.sum((1, 2)).tolist() == [5, 12]
    assert alive[0].tolist() == [[True, False, False]] * 2 + [[True] * 3, [False] * 3]
    rough = roughness(filters)
    assert mean_of(rough, alive)[0] == pytest.approx(float(rough[0][alive[0]].mean()))
    alone = filters[:1, 2:3]
    assert likeness(filters, alive)[0] == pytest.approx(float(likeness(alone)))
    assert likeness(filters, alive)[1] == pytest.approx(float(likeness(filters)[1]))
    nobody = torch.zeros(2, 4, 3, dtype=torch.bool)
    assert likeness(filters, nobody).tolist() == [0, 0]


def test_cells_of_every_table() -> None:
    counts = {name: len(records.cells(name)) for name in records.NAMES}
    assert counts == {"C-Tab1": 64, "C-Fig4": 64, "C-Fig9": 80, "C-Fig10": 80, "C-Fig11": 96, "C-Fig5": 2}
    for name in records.NAMES:
        for (beta, p, label), cell in records.cells(name).items():
            assert (cell.beta, cell.patterns) == (beta, p)
            assert cell == replace(records.curves(name)[label], beta=beta, patterns=p)
    assert records.cells("C-Tab1")[2, 3, "μ̸, σ"] == TableCell(3, 2, mean="detach", std="normal", zeta=10.0)
    assert records.cells("C-Fig11")[5, 1, "no BN, ζ = 5"] == TableCell(1, 5, mean="omit", std="omit", zeta=5.0)
    assert set(records.cells("C-Fig4").values()) <= {
        *records.cells("C-Fig9").values(),
        *records.cells("C-Fig10").values(),
    }


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of two minibatches and two sizes each way, made by one process."""
    monkeypatch.setattr(records, "VARIANTS", {name: replace(run, steps=2) for name, run in records.VARIANTS.items()})
    monkeypatch.setattr(records, "cores", lambda: 1)
    monkeypatch.setattr(records, "parts_folder", lambda: tmp_path)
    monkeypatch.setattr(records, "BETAS", (1, 2))
    monkeypatch.setattr(records, "PATTERNS", (1, 3))


@pytest.mark.usefixtures("short")
def test_recorded_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(records, "NAMES", ("C-Tab1", "C-Fig4", "C-Fig5"))
    kept = json.loads(json.dumps(records.table_values([1, 2])))
    assert list(kept["tables"]["C-Tab1"]) == list(records.VARIANTS)
    assert list(kept["tables"]["C-Fig4"]) == ["released"]
    found = records.recorded_trials(kept, "C-Fig4", "released", "printed +")
    assert found.shape == (2, 2, 4, 2)
    cell = records.cells("C-Fig4")[2, 3, "relu, quadratic loss"]
    alone = train_cells(replace(TokenRun(), steps=2), [cell], [1, 2])[cell]["printed +"]
    assert (found[1, 1, 3] - alone).abs().max() < 1e-4
    assert torch.tensor(kept["weights"]["relu"]).shape == (10, 8, 15)
    assert torch.tensor(kept["allowed"]).sum() == 30
    with pytest.raises(ValueError, match="variant must be one of released for C-Fig4, got 'printed'"):
        records.recorded_trials(kept, "C-Fig4", "printed", "printed +")
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path)
    store.save_record("modulation-tables", kept, seeds=[1, 2], seconds=1)
    assert cli.main(["table", "C-Fig4"]) == 0
    shown = capsys.readouterr().out
    assert "experiment released; scores released; 2 seeds: 1 2." in shown
    assert "Recorded: " in shown
    assert cli.main(["table", "C-Fig5"]) == 0
    assert "linear, R9" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["table", "C-Fig4", "--variant", "printed"])
    assert "variant must be one of" in capsys.readouterr().err


@pytest.mark.usefixtures("short")
def test_more_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(json.dumps(records.seed_values([1, 2])))
    assert {name: torch.tensor(kept["released +"]).shape for name, kept in made["tables"].items()} == {
        "C-Tab1": (2, 2, 4, 2),
        "C-Fig11": (2, 2, 6, 2),
        "C-Fig9": (1, 1, 5, 2),
        "C-Fig10": (1, 1, 5, 2),
    }
    assert made["betas"]["C-Fig9"] == [2]
    assert made["patterns"]["C-Tab1"] == [1, 3]
    monkeypatch.setattr(records, "NAMES", ("C-Tab1", "C-Fig9", "C-Fig11"))
    three = records.table_values([1, 2])
    for name, wide in (("C-Tab1", False), ("C-Fig11", False), ("C-Fig9", True)):
        same = records.recorded_trials(json.loads(json.dumps(three)), name, "released", "released +")
        same = same[1:, 1:] if wide else same
        more = torch.tensor(made["tables"][name]["released +"], dtype=torch.float64)
        assert (more - same).abs().max() < 2e-4, "as the record with three seeds"
    first = json.loads(json.dumps(three))
    for name, shape in (("C-Fig9", (1, 1, 5, 4)), ("C-Fig11", (2, 2, 6, 4))):
        both = records.all_trials(first, made, name, "released +")
        assert both.shape == shape
        assert (both[..., :2] - both[..., 2:]).abs().max() < 2e-4, "the same seeds twice, in the same places"
    monkeypatch.setattr(runs, "train_tokens", None)
    assert records.seed_values([1, 2])["tables"] == made["tables"], "kept, not made again"


@pytest.mark.usefixtures("short")
def test_many_seeds_of_what_few_leave_open() -> None:
    made = json.loads(json.dumps(records.contested_values([1, 2])))
    assert {name: torch.tensor(kept).shape for name, kept in made["tables"].items()} == {
        "C-Fig10": (1, 3, 2),
        "C-Fig11": (1, 2, 2),
    }
    cell = records.cells("C-Fig10")[2, 3, "relu"]
    alone = train_cells(replace(TokenRun(), steps=2), [cell], [1, 2])[cell]["released +"]
    assert (torch.tensor(made["tables"]["C-Fig10"])[0, 1] - alone).abs().max() < 1e-4


def test_the_pages_networks_and_those_alone_are_the_recorded_ones() -> None:
    made, begun = store.recorded("modulation-page"), store.plain(records.page_values(range(11, 17), moments=(0,)))
    assert len(made["dead"]) == len(made["share"]) == sum(made["counts"]) == 22
    alone = store.plain(records.alone_values(range(31, 51), steps=1))
    for name in SCORES:
        assert made["scores"][0][name] == pytest.approx(begun["scores"][0][name], rel=1e-6)
        assert store.recorded("modulation-alone")["before"][name] == pytest.approx(alone["before"][name], rel=1e-6)
    few = records.page_values([5, 6], counts=(2, 1, 1, 1, 1), moments=(0, 3))
    replicas = [(records.KINDS[kind], seed) for kind, seed in (("ReLU", 5), ("ReLU", 6), ("linear", 5))]
    (end,), _ = train_course(TokenRun(steps=3), replicas, [3])
    values = torch.linalg.svdvals(end.top.double().flatten(1, 2)).square()
    assert few["share"][:3].tolist() == pytest.approx((values.amax(1) / values.sum(1)).tolist(), rel=1e-4)
    assert few["dead"][:3].tolist() == (end.weights <= 0).all(2).double().mean((1, 2)).tolist()


def test_the_command_runs_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["table", "C-Tab1", "--run", "--steps", "1", "--seeds", "1", "2", "--processes", "1"]
    assert cli.main(line) == 0
    shown = capsys.readouterr().out
    assert "minibatches 1; " in shown
    assert "on the CPU in 1 process." in shown
    assert "0.31±0.24 | " in shown
    assert "Difference from the paper's means:" in shown
    assert cli.main([*line, "--json", "--variant", "printed"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["facts"]["experiment"] == "printed"
    assert len(content["cells"]) == 64
    assert set(content["cells"][0]["found"]) == set(SCORES)
    assert len(content["cells"][0]["found"]["printed +"]) == 2
    assert content["cells"][0]["printed"] == {"mean": 0.31, "std": 0.24}


def test_the_command_shows_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "C-Fig5", "--run", "--steps", "1", "--processes", "1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["axes"]["activations"] == ["relu", "linear"]
    assert len(content["cells"][0]["found"]["filters"]) == 15
    for bad in (["--seeds", "1", "2", "--run"], ["--processes", "0", "--run"], ["--variant", "other"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["table", "C-Fig5", *bad])
        assert stopped.value.code == 2
    capsys.readouterr()


def test_the_settings_are_those_of_the_released_code() -> None:
    released = (10, 20, 40, 5, 50, 128, 5000, 0.02, 0.9, 5e-3, 0.1, "view", "released")
    assert astuple(TokenRun()) == released


def test_memory_of_a_replica() -> None:
    """Of 10 fields of 20 tokens, 10 filters, 128 images and 50 outputs, in float32."""
    weights, tables_, pairs, outputs = 3 * 10 * 10 * (20 + 50), 8 * 10 * 20 * 10, 3 * 128**2, 6 * 128 * 50
    assert _bytes(TokenRun(), 10) == 4 * (weights + tables_ + pairs + outputs + 2 * 10 * 20 * 50)


def test_weights_are_in_units_of_the_fields_largest() -> None:
    fields = [[[1.0, 2.0], [0.5, -4.0]], [[-3.0, -1.0], [0.0, 0.0]]]
    found = records._weights({"relu": fields}, [[True, False], [False, True]])
    assert found.axes == {"activations": ("relu",), "fields": ("R0", "R1"), "tokens": ("0", "1")}
    shown = {entry.at[1:]: (entry.found["largest"], entry.found["filters"], entry.note) for entry in found.entries}
    assert shown == {
        ("R0", "0"): ([1.0], [1.0, 2.0], "*"),
        ("R0", "1"): ([0.25], [0.5, -4.0], ""),
        ("R1", "0"): ([-1.0], [-3.0, -1.0], ""),
        ("R1", "1"): ([0.0], [0.0, 0.0], "*"),
    }
    (dead,) = records._weights({"relu": [[[0.0]]]}, [[False]]).entries
    assert dead.found["largest"] == [0.0], "and no division by zero"


def test_starts_on_the_circle_end_on_their_side_of_the_edge() -> None:
    unit, _ = theory.edge_of_two(0.5, 2.0)
    assert theory.edge_of_two(1.0, 2.0)[0] == pytest.approx(math.pi / 2)
    around, won = on_circle(0.5, 2.0)
    assert (won[(around > 0) & (around < 1.5)] == (around[(around > 0) & (around < 1.5)] > unit).int()).all()
    assert (won[(around > 3.2) & (around < 4.6)] == -1).all(), "both components negative"


def test_a_step_of_the_crowd_climbs_the_largest_eigenvalue() -> None:
    w = instances.random_filters(5, 4, 0).requires_grad_()
    d, b = (torch.tensor(instances.WITHIN, dtype=torch.float64) * w.square()).sum(-1), w[..., 1]
    spread = torch.diag_embed(d) + instances.PQ * b[..., None] * b[..., None, :]
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(spread)[..., -1].sum() / 2, w)
    w = w.detach()
    stepped = torch.nn.functional.normalize(w + 0.5 * slope, dim=-1)
    assert torch.allclose(instances.turned(w), stepped, atol=1e-12)
    assert not torch.allclose(instances.turned(w, "deaf"), stepped, atol=1e-3)
    assert not torch.allclose(instances.turned(w, "printed"), stepped, atol=1e-3)
    alone = instances.random_filters(5, 1, 0)
    assert torch.allclose(instances.turned(alone), instances.turned(alone, "deaf"), atol=1e-12), (
        "nobody else to listen to"
    )
