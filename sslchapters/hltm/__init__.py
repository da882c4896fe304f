"""Chapter ``hltm``: what a ReLU network learns from a hierarchical latent tree (:mod:`sslbook.trees`).

``lucky_nodes``: selectivity before training, and what it takes (Theorem 5).  ``runs``: SimCLR on trees, all replicas at once, and
the correlations that are measured.  The papers' tables and curves are in :mod:`sslchapters.audit.hltm`.
"""
