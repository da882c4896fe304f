r"""Chapter ``hltm``: what a ReLU network learns from a hierarchical latent tree.

``trees``: categorical latent trees, their kinds, sampling.  ``network``: the tree-shaped ReLU network.  ``exact``: every
conditional expectation, correlation and covariance operator as a finite sum.  ``lucky``: selectivity before training.
``training``: SimCLR on trees, all replicas at once.  ``tables``, ``norms``: the papers' tables and figures.
"""

from sslbook.hltm.network import TreeNetwork, forward, initial_network
from sslbook.hltm.training import Protocol, train
from sslbook.hltm.trees import (
    LatentTree,
    random_categorical,
    random_polarities,
    random_regularized,
    random_symmetric,
    sample,
    symmetric_binary,
)

__all__ = [
    "LatentTree",
    "Protocol",
    "TreeNetwork",
    "forward",
    "initial_network",
    "random_categorical",
    "random_polarities",
    "random_regularized",
    "random_symmetric",
    "sample",
    "symmetric_binary",
    "train",
]
