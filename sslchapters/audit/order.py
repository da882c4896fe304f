"""Does the operator before training predict in which order a network learns the variables of a tree?

Within one tree and at one depth, how much and how early each part gains correlation with its latent variable is ranked against
what is known before training: the norm of the part's own block of the operator, the rate at which the first gradient makes its
weights grow, and the headroom, that is by how much its correlation falls short of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from sslbook._random import Streams
from sslbook.trees import exact
from sslbook.trees.exact import TreeNetwork
from sslbook.trees.latent import LatentTree
from sslchapters.hltm import theory
from sslchapters.hltm.runs import TreeRun, gradients, minibatches, train_trees
from sslchapters.intervals import Interval, mean_interval
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

LOWER = (0.7, 0.5)
"""Polarities are drawn from here to 1."""
DEPTHS = (1, 2, 3)
TIMES = (0, 1, 2, 3, 4, 6, 8, 10, 16, 20)
"""Epochs of 50 batches."""
PREDICTORS = ("block", "rate", "headroom")


def _measure(run: TreeRun, tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    """``rate``: minus the product of a part's weights with the loss's gradient, of 20 batches, over their square."""
    best = [each.abs().amax(-1) for each in exact.latent_correlations(tree, net)]
    found = {f"correlation {depth}": best[depth] for depth in DEPTHS}
    if epoch == 0:
        listed = exact.list_parts(tree, net)
        total = [torch.zeros_like(weight) for weight in net.weights]
        for leaves in minibatches(tree, Streams(seeds, "first rates"), run.batch, 20, net.weights[0].dtype):
            for sum_, slope in zip(total, gradients(net, leaves, run)[: len(total)], strict=True):
                sum_ += slope / 20
        for depth in DEPTHS:
            names = ["s" + "".join(path) for path in itertools.product("01", repeat=depth)]
            blocks = [theory.expected_connection(tree, net, listed, name) for name in names]
            found[f"block {depth}"] = torch.stack([theory.operator_norm(tree, block) for block in blocks], 1)
            w = net.weights[depth]
            found[f"rate {depth}"] = -(w * total[depth]).sum((2, 3)) / w.square().sum((2, 3))
    return found


def _trained(chunk: Sequence[tuple[float, int]]) -> dict[str, Tensor]:
    run, seeds = TreeRun(lower=chunk[0][0], epoch_size=50 * 128), [seed for _, seed in chunk]
    by_epoch = train_trees(run, seeds, max(TIMES), partial(_measure, run), TIMES)
    found = {name: values for name, values in by_epoch[0].items() if not name.startswith("correlation")}
    for depth in DEPTHS:
        found[f"correlation {depth}"] = torch.stack([by_epoch[epoch][f"correlation {depth}"] for epoch in TIMES], 1)
    return found


def values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by lower polarity, ``block d``, ``rate d`` (seeds, nodes) and ``correlation d`` (seeds, times, nodes)."""
    keep = parts_folder() / "growth-order"
    found = sweep(_trained, LOWER, seeds, alike=lambda low: low, most=lambda low: 20, keep=keep)
    return {
        "times": TIMES,
        "of": {str(low): {name: rounded(x, digits=5) for name, x in of.items()} for low, of in found.items()},
    }


def ranked(of: dict[str, Any], depth: int, outcome: str = "gain") -> dict[str, Interval]:
    """Mean over trees of the rank correlation, within the tree, of each of `PREDICTORS` with the outcome.

    outcome: "gain", the mean gain of correlation over the times of measurement; or "early", minus the time at which half of the
    last gain is reached.  At depth 1, where there are two parts, the correlation is 1 or -1.  Trees without an order are left out.
    """
    course = np.array(of[f"correlation {depth}"])
    gained = course - course[:, :1]
    if outcome == "gain":
        result = gained[:, 1:].mean(1)
    else:
        result = -(gained >= gained[:, -1:] / 2)[:, 1:].argmax(1).astype(float)
    known = {
        "block": np.array(of[f"block {depth}"]),
        "rate": np.array(of[f"rate {depth}"]),
        "headroom": 1 - course[:, 0],
    }
    found = {}
    for name, numbers in known.items():
        pairs = [(x, y) for x, y in zip(numbers, result, strict=True) if np.ptp(x) > 0 and np.ptp(y) > 0]
        found[name] = mean_interval(np.array([stats.spearmanr(x, y).statistic for x, y in pairs]))
    return found


STUDIES = {"growth-order": Study(values, tuple(range(200, 320)))}
