r"""Two-layer networks under contrastive learning: global modulation, Sections 4 and 5 of [tian2023].

instances: also Theorem 5 followed, for fields that see more noise than class.  runs: networks trained on tokens and on images,
one step on tables of tokens.  records: the cells of Table 1 and of the figures, and the networks of the page.
"""
