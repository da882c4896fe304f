"""The norm curves: what is measured, where, and how it is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sslbook import records
from sslbook.chapters.hltm import norms, recorded, tree_operator
from sslbook.chapters.hltm.kinds import random_symmetric
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.network import initial_network

TINY = replace(norms.BASE, batch=32, epoch_size=64)


def test_seven_cells() -> None:
    cells = norms.cells()
    assert list(cells) == ["base", "depth 3", "depth 4", "lower 0.7", "lower 0.9", "width 2", "width 5"]
    assert cells["base"] == norms.BASE
    for name, protocol in cells.items():
        if name != "base":
            factor, value = name.split()
            assert str(getattr(protocol, factor)) == value
            assert replace(protocol, **{factor: getattr(norms.BASE, factor)}) == norms.BASE


def test_every_width_under_the_printed_loss() -> None:
    cells = norms.printed_loss()
    assert list(cells) == ["width 2", "width 5", "width 10"]
    assert replace(cells["width 10"], loss="released") == norms.BASE
    assert cells["width 2"] == replace(norms.BASE, loss="printed", width=2)


@pytest.mark.parametrize(("depth", "parts"), [(3, ["s0", "s1"]), (4, ["s0", "s1", "s010"]), (5, list(norms.PARTS))])
def test_parts_that_a_tree_lacks_are_left_out(depth: int, parts: list[str]) -> None:
    tree = random_symmetric([0, 1], depth, 0.7)
    net = initial_network([0, 1], tree.branching, 2)
    found = norms.operator_norms(tree, net, [0, 1], 0)
    assert list(found) == [f"{part}{kind}" for part in parts for kind in ("", " released", " weights", " children")]
    assert all(values.shape == (2,) for values in found.values())
    listed = exact.list_parts(tree, net)
    for part in parts:
        connection = tree_operator.expected_connection(tree, net, listed, part)
        assert found[part].equal(tree_operator.operator_norm(tree, connection))
        assert found[f"{part} released"].equal(tree_operator.operator_norm(tree, connection, "units"))
        level, index = trees.place(tree, part)
        a = tree_operator.child_selectivity(tree, listed, level)[:, index]
        theorem = norms.reach(replace(TINY, depth=depth, lower=0.7), [0, 1], part) * a.square().sum(-1)
        assert (found[f"{part} children"] - theorem).abs().max() < 1e-12  # Theorem 6; a fair root
    assert found["s1 weights"][1] == pytest.approx(float(net.weights[1][1, 1].double().norm()))


def test_curves_of_a_tiny_run() -> None:
    protocols = {name: p for name, p in norms.cells(replace(TINY, depth=4, width=3)).items() if "depth" in name}
    curves = norms.curves(protocols, [1, 2, 3], (0, 1, 2), processes=1)
    assert set(curves) == {"depth 3", "depth 5"}
    assert {part for part in curves["depth 3"] if " " not in part} == {"s0", "s1"}
    for found in curves.values():
        for values in found.values():
            assert values.shape == (3, 3)
            assert values.isfinite().all()
        assert (found["s0 weights"][2] - found["s0 weights"][0]).abs().max() > 0


def test_the_record_of_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "FACTORS", {"depth": (3,), "width": (2,)})
    base = replace(TINY, depth=4, width=3)
    values = records.plain(recorded.norm_values([1, 2], base=base, epochs=(0, 1), processes=1))
    assert list(values["cells"]) == ["base", "depth 3", "width 2"]
    assert values["epochs"] == [0, 1]
    curves = norms.curves({"base": base}, [1, 2], (0, 1), processes=1)["base"]
    for part, wanted in curves.items():
        found = torch.tensor(values["cells"]["base"][part]).double()
        assert found.shape == (2, 2)
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_the_record_under_the_printed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "FACTORS", {"width": (2, 3)})
    base = replace(TINY, depth=2)
    values = records.plain(recorded.printed_norm_values([1, 2], base=base, epochs=(0, 1), processes=1))
    assert list(values["cells"]) == ["width 2", "width 3"]
    released = norms.curves({"it": replace(base, width=3)}, [1, 2], (0, 1), processes=1)["it"]["s0"]
    found = torch.tensor(values["cells"]["width 3"]["s0"]).double()
    assert (found[0] - released[0]).abs().max() <= 1e-5 * released[0].max()
    assert (found[1] - released[1]).abs().max() > 1e-4 * released[1].max()


def test_records_were_made_with_the_sizes_that_stand_in_the_code() -> None:
    assert records.recorded("hltm-norms")["epochs"] == list(norms.EPOCHS)
    assert records.recorded("hltm-tables")["untrained"]["trials"] == recorded.UNTRAINED
