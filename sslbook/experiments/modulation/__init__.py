r"""Two-layer networks under contrastive learning: global modulation, Sections 4 and 5 of [tian2023].

instances, theory, reference, checks: random networks, fields and worlds, the formulas, autograd and simulation, the two compared.
many_fields: Theorem 5 followed, for fields that see more noise than class.  network, runs, tables, records: networks trained on
tokens and on images, one step on tables of tokens, Table 1 and the figures.
"""
