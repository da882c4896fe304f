"""Chapter ``hltm``: what a ReLU network learns from a hierarchical latent tree (:mod:`sslbook.trees`).

``identities``, ``growth``, ``groups``: the theorems.  ``lucky``: selectivity before training.  ``training``: SimCLR on trees, all
replicas at once.  ``tables``, ``norms``: the papers' tables and figures.  ``figures``: what the pictures draw.
"""
