"""Chapter ``hltm``: what a ReLU network learns from a hierarchical latent tree (:mod:`sslbook.trees`).

``tree_models``: the trees that are drawn.  ``theory``: a part's block of the operator.  ``checks``: the theorems.  ``lucky_nodes``:
selectivity before training.  ``runs``: SimCLR on trees, all replicas at once.  ``tables``, ``norms``: the papers' tables and
figures; ``records``: what is kept of them.  ``drawing``: the pictures.
"""
