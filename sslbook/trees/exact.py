r"""The tree-shaped ReLU network: one small fully connected part :math:`\mathcal N_\mu` for each hidden variable of the tree.

Part :math:`\mu` reads the rectified outputs of its children's parts, the lowest parts read the leaves' values; the root's part
has no rectifier, and its output is divided by its length (Section 6 and Appendix D.1 of [tian2020]).  All replicas and all
parts of a depth are one batched product.  Features stand before samples, ``(R, parts, width, B)``, so that the children's
outputs *are* the parent's input, without a copy.

What it computes on a latent tree is known without sampling: every expectation is a finite sum, passed up the tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sslbook._ambient import anywhere, methods_anywhere
from sslbook._check import require_whole
from sslbook._random import Streams
from sslbook.trees.latent import LatentTree, from_root


@methods_anywhere
@dataclass(frozen=True)
class TreeNetwork:
    """This class holds ``R`` networks on trees of one shape.

    weights: one tensor for each depth, the root's first; ``weights[d]`` is ``(R, nodes at depth d, width, fan-in)``.
    Its last axis lists the children's units, child by child.  biases: tensors ``(R, nodes at depth d, width)``.
    Of these it has ``replicas``, ``R``, ``depth``, the number of layers :math:`L`, and ``width``, the number of a part's units.
    """

    weights: tuple[Tensor, ...] = field(repr=False)
    biases: tuple[Tensor, ...] = field(repr=False)
    replicas: int = field(init=False)
    depth: int = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        vars(self).update(replicas=self.weights[0].shape[0], depth=len(self.weights), width=self.weights[0].shape[2])

    def each(self, change: Callable[[Tensor], Tensor]) -> TreeNetwork:
        """Return the networks with ``change`` of every tensor of weights and biases.

        ``net.each(torch.clone)`` is a copy, ``net.each(lambda part: part[1:2])`` the second network alone.
        """
        return TreeNetwork(tuple(map(change, self.weights)), tuple(map(change, self.biases)))


@anywhere
def initial_network(
    seeds: Sequence[int], branching: Sequence[int], width: int, *, bias: bool = True, dtype: torch.dtype = torch.float32
) -> TreeNetwork:
    r"""Return a network for each seed, with parameters from :math:`U[-1, 1] / \sqrt{\text{fan-in}}`, PyTorch's default.

    branching: the number of a variable's children at each depth, from the root on.
    bias: whether initial biases are drawn; otherwise they start at zero, and training changes them all the same.
    Raises ValueError for a width of 0.

    >>> initial_network([0, 1], branching=(2, 3), width=4)
    TreeNetwork(replicas=2, depth=2, width=4)
    """
    width = require_whole("width", width, least=1)
    streams = Streams(seeds, "weights")
    nodes = list(itertools.accumulate((1, *branching[:-1]), lambda n, b: n * b))
    weights, biases = [], []
    for d, (n, b) in enumerate(zip(nodes, branching)):
        fan_in = b if d == len(branching) - 1 else b * width
        drawn = (2 * streams.uniform((n, width, fan_in + 1), torch.float64) - 1) / fan_in**0.5
        weights.append(drawn[..., :fan_in].to(dtype).contiguous())
        biases.append((drawn[..., fan_in] * bias).to(dtype).contiguous())
    return TreeNetwork(tuple(weights), tuple(biases))


@dataclass(frozen=True)
class Parts:
    r"""All parts of one depth on all patterns of the leaves below them.

    pre: pre-activations :math:`\tilde f`, ``(R, nodes, width, patterns)``; the part above reads ``pre.relu()``.
    given: :math:`\mathbb P(\text{pattern} \mid z_\mu)`, ``(R, nodes, m, patterns)``.
    Patterns are numbered with the first child's as the leading digits.
    """

    pre: Tensor
    given: Tensor


def list_parts(tree: LatentTree, net: TreeNetwork) -> dict[int, Parts]:
    r"""Return by depth, from 1 to the leaves', what the parts above read: the parts of that depth, or the leaves; float64.

    A part sees the leaves below it and nothing else, and given :math:`z_\mu` the subtrees of its children are independent.  So all
    patterns of the leaves below a child are listed once, with its activations and with their probabilities given :math:`z_\nu`.
    With depth 5 and two values these are 65,536 for each half of the tree instead of the :math:`2^{32}` of the whole; the root's
    part needs none (:func:`moments`).

    A child's term in a parent's pre-activation, :math:`W_{\mu\nu} f_\nu`, is worked out once for each of its patterns, and so is
    their probability given :math:`z_\mu`, :math:`P_{\mu\nu} \mathbb P(\cdot \mid z_\nu)`; the parent's patterns are pairs of
    its children's, whose terms add up and whose probabilities multiply.

    Raises ValueError if tree and network differ in shape.
    """
    shape = (tree.replicas, tree.depth, tree.branching)
    fans = tuple(w.shape[3] // (1 if d == net.depth - 1 else net.width) for d, w in enumerate(net.weights))
    if shape != (other := (net.replicas, net.depth, fans)):
        raise ValueError(f"tree and net must have one shape (replicas, depth, branching), got {shape} and {other}")
    r, leaves, m = tree.replicas, tree.nodes[-1], tree.values[-1]
    eye = torch.eye(m, dtype=torch.float64, device=tree.root.device)
    values = torch.arange(m, dtype=torch.float64, device=tree.root.device)
    listed = {tree.depth: Parts(values.expand(r, leaves, 1, m), eye.expand(r, leaves, m, m))}
    for d in range(tree.depth - 1, 0, -1):
        below, b = listed[d + 1], tree.branching[d]
        weight = net.weights[d].double().unflatten(-1, (b, -1)).movedim(-2, 2).flatten(1, 2)
        terms = (weight @ below.pre.relu()).unflatten(1, (-1, b))
        above = (tree.tables[d].double() @ below.given).unflatten(1, (-1, b))
        pre, given = terms[:, :, 0], above[:, :, 0]
        for child in range(1, b):
            pre = (pre[..., None] + terms[:, :, child, :, None]).flatten(-2)
            given = (given[..., None] * above[:, :, child, :, None]).flatten(-2)
        listed[d] = Parts(pre + net.biases[d].double()[..., None], given)
    return listed


@dataclass(frozen=True)
class Moments:
    r"""Conditional moments of one depth's pre-activations given the node's own variable, ``(R, nodes, width, m)`` each.

    mean: :math:`\tilde v_j(z_\mu) = \mathbb E[\tilde f_j \mid z_\mu]`.  variance: :math:`\mathbb V[\tilde f_j \mid z_\mu]`.
    """

    mean: Tensor
    variance: Tensor


def moments(tree: LatentTree, net: TreeNetwork, listed: dict[int, Parts]) -> list[Moments]:
    r"""Return the conditional moments of the pre-activations at every depth, the root's first.

    The root's part has too many patterns; its moments follow from the means and covariances of its children, which are
    independent given the root: the variance of unit ``j`` is
    :math:`\sum_\nu w_{j\nu}^\top \mathrm{Cov}[f_\nu \mid z_0]\, w_{j\nu}`.
    """
    below, b = listed[1], tree.branching[0]
    given, active = tree.tables[0].double() @ below.given, below.pre.relu()  # of the pattern, given the root
    mean = active @ given.transpose(-1, -2)  # (R, children, width, m0)
    centre = mean.mean(-1, keepdim=True)
    centred, offset = active - centre, (mean - centre).movedim(-1, 2)  # (R, children, m0, width)
    second = (centred[:, :, None] * given[:, :, :, None]) @ centred[:, :, None].transpose(-1, -2)
    covariance = second - offset[..., :, None] * offset[..., None, :]
    weight = net.weights[0].double()[:, 0].unflatten(-1, (b, -1)).movedim(-2, 1)  # (R, children, width, units below)
    total = (weight @ mean).sum(1) + net.biases[0].double()[:, 0, :, None]
    variance = torch.einsum("rcwi,rczij,rcwj->rwz", weight, covariance, weight)
    inner = [conditional_moments(listed[d].pre, listed[d].given) for d in range(1, tree.depth)]
    return [Moments(total[:, None], variance[:, None]), *inner]


def conditional_moments(values: Tensor, given: Tensor) -> Moments:
    r"""Return mean and variance, ``(..., width, m)`` each, of ``(..., width, patterns)`` under ``given``, ``(..., m, patterns)``.

    Of rectified units, ``parts.pre.relu()`` under ``parts.given``, the mean is :math:`v_j(z_\mu)` of Table 1 of [tian2020].
    Values are taken about their mean over ``z`` before they are squared, so that a large common part costs no digits.

    >>> chances = torch.tensor([[0.5, 0.5], [0.0, 1.0]])  # of two patterns, given z = 0 and given z = 1
    >>> conditional_moments(torch.tensor([[1.0, 3.0]]), chances)
    Moments(mean=tensor([[2., 3.]]), variance=tensor([[1., 0.]]))
    """
    chance = given.transpose(-1, -2)
    mean = values @ chance
    centre = mean.mean(-1, keepdim=True)
    second = (values - centre).square_() @ chance
    return Moments(mean, (second - (mean - centre).square()).clamp_min(0))


@anywhere
def latent_correlations(tree: LatentTree, net: TreeNetwork, listed: dict[int, Parts] | None = None) -> list[Tensor]:
    r"""Return, for each depth, the correlations ``(R, nodes, width)`` of pre-activations with their latent variables.

    :math:`\operatorname{corr}(\tilde f_j, z_\mu)` of unit ``j`` of part μ, from the root's part to the lowest.  They are exact:
    sums over all values of the leaves.  Units that are constant up to rounding count as uncorrelated.

    listed: what :func:`list_parts` gives, for whoever has it already.
    Raises ValueError if tree and network differ in shape.

    >>> from sslbook.trees.latent import symmetric_binary
    >>> tree = symmetric_binary([torch.full((1, 2), 0.5)])  # a root with two leaves, each like it in 3 of 4 samples
    >>> net = TreeNetwork((torch.ones(1, 1, 1, 2),), (torch.zeros(1, 1, 1),))  # one unit: how many leaves are 1
    >>> latent_correlations(tree, net)  # 2 * 0.5 / sqrt(2 + 2 * 0.5 * 0.5)
    [tensor([[[0.6325]]], dtype=torch.float64)]
    """
    listed = list_parts(tree, net) if listed is None else listed
    found = []
    for product, moment, m in zip(from_root(tree), moments(tree, net, listed), tree.values):
        z = torch.arange(m, dtype=torch.float64, device=product.device)
        prior = torch.einsum("rz,rnzm->rnm", tree.root, product).double()  # P(z) of every node
        z_centred = z - (prior * z).sum(-1, keepdim=True)
        mean = (moment.mean * prior[:, :, None]).sum(-1)
        centred = moment.mean - mean[..., None]
        covariance = (centred * (prior * z_centred)[:, :, None]).sum(-1)
        variance = ((moment.variance + centred.square()) * prior[:, :, None]).sum(-1)
        z_variance = (prior * z_centred.square()).sum(-1)[..., None]
        constant = variance <= (64 * torch.finfo(torch.float64).eps) ** 2 * moment.mean.square().amax(-1)
        found.append(torch.where(constant, 0.0, covariance / (variance * z_variance).sqrt()))
    return found
